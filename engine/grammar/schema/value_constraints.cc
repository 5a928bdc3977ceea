#include "engine/grammar/schema/value_constraints.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/schema/listed_values.h"
#include "engine/grammar/schema/object_constraints.h"
#include "engine/grammar/schema/schema_keywords.h"
#include "engine/grammar/schema/string_formats.h"

namespace heddle::engine::grammar {
namespace {

class Gatherer {
 public:
  Gatherer(SchemaDocument* document, const Conjunction& plain)
      : document_(*document), plain_(plain) {
    out_.where = plain.empty() ? document->root() : plain.front();
    out_.plain = plain;
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
    HEDDLE_RETURN_IF_ERROR(GatherObject(&document_, plain_, &out_));
    InferTypes();
    return std::move(out_);
  }

 private:
  absl::Status GatherTypes(SchemaRef schema) {
    auto type = schema->find("type");
    if (type == schema->end()) return absl::OkStatus();
    std::optional<uint8_t> types = TypesNamed(*type);
    if (!types) {
      return document_.Error(schema, base::StrCat("\"type\" must be of null, boolean, integer, "
                                                  "number, string, array and object, found ",
                                                  base::Quote(type->dump())));
    }
    // OpenAPI 3.0: it has an effect beside a type only.
    if (auto found = schema->find("nullable"); found != schema->end() && *found == true) {
      *types |= kNullType;
    }
    has_type_ |= !document_.IsMade(schema);
    out_.types &= *types;
    return absl::OkStatus();
  }

  void InferTypes() {
    if (has_type_ || out_.has_values) return;
    uint8_t meant = 0;
    for (SchemaRef schema : plain_) {
      if (document_.IsMade(schema)) continue;
      for (auto it = schema->begin(); it != schema->end(); ++it) meant |= TypesMeant(it.key());
    }
    if (meant != 0) out_.types &= meant;
  }

  absl::StatusOr<std::optional<std::vector<Json>>> Values(SchemaRef schema, const Json& holder) {
    if (auto found = holder.find("const"); found != holder.end()) return std::vector<Json>{*found};
    auto found = holder.find("enum");
    if (found == holder.end()) return std::nullopt;
    if (!found->is_array()) return document_.Error(schema, "\"enum\" must be a list");
    return std::vector<Json>(found->begin(), found->end());
  }

  absl::Status GatherValues(SchemaRef schema) {
    HEDDLE_ASSIGN_OR_RETURN(std::optional<std::vector<Json>> values, Values(schema, *schema));
    if (values) {
      HEDDLE_RETURN_IF_ERROR(
          Spend(document_.budget(), static_cast<int64_t>(values->size() + out_.values.size())));
      if (out_.has_values) {
        ListedValues listed;
        listed.Add(*values);
        std::erase_if(out_.values,
                      [&listed](const Json& value) { return !listed.Contains(value); });
      } else {
        out_.values = *std::move(values);
        out_.has_values = true;
      }
      // Beside an enumeration, a "const" is the only value.
      if (auto only = schema->find("const"); only != schema->end()) {
        std::erase_if(out_.values, [&](const Json& value) { return !AreEqual(value, *only); });
        const auto list = schema->find("enum");
        if (list != schema->end() &&
            std::none_of(list->begin(), list->end(),
                         [&](const Json& value) { return AreEqual(value, *only); })) {
          out_.values.clear();
        }
      }
    }
    return GatherNegation(schema);
  }

  // Gathers a "not" that has but one of these keywords; others are resolved before.
  absl::Status GatherNegation(SchemaRef schema) {
    auto found = schema->find("not");
    if (found == schema->end()) return absl::OkStatus();
    const SchemaRef negated = document_.Child(schema, "not", *found);
    if (!negated->is_object() || negated->size() != 1) return absl::OkStatus();
    if (auto type = negated->find("type"); type != negated->end()) {
      out_.types &= OtherTypes(TypesNamed(*type).value_or(0));
    }
    if (auto pattern = negated->find("pattern"); pattern != negated->end()) {
      // Only texts can fail to match.
      out_.types &= kStringType;
      HEDDLE_ASSIGN_OR_RETURN(const bool is_usable,
                              CheckPattern(&document_, schema, "not/pattern", *pattern));
      if (is_usable) out_.string.without.push_back(pattern->get<std::string>());
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::optional<std::vector<Json>> values,
                            Values(schema, *negated));
    if (!values) return absl::OkStatus();
    for (const Json& value : *values) {
      HEDDLE_RETURN_IF_ERROR(Spend(document_.budget(), 1));
      if (value.is_string()) out_.string.excluded.push_back(value.get<std::string>());
      if (value.is_number()) {
        HEDDLE_ASSIGN_OR_RETURN(Decimal number, Decimal::Parse(value.dump()));
        out_.number.excluded.push_back(std::move(number));
      }
      // A list or an object differs from one that is shorter.
      const auto size = static_cast<int32_t>(std::min<size_t>(value.size(), kMaxRepeat - 1));
      if (value.is_array()) out_.array.min_items = std::max(out_.array.min_items, size + 1);
      if (value.is_object()) {
        out_.object.min_properties = std::max(out_.object.min_properties, size + 1);
      }
      out_.excluded.push_back(value);
    }
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

  // Draft 4 has exclusiveMinimum as a boolean beside minimum.
  absl::StatusOr<std::optional<Decimal>> Bound(SchemaRef schema, const std::string& keyword) {
    auto found = schema->find(keyword);
    if (found != schema->end() && found->is_boolean()) return std::nullopt;
    return Number(schema, keyword);
  }
  static bool IsTrue(SchemaRef schema, const char* keyword) {
    auto found = schema->find(keyword);
    return found != schema->end() && *found == true;
  }

  absl::Status GatherNumber(SchemaRef schema) {
    for (bool exclusive : {false, true}) {
      HEDDLE_ASSIGN_OR_RETURN(std::optional<Decimal> min,
                              Bound(schema, exclusive ? "exclusiveMinimum" : "minimum"));
      HEDDLE_ASSIGN_OR_RETURN(std::optional<Decimal> max,
                              Bound(schema, exclusive ? "exclusiveMaximum" : "maximum"));
      Tighten(min, exclusive || IsTrue(schema, "exclusiveMinimum"), 1, &out_.number.min);
      Tighten(max, exclusive || IsTrue(schema, "exclusiveMaximum"), -1, &out_.number.max);
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::optional<Decimal> step, Number(schema, "multipleOf"));
    if (!step) return absl::OkStatus();
    if (step->negative || step->IsZero()) {
      return document_.Error(schema, "\"multipleOf\" must be above 0");
    }
    const bool same = out_.number.multiple_of && Compare(*out_.number.multiple_of, *step) == 0;
    if (out_.number.multiple_of && !same) {
      return document_.Unsupported(schema,
                                   "two different \"multipleOf\" at once are not supported");
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
    HEDDLE_RETURN_IF_ERROR(
        ReadCounts(&document_, schema, "Length", &string.min_length, &string.max_length));
    if (auto pattern = schema->find("pattern"); pattern != schema->end()) {
      HEDDLE_ASSIGN_OR_RETURN(const bool is_usable,
                              CheckPattern(&document_, schema, "pattern", *pattern));
      if (is_usable) string.patterns.push_back(pattern->get<std::string>());
    }
    HEDDLE_RETURN_IF_ERROR(GatherGrammar(schema));
    // A format that is not known is an annotation.
    auto format = schema->find("format");
    if (format == schema->end() || !format->is_string()) return absl::OkStatus();
    const auto& name = format->get_ref<const std::string&>();
    if (IsKnownFormat(name)) string.formats.push_back(name);
    return absl::OkStatus();
  }

  // An extension: texts of a Lark grammar. It has no intersection with anything.
  absl::Status GatherGrammar(SchemaRef schema) {
    const auto grammar = schema->find("x-lark");
    if (grammar == schema->end()) return absl::OkStatus();
    if (!grammar->is_string()) return document_.Error(schema, "\"x-lark\" must be a string");
    std::vector<std::string>& grammars = out_.string.grammars;
    const auto& text = grammar->get_ref<const std::string&>();
    if (std::find(grammars.begin(), grammars.end(), text) != grammars.end()) {
      return absl::OkStatus();
    }
    if (!grammars.empty()) {
      return document_.Unsupported(schema, "two different \"x-lark\" at once are not supported");
    }
    grammars.push_back(text);
    return absl::OkStatus();
  }

  absl::Status GatherArray(SchemaRef schema) {
    ArrayConstraints& array = out_.array;
    HEDDLE_RETURN_IF_ERROR(
        ReadCounts(&document_, schema, "Items", &array.min_items, &array.max_items));
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
    while (array.prefix.size() < prefix.size()) array.prefix.push_back(array.items);
    for (size_t i = 0; i < array.prefix.size(); ++i) {
      if (i < prefix.size()) {
        array.prefix[i] = With(array.prefix[i], prefix[i]);
      } else if (rest) {
        array.prefix[i] = With(array.prefix[i], *rest);
      }
    }
    if (rest) array.items = With(array.items, *rest);
    return GatherContains(schema);
  }

  absl::Status GatherContains(SchemaRef schema) {
    auto found = schema->find("contains");
    if (found == schema->end()) return absl::OkStatus();
    ArrayConstraints::Contained contained{document_.Child(schema, "contains", *found)};
    HEDDLE_ASSIGN_OR_RETURN(const int32_t min, ReadCount(&document_, schema, "minContains"));
    HEDDLE_ASSIGN_OR_RETURN(contained.max, ReadCount(&document_, schema, "maxContains"));
    contained.min = min < 0 ? 1 : min;
    if (contained.min > 0 || contained.max >= 0) out_.array.contained.push_back(contained);
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

}  // namespace heddle::engine::grammar
