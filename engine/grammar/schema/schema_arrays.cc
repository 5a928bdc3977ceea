// Arrays: items by their places, counts, items that must be contained, and sets.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/schema/schema_values.h"
#include "engine/grammar/schema/schema_writer.h"

namespace heddle::engine::grammar {
namespace {

// Sets of so many values may be written in any order; larger ones in the order of the schema.
constexpr size_t kMaxUnorderedSet = 8;
// Larger maxima of bounded arrays are taken as this one: no answer has so many items.
constexpr int32_t kMaxCountedItems = 4096;
// Combinations of how many items of each kind there have been.
constexpr size_t kMaxContained = 64;

// The automaton of one array: "[", items with commas between them, "]".
class ArrayMachine {
 public:
  ArrayMachine(MachineBuilder* machine, std::function<void(int32_t, int32_t)> whitespace)
      : machine_(*machine), whitespace_(std::move(whitespace)) {
    const int32_t opened = machine_.NewState();
    machine_.Text(machine_.start(), "[", opened);
    first_ = machine_.NewState();
    whitespace_(opened, first_);
    close_ = machine_.NewState();
    const int32_t end = machine_.NewState();
    machine_.Text(close_, "]", end);
    machine_.Accept(end);
  }

  // The state before the first item, and behind "[".
  int32_t first() const { return first_; }
  // The state where an item begins, from one behind an item or from first().
  int32_t BeginItem(int32_t at) {
    if (at == first_) return at;
    const int32_t comma = machine_.NewState();
    machine_.Text(at, ",", comma);
    const int32_t item = machine_.NewState();
    whitespace_(comma, item);
    return item;
  }
  // Lets the array end in `at`.
  void MayEnd(int32_t at) {
    if (at == first_) {
      machine_.Epsilon(at, close_);
    } else {
      whitespace_(at, close_);
    }
  }

 private:
  MachineBuilder& machine_;
  const std::function<void(int32_t, int32_t)> whitespace_;
  int32_t first_ = 0;
  int32_t close_ = 0;
};

}  // namespace

// Counts the items that schemas of "contains" are about. A number stands for the counts of all.
class SchemaWriter::Containing {
 public:
  explicit Containing(std::vector<ArrayConstraints::Contained> kinds) : kinds_(std::move(kinds)) {
    for (const ArrayConstraints::Contained& kind : kinds_) {
      strides_.push_back(num_counts_);
      num_counts_ *= static_cast<size_t>(Most(kind)) + 1;
    }
  }

  size_t num_counts() const { return num_counts_; }
  bool IsEnough(size_t counts) const {
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (CountOf(counts, i) < kinds_[i].min) return false;
    }
    return true;
  }

  // An item and what it adds to the counts.
  struct Step {
    size_t counts;
    Conjunction conditions;
  };
  std::vector<Step> StepsFrom(size_t counts, SchemaDocument* document) const {
    std::vector<Step> steps = {{counts, {}}};
    for (size_t i = 0; i < kinds_.size(); ++i) {
      const ArrayConstraints::Contained& kind = kinds_[i];
      const bool is_full = CountOf(counts, i) == Most(kind);
      std::vector<Step> more;
      for (const Step& step : steps) {
        // Where there may be too many, an item that is not counted must be none of the kind.
        Step other = step;
        if (kind.max >= 0) {
          other.conditions = With(other.conditions, document->Not(kind.schema, kind.schema));
        }
        more.push_back(std::move(other));
        if (is_full) continue;
        more.push_back({step.counts + strides_[i], With(step.conditions, kind.schema)});
      }
      steps = std::move(more);
    }
    return steps;
  }

 private:
  static int32_t Most(const ArrayConstraints::Contained& kind) {
    return kind.max >= 0 ? kind.max : kind.min;
  }
  int32_t CountOf(size_t counts, size_t kind) const {
    return static_cast<int32_t>(counts / strides_[kind] %
                                (static_cast<size_t>(Most(kinds_[kind])) + 1));
  }

  std::vector<ArrayConstraints::Contained> kinds_;
  std::vector<size_t> strides_;
  size_t num_counts_ = 1;
};

absl::StatusOr<SchemaWriter::Containing> SchemaWriter::ContainingOf(const ValueConstraints& c) {
  std::vector<ArrayConstraints::Contained> kinds;
  size_t num_counts = 1;
  for (const ArrayConstraints::Contained& kind : c.array.contained) {
    num_counts *= static_cast<size_t>(std::max(kind.min, kind.max)) + 1;
    if (num_counts <= kMaxContained) {
      kinds.push_back(kind);
      continue;
    }
    num_counts /= static_cast<size_t>(std::max(kind.min, kind.max)) + 1;
    const std::string message =
        kinds.empty() ? base::StrCat("\"contains\" with \"minContains\" or \"maxContains\" above ",
                                     kMaxContained - 1, " is not supported")
                      : base::StrCat("several \"contains\" whose counts have more than ",
                                     kMaxContained, " combinations are not supported");
    HEDDLE_RETURN_IF_ERROR(document_.Unsupported(c.where, message));
  }
  return Containing(std::move(kinds));
}

absl::StatusOr<ExprId> SchemaWriter::ArrayOf(const ValueConstraints& c) {
  const ArrayConstraints& array = c.array;
  if (array.max_items >= 0 && array.min_items > array.max_items) {
    return Nothing(c, base::StrCat("\"minItems\" ", array.min_items, " is above \"maxItems\" ",
                                   array.max_items));
  }
  for (const ArrayConstraints::Contained& kind : array.contained) {
    if (kind.max < 0 || kind.min <= kind.max) continue;
    return Nothing(
        c, base::StrCat("\"minContains\" ", kind.min, " is above \"maxContains\" ", kind.max));
  }
  if (!array.unique || array.max_items == 0 || array.max_items == 1) return ItemsOf(c);
  if (array.prefix.empty() && array.contained.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(const auto values, FiniteValues(&document_, array.items));
    if (values.has_value()) {
      if (static_cast<int64_t>(values->size()) < array.min_items) {
        return Nothing(c, base::StrCat("\"minItems\" ", array.min_items, " is above the ",
                                       values->size(), " different values of an item"));
      }
      return values->size() <= kMaxUnorderedSet ? SetOf(c, *values) : OrderedSetOf(c, *values);
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(const ExprId items, ItemsOf(c));
  return Distinct(c, items);
}

absl::StatusOr<ExprId> SchemaWriter::ItemsOf(const ValueConstraints& c) {
  const ArrayConstraints& array = c.array;
  const auto prefix = static_cast<int32_t>(array.prefix.size());
  int32_t max = array.max_items;
  // Nothing valid can stand behind the prefix.
  for (int32_t i = 0; i <= prefix && (max < 0 || i < max); ++i) {
    if (IsNever(i < prefix ? array.prefix[static_cast<size_t>(i)] : array.items)) max = i;
  }
  if (max >= 0 && array.min_items > max) {
    return Nothing(c, base::StrCat("\"minItems\" ", array.min_items, " is above the ", max,
                                   " items that may be valid"));
  }
  if (max >= 0) max = std::min(max, std::max(array.min_items, kMaxCountedItems));
  HEDDLE_ASSIGN_OR_RETURN(const Containing containing, ContainingOf(c));
  MachineBuilder machine(budget());
  ArrayMachine items(&machine, [&](int32_t from, int32_t to) { Whitespace(&machine, from, to); });
  // Positions with states of their own; behind them, if unbounded, the last one repeats.
  const bool bounded = max >= 0;
  const int32_t distinct = bounded ? max : std::max({prefix, array.min_items, int32_t{1}}) + 1;
  // By how many items of each kind there have been: the state behind the items so far.
  std::vector<int32_t> at(containing.num_counts(), -1);
  at[0] = items.first();
  if (array.min_items == 0 && containing.IsEnough(0)) items.MayEnd(at[0]);
  for (int32_t i = 0; i < distinct; ++i) {
    const Conjunction& schema = i < prefix ? array.prefix[static_cast<size_t>(i)] : array.items;
    std::vector<int32_t> next(at.size(), -1);
    const bool repeats = !bounded && i + 1 == distinct;
    // A last position that repeats leads back to its own states.
    if (repeats) {
      for (size_t counts = 0; counts < at.size(); ++counts) {
        next[counts] = at[counts] == items.first() ? -1 : at[counts];
        if (next[counts] < 0) next[counts] = machine.NewState();
      }
    }
    for (size_t counts = 0; counts < at.size(); ++counts) {
      if (at[counts] < 0 && !repeats) continue;
      const int32_t from = at[counts] < 0 ? next[counts] : at[counts];
      const int32_t item = items.BeginItem(from);
      for (const Containing::Step& step : containing.StepsFrom(counts, &document_)) {
        HEDDLE_RETURN_IF_ERROR(Spend(budget(), 1));
        int32_t& to = next[step.counts];
        if (to < 0) to = machine.NewState();
        Conjunction both = schema;
        for (SchemaRef more : step.conditions) both = With(std::move(both), more);
        machine.Call(item, RuleFor(both), to);
      }
    }
    for (size_t counts = 0; counts < at.size() && i + 1 >= array.min_items; ++counts) {
      if (next[counts] >= 0 && containing.IsEnough(counts)) items.MayEnd(next[counts]);
    }
    at = std::move(next);
  }
  absl::StatusOr<StateMachine> built = machine.Build();
  if (!built.ok()) return At(c, built.status());
  return grammar_.Machine(*std::move(built));
}

// The automaton has a state per set of values that have been written.
absl::StatusOr<ExprId> SchemaWriter::SetOf(const ValueConstraints& c,
                                           const std::vector<Json>& values) {
  const ArrayConstraints& array = c.array;
  MachineBuilder machine(budget());
  ArrayMachine items(&machine, [&](int32_t from, int32_t to) { Whitespace(&machine, from, to); });
  std::vector<int32_t> states = {items.first()};
  while (states.size() < size_t{1} << values.size()) states.push_back(machine.NewState());
  for (size_t set = 0; set < states.size(); ++set) {
    const int32_t count = __builtin_popcountll(set);
    if (count >= array.min_items) items.MayEnd(states[set]);
    if (array.max_items >= 0 && count >= array.max_items) continue;
    const int32_t item = items.BeginItem(states[set]);
    for (size_t v = 0; v < values.size(); ++v) {
      if ((set >> v & 1) == 0) machine.Text(item, values[v].dump(), states[set | size_t{1} << v]);
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(StateMachine built, machine.Build());
  return grammar_.Machine(std::move(built));
}

// The automaton has a state per value and number of items.
absl::StatusOr<ExprId> SchemaWriter::OrderedSetOf(const ValueConstraints& c,
                                                  const std::vector<Json>& values) {
  const auto size = static_cast<int32_t>(values.size());
  const int32_t max = c.array.max_items < 0 || c.array.max_items >= size ? -1 : c.array.max_items;
  const int32_t counted = std::max(c.array.min_items, max);  // numbers of items told apart
  MachineBuilder machine(budget());
  ArrayMachine items(&machine, [&](int32_t from, int32_t to) { Whitespace(&machine, from, to); });
  // [number of items][next value]: where the value, or a later one, may follow.
  const auto rows = static_cast<size_t>(std::max(counted, 1)) + 1;
  std::vector<std::vector<int32_t>> begins(rows, std::vector<int32_t>(values.size() + 1));
  std::vector<std::vector<int32_t>> ends = begins;
  for (size_t n = 0; n < rows; ++n) {
    for (size_t v = 0; v <= values.size(); ++v) {
      ends[n][v] = n == 0 ? items.first() : machine.NewState();
      begins[n][v] = machine.NewState();
    }
  }
  for (size_t n = 0; n < rows; ++n) {
    for (size_t v = 0; v <= values.size(); ++v) {
      HEDDLE_RETURN_IF_ERROR(Spend(budget(), 1));
      const auto count = static_cast<int32_t>(n);
      if (count >= c.array.min_items && (n > 0 || v == 0)) items.MayEnd(ends[n][v]);
      if (v == values.size() || (max >= 0 && count >= max)) continue;
      if (n > 0 || v == 0) machine.Epsilon(items.BeginItem(ends[n][v]), begins[n][v]);
      machine.Epsilon(begins[n][v], begins[n][v + 1]);
      machine.Text(begins[n][v], values[v].dump(), ends[std::min(n + 1, rows - 1)][v + 1]);
    }
  }
  absl::StatusOr<StateMachine> built = machine.Build();
  if (!built.ok()) return At(c, built.status());
  return grammar_.Machine(*std::move(built));
}

}  // namespace heddle::engine::grammar
