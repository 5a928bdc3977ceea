// A JSON Schema document taken apart: which plain conditions (keywords on one value) hold together
// once references, allOf, anyOf and oneOf are resolved. Internal to json_schema.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace heddle::engine::grammar {

using Json = nlohmann::ordered_json;

// A schema of the document; identity is the address.
using SchemaRef = const Json*;

// Schemas that hold together, without doubles; the order decides on that of properties only.
// Empty: everything is valid.
using Conjunction = std::vector<SchemaRef>;

class SchemaDocument {
 public:
  // `root` outlives the document.
  explicit SchemaDocument(const Json* root) : root_(root) { paths_.emplace(root, "#"); }

  SchemaRef root() const { return root_; }

  // Alternatives of conjunctions whose own $ref, allOf, anyOf and oneOf are resolved: a value is
  // valid by `conjunction` if it is by one of them. None: nothing is valid.
  // `exclusive_pairs`: pairs of conjunctions that a oneOf demands to be disjoint.
  struct Alternatives {
    std::vector<Conjunction> any;
    struct Pair {
      Conjunction a, b;
      SchemaRef one_of;  // the schema with the keyword
    };
    std::vector<Pair> exclusive_pairs;
  };
  absl::StatusOr<Alternatives> Expand(const Conjunction& conjunction);

  // Registers where a schema of the document stands. `child` is inside `parent`.
  SchemaRef Child(SchemaRef parent, std::string_view keyword, const Json& child);
  SchemaRef Child(SchemaRef parent, std::string_view keyword, std::string_view name,
                  const Json& child);
  const std::string& PathOf(SchemaRef schema) const { return paths_.at(schema); }
  // INVALID_ARGUMENT with the place.
  absl::Status Error(SchemaRef schema, std::string_view message) const;

 private:
  absl::Status ExpandInto(Conjunction rest, Conjunction plain, int depth, Alternatives* out);
  absl::StatusOr<SchemaRef> Resolve(SchemaRef schema, const std::string& reference);
  absl::StatusOr<std::vector<SchemaRef>> Members(SchemaRef schema, std::string_view keyword);
  absl::Status CheckKeywords(SchemaRef schema) const;

  const Json* root_;
  std::map<SchemaRef, std::string> paths_;
};

// `conjunction` with `more` at its end, unless it is in there.
Conjunction With(Conjunction conjunction, SchemaRef more);

}  // namespace heddle::engine::grammar
