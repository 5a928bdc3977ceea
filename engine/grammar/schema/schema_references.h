// Finds what a JSON Schema's references point at: JSON pointers, anchors, and the identifiers
// ($id) of schemas that are embedded in the document. Nothing is ever loaded from elsewhere.
// Internal to json_schema.
//
// Sources: json-schema.org/draft/2020-12/json-schema-core, sections 8.2 and 9.2; RFC 3986,
// section 5.2, without queries.
// Thread-safety: none.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "engine/grammar/budget.h"
#include "nlohmann/json.hpp"

namespace heddle::engine::grammar {

using Json = nlohmann::ordered_json;

class SchemaReferences {
 public:
  // Both outlive the references.
  SchemaReferences(const Json* root, Budget* budget) : root_(root), budget_(budget) {}

  struct Target {
    const Json* schema = nullptr;  // null: the reference points at nothing of this document
    std::string path;              // for messages
  };
  // `from`: the schema with the reference. Also null if the budget is over.
  Target Find(const Json* from, std::string_view reference);

  // Returns the target that `keyword` means: for $dynamicRef and $recursiveRef the
  // schema of the document's root with the same dynamic anchor, if there is one, since every
  // evaluation begins at the root. Dynamic anchors of schemas between the two are not looked for.
  Target Outermost(std::string_view keyword, std::string_view reference, Target target) const;

 private:
  struct Resource {
    const Json* root;
    std::string path;
  };

  void MakeIndex();
  void Index(const Json& value, std::string base, std::string* path);
  void IndexNames(const Json& schema, std::string* base, const std::string& path);
  Target FindIn(const Resource& resource, const std::string& base, std::string_view fragment);

  const Json* const root_;
  Budget* const budget_;
  bool is_indexed_ = false;
  bool has_old_ids_ = false;                                // "id" is what "$id" is since draft 6
  std::map<std::string, Resource, std::less<>> by_id_;      // by the absolute identifier
  std::map<std::string, Resource, std::less<>> by_anchor_;  // by identifier#anchor
  absl::flat_hash_map<const Json*, std::string> base_of_;   // of schemas that embedded ones hold
  std::string root_base_;
};

// One step of a JSON pointer.
std::string EscapePointer(std::string_view name);

}  // namespace heddle::engine::grammar
