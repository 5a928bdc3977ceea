#include "engine/grammar/schema/object_constraints.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/schema/schema_keywords.h"

namespace heddle::engine::grammar {
namespace {

// Patterns of keys of which each combination is a kind of key; with more of them, keys are written
// that match one.
constexpr size_t kMaxCombinedPatterns = 4;

class ObjectGatherer {
 public:
  ObjectGatherer(SchemaDocument* document, const Conjunction& plain, ObjectConstraints* object)
      : document_(*document), plain_(plain), object_(*object) {}

  // Each schema contributes conditions on a property: those of its name and of the patterns that it
  // matches, or else those of additionalProperties.
  absl::Status Run() {
    for (SchemaRef schema : plain_) {
      HEDDLE_RETURN_IF_ERROR(ReadCounts(&document_, schema, "Properties", &object_.min_properties,
                                        &object_.max_properties));
      HEDDLE_RETURN_IF_ERROR(GatherNames(schema));
      if (auto found = schema->find("propertyNames"); found != schema->end()) {
        object_.names.push_back(document_.Child(schema, "propertyNames", *found));
      }
    }
    for (const std::string& name : required_) {
      if (!known_.contains(name)) names_.push_back(name);
    }
    for (const std::string& name : names_) {
      HEDDLE_ASSIGN_OR_RETURN(Conjunction conditions, ConditionsOn(&document_, plain_, name));
      object_.properties.push_back({name, required_.contains(name), std::move(conditions)});
    }
    return GatherExtras();
  }

 private:
  absl::Status GatherNames(SchemaRef schema) {
    if (auto found = schema->find("properties"); found != schema->end()) {
      if (!found->is_object()) return document_.Error(schema, "\"properties\" must be an object");
      for (auto it = found->begin(); it != found->end(); ++it) {
        HEDDLE_RETURN_IF_ERROR(Spend(document_.budget(), 1));
        if (known_.insert(it.key()).second) names_.push_back(it.key());
        // Draft 3 says at a property that it is required.
        if (it->is_object() && it->value("required", Json()) == true) required_.insert(it.key());
      }
    }
    auto required = schema->find("required");
    if (required != schema->end() && !required->is_boolean()) {
      if (!required->is_array()) return document_.Error(schema, "\"required\" must be a list");
      for (const Json& name : *required) {
        if (!name.is_string()) return document_.Error(schema, "\"required\" must hold strings");
        required_.insert(name.get<std::string>());
      }
    }
    if (auto found = schema->find("patternProperties"); found != schema->end()) {
      if (!found->is_object()) {
        return document_.Error(schema, "\"patternProperties\" must be an object");
      }
      for (auto it = found->begin(); it != found->end(); ++it) {
        HEDDLE_ASSIGN_OR_RETURN(
            const bool is_usable,
            CheckPattern(&document_, schema, "patternProperties", Json(it.key())));
        if (is_usable) patterns_.emplace_back(schema, it.key());
      }
    }
    return absl::OkStatus();
  }

  // Other keys are written only if a schema mentions them, or if no schema says anything of keys.
  absl::Status GatherExtras() {
    bool speaks = object_.properties.empty() && patterns_.empty();
    for (SchemaRef schema : plain_) speaks |= schema->contains("additionalProperties");
    if (!speaks && patterns_.empty()) return absl::OkStatus();
    const bool combines = patterns_.size() <= kMaxCombinedPatterns;
    const size_t num_kinds = combines ? size_t{1} << patterns_.size() : patterns_.size() + 1;
    for (size_t kind = speaks ? 0 : 1; kind < num_kinds; ++kind) {
      HEDDLE_RETURN_IF_ERROR(Spend(document_.budget(), static_cast<int64_t>(num_kinds)));
      AddExtra([&](size_t pattern) {
        return combines ? (kind >> pattern & 1) != 0 : pattern + 1 == kind;
      });
    }
    return absl::OkStatus();
  }

  // Adds the keys that match the patterns that `matches` says, and no others.
  template <typename Matches>
  void AddExtra(const Matches& matches) {
    ObjectConstraints::Extra extra;
    std::set<SchemaRef> matched;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      const auto& [schema, pattern] = patterns_[i];
      if (!matches(i)) {
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
    if (!IsNever(extra.schema)) object_.extras.push_back(std::move(extra));
  }

  SchemaDocument& document_;
  const Conjunction& plain_;
  ObjectConstraints& object_;
  std::vector<std::string> names_;  // of properties, in their order
  std::set<std::string> known_;     // the same
  std::set<std::string> required_;
  std::vector<std::pair<SchemaRef, std::string>> patterns_;  // of keys, with their schemas
};

// Adds what one schema says of the property `name`.
absl::Status AddConditions(SchemaDocument* document, SchemaRef schema, const std::string& name,
                           Conjunction* conditions) {
  HEDDLE_RETURN_IF_ERROR(Spend(document->budget(), 1 + static_cast<int64_t>(conditions->size())));
  bool known = false;
  if (auto found = schema->find("properties"); found != schema->end() && found->is_object()) {
    if (auto property = found->find(name); property != found->end()) {
      *conditions =
          With(std::move(*conditions), document->Child(schema, "properties", name, *property));
      known = true;
    }
  }
  if (auto found = schema->find("patternProperties"); found != schema->end()) {
    for (auto it = found->begin(); it != found->end(); ++it) {
      const auto& machine = document->Pattern(it.key());
      if (!machine.ok()) continue;  // dropped
      Grammar scratch;
      const std::u32string text = scratch.exprs[Index(scratch.Text(std::string_view(name)))].text;
      if (!machine->Accepts(text)) continue;
      *conditions =
          With(std::move(*conditions), document->Child(schema, "patternProperties", it.key(), *it));
      known = true;
    }
  }
  auto additional = schema->find("additionalProperties");
  if (!known && additional != schema->end()) {
    *conditions =
        With(std::move(*conditions), document->Child(schema, "additionalProperties", *additional));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsNever(const Conjunction& schemas) {
  return std::any_of(schemas.begin(), schemas.end(),
                     [](SchemaRef schema) { return schema->is_boolean() && !schema->get<bool>(); });
}

absl::StatusOr<Conjunction> ConditionsOn(SchemaDocument* document, const Conjunction& plain,
                                         const std::string& name) {
  Conjunction conditions;
  for (SchemaRef schema : plain) {
    HEDDLE_RETURN_IF_ERROR(AddConditions(document, schema, name, &conditions));
  }
  return conditions;
}

absl::Status GatherObject(SchemaDocument* document, const Conjunction& plain,
                          ValueConstraints* out) {
  return ObjectGatherer(document, plain, &out->object).Run();
}

}  // namespace heddle::engine::grammar
