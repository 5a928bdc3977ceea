#include "engine/grammar/schema/schema_expander.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/schema/schema_negation.h"
#include "engine/grammar/schema/schema_overlap.h"
#include "engine/grammar/schema/schema_types.h"

namespace heddle::engine::grammar {
namespace {

constexpr size_t kMaxAlternatives = 512;  // of one conjunction
constexpr size_t kManyAlternatives = 32;
constexpr int kMaxChoices = 200;  // made one below the other
constexpr size_t kMaxTasks = 4096;

// Keywords of older drafts that would decide on validity, and have no meaning here.
constexpr std::string_view kUnsupported[] = {"extends", "disallow", "divisibleBy"};

// Where a task comes from. Nodes are a tree, and never change.
struct Origin {
  SchemaRef schema = nullptr;
  int32_t parent = -1;      // -1: none
  bool is_failure = false;  // that it fails, and not that it holds
  bool is_choice = false;   // one alternative of several
  bool is_evaluated =
      true;  // what it says of properties counts for unevaluatedProperties around it
};

struct Task {
  enum class Kind : uint8_t {
    kHolds,      // `schema` is valid
    kAnyOf,      // one of the schemas of its `anyOf` is valid
    kOneOf,      // exactly one of its `oneOf`
    kIf,         // its `if`, `then` and `else`
    kDependent,  // its `keyword` about `name`
    kFails,      // `schema` is not valid
  };
  Kind kind = Kind::kHolds;
  SchemaRef schema = nullptr;
  int32_t origin = -1;
  std::string keyword;
  std::string name;
};

struct State {
  std::vector<Task> now;     // kHolds; the last is next
  std::deque<Task> choices;  // anyOf and oneOf, in their order
  std::deque<Task> last;     // what is easier to say of a value of which the rest is known
  Conjunction plain;
  std::vector<int32_t> origins;  // [plain]
};

class Expander {
 public:
  explicit Expander(SchemaDocument* document) : document_(*document) {}

  absl::StatusOr<std::vector<Conjunction>> Run(const Conjunction& conjunction) {
    State state;
    for (auto it = conjunction.rbegin(); it != conjunction.rend(); ++it) {
      state.now.push_back({Task::Kind::kHolds, *it, -1, {}, {}});
    }
    HEDDLE_RETURN_IF_ERROR(Go(std::move(state), 0));
    return std::move(out_);
  }

 private:
  absl::Status Go(State state, int depth) {
    if (depth > kMaxChoices) {
      return document_.Error(document_.root(),
                             "references or alternatives lead to each other without end, or too "
                             "deep");
    }
    bool is_checked = false;
    while (true) {
      while (!state.now.empty()) {
        const Task task = std::move(state.now.back());
        state.now.pop_back();
        HEDDLE_ASSIGN_OR_RETURN(const bool is_alive, Hold(task, &state));
        if (!is_alive) return absl::OkStatus();
        is_checked = false;
      }
      HEDDLE_RETURN_IF_ERROR(StatusOf(document_.budget()));
      if (!is_checked && depth > 0 && OverlapOf(state).IsEmpty()) return absl::OkStatus();
      is_checked = true;
      std::deque<Task>& queue = state.choices.empty() ? state.last : state.choices;
      if (queue.empty()) return Finish(std::move(state));
      const Task choice = std::move(queue.front());
      queue.pop_front();
      HEDDLE_ASSIGN_OR_RETURN(std::vector<std::vector<Task>> ways, WaysOf(choice, state));
      if (ways.empty()) return absl::OkStatus();
      if (ways.size() == 1) {
        Begin(std::move(ways.front()), &state);
        continue;
      }
      for (std::vector<Task>& way : ways) {
        HEDDLE_RETURN_IF_ERROR(
            Spend(document_.budget(), static_cast<int64_t>(8 * (state.plain.size() + way.size()))));
        State next = state;
        Begin(std::move(way), &next);
        HEDDLE_RETURN_IF_ERROR(Go(std::move(next), depth + 1));
        // A few of the ways to fail will do.
        if (choice.kind == Task::Kind::kFails && out_.size() > kManyAlternatives) break;
        if (out_.size() > kMaxAlternatives) {
          return document_.Error(choice.schema, base::StrCat("more than ", kMaxAlternatives,
                                                             " combinations of alternatives"));
        }
      }
      return absl::OkStatus();
    }
  }

  void Begin(std::vector<Task> way, State* state) {
    for (auto task = way.rbegin(); task != way.rend(); ++task) {
      if (task->kind == Task::Kind::kHolds) {
        state->now.push_back(std::move(*task));
      } else {
        state->last.push_front(std::move(*task));
      }
    }
  }

  int32_t NewOrigin(const Origin& origin) {
    origins_.push_back(origin);
    return static_cast<int32_t>(origins_.size()) - 1;
  }

  enum class Loop : uint8_t { kNone, kTogether, kByChoice };
  // Whether that `task.schema` holds, or fails, led to the task itself. If it did by a choice among
  // alternatives, the alternative says that the schema is valid if it is valid, and adds no values.
  Loop LoopOf(const Task& task) const {
    const bool is_failure = task.kind == Task::Kind::kFails;
    bool by_choice = false;
    for (int32_t i = task.origin; i >= 0; i = origins_[static_cast<size_t>(i)].parent) {
      const Origin& at = origins_[static_cast<size_t>(i)];
      by_choice |= at.is_choice;
      if (at.schema == task.schema && at.is_failure == is_failure) {
        return by_choice ? Loop::kByChoice : Loop::kTogether;
      }
    }
    return Loop::kNone;
  }

  // Takes a schema that must be valid. Returns false if nothing is valid any more.
  absl::StatusOr<bool> Hold(const Task& task, State* state) {
    const SchemaRef schema = task.schema;
    HEDDLE_RETURN_IF_ERROR(
        Spend(document_.budget(),
              1 + static_cast<int64_t>(schema->size() + state->now.size() + state->plain.size())));
    if (schema->is_boolean()) return schema->get<bool>();
    if (!schema->is_object()) {
      return document_.Error(schema, "a schema must be an object or a boolean");
    }
    if (LoopOf(task) == Loop::kByChoice) return false;
    if (std::find(state->plain.begin(), state->plain.end(), schema) != state->plain.end()) {
      return true;
    }
    if (state->now.size() + state->last.size() > kMaxTasks) {
      return document_.Error(schema, "too many conditions on one value");
    }
    const int32_t origin = NewOrigin(
        {.schema = schema, .parent = task.origin, .is_evaluated = !document_.IsMade(schema)});
    state->plain.push_back(schema);
    state->origins.push_back(origin);
    for (std::string_view keyword : kUnsupported) {
      if (!schema->contains(std::string(keyword))) continue;
      HEDDLE_RETURN_IF_ERROR(
          document_.Unsupported(schema, base::StrCat(base::Quote(keyword), " is not supported")));
    }
    HEDDLE_RETURN_IF_ERROR(HoldReferences(schema, origin, state));
    return HoldCombinations(schema, origin, state);
  }

  absl::Status HoldReferences(SchemaRef schema, int32_t origin, State* state) {
    for (const char* keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
      const auto reference = schema->find(keyword);
      if (reference == schema->end()) continue;
      HEDDLE_ASSIGN_OR_RETURN(const SchemaRef target,
                              document_.Resolve(schema, keyword, *reference));
      if (target != nullptr) state->now.push_back({Task::Kind::kHolds, target, origin, {}, {}});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> HoldCombinations(SchemaRef schema, int32_t origin, State* state) {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<SchemaRef> all, Members(schema, "allOf"));
    // The first member is resolved first, because it determines the order of properties.
    for (auto member = all.rbegin(); member != all.rend(); ++member) {
      state->now.push_back({Task::Kind::kHolds, *member, origin, {}, {}});
    }
    if (schema->contains("anyOf")) {
      state->choices.push_back({Task::Kind::kAnyOf, schema, origin, "anyOf", {}});
    }
    if (schema->contains("oneOf")) {
      state->choices.push_back({Task::Kind::kOneOf, schema, origin, "oneOf", {}});
    }
    if (schema->contains("if") && (schema->contains("then") || schema->contains("else"))) {
      state->last.push_back({Task::Kind::kIf, schema, origin, {}, {}});
    }
    for (const char* keyword : {"dependentSchemas", "dependentRequired", "dependencies"}) {
      const auto found = schema->find(keyword);
      if (found == schema->end()) continue;
      if (!found->is_object()) {
        return document_.Error(schema, base::StrCat(base::Quote(keyword), " must be an object"));
      }
      for (auto it = found->begin(); it != found->end(); ++it) {
        state->last.push_back({Task::Kind::kDependent, schema, origin, keyword, it.key()});
      }
    }
    if (const auto negated = schema->find("not"); negated != schema->end()) {
      const SchemaRef child = document_.Child(schema, "not", *negated);
      if (!IsPlainNegation(*child)) {
        state->last.push_back({Task::Kind::kFails, child, origin, {}, {}});
      }
    }
    return true;
  }

  // Negations that value_constraints.h resolves itself.
  static bool IsPlainNegation(const Json& negated) {
    if (!negated.is_object() || negated.size() != 1) return false;
    const std::string& keyword = negated.begin().key();
    return keyword == "const" || keyword == "enum" || keyword == "pattern" || keyword == "type";
  }

  absl::StatusOr<std::vector<SchemaRef>> Members(SchemaRef schema, const std::string& keyword) {
    std::vector<SchemaRef> members;
    const auto list = schema->find(keyword);
    if (list == schema->end()) return members;
    if (!list->is_array() || list->empty()) {
      return document_.Error(schema,
                             base::StrCat(base::Quote(keyword), " must be a list of schemas"));
    }
    size_t index = 0;
    for (const Json& member : *list) {
      members.push_back(document_.Child(schema, keyword, std::to_string(index++), member));
    }
    return members;
  }

  // The alternatives of a choice, each as tasks.
  absl::StatusOr<std::vector<std::vector<Task>>> WaysOf(const Task& choice, const State& state) {
    switch (choice.kind) {
      case Task::Kind::kAnyOf:
      case Task::Kind::kOneOf:
        return WaysOfList(choice, state);
      case Task::Kind::kIf:
        return WaysOfIf(choice, state);
      case Task::Kind::kDependent:
        return WaysOfDependent(choice, state);
      default:
        return WaysOfFailure(choice, state);
    }
  }

  // Tasks of one way of `choice`, which `is_only` if there is no other.
  Task Holds(SchemaRef schema, const Task& choice, bool is_only = false) {
    const bool is_failure = choice.kind == Task::Kind::kFails;
    const int32_t origin = NewOrigin({.schema = choice.schema,
                                      .parent = choice.origin,
                                      .is_failure = is_failure,
                                      .is_choice = !is_only,
                                      .is_evaluated = !is_failure});
    return {Task::Kind::kHolds, schema, origin, {}, {}};
  }
  Task Fails(SchemaRef schema, const Task& choice, bool is_only = false) {
    Task task = Holds(schema, choice, is_only);
    task.kind = Task::Kind::kFails;
    origins_.back().is_evaluated = false;
    return task;
  }

  Overlap OverlapOf(const State& state) { return {&document_.facts(), state.plain}; }

  absl::StatusOr<std::vector<std::vector<Task>>> WaysOfList(const Task& choice,
                                                            const State& state) {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<SchemaRef> branches,
                            Members(choice.schema, choice.keyword));
    std::vector<std::vector<Task>> ways;
    const Overlap plain = OverlapOf(state);
    for (size_t i = 0; i < branches.size(); ++i) {
      const Overlap with = plain.And(branches[i]);
      if (with.IsEmpty()) continue;
      std::vector<Task> way = {Holds(branches[i], choice)};
      for (size_t k = 0; k < branches.size() && choice.kind == Task::Kind::kOneOf; ++k) {
        if (k != i && !with.Excludes(branches[k])) way.push_back(Fails(branches[k], choice));
      }
      ways.push_back(std::move(way));
    }
    return ways;
  }

  absl::StatusOr<std::vector<std::vector<Task>>> WaysOfIf(const Task& choice, const State& state) {
    const Json& schema = *choice.schema;
    const SchemaRef condition = document_.Child(choice.schema, "if", schema.at("if"));
    std::vector<std::vector<Task>> ways;
    if (!OverlapOf(state).Excludes(condition)) {
      ways.push_back({Holds(condition, choice)});
      if (schema.contains("then")) {
        ways.back().push_back(
            Holds(document_.Child(choice.schema, "then", schema.at("then")), choice));
      }
    }
    ways.push_back({Fails(condition, choice)});
    if (schema.contains("else")) {
      ways.back().push_back(
          Holds(document_.Child(choice.schema, "else", schema.at("else")), choice));
    }
    return ways;
  }

  // Either the property is absent, or what depends on it holds.
  absl::StatusOr<std::vector<std::vector<Task>>> WaysOfDependent(const Task& choice,
                                                                 const State& state) {
    const Json& value = choice.schema->at(choice.keyword).at(choice.name);
    const SchemaRef absent =
        document_.Make(ObjectOf("properties", ObjectOf(choice.name.c_str(), false)), choice.schema);
    SchemaRef dependent = nullptr;
    if (value.is_array() || value.is_string()) {
      const Json names = value.is_array() ? value : Json::array({value});
      dependent = document_.Make(ObjectOf("required", names), choice.schema);
    } else {
      dependent = document_.Child(choice.schema, choice.keyword, choice.name, value);
    }
    const SchemaRef present =
        document_.Make(ObjectOf("required", Json::array({choice.name})), choice.schema);
    std::vector<std::vector<Task>> ways;
    const Overlap plain = OverlapOf(state);
    if (IsListed(state, choice.name) && !plain.Excludes(present)) {
      ways.push_back({Holds(present, choice), Holds(dependent, choice)});
    }
    if (!plain.Excludes(absent)) ways.push_back({Holds(absent, choice)});
    return ways;
  }

  static bool IsListed(const State& state, const std::string& name) {
    return std::any_of(state.plain.begin(), state.plain.end(), [&name](SchemaRef schema) {
      for (const char* keyword : {"properties", "required"}) {
        const auto found = schema->find(keyword);
        if (found == schema->end()) continue;
        if (found->is_object() && found->contains(name)) return true;
        if (found->is_array() && std::find(found->begin(), found->end(), name) != found->end()) {
          return true;
        }
      }
      return false;
    });
  }

  absl::StatusOr<std::vector<std::vector<Task>>> WaysOfFailure(const Task& choice,
                                                               const State& state) {
    std::vector<std::vector<Task>> ways;
    if (Overlap::WithoutNegations(&document_.facts(), state.plain).Excludes(choice.schema)) {
      return std::vector<std::vector<Task>>{{}};
    }
    const Overlap plain = OverlapOf(state);
    const Loop loop = LoopOf(choice);
    if (loop == Loop::kTogether) return std::vector<std::vector<Task>>{{}};
    if (loop == Loop::kByChoice) return ways;
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<WayToFail> failures,
                            WaysToFail(&document_, choice.schema, state.plain));
    for (const WayToFail& failure : failures) {
      HEDDLE_RETURN_IF_ERROR(StatusOf(document_.budget()));
      Overlap held = plain;
      for (SchemaRef schema : failure.hold) held = held.And(schema);
      if (held.IsEmpty()) continue;
      const bool is_only = failures.size() == 1;
      std::vector<Task> way;
      for (SchemaRef schema : failure.hold) way.push_back(Holds(schema, choice, is_only));
      for (SchemaRef schema : failure.fail) way.push_back(Fails(schema, choice, is_only));
      ways.push_back(std::move(way));
    }
    return ways;
  }

  absl::Status Finish(State state) {
    for (size_t i = 0; i < state.plain.size(); ++i) {
      const SchemaRef schema = state.plain[i];
      if (schema->contains("unevaluatedProperties")) CloseObject(i, &state);
      if (schema->contains("unevaluatedItems")) CloseArray(i, &state);
    }
    out_.push_back(std::move(state.plain));
    return absl::OkStatus();
  }

  // Whether what plain[i] says of properties and items counts for its ancestor `root`.
  bool IsEvaluatedBelow(const State& state, size_t i, int32_t root) const {
    for (int32_t at = state.origins[i]; at >= 0; at = origins_[static_cast<size_t>(at)].parent) {
      if (at == root) return true;
      if (!origins_[static_cast<size_t>(at)].is_evaluated) return false;
    }
    return false;
  }

  // unevaluatedProperties is additionalProperties beside all properties that the schema and those
  // that it refers to have mentioned.
  void CloseObject(size_t owner, State* state) {
    const SchemaRef schema = state->plain[owner];
    Json properties = Json::object();
    Json patterns = Json::object();
    for (size_t i = 0; i < state->plain.size(); ++i) {
      if (state->origins[i] < 0 || !IsEvaluatedBelow(*state, i, state->origins[owner])) continue;
      const Json& other = *state->plain[i];
      if (other.contains("additionalProperties")) return;
      if (i != owner && other.contains("unevaluatedProperties")) return;
      for (auto [keyword, all] :
           {std::pair{"properties", &properties}, {"patternProperties", &patterns}}) {
        const auto found = other.find(keyword);
        if (found == other.end() || !found->is_object()) continue;
        for (auto it = found->begin(); it != found->end(); ++it) (*all)[it.key()] = true;
      }
    }
    Json closed = ObjectOf("properties", std::move(properties));
    if (!patterns.empty()) closed["patternProperties"] = std::move(patterns);
    closed["additionalProperties"] = document_.Link(
        document_.Child(schema, "unevaluatedProperties", schema->at("unevaluatedProperties")));
    AddPlain(document_.Make(closed, schema), state);
  }

  void CloseArray(size_t owner, State* state) {
    const SchemaRef schema = state->plain[owner];
    size_t prefix = 0;
    for (size_t i = 0; i < state->plain.size(); ++i) {
      if (state->origins[i] < 0 || !IsEvaluatedBelow(*state, i, state->origins[owner])) continue;
      const Json& other = *state->plain[i];
      const auto items = other.find("items");
      if (other.contains("additionalItems") || (items != other.end() && !items->is_array())) return;
      if (i != owner && other.contains("unevaluatedItems")) return;
      if (items != other.end()) prefix = std::max(prefix, items->size());
      const auto list = other.find("prefixItems");
      if (list != other.end()) prefix = std::max(prefix, list->size());
    }
    Json closed = ObjectOf("prefixItems", Json(prefix, true));
    closed["items"] =
        document_.Link(document_.Child(schema, "unevaluatedItems", schema->at("unevaluatedItems")));
    AddPlain(document_.Make(closed, schema), state);
  }

  static void AddPlain(SchemaRef schema, State* state) {
    state->plain.push_back(schema);
    state->origins.push_back(-1);
  }

  SchemaDocument& document_;
  std::vector<Origin> origins_;
  std::vector<Conjunction> out_;
};

}  // namespace

absl::StatusOr<std::vector<Conjunction>> Expand(SchemaDocument* document,
                                                const Conjunction& conjunction) {
  return Expander(document).Run(conjunction);
}

}  // namespace heddle::engine::grammar
