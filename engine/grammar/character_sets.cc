#include "engine/grammar/character_sets.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace heddle::engine::grammar {
namespace {

// Weight of a loop against a chain: texts stay in loops, while chains of counted characters are as
// long as their count.
constexpr int64_t kLoopWeight = 100;
// A set that one rule names with more ranges, and that calls of it read, is not running text: all
// letters of Unicode are some 600 ranges.
constexpr size_t kMaxRanges = 2048;

using Ranges = std::vector<std::pair<char32_t, char32_t>>;

int64_t Count(const CodePointSet& chars) {
  int64_t count = 0;
  for (const CodePointRange& range : chars.ranges()) count += range.last - range.first + 1;
  return count;
}

// The characters by which a rule can be read to its end.
CodePointSet WholeTexts(const StateMachine& machine) {
  CodePointSet chars;
  if (machine.states.empty()) return chars;
  for (const CharEdge& edge : machine.states[0].chars) {
    const MachineState& target = machine.states[static_cast<size_t>(edge.target)];
    if (target.accepting && target.chars.empty() && target.calls.empty()) {
      chars.Add(edge.first, edge.last);
    }
  }
  return chars;
}

// The largest set that leads from a state to one other state, and that state.
std::pair<CodePointSet, int32_t> Largest(const MachineState& state,
                                         std::span<const CodePointSet> whole_texts) {
  std::vector<std::pair<int32_t, CodePointSet>> by_target;
  absl::flat_hash_map<int32_t, size_t> known;
  auto set_of = [&by_target, &known](int32_t target) -> CodePointSet* {
    auto [it, is_new] = known.try_emplace(target, by_target.size());
    if (is_new) by_target.emplace_back(target, CodePointSet());
    return &by_target[it->second].second;
  };
  for (const CharEdge& edge : state.chars) set_of(edge.target)->Add(edge.first, edge.last);
  for (const CallEdge& call : state.calls) {
    const CodePointSet& chars = whole_texts[static_cast<size_t>(call.rule)];
    if (!chars.empty() && chars.ranges().size() <= kMaxRanges) set_of(call.target)->Add(chars);
  }
  std::pair<CodePointSet, int32_t> largest{{}, -1};
  int64_t most = kMinRunCharacters - 1;
  for (auto& [target, chars] : by_target) {
    const int64_t count = Count(chars);
    if (count <= most) continue;
    most = count;
    largest = {std::move(chars), target};
  }
  return largest;
}

}  // namespace

std::vector<CodePointSet> FindCharacterSets(std::span<const StateMachine> machines,
                                            Budget* budget) {
  std::vector<CodePointSet> whole_texts;
  whole_texts.reserve(machines.size());
  for (const StateMachine& machine : machines) whole_texts.push_back(WholeTexts(machine));
  absl::flat_hash_map<Ranges, int64_t> weights;
  for (const StateMachine& machine : machines) {
    std::vector<std::pair<CodePointSet, int32_t>> largest;
    largest.reserve(machine.states.size());
    for (const MachineState& state : machine.states) {
      size_t work = 1 + 2 * state.chars.size();
      for (const CallEdge& call : state.calls) {
        work += 1 + whole_texts[static_cast<size_t>(call.rule)].ranges().size();
      }
      if (!Spend(budget, static_cast<int64_t>(work)).ok()) return {};
      largest.push_back(Largest(state, whole_texts));
    }
    for (const auto& [chars, target] : largest) {
      // One character of a set followed by one of another set is not running text.
      if (target < 0 || largest[static_cast<size_t>(target)].first != chars) continue;
      Ranges ranges;
      for (const CodePointRange& range : chars.ranges()) {
        ranges.emplace_back(range.first, range.last);
      }
      weights[ranges] += largest[static_cast<size_t>(target)].second == target ? kLoopWeight : 1;
    }
  }
  std::vector<std::pair<int64_t, CodePointSet>> found;
  for (const auto& [ranges, weight] : weights) {
    CodePointSet chars;
    for (const auto& [first, last] : ranges) chars.Add(first, last);
    found.emplace_back(weight, std::move(chars));
  }
  // Grammars must be the same in every run: no order may come from a hash table.
  auto before = [](const CodePointSet& a, const CodePointSet& b) {
    const int64_t count_a = Count(a);
    const int64_t count_b = Count(b);
    if (count_a != count_b) return count_a > count_b;
    return std::lexicographical_compare(
        a.ranges().begin(), a.ranges().end(), b.ranges().begin(), b.ranges().end(),
        [](const CodePointRange& x, const CodePointRange& y) {
          return std::pair(x.first, x.last) < std::pair(y.first, y.last);
        });
  };
  std::sort(found.begin(), found.end(), [&before](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : before(a.second, b.second);
  });
  if (found.size() > kMaxCharacterSets) found.resize(kMaxCharacterSets);
  std::vector<CodePointSet> sets;
  sets.reserve(found.size());
  for (auto& [weight, chars] : found) sets.push_back(std::move(chars));
  std::sort(sets.begin(), sets.end(), before);
  return sets;
}

}  // namespace heddle::engine::grammar
