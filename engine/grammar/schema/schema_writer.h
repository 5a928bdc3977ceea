// Writes the rules of a JSON Schema. Internal to json_schema.
#pragma once

#include <compare>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/machine_builder.h"
#include "engine/grammar/schema/json_schema.h"
#include "engine/grammar/schema/schema_expander.h"
#include "engine/grammar/schema/value_constraints.h"
#include "engine/grammar/signature.h"

namespace heddle::engine::grammar {

// A position of an object between two members: a state of its automaton.
struct Place {
  size_t property = 0;  // index of the next listed one
  int32_t listed = 0;   // listed ones written, up to the cap
  int32_t extras = 0;   // others written, up to the cap
  auto operator<=>(const Place&) const = default;
};

class SchemaWriter {
 public:
  // All outlive the writer.
  SchemaWriter(SchemaDocument* document, const JsonOptions& options, Grammar* grammar)
      : document_(*document), options_(options), grammar_(*grammar) {}

  // The rule of the document's root, with all rules that it needs.
  absl::StatusOr<RuleId> Run();

 private:
  struct Unwritten {
    Conjunction schema;
    RuleId rule;
  };
  struct ObjectMachine;
  class Containing;

  RuleId RuleFor(const Conjunction& schema);
  absl::Status WriteRule(const Unwritten& next);
  absl::StatusOr<ExprId> ValueOf(const ValueConstraints& constraints);
  absl::StatusOr<ExprId> EnumOf(const ValueConstraints& constraints);
  absl::StatusOr<ExprId> NumberOf(const ValueConstraints& constraints);
  absl::StatusOr<ExprId> StringOf(const ValueConstraints& constraints);
  absl::StatusOr<std::optional<ExprId>> GrammarOf(const ValueConstraints& constraints,
                                                  bool is_quoted);
  absl::StatusOr<ExprId> ArrayOf(const ValueConstraints& constraints);
  absl::StatusOr<Containing> ContainingOf(const ValueConstraints& constraints);
  absl::StatusOr<ExprId> ItemsOf(const ValueConstraints& constraints);
  absl::StatusOr<ExprId> SetOf(const ValueConstraints& constraints,
                               const std::vector<Json>& values);
  absl::StatusOr<ExprId> OrderedSetOf(const ValueConstraints& constraints,
                                      const std::vector<Json>& values);
  ExprId Distinct(const ValueConstraints& constraints, ExprId body);
  ExprId Nothing(const ValueConstraints& constraints, std::string_view why);
  absl::StatusOr<ExprId> ObjectOf(const ValueConstraints& constraints, bool in_form = false);
  absl::StatusOr<ExprId> SharedObjectOf(const ValueConstraints& constraints);
  absl::Status WriteForm(RuleId rule);
  absl::StatusOr<RuleId> RawString(const Conjunction& schema);
  absl::StatusOr<std::vector<ObjectConstraints::Property>> ListedProperties(
      const ValueConstraints& constraints);
  int32_t BeginMember(const Place& place, ObjectMachine* object) const;
  absl::Status WriteListed(const Place& place, ObjectMachine* object);
  void WriteOthers(const Place& place, ObjectMachine* object);
  absl::StatusOr<StateMachine> KeysOf(const ValueConstraints& constraints,
                                      const ObjectConstraints::Extra& extra);
  absl::Status AddExtra(const ValueConstraints& constraints, const ObjectConstraints::Extra& extra,
                        ObjectMachine* object);
  absl::StatusOr<RuleId> ExtraMember(const ValueConstraints& constraints,
                                     const ObjectConstraints::Extra& extra,
                                     const StateMachine* keys);
  absl::StatusOr<StateMachine> KeyMachine(const Conjunction& names);
  absl::Status RestrictKeys(const ValueConstraints& constraints, StateMachine* keys);
  absl::Status WriteWhitespace();
  void Whitespace(MachineBuilder* machine, int32_t from, int32_t to) const;
  Budget* budget() const { return document_.budget(); }
  absl::Status At(const ValueConstraints& constraints, const absl::Status& status) const;

  SchemaDocument& document_;
  const JsonOptions& options_;
  Grammar& grammar_;
  RuleId whitespace_{-1};
  RuleId string_{-1};
  RuleId special_character_{-1};
  std::map<Conjunction, RuleId> rules_;             // by the sorted conjunction
  absl::flat_hash_map<Signature, RuleId> objects_;  // large ones, by what they depend on
  std::deque<Unwritten> unwritten_;
  std::string note_;  // why the rule that is being written derives nothing, as far as it is known
};

}  // namespace heddle::engine::grammar
