// Resolves a JSON Schema document: which plain conditions (keywords on one value) hold together
// once references, allOf, anyOf and oneOf are resolved. Internal to json_schema.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/budget.h"
#include "nlohmann/json.hpp"

namespace heddle::engine::grammar {

using Json = nlohmann::ordered_json;

// A schema of the document; identity is the address.
using SchemaRef = const Json*;

// Schemas that all hold, without duplicates; their order only determines that of properties. Empty:
// everything is valid.
using Conjunction = std::vector<SchemaRef>;

class SchemaDocument {
 public:
  // Both outlive the document.
  SchemaDocument(const Json* root, Budget* budget) : root_(root), budget_(budget) {
    paths_.emplace(root, "#");
  }

  SchemaRef root() const { return root_; }
  Budget* budget() const { return budget_; }

  // Alternatives of conjunctions whose own $ref, allOf, anyOf and oneOf are resolved: a value is
  // valid by `conjunction` if it is valid by one of them. With no alternatives nothing is valid.
  // `exclusive_pairs` are pairs of conjunctions that a oneOf requires to be disjoint.
  struct Alternatives {
    std::vector<Conjunction> any;
    struct Pair {
      Conjunction a, b;
      SchemaRef one_of;  // the schema with the keyword
    };
    std::vector<Pair> exclusive_pairs;
  };
  absl::StatusOr<Alternatives> Expand(const Conjunction& conjunction);

  // Registers the place of a schema in the document. `child` is inside `parent`.
  SchemaRef Child(SchemaRef parent, std::string_view keyword, const Json& child);
  SchemaRef Child(SchemaRef parent, std::string_view keyword, std::string_view name,
                  const Json& child);
  // The place for messages; long names and deep places are cut.
  const std::string& PathOf(SchemaRef schema) const { return paths_.at(schema); }
  // INVALID_ARGUMENT with the place.
  absl::Status Error(SchemaRef schema, std::string_view message) const;

 private:
  absl::Status ExpandInto(Conjunction rest, Conjunction plain, int depth, Alternatives* out);
  absl::StatusOr<SchemaRef> Resolve(SchemaRef schema, const std::string& reference);
  absl::StatusOr<std::vector<SchemaRef>> Members(SchemaRef schema, std::string_view keyword);
  absl::Status CheckKeywords(SchemaRef schema) const;

  const Json* root_;
  Budget* const budget_;
  std::map<SchemaRef, std::string> paths_;
};

// `conjunction` with `more` appended, unless it contains it.
Conjunction With(Conjunction conjunction, SchemaRef more);

}  // namespace heddle::engine::grammar
