#include "engine/grammar/schema/schema_overlap.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "engine/grammar/grammar.h"
#include "engine/grammar/schema/listed_values.h"
#include "engine/grammar/schema/schema_types.h"

namespace heddle::engine::grammar {
namespace {

constexpr int kMaxDepth = 4;          // of properties in properties
constexpr size_t kMaxBranches = 512;  // of a list of alternatives

std::vector<uint64_t> HashesOf(const Json& values) {
  std::vector<uint64_t> hashes;
  for (const Json& value : values) hashes.push_back(HashOf(value));
  std::sort(hashes.begin(), hashes.end());
  return hashes;
}

void Restrict(const std::vector<uint64_t>& more, std::optional<std::vector<uint64_t>>* values) {
  if (!*values) {
    *values = more;
    return;
  }
  std::vector<uint64_t> both;
  std::set_intersection((*values)->begin(), (*values)->end(), more.begin(), more.end(),
                        std::back_inserter(both));
  *values = std::move(both);
}

uint8_t TypesOf(const Json& values) {
  uint8_t types = 0;
  for (const Json& value : values) types |= TypeOf(value);
  return types;
}

// Bounds beyond this are not looked at: not every integer is a double there.
constexpr double kMaxExact = 9007199254740992;

struct Bound {
  std::string_view keyword;
  Measure measure;
  bool is_low;
  bool is_exclusive;
};
constexpr Bound kBounds[] = {{"minimum", Measure::kNumber, true, false},
                             {"maximum", Measure::kNumber, false, false},
                             {"exclusiveMinimum", Measure::kNumber, true, true},
                             {"exclusiveMaximum", Measure::kNumber, false, true},
                             {"minLength", Measure::kString, true, false},
                             {"maxLength", Measure::kString, false, false},
                             {"minItems", Measure::kArray, true, false},
                             {"maxItems", Measure::kArray, false, false},
                             {"minProperties", Measure::kObject, true, false},
                             {"maxProperties", Measure::kObject, false, false}};
constexpr uint8_t kTypesOfMeasure[] = {kNumberType | kIntegerType, kStringType, kArrayType,
                                       kObjectType};
constexpr std::string_view kAnnotations[] = {"title", "description", "default", "examples"};

// The bound that a keyword states, if it is one of those that can be compared.
const Bound* FindBound(std::string_view keyword, const Json& value) {
  if (!value.is_number() || !(std::abs(value.get<double>()) <= kMaxExact)) return nullptr;
  const auto* const found =
      std::find_if(std::begin(kBounds), std::end(kBounds),
                   [keyword](const Bound& b) { return b.keyword == keyword; });
  return found == std::end(kBounds) ? nullptr : found;
}

Interval IntervalOf(const Bound& bound, double value) {
  return bound.is_low ? Interval{.low = value, .is_above_low = bound.is_exclusive}
                      : Interval{.high = value, .is_below_high = bound.is_exclusive};
}

// Whether a schema says nothing but types and bounds.
bool IsOnlyBounds(const Json& schema) {
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    const bool is_annotation = std::find(std::begin(kAnnotations), std::end(kAnnotations),
                                         it.key()) != std::end(kAnnotations);
    const bool is_type = it.key() == "type" && TypesNamed(*it);
    if (!is_annotation && !is_type && FindBound(it.key(), *it) == nullptr) return false;
  }
  return true;
}

}  // namespace

bool Interval::Contains(const Interval& other) const {
  const bool has_low =
      low < other.low || (low == other.low && (!is_above_low || other.is_above_low));
  const bool has_high =
      high > other.high || (high == other.high && (!is_below_high || other.is_below_high));
  return has_low && has_high;
}

void Interval::Restrict(const Interval& more) {
  if (more.low >= low) {
    is_above_low = more.is_above_low || (more.low == low && is_above_low);
    low = more.low;
  }
  if (more.high <= high) {
    is_below_high = more.is_below_high || (more.high == high && is_below_high);
    high = more.high;
  }
}

const SchemaFacts& FactsOfSchemas::Of(SchemaRef schema) {
  if (auto known = known_.find(schema); known != known_.end()) return *known->second;
  // Until it is found, a reference to itself says nothing.
  SchemaFacts* facts = known_.emplace(schema, std::make_unique<SchemaFacts>()).first->second.get();
  facts->types = kAnyType;
  *facts = Find(schema);
  return *facts;
}

SchemaFacts FactsOfSchemas::Find(SchemaRef schema) {
  SchemaFacts facts;
  facts.types = kAnyType;
  if (!Spend(budget(), 1 + static_cast<int64_t>(schema->size())).ok()) return facts;
  if (schema->is_boolean()) facts.is_never = !schema->get<bool>();
  if (!schema->is_object()) return facts;
  for (auto it = schema->begin(); it != schema->end(); ++it) {
    AddKeyword(schema, it.key(), *it, &facts);
  }
  std::sort(facts.required.begin(), facts.required.end());
  std::sort(facts.excluded.begin(), facts.excluded.end());
  return facts;
}

namespace {

// Adds facts of a schema that holds as well.
void Merge(const SchemaFacts& more, SchemaFacts* facts) {
  facts->is_never |= more.is_never;
  facts->types &= more.types;
  for (size_t m = 0; m < more.bounds.size(); ++m) facts->bounds[m].Restrict(more.bounds[m]);
  facts->negated.insert(facts->negated.end(), more.negated.begin(), more.negated.end());
  if (more.values) Restrict(*more.values, &facts->values);
  facts->excluded.insert(facts->excluded.end(), more.excluded.begin(), more.excluded.end());
  facts->required.insert(facts->required.end(), more.required.begin(), more.required.end());
  facts->closed.insert(facts->closed.end(), more.closed.begin(), more.closed.end());
  for (const auto& [name, schemas] : more.properties) {
    Conjunction& all = facts->properties[name];
    for (SchemaRef schema : schemas) all = With(std::move(all), schema);
  }
}

}  // namespace

void FactsOfSchemas::AddNegation(SchemaRef negated, SchemaFacts* facts) {
  if (!negated->is_object()) return;
  if (IsOnlyBounds(*negated)) facts->negated.push_back(&Of(negated));
  if (negated->size() != 1) return;
  const std::string& keyword = negated->begin().key();
  const Json& value = *negated->begin();
  // A negated list or object is written as a bound on its size, so that more than it is left out.
  if (keyword == "const" && !value.is_structured()) facts->excluded.push_back(HashOf(value));
  if (keyword == "enum" && value.is_array()) {
    for (const Json& one : value) {
      if (!one.is_structured()) facts->excluded.push_back(HashOf(one));
    }
  }
  if (keyword == "type") {
    if (const auto types = TypesNamed(value)) facts->types &= static_cast<uint8_t>(~*types);
  }
}

void FactsOfSchemas::AddKeyword(SchemaRef schema, const std::string& keyword, const Json& value,
                                SchemaFacts* facts) {
  if (!Spend(budget(), 1 + static_cast<int64_t>(value.size())).ok()) return;
  if (keyword == "type") {
    facts->types &= TypesNamed(value).value_or(kAnyType);
    const auto nullable = schema->find("nullable");
    if (nullable != schema->end() && *nullable == true) facts->types |= kNullType;
  } else if (keyword == "const") {
    Restrict({HashOf(value)}, &facts->values);
    facts->types &= TypeOf(value);
  } else if (keyword == "enum" && value.is_array()) {
    Restrict(HashesOf(value), &facts->values);
    facts->types &= TypesOf(value);
  } else if (keyword == "not") {
    AddNegation(document_.Child(schema, "not", value), facts);
  } else if (keyword == "$ref") {
    const auto target = document_.Resolve(schema, keyword, value);
    if (target.ok() && *target != nullptr) Merge(Of(*target), facts);
  } else if (keyword == "allOf" && value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      Merge(Of(document_.Child(schema, keyword, std::to_string(i), value[i])), facts);
    }
  } else if ((keyword == "anyOf" || keyword == "oneOf") && value.is_array()) {
    AddAlternatives(schema, keyword, value, facts);
  } else if (keyword == "required" && value.is_array()) {
    for (const Json& name : value) {
      if (name.is_string()) facts->required.push_back(name.get_ref<const std::string&>());
    }
  } else if (keyword == "properties" && value.is_object()) {
    for (auto it = value.begin(); it != value.end(); ++it) {
      Conjunction& all = facts->properties[it.key()];
      all = With(std::move(all), document_.Child(schema, keyword, it.key(), *it));
    }
  } else if (keyword == "additionalProperties" && value == false) {
    facts->closed.push_back(schema);
  } else if (const Bound* bound = FindBound(keyword, value)) {
    facts->bounds[static_cast<size_t>(bound->measure)].Restrict(
        IntervalOf(*bound, value.get<double>()));
  }
}

// One of them holds: their types and values together.
void FactsOfSchemas::AddAlternatives(SchemaRef schema, const std::string& keyword, const Json& list,
                                     SchemaFacts* facts) {
  if (list.size() > kMaxBranches) return;
  uint8_t types = 0;
  std::optional<std::vector<uint64_t>> values = std::vector<uint64_t>();
  for (size_t i = 0; i < list.size(); ++i) {
    const SchemaFacts& branch = Of(document_.Child(schema, keyword, std::to_string(i), list[i]));
    if (branch.is_never) continue;
    types |= branch.types;
    if (!branch.values) {
      values.reset();
    } else if (values) {
      values->insert(values->end(), branch.values->begin(), branch.values->end());
    }
  }
  facts->types &= types;
  if (!values) return;
  std::sort(values->begin(), values->end());
  Restrict(*values, &facts->values);
}

bool FactsOfSchemas::Allows(SchemaRef closed, std::string_view name) {
  const auto listed = closed->find("properties");
  if (listed != closed->end() && listed->is_object() && listed->contains(name)) return true;
  const auto patterns = closed->find("patternProperties");
  if (patterns == closed->end() || !patterns->is_object()) return false;
  for (auto it = patterns->begin(); it != patterns->end(); ++it) {
    const absl::StatusOr<StateMachine>& machine = document_.Pattern(it.key());
    Grammar scratch;
    const ExprId text = scratch.Text(name);
    if (!machine.ok() || machine->Accepts(scratch.exprs[Index(text)].text)) return true;
  }
  return false;
}

Overlap::Overlap(FactsOfSchemas* facts, const Conjunction& schemas, int depth)
    : facts_(facts), depth_(depth), types_(kAnyType) {
  for (SchemaRef schema : schemas) Add(schema);
}

void Overlap::Add(SchemaRef schema) {
  if (is_empty_) return;
  const SchemaFacts& more = facts_->Of(schema);
  if (!Spend(facts_->budget(), 1 + static_cast<int64_t>(members_.size() + more.required.size()))
           .ok()) {
    return;
  }
  members_.push_back(&more);
  types_ &= more.types;
  for (size_t m = 0; m < bounds_.size(); ++m) bounds_[m].Restrict(more.bounds[m]);
  DropEmptyTypes();
  if (more.values) Restrict(*more.values, &values_);
  is_empty_ = more.is_never || types_ == 0 || !AnyValueLeft() || LacksProperty(more);
  for (const SchemaFacts* member : members_) {
    if (!heeds_negations_) break;
    for (const SchemaFacts* negated : member->negated) is_empty_ |= IsWithin(*negated);
  }
}

// Types of whose values none is within the bounds.
void Overlap::DropEmptyTypes() {
  for (size_t m = 0; m < bounds_.size(); ++m) {
    if (bounds_[m].IsEmpty()) types_ &= static_cast<uint8_t>(~kTypesOfMeasure[m]);
  }
}

// Whether all values that are left have its types and are within its bounds.
bool Overlap::IsWithin(const SchemaFacts& negated) const {
  if ((types_ & ~negated.types) != 0) return false;
  for (size_t m = 0; m < bounds_.size(); ++m) {
    const bool has_such = (types_ & kTypesOfMeasure[m]) != 0;
    if (has_such && !negated.bounds[m].Contains(bounds_[m])) return false;
  }
  return true;
}

bool Overlap::AnyValueLeft() const {
  if (!values_) return true;
  return std::any_of(values_->begin(), values_->end(), [this](uint64_t value) {
    return std::none_of(members_.begin(), members_.end(), [value](const SchemaFacts* member) {
      return std::binary_search(member->excluded.begin(), member->excluded.end(), value);
    });
  });
}

// Whether a property must be there and cannot be, which is so only since `added` is a member.
bool Overlap::LacksProperty(const SchemaFacts& added) const {
  if (types_ != kObjectType || depth_ >= kMaxDepth) return false;
  for (std::string_view name : added.required) {
    if (LacksProperty(name)) return true;
  }
  for (const SchemaFacts* member : members_) {
    for (std::string_view name : member->required) {
      const bool is_affected = added.properties.contains(name) || !added.closed.empty();
      if (is_affected && LacksProperty(name)) return true;
    }
  }
  return false;
}

bool Overlap::LacksProperty(std::string_view name) const {
  Overlap value(facts_, {}, depth_ + 1);
  for (const SchemaFacts* member : members_) {
    for (SchemaRef closed : member->closed) {
      if (!facts_->Allows(closed, name)) return true;
    }
    const auto found = member->properties.find(name);
    if (found == member->properties.end()) continue;
    for (SchemaRef schema : found->second) value.Add(schema);
    if (value.IsEmpty()) return true;
  }
  return false;
}

bool Overlap::Excludes(SchemaRef more) const {
  return is_empty_ || (And(more).IsEmpty() && StatusOf(facts_->budget()).ok());
}

Overlap Overlap::WithoutNegations(FactsOfSchemas* facts, const Conjunction& schemas) {
  Overlap overlap(facts, {});
  overlap.heeds_negations_ = false;
  for (SchemaRef schema : schemas) overlap.Add(schema);
  return overlap;
}

Overlap Overlap::And(SchemaRef more) const {
  Overlap both = *this;
  both.Add(more);
  return both;
}

}  // namespace heddle::engine::grammar
