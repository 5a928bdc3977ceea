// A JSON Schema document: its schemas by address, their places, what references point at, and
// schemas that are made while conditions are combined. Internal to json_schema.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/grammar/budget.h"
#include "engine/grammar/schema/schema_references.h"
#include "engine/grammar/state_machine.h"
#include "nlohmann/json.hpp"

namespace heddle::engine::grammar {

class FactsOfSchemas;

// A schema of the document, or one that was made; identity is the address.
using SchemaRef = const Json*;

// Schemas that all hold, without duplicates; their order only determines that of properties. Empty:
// everything is valid.
using Conjunction = std::vector<SchemaRef>;

class SchemaDocument {
 public:
  // All outlive the document. What is not supported is an error, unless `dropped` is given: then it
  // is left out, and `dropped` gets the message.
  SchemaDocument(const Json* root, Budget* budget, std::vector<std::string>* dropped = nullptr);
  SchemaDocument(const SchemaDocument&) = delete;
  SchemaDocument& operator=(const SchemaDocument&) = delete;
  ~SchemaDocument();

  SchemaRef root() const { return root_; }
  Budget* budget() const { return budget_; }

  // Registers the place of a schema in the document. `child` is inside `parent`.
  SchemaRef Child(SchemaRef parent, std::string_view keyword, const Json& child);
  SchemaRef Child(SchemaRef parent, std::string_view keyword, std::string_view name,
                  const Json& child);
  // The target of a reference; null if it is unsupported and was dropped.
  absl::StatusOr<SchemaRef> Resolve(SchemaRef schema, std::string_view keyword,
                                    const Json& reference);

  // A schema with this content, at the place of `origin`; the same address for the same content.
  SchemaRef Make(const Json& content, SchemaRef origin);
  // Whether Make made it: then it says what values are not, and nothing about what type is meant.
  bool IsMade(SchemaRef schema) const { return is_made_.contains(schema); }
  // Content for Make that stands for `schema`.
  Json Link(SchemaRef schema);
  // A schema for which exactly those values are valid that `schema` refuses.
  SchemaRef Not(SchemaRef schema, SchemaRef origin);

  // The texts in which a pattern is found, parsed once. The reference stays valid.
  const absl::StatusOr<StateMachine>& Pattern(const std::string& pattern);

  FactsOfSchemas& facts() { return *facts_; }

  // The place for messages; long names and deep places are cut.
  const std::string& PathOf(SchemaRef schema) const { return paths_.at(schema); }
  // INVALID_ARGUMENT with the place.
  absl::Status Error(SchemaRef schema, std::string_view message) const;
  // Error for what is not supported; OK if it is to be dropped.
  absl::Status Unsupported(SchemaRef schema, std::string_view message);

 private:
  SchemaRef Place(SchemaRef parent, std::string_view keyword, std::string_view name,
                  const Json& child);
  SchemaRef LinkedTo(const Json& schema) const;

  const Json* root_;
  Budget* const budget_;
  std::vector<std::string>* const dropped_;
  SchemaReferences references_;
  absl::flat_hash_map<SchemaRef, std::string> paths_;
  std::deque<Json> made_;
  std::map<std::string, SchemaRef> made_by_text_;
  absl::flat_hash_map<SchemaRef, size_t> is_made_;  // index in made_
  std::map<std::string, absl::StatusOr<StateMachine>> patterns_;
  std::vector<SchemaRef> links_;
  absl::flat_hash_map<SchemaRef, size_t> link_of_;  // index in links_
  std::unique_ptr<FactsOfSchemas> facts_;
};

// The object with one member.
Json ObjectOf(const char* name, Json value);

// `conjunction` with `more` appended, unless it contains it.
Conjunction With(Conjunction conjunction, SchemaRef more);

}  // namespace heddle::engine::grammar
