#include "engine/grammar/schema/schema_negation.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "engine/grammar/schema/schema_types.h"

namespace heddle::engine::grammar {
namespace {

// Pairs of a oneOf that both hold, and properties looked at, for each schema that fails.
constexpr size_t kMaxPairs = 16;
constexpr size_t kMaxFurtherNames = 32;

class Failures {
 public:
  Failures(SchemaDocument* document, SchemaRef schema, const Conjunction& plain)
      : document_(*document), schema_(schema), plain_(plain) {}

  absl::StatusOr<std::vector<WayToFail>> Run() {
    if (schema_->is_boolean()) {
      if (!schema_->get<bool>()) Add({}, {});
      return std::move(ways_);
    }
    for (auto it = schema_->begin(); it != schema_->end(); ++it) {
      HEDDLE_RETURN_IF_ERROR(
          Spend(document_.budget(), 1 + static_cast<int64_t>(it->size() + plain_.size())));
      HEDDLE_RETURN_IF_ERROR(AddCombination(it.key(), *it));
      AddValues(it.key(), *it);
      AddBounds(it.key(), *it);
      AddObject(it.key(), *it);
      AddArray(it.key(), *it);
    }
    return std::move(ways_);
  }

 private:
  void Add(Conjunction hold, Conjunction fail) {
    ways_.push_back({std::move(hold), std::move(fail)});
  }
  SchemaRef Make(const Json& content) { return document_.Make(content, schema_); }
  SchemaRef Child(const std::string& keyword, const Json& child) {
    return document_.Child(schema_, keyword, child);
  }
  std::vector<SchemaRef> Members(const std::string& keyword, const Json& list) {
    std::vector<SchemaRef> members;
    for (size_t i = 0; i < list.size(); ++i) {
      members.push_back(document_.Child(schema_, keyword, std::to_string(i), list[i]));
    }
    return members;
  }

  absl::Status AddCombination(const std::string& keyword, const Json& value) {
    if (keyword == "$ref" || keyword == "$dynamicRef" || keyword == "$recursiveRef") {
      HEDDLE_ASSIGN_OR_RETURN(const SchemaRef target, document_.Resolve(schema_, keyword, value));
      if (target != nullptr) Add({}, {target});
    } else if (keyword == "not") {
      Add({Child(keyword, value)}, {});
    } else if (keyword == "allOf" && value.is_array()) {
      for (SchemaRef member : Members(keyword, value)) Add({}, {member});
    } else if (keyword == "anyOf" && value.is_array()) {
      Add({}, Members(keyword, value));
    } else if (keyword == "oneOf" && value.is_array()) {
      const Conjunction members = Members(keyword, value);
      Add({}, members);
      for (size_t i = 0; i < members.size(); ++i) {
        for (size_t k = i + 1; k < members.size() && k < kMaxPairs; ++k) {
          Add({members[i], members[k]}, {});
        }
      }
    } else if (keyword == "if") {
      const SchemaRef condition = Child(keyword, value);
      if (schema_->contains("then")) Add({condition}, {Child("then", schema_->at("then"))});
      if (schema_->contains("else")) Add({}, {condition, Child("else", schema_->at("else"))});
    }
    return absl::OkStatus();
  }

  void AddValues(const std::string& keyword, const Json& value) {
    if (keyword == "type") {
      const uint8_t others = OtherTypes(TypesNamed(value).value_or(kAnyType));
      if (others == 0) return;
      Json content = ObjectOf("type", TypeNames(others));
      const bool only_fractions = (others & (kNumberType | kIntegerType)) == kNumberType;
      if (only_fractions) content["not"] = ObjectOf("type", "integer");
      Add({Make(content)}, {});
    } else if (keyword == "const" || keyword == "enum" || keyword == "pattern") {
      Add({Make(ObjectOf("not", ObjectOf(keyword.c_str(), value)))}, {});
    }
  }

  // Adds values of `type` with the opposite bound.
  void AddOpposite(const char* type, const char* keyword, Json bound) {
    Json content = ObjectOf("type", type);
    content[keyword] = std::move(bound);
    Add({Make(content)}, {});
  }

  void AddBounds(const std::string& keyword, const Json& value) {
    static constexpr struct {
      const char* keyword;
      const char* opposite;
    } kNumbers[] = {{"minimum", "exclusiveMaximum"},
                    {"maximum", "exclusiveMinimum"},
                    {"exclusiveMinimum", "maximum"},
                    {"exclusiveMaximum", "minimum"}};
    static constexpr struct {
      const char* keyword;
      const char* opposite;
      const char* type;
      int step;  // from a bound to the nearest value beyond it
    } kCounts[] = {{"minLength", "maxLength", "string", -1},
                   {"maxLength", "minLength", "string", 1},
                   {"minItems", "maxItems", "array", -1},
                   {"maxItems", "minItems", "array", 1},
                   {"minProperties", "maxProperties", "object", -1},
                   {"maxProperties", "minProperties", "object", 1}};
    if (!value.is_number()) return;
    for (const auto& row : kNumbers) {
      if (keyword == row.keyword) AddOpposite("number", row.opposite, value);
    }
    for (const auto& row : kCounts) {
      if (keyword != row.keyword || value.get<double>() > 1e9) continue;
      const int64_t bound = value.get<int64_t>() + row.step;
      if (bound >= 0) AddOpposite(row.type, row.opposite, bound);
    }
  }

  // An object that has the property, with a value by which `schema` fails.
  void AddWrongProperty(const std::string& name, SchemaRef schema) {
    if (schema->is_boolean() && schema->get<bool>()) return;
    Json content = ObjectOf("type", "object");
    content["required"] = Json::array({name});
    content["properties"] = ObjectOf(name.c_str(), document_.Link(document_.Not(schema, schema_)));
    Add({Make(content)}, {});
  }

  SchemaRef Without(const std::string& name) {
    Json content = ObjectOf("type", "object");
    content["properties"] = ObjectOf(name.c_str(), false);
    return Make(content);
  }
  SchemaRef Having(const std::string& name) {
    Json content = ObjectOf("type", "object");
    content["required"] = Json::array({name});
    return Make(content);
  }

  void AddObject(const std::string& keyword, const Json& value) {
    if (keyword == "required" && value.is_array()) {
      for (const Json& name : value) {
        if (name.is_string()) Add({Without(name.get<std::string>())}, {});
      }
    } else if (keyword == "properties" && value.is_object()) {
      for (auto it = value.begin(); it != value.end(); ++it) {
        AddWrongProperty(it.key(), document_.Child(schema_, keyword, it.key(), *it));
      }
    } else if (keyword == "additionalProperties" && !schema_->contains("patternProperties")) {
      const SchemaRef others = Child(keyword, value);
      for (const std::string& name : FurtherNames()) AddWrongProperty(name, others);
    } else if (keyword == "dependentSchemas" || keyword == "dependencies" ||
               keyword == "dependentRequired") {
      AddDependent(keyword, value);
    }
  }

  void AddDependent(const std::string& keyword, const Json& value) {
    if (!value.is_object()) return;
    for (auto it = value.begin(); it != value.end(); ++it) {
      if (!it->is_array()) {
        Add({Having(it.key())}, {document_.Child(schema_, keyword, it.key(), *it)});
        continue;
      }
      for (const Json& name : *it) {
        if (!name.is_string()) continue;
        Add({Having(it.key()), Without(name.get<std::string>())}, {});
      }
    }
  }

  // Names that something else lists and this schema does not.
  std::vector<std::string> FurtherNames() const {
    std::vector<std::string> names;
    const auto own = schema_->find("properties");
    for (SchemaRef other : plain_) {
      const auto listed = other->find("properties");
      if (listed == other->end() || !listed->is_object()) continue;
      for (auto it = listed->begin(); it != listed->end(); ++it) {
        const bool known = own != schema_->end() && own->is_object() && own->contains(it.key());
        if (!known && names.size() < kMaxFurtherNames) names.push_back(it.key());
      }
    }
    return names;
  }

  // A list with `schema` failing at one place, or somewhere.
  void AddArray(const std::string& keyword, const Json& value) {
    const bool is_list = keyword == "items" && value.is_array();
    if (keyword == "prefixItems" || is_list) {
      for (size_t i = 0; i < value.size(); ++i) {
        Json prefix = Json::array();
        for (size_t before = 0; before < i; ++before) prefix.push_back(true);
        const SchemaRef item = document_.Child(schema_, keyword, std::to_string(i), value[i]);
        if (item->is_boolean() && item->get<bool>()) continue;
        prefix.push_back(document_.Link(document_.Not(item, schema_)));
        Json content = ObjectOf("type", "array");
        content["prefixItems"] = std::move(prefix);
        content["minItems"] = i + 1;
        Add({Make(content)}, {});
      }
    } else if (keyword == "items" && !schema_->contains("prefixItems")) {
      Json content = ObjectOf("type", "array");
      content["contains"] = document_.Link(document_.Not(Child(keyword, value), schema_));
      Add({Make(content)}, {});
    } else if (keyword == "contains" && !schema_->contains("minContains") &&
               !schema_->contains("maxContains")) {
      Json content = ObjectOf("type", "array");
      content["items"] = document_.Link(document_.Not(Child(keyword, value), schema_));
      Add({Make(content)}, {});
    }
  }

  SchemaDocument& document_;
  const SchemaRef schema_;
  const Conjunction& plain_;
  std::vector<WayToFail> ways_;
};

}  // namespace

absl::StatusOr<std::vector<WayToFail>> WaysToFail(SchemaDocument* document, SchemaRef schema,
                                                  const Conjunction& plain) {
  return Failures(document, schema, plain).Run();
}

}  // namespace heddle::engine::grammar
