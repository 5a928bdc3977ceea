#include "engine/grammar/schema/schema_values.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "base/status.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/schema/listed_values.h"
#include "engine/grammar/schema/schema_expander.h"
#include "engine/grammar/schema/string_machine.h"

namespace heddle::engine::grammar {
namespace {

constexpr int64_t kMaxListedIntegers = 64;

std::u32string CodePointsOf(const std::string& utf8) {
  Grammar scratch;
  return scratch.exprs[Index(scratch.Text(std::string_view(utf8)))].text;
}

absl::StatusOr<bool> StringSatisfies(SchemaDocument* document, const std::string& value,
                                     const StringConstraints& c) {
  if (c.Unbounded()) return true;
  StringConstraints texts = c;
  texts.min_length = 0;
  texts.max_length = -1;
  const std::u32string text = CodePointsOf(value);
  const auto length = static_cast<int64_t>(text.size());
  if (length < c.min_length || (c.max_length >= 0 && length > c.max_length)) return false;
  if (texts.Unbounded()) return true;
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine, StringMachine(texts, document));
  return machine.Accepts(text);
}

absl::StatusOr<bool> NumberSatisfies(SchemaDocument* document, const Json& value,
                                     const ValueConstraints& c) {
  HEDDLE_ASSIGN_OR_RETURN(const Decimal number, Decimal::Parse(value.dump()));
  if ((c.types & (number.fraction.empty() ? kIntegerType : kNumberType)) == 0) return false;
  NumberRange range = c.number;
  range.integer = false;
  if (range.Unbounded()) return true;
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine, NumberMachine(range, document->budget()));
  const std::string text = number.ToString();
  return machine.Accepts(std::u32string(text.begin(), text.end()));
}

bool CountFits(size_t size, int32_t min, int32_t max) {
  const auto count = static_cast<int64_t>(size);
  return count >= min && (max < 0 || count <= max);
}

absl::StatusOr<bool> ObjectSatisfies(SchemaDocument* document, const Json& value,
                                     const ValueConstraints& c) {
  if (!CountFits(value.size(), c.object.min_properties, c.object.max_properties)) return false;
  for (const ObjectConstraints::Property& property : c.object.properties) {
    if (property.required && !value.contains(property.name)) return false;
  }
  for (auto it = value.begin(); it != value.end(); ++it) {
    HEDDLE_ASSIGN_OR_RETURN(const Conjunction conditions,
                            ConditionsOn(document, c.plain, it.key()));
    HEDDLE_ASSIGN_OR_RETURN(bool valid, Satisfies(document, *it, conditions));
    if (!valid) return false;
    HEDDLE_ASSIGN_OR_RETURN(valid, Satisfies(document, Json(it.key()), c.object.names));
    if (!valid) return false;
  }
  return true;
}

absl::StatusOr<bool> ArraySatisfies(SchemaDocument* document, const Json& value,
                                    const ArrayConstraints& c) {
  if (!CountFits(value.size(), c.min_items, c.max_items)) return false;
  for (size_t i = 0; i < value.size(); ++i) {
    const Conjunction& item = i < c.prefix.size() ? c.prefix[i] : c.items;
    HEDDLE_ASSIGN_OR_RETURN(const bool valid, Satisfies(document, value[i], item));
    if (!valid) return false;
    if (!c.unique) continue;
    HEDDLE_RETURN_IF_ERROR(Spend(document->budget(), static_cast<int64_t>(i)));
    for (size_t k = 0; k < i; ++k) {
      if (AreEqual(value[k], value[i])) return false;
    }
  }
  for (const ArrayConstraints::Contained& contained : c.contained) {
    size_t count = 0;
    size_t others = 0;  // items that certainly do not satisfy the schema
    const SchemaRef opposite = document->Not(contained.schema, contained.schema);
    for (const Json& item : value) {
      HEDDLE_ASSIGN_OR_RETURN(bool valid, Satisfies(document, item, Conjunction{contained.schema}));
      count += valid ? 1 : 0;
      HEDDLE_ASSIGN_OR_RETURN(valid, Satisfies(document, item, Conjunction{opposite}));
      others += valid ? 1 : 0;
    }
    if (!CountFits(count, contained.min, -1)) return false;
    if (!CountFits(value.size() - others, 0, contained.max)) return false;
  }
  return true;
}

// Whether the conditions beside the list of values hold.
absl::StatusOr<bool> SatisfiesOthers(SchemaDocument* document, const Json& value,
                                     const ValueConstraints& c) {
  HEDDLE_RETURN_IF_ERROR(Spend(document->budget(), 1 + static_cast<int64_t>(c.excluded.size())));
  const bool is_excluded = std::any_of(c.excluded.begin(), c.excluded.end(),
                                       [&](const Json& one) { return AreEqual(one, value); });
  if (is_excluded) return false;
  if (value.is_number()) return NumberSatisfies(document, value, c);
  if ((c.types & TypeOf(value)) == 0) return false;
  if (value.is_string()) {
    return StringSatisfies(document, value.get_ref<const std::string&>(), c.string);
  }
  if (value.is_object()) return ObjectSatisfies(document, value, c);
  if (value.is_array()) return ArraySatisfies(document, value, c.array);
  return true;
}

}  // namespace

absl::StatusOr<bool> Satisfies(SchemaDocument* document, const Json& value,
                               const Conjunction& schemas) {
  if (schemas.empty()) return true;
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<Conjunction> alternatives, Expand(document, schemas));
  for (const Conjunction& plain : alternatives) {
    HEDDLE_ASSIGN_OR_RETURN(const ValueConstraints c, Gather(document, plain));
    HEDDLE_ASSIGN_OR_RETURN(const bool valid, Satisfies(document, value, c));
    if (valid) return true;
  }
  return false;
}

absl::StatusOr<bool> Satisfies(SchemaDocument* document, const Json& value,
                               const ValueConstraints& c) {
  if (c.has_values) {
    HEDDLE_RETURN_IF_ERROR(Spend(document->budget(), static_cast<int64_t>(c.values.size())));
    const bool is_listed = std::any_of(c.values.begin(), c.values.end(),
                                       [&](const Json& one) { return AreEqual(one, value); });
    if (!is_listed) return false;
  }
  return SatisfiesOthers(document, value, c);
}

absl::StatusOr<std::vector<const Json*>> ListedValuesOf(SchemaDocument* document,
                                                        const ValueConstraints& c) {
  ListedValues known;
  std::vector<const Json*> values;
  for (const Json& value : c.values) {
    HEDDLE_ASSIGN_OR_RETURN(const bool valid, SatisfiesOthers(document, value, c));
    if (valid && known.Add(value)) values.push_back(&value);
  }
  return values;
}

absl::StatusOr<std::optional<std::vector<Json>>> FiniteValues(SchemaDocument* document,
                                                              const Conjunction& schemas) {
  std::deque<Json> values;  // whose elements stay in place, as `known` demands
  ListedValues known;
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<Conjunction> alternatives, Expand(document, schemas));
  for (const Conjunction& plain : alternatives) {
    HEDDLE_ASSIGN_OR_RETURN(ValueConstraints c, Gather(document, plain));
    if (!c.has_values) {
      if ((c.types & ~(kNullType | kBooleanType | kIntegerType)) != 0) return std::nullopt;
      c.values = {Json(nullptr), Json(true), Json(false)};
      if ((c.types & kIntegerType) != 0) {
        if (!c.number.min || !c.number.max) return std::nullopt;
        const double low = std::stod(c.number.min->value.ToString());
        const double high = std::stod(c.number.max->value.ToString());
        if (high - low > kMaxListedIntegers || low < -1e15 || high > 1e15) return std::nullopt;
        for (auto i = static_cast<int64_t>(low) - 1; i <= static_cast<int64_t>(high); ++i) {
          c.values.push_back(i);
        }
      }
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<const Json*> valid, ListedValuesOf(document, c));
    for (const Json* value : valid) {
      if (known.Contains(*value)) continue;
      values.push_back(*value);
      known.Add(values.back());
    }
  }
  return std::vector<Json>(values.begin(), values.end());
}

}  // namespace heddle::engine::grammar
