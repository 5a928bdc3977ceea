#include "engine/grammar/schema/value_constraints.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema/string_formats.h"

namespace heddle::engine::grammar {
namespace {

constexpr size_t kMaxPatternProperties = 4;  // each subset of them is a kind of key

struct TypeName {
  std::string_view name;
  uint8_t bits;
};
constexpr TypeName kTypes[] = {{"null", kNullType},       {"boolean", kBooleanType},
                               {"integer", kIntegerType}, {"number", kNumberType | kIntegerType},
                               {"string", kStringType},   {"array", kArrayType},
                               {"object", kObjectType}};

// The types that a keyword applies to, for schemas that name no type.
uint8_t TypesMeant(std::string_view keyword) {
  static constexpr struct {
    uint8_t types;
    std::string_view words;
  } kKeywords[] = {
      {kObjectType,
       " properties required additionalProperties patternProperties propertyNames minProperties "
       "maxProperties unevaluatedProperties "},
      {kArrayType,
       " items prefixItems additionalItems minItems maxItems uniqueItems unevaluatedItems "},
      {kStringType, " minLength maxLength pattern format "},
      {kNumberType | kIntegerType,
       " minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "}};
  for (const auto& row : kKeywords) {
    if (row.words.find(base::StrCat(" ", keyword, " ")) != std::string_view::npos) {
      return row.types;
    }
  }
  return 0;
}

class Gatherer {
 public:
  Gatherer(SchemaDocument* document, const Conjunction& plain)
      : document_(*document), plain_(plain) {
    out_.where = plain.empty() ? document->root() : plain.front();
  }

  absl::StatusOr<ValueConstraints> Run() {
    for (SchemaRef schema : plain_) {
      HEDDLE_RETURN_IF_ERROR(Spend(document_.budget(), 1 + static_cast<int64_t>(schema->size())));
      HEDDLE_RETURN_IF_ERROR(GatherTypes(schema));
      HEDDLE_RETURN_IF_ERROR(GatherValues(schema));
      HEDDLE_RETURN_IF_ERROR(GatherNumber(schema));
      HEDDLE_RETURN_IF_ERROR(GatherString(schema));
      HEDDLE_RETURN_IF_ERROR(GatherArray(schema));
    }
    HEDDLE_RETURN_IF_ERROR(GatherObject());
    InferTypes();
    return std::move(out_);
  }

 private:
  absl::Status GatherTypes(SchemaRef schema) {
    auto type = schema->find("type");
    if (type == schema->end()) return absl::OkStatus();
    has_type_ = true;
    uint8_t bits = 0;
    const Json list = type->is_array() ? *type : Json::array({*type});
    for (const Json& name : list) {
      auto known = std::find_if(std::begin(kTypes), std::end(kTypes), [&name](const TypeName& t) {
        return name.is_string() && name.get_ref<const std::string&>() == t.name;
      });
      if (known == std::end(kTypes)) {
        return document_.Error(schema, base::StrCat("\"type\" must be of null, boolean, integer, "
                                                    "number, string, array and object, found ",
                                                    base::Quote(name.dump())));
      }
      bits |= known->bits;
    }
    out_.types &= bits;
    return absl::OkStatus();
  }

  void InferTypes() {
    if (has_type_ || out_.has_values) return;
    uint8_t meant = 0;
    for (SchemaRef schema : plain_) {
      for (auto it = schema->begin(); it != schema->end(); ++it) meant |= TypesMeant(it.key());
    }
    if (meant != 0) out_.types &= meant;
  }

  absl::Status GatherValues(SchemaRef schema) {
    for (std::string_view keyword : {"const", "enum"}) {
      auto found = schema->find(std::string(keyword));
      if (found == schema->end()) continue;
      std::vector<Json> values = {*found};
      if (keyword == "enum") {
        if (!found->is_array()) return document_.Error(schema, "\"enum\" must be a list");
        values.assign(found->begin(), found->end());
      }
      HEDDLE_RETURN_IF_ERROR(
          Spend(document_.budget(),
                static_cast<int64_t>(values.size() * std::max<size_t>(1, out_.values.size()))));
      if (out_.has_values) {
        std::erase_if(out_.values, [&values](const Json& value) {
          return std::find(values.begin(), values.end(), value) == values.end();
        });
      } else {
        out_.values = std::move(values);
        out_.has_values = true;
      }
    }
    return absl::OkStatus();
  }

  // A count; -1 if the keyword is missing.
  absl::StatusOr<int32_t> Count(SchemaRef schema, const std::string& keyword) {
    auto found = schema->find(keyword);
    if (found == schema->end()) return -1;
    const double value = found->is_number() ? found->get<double>() : -1;
    if (value < 0 || value != static_cast<double>(static_cast<int64_t>(std::min(value, 1e15)))) {
      return document_.Error(
          schema, base::StrCat(base::Quote(keyword), " must be a whole number from 0, found ",
                               base::Quote(found->dump())));
    }
    // The limit exceeds anything generated: a maximum is then no bound, and a minimum is never
    // reached.
    const bool is_max = keyword.rfind("max", 0) == 0;
    if (value > kMaxRepeat && !is_max) {
      return document_.Error(
          schema, base::StrCat(base::Quote(keyword), " above ", kMaxRepeat, " is not supported"));
    }
    return value > kMaxRepeat ? kMaxRepeat : static_cast<int32_t>(value);
  }

  absl::Status GatherCounts(SchemaRef schema, const std::string& what, int32_t* min, int32_t* max) {
    HEDDLE_ASSIGN_OR_RETURN(const int32_t low, Count(schema, "min" + what));
    HEDDLE_ASSIGN_OR_RETURN(const int32_t high, Count(schema, "max" + what));
    *min = std::max(*min, low);
    if (high >= 0) *max = *max < 0 ? high : std::min(*max, high);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<Decimal>> Number(SchemaRef schema, const std::string& keyword) {
    auto found = schema->find(keyword);
    if (found == schema->end()) return std::nullopt;
    if (!found->is_number()) {
      return document_.Error(schema, base::StrCat(base::Quote(keyword), " must be a number"));
    }
    absl::StatusOr<Decimal> value = Decimal::Parse(found->dump());
    if (!value.ok()) {
      return document_.Error(
          schema, base::StrCat(base::Quote(keyword), ": ", std::string(value.status().message())));
    }
    return std::optional(*std::move(value));
  }

  absl::Status GatherNumber(SchemaRef schema) {
    for (bool exclusive : {false, true}) {
      HEDDLE_ASSIGN_OR_RETURN(std::optional<Decimal> min,
                              Number(schema, exclusive ? "exclusiveMinimum" : "minimum"));
      HEDDLE_ASSIGN_OR_RETURN(std::optional<Decimal> max,
                              Number(schema, exclusive ? "exclusiveMaximum" : "maximum"));
      Tighten(min, exclusive, 1, &out_.number.min);
      Tighten(max, exclusive, -1, &out_.number.max);
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::optional<Decimal> step, Number(schema, "multipleOf"));
    if (!step) return absl::OkStatus();
    if (step->negative || step->IsZero()) {
      return document_.Error(schema, "\"multipleOf\" must be above 0");
    }
    const bool same = out_.number.multiple_of && Compare(*out_.number.multiple_of, *step) == 0;
    if (out_.number.multiple_of && !same) {
      return document_.Error(schema, "two different \"multipleOf\" at once are not supported");
    }
    out_.number.multiple_of = step;
    return absl::OkStatus();
  }

  // Keeps the tighter bound; with `sign` 1 that is the greater one.
  static void Tighten(const std::optional<Decimal>& value, bool exclusive, int sign,
                      std::optional<NumberBound>* bound) {
    if (!value) return;
    const int order = *bound ? Compare(*value, (*bound)->value) * sign : 1;
    if (order > 0) *bound = NumberBound{*value, exclusive};
    if (order == 0) (*bound)->exclusive |= exclusive;
  }

  absl::Status GatherString(SchemaRef schema) {
    StringConstraints& string = out_.string;
    HEDDLE_RETURN_IF_ERROR(GatherCounts(schema, "Length", &string.min_length, &string.max_length));
    if (auto pattern = schema->find("pattern"); pattern != schema->end()) {
      HEDDLE_RETURN_IF_ERROR(CheckPattern(schema, "pattern", *pattern));
      string.patterns.push_back(pattern->get<std::string>());
    }
    auto format = schema->find("format");
    if (format == schema->end()) return absl::OkStatus();
    if (!format->is_string()) return document_.Error(schema, "\"format\" must be a string");
    const auto& name = format->get_ref<const std::string&>();
    if (IsAnnotationFormat(name)) return absl::OkStatus();
    if (FormatPattern(name).empty()) {
      return document_.Error(schema,
                             base::StrCat("\"format\": ", base::Quote(name), " is not supported"));
    }
    string.formats.push_back(name);
    return absl::OkStatus();
  }

  absl::Status CheckPattern(SchemaRef schema, std::string_view keyword, const Json& pattern) {
    if (!pattern.is_string()) {
      return document_.Error(schema, base::StrCat(base::Quote(keyword), " must be a string"));
    }
    const absl::StatusOr<StateMachine> machine =
        ParseRegex(pattern.get_ref<const std::string&>(), RegexMatch::kSearch, document_.budget());
    if (machine.ok()) return absl::OkStatus();
    return document_.Error(
        schema, base::StrCat(base::Quote(keyword), ": ", std::string(machine.status().message())));
  }

  absl::Status GatherArray(SchemaRef schema) {
    ArrayConstraints& array = out_.array;
    HEDDLE_RETURN_IF_ERROR(GatherCounts(schema, "Items", &array.min_items, &array.max_items));
    if (auto unique = schema->find("uniqueItems"); unique != schema->end()) {
      array.unique |= *unique == true;
    }
    std::vector<SchemaRef> prefix;
    auto items = schema->find("items");
    // Before 2020, a list under "items" was what "prefixItems" is now.
    std::string prefix_keyword = "prefixItems";
    std::string rest_keyword = "items";
    if (items != schema->end() && items->is_array()) {
      prefix_keyword = "items";
      rest_keyword = "additionalItems";
    }
    if (auto list = schema->find(prefix_keyword); list != schema->end()) {
      if (!list->is_array()) {
        return document_.Error(
            schema, base::StrCat(base::Quote(prefix_keyword), " must be a list of schemas"));
      }
      size_t index = 0;
      for (const Json& item : *list) {
        prefix.push_back(document_.Child(schema, prefix_keyword, std::to_string(index++), item));
      }
    }
    std::optional<SchemaRef> rest;
    if (auto found = schema->find(rest_keyword); found != schema->end()) {
      rest = document_.Child(schema, rest_keyword, *found);
    }
    // If the schema does not mention further items, writing none satisfies unevaluatedItems.
    if (!rest && schema->contains("unevaluatedItems")) CapItems(prefix.size());
    while (array.prefix.size() < prefix.size()) array.prefix.push_back(array.items);
    for (size_t i = 0; i < array.prefix.size(); ++i) {
      if (i < prefix.size()) {
        array.prefix[i] = With(array.prefix[i], prefix[i]);
      } else if (rest) {
        array.prefix[i] = With(array.prefix[i], *rest);
      }
    }
    if (rest) array.items = With(array.items, *rest);
    return absl::OkStatus();
  }

  void CapItems(size_t count) {
    const auto cap = static_cast<int32_t>(count);
    int32_t& max = out_.array.max_items;
    max = max < 0 ? cap : std::min(max, cap);
  }

  // Each schema contributes conditions on a property: those of its name and of the patterns that it
  // matches, or else those of additionalProperties.
  absl::Status GatherObject() {
    std::vector<std::string> names;
    std::set<std::string> required;
    for (SchemaRef schema : plain_) {
      ObjectConstraints& object = out_.object;
      HEDDLE_RETURN_IF_ERROR(
          GatherCounts(schema, "Properties", &object.min_properties, &object.max_properties));
      HEDDLE_RETURN_IF_ERROR(GatherNames(schema, &names, &required));
      if (auto found = schema->find("propertyNames"); found != schema->end()) {
        object.names.push_back(document_.Child(schema, "propertyNames", *found));
      }
    }
    for (const std::string& name : required) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    for (const std::string& name : names) {
      Conjunction conjunction;
      for (SchemaRef schema : plain_) {
        HEDDLE_RETURN_IF_ERROR(AddConditionsOf(schema, name, &conjunction));
      }
      out_.object.properties.push_back({name, required.contains(name), std::move(conjunction)});
    }
    return GatherExtras();
  }

  absl::Status GatherNames(SchemaRef schema, std::vector<std::string>* names,
                           std::set<std::string>* required) {
    if (auto found = schema->find("properties"); found != schema->end()) {
      if (!found->is_object()) return document_.Error(schema, "\"properties\" must be an object");
      for (auto it = found->begin(); it != found->end(); ++it) {
        HEDDLE_RETURN_IF_ERROR(
            Spend(document_.budget(), 1 + static_cast<int64_t>(names->size()) / 8));
        if (std::find(names->begin(), names->end(), it.key()) == names->end()) {
          names->push_back(it.key());
        }
      }
    }
    if (auto found = schema->find("required"); found != schema->end()) {
      if (!found->is_array()) return document_.Error(schema, "\"required\" must be a list");
      for (const Json& name : *found) {
        if (!name.is_string()) return document_.Error(schema, "\"required\" must hold strings");
        required->insert(name.get<std::string>());
      }
    }
    if (auto found = schema->find("patternProperties"); found != schema->end()) {
      if (!found->is_object()) {
        return document_.Error(schema, "\"patternProperties\" must be an object");
      }
      for (auto it = found->begin(); it != found->end(); ++it) {
        HEDDLE_RETURN_IF_ERROR(CheckPattern(schema, "patternProperties", Json(it.key())));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddConditionsOf(SchemaRef schema, const std::string& name,
                               Conjunction* conjunction) {
    HEDDLE_RETURN_IF_ERROR(
        Spend(document_.budget(), 1 + static_cast<int64_t>(conjunction->size())));
    bool known = false;
    if (auto found = schema->find("properties"); found != schema->end() && found->contains(name)) {
      *conjunction =
          With(*conjunction, document_.Child(schema, "properties", name, found->at(name)));
      known = true;
    }
    if (auto found = schema->find("patternProperties"); found != schema->end()) {
      for (auto it = found->begin(); it != found->end(); ++it) {
        HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine,
                                ParseRegex(it.key(), RegexMatch::kSearch, document_.budget()));
        Grammar scratch;
        const std::u32string text = scratch.exprs[Index(scratch.Text(std::string_view(name)))].text;
        if (!machine.Accepts(text)) continue;
        *conjunction =
            With(*conjunction, document_.Child(schema, "patternProperties", it.key(), *it));
        known = true;
      }
    }
    auto additional = schema->find("additionalProperties");
    if (!known && additional != schema->end()) {
      *conjunction =
          With(*conjunction, document_.Child(schema, "additionalProperties", *additional));
    }
    return absl::OkStatus();
  }

  // Other keys are written only if a schema mentions them, or if no schema lists any.
  absl::Status GatherExtras() {
    std::vector<std::pair<SchemaRef, std::string>> patterns;
    bool speaks = out_.object.properties.empty();
    for (SchemaRef schema : plain_) {
      if (auto found = schema->find("patternProperties"); found != schema->end()) {
        for (auto it = found->begin(); it != found->end(); ++it)
          patterns.emplace_back(schema, it.key());
      }
      speaks |= schema->contains("additionalProperties");
      if (schema->contains("unevaluatedProperties") && !schema->contains("additionalProperties")) {
        return absl::OkStatus();  // satisfied by writing none
      }
    }
    if (patterns.size() > kMaxPatternProperties) {
      return document_.Error(out_.where, base::StrCat("more than ", kMaxPatternProperties,
                                                      " patterns in \"patternProperties\" are not "
                                                      "supported"));
    }
    if (!speaks && patterns.empty()) return absl::OkStatus();
    for (uint32_t subset = 0; subset < 1U << patterns.size(); ++subset) {
      if (subset == 0 && !speaks) continue;
      ObjectConstraints::Extra extra;
      std::set<SchemaRef> matched;
      for (size_t i = 0; i < patterns.size(); ++i) {
        const auto& [schema, pattern] = patterns[i];
        if ((subset >> i & 1) == 0) {
          extra.others.push_back(pattern);
          continue;
        }
        extra.matching.push_back(pattern);
        matched.insert(schema);
        const Json& child = schema->at("patternProperties").at(pattern);
        extra.schema =
            With(extra.schema, document_.Child(schema, "patternProperties", pattern, child));
      }
      for (SchemaRef schema : plain_) {
        auto additional = schema->find("additionalProperties");
        if (matched.contains(schema) || additional == schema->end()) continue;
        extra.schema =
            With(extra.schema, document_.Child(schema, "additionalProperties", *additional));
      }
      out_.object.extras.push_back(std::move(extra));
    }
    return absl::OkStatus();
  }

  SchemaDocument& document_;
  const Conjunction& plain_;
  ValueConstraints out_;
  bool has_type_ = false;
};

}  // namespace

absl::StatusOr<ValueConstraints> Gather(SchemaDocument* document, const Conjunction& plain) {
  return Gatherer(document, plain).Run();
}

absl::StatusOr<StateMachine> StringMachine(const StringConstraints& constraints, Budget* budget) {
  HEDDLE_RETURN_IF_ERROR(
      Spend(budget, std::max(constraints.min_length, constraints.max_length) + 1));
  StateMachine machine = AnyTextOfLength(constraints.min_length, constraints.max_length);
  auto restrict = [&machine, budget](std::string_view pattern, RegexMatch match) -> absl::Status {
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine other, ParseRegex(pattern, match, budget));
    HEDDLE_ASSIGN_OR_RETURN(machine, Intersect(machine, other, kMaxStates, budget));
    return absl::OkStatus();
  };
  for (const std::string& pattern : constraints.patterns) {
    HEDDLE_RETURN_IF_ERROR(restrict(pattern, RegexMatch::kSearch));
  }
  for (const std::string& format : constraints.formats) {
    HEDDLE_RETURN_IF_ERROR(restrict(FormatPattern(format), RegexMatch::kWhole));
  }
  return machine;
}

}  // namespace heddle::engine::grammar
