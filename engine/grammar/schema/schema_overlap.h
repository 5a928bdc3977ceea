// Says of schemas whether no value can be valid by all of them, where that is plain to see: by
// their types, by bounds, by listed values, and by properties that must be there. Internal to
// json_schema.
//
// It never errs when it says so, and often does not see it. It keeps combinations of alternatives
// few: of objects that a property tells apart, all but one are left out at once.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/grammar/schema/schema_document.h"

namespace heddle::engine::grammar {

// Values between two bounds.
struct Interval {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool is_above_low = false;   // low itself is not in it
  bool is_below_high = false;  // nor is high

  bool IsEmpty() const { return low > high || (low == high && (is_above_low || is_below_high)); }
  bool Contains(const Interval& other) const;
  void Restrict(const Interval& more);
};

// The quantities that have bounds: numbers, and the lengths of strings, lists and objects.
enum class Measure : uint8_t { kNumber, kString, kArray, kObject };
using Intervals = std::array<Interval, 4>;  // by measure

// Facts that one schema, with all that it refers to, states plainly. Strings are the document's.
struct SchemaFacts {
  using Names = std::vector<std::string_view>;

  bool is_never = false;
  uint8_t types = 0;
  Intervals bounds;
  std::vector<const SchemaFacts*> negated;  // not types and bounds of these together
  // Hashes of the listed values, sorted; equal values have equal ones. Empty optional: any value.
  std::optional<std::vector<uint64_t>> values;
  std::vector<uint64_t> excluded;
  Names required;  // sorted
  absl::flat_hash_map<std::string_view, Conjunction> properties;
  std::vector<SchemaRef> closed;  // schemas by which only listed properties are valid
};

// Facts by schema, each found once.
class FactsOfSchemas {
 public:
  explicit FactsOfSchemas(SchemaDocument* document) : document_(*document) {}

  const SchemaFacts& Of(SchemaRef schema);
  bool Allows(SchemaRef closed, std::string_view name);
  Budget* budget() const { return document_.budget(); }

 private:
  SchemaFacts Find(SchemaRef schema);
  void AddKeyword(SchemaRef schema, const std::string& keyword, const Json& value,
                  SchemaFacts* facts);
  void AddNegation(SchemaRef negated, SchemaFacts* facts);
  void AddAlternatives(SchemaRef schema, const std::string& keyword, const Json& list,
                       SchemaFacts* facts);

  SchemaDocument& document_;
  absl::flat_hash_map<SchemaRef, std::unique_ptr<SchemaFacts>> known_;
};

// Schemas that all hold, to ask about further ones.
class Overlap {
 public:
  Overlap(FactsOfSchemas* facts, const Conjunction& schemas, int depth = 0);
  // Without what their own `not` says, for whoever resolves that `not`.
  static Overlap WithoutNegations(FactsOfSchemas* facts, const Conjunction& schemas);

  bool IsEmpty() const { return is_empty_; }
  // Whether nothing is valid by them and by `more` as well. False also if the budget is over.
  bool Excludes(SchemaRef more) const;
  Overlap And(SchemaRef more) const;

 private:
  void Add(SchemaRef schema);
  void DropEmptyTypes();
  bool IsWithin(const SchemaFacts& negated) const;
  bool AnyValueLeft() const;
  bool LacksProperty(const SchemaFacts& added) const;
  bool LacksProperty(std::string_view name) const;

  FactsOfSchemas* facts_;
  int depth_;
  bool is_empty_ = false;
  bool heeds_negations_ = true;
  uint8_t types_;
  Intervals bounds_;
  std::optional<std::vector<uint64_t>> values_;
  std::vector<const SchemaFacts*> members_;
};

}  // namespace heddle::engine::grammar
