#include "engine/grammar/state_machine.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/signature.h"
#include "engine/grammar/source_index.h"

namespace heddle::engine::grammar {
namespace {

// Refinement stops beyond so many edge visits, and the machine stays as it is.
constexpr int64_t kMaxRefinementWork = 20'000'000;

template <typename Visit>
void ForEachTarget(const MachineState& state, const Visit& visit) {
  for (const CharEdge& edge : state.chars) visit(edge.target);
  for (const CallEdge& edge : state.calls) visit(edge.target);
}

SourceIndex SourcesOf(const StateMachine& machine) {
  return SourceIndex(machine.states.size(), [&machine](int32_t state, const auto& visit) {
    ForEachTarget(machine.states[state], visit);
  });
}

// States from which an accepting one is reached.
std::vector<bool> Productive(const StateMachine& machine) {
  const size_t n = machine.states.size();
  const SourceIndex sources = SourcesOf(machine);
  std::vector<int32_t> work;
  std::vector<bool> productive(n, false);
  for (size_t s = 0; s < n; ++s) {
    if (!machine.states[s].accepting) continue;
    productive[s] = true;
    work.push_back(static_cast<int32_t>(s));
  }
  while (!work.empty()) {
    const int32_t state = work.back();
    work.pop_back();
    for (int32_t source : sources.of(state)) {
      if (productive[source]) continue;
      productive[source] = true;
      work.push_back(source);
    }
  }
  return productive;
}

// Joins neighbouring ranges with the same target.
void MergeRanges(std::vector<CharEdge>* edges) {
  size_t kept = 0;
  for (const CharEdge& edge : *edges) {
    if (kept > 0 && (*edges)[kept - 1].last + 1 == edge.first &&
        (*edges)[kept - 1].target == edge.target) {
      (*edges)[kept - 1].last = edge.last;
    } else {
      (*edges)[kept++] = edge;
    }
  }
  edges->resize(kept);
}

// One state's edges in terms of classes of states, neighbouring ranges of one class as one; states
// with equal signatures are not distinguished yet.
Signature SignatureOf(const MachineState& state, int32_t own_class,
                      const std::vector<int32_t>& class_of) {
  Signature signature;
  signature.Add(static_cast<uint64_t>(own_class));
  for (size_t i = 0; i < state.chars.size();) {
    const CharEdge& edge = state.chars[i];
    char32_t last = edge.last;
    for (++i; i < state.chars.size(); ++i) {
      const CharEdge& next = state.chars[i];
      if (next.first != last + 1 || class_of[next.target] != class_of[edge.target]) break;
      last = next.last;
    }
    signature.Add(uint64_t{edge.first} << 32 | last);
    signature.Add(static_cast<uint64_t>(class_of[edge.target]));
  }
  signature.Add(~uint64_t{0});  // no range: calls follow
  for (const CallEdge& edge : state.calls) {
    signature.Add(static_cast<uint64_t>(edge.rule) << 32 |
                  static_cast<uint32_t>(class_of[edge.target]));
  }
  return signature;
}

int64_t CountEdges(const StateMachine& machine) {
  int64_t edges = 0;
  for (const MachineState& state : machine.states) {
    edges += 1 + static_cast<int64_t>(state.chars.size() + state.calls.size());
  }
  return edges;
}

// Separates states whose shortest or longest texts (in edges; no bound: -1) differ in length.
// Refinement alone would take one round per character of a counted repeat to find that.
// REQUIRES: from each state an accepting one can be reached, except the start of an empty language.
std::vector<int32_t> ClassesByLength(const StateMachine& machine) {
  const size_t n = machine.states.size();
  const SourceIndex sources = SourcesOf(machine);
  std::vector<size_t> ways_out(n, 0);  // to states whose longest text is unknown
  std::vector<int32_t> shortest(n, -1), longest(n, 0);
  std::vector<int32_t> near_end, bounded;
  for (size_t s = 0; s < n; ++s) {
    ways_out[s] = machine.states[s].chars.size() + machine.states[s].calls.size();
    if (ways_out[s] == 0) bounded.push_back(static_cast<int32_t>(s));
    if (!machine.states[s].accepting) continue;
    shortest[s] = 0;
    near_end.push_back(static_cast<int32_t>(s));
  }
  for (size_t i = 0; i < near_end.size(); ++i) {
    for (int32_t source : sources.of(near_end[i])) {
      if (shortest[source] >= 0) continue;
      shortest[source] = shortest[near_end[i]] + 1;
      near_end.push_back(source);
    }
  }
  for (size_t i = 0; i < bounded.size(); ++i) {
    for (int32_t source : sources.of(bounded[i])) {
      longest[source] = std::max(longest[source], longest[bounded[i]] + 1);
      if (--ways_out[source] == 0) bounded.push_back(source);
    }
  }
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> classes;
  std::vector<int32_t> class_of(n);
  for (size_t s = 0; s < n; ++s) {
    const std::pair<int32_t, int32_t> lengths = {shortest[s], ways_out[s] > 0 ? -1 : longest[s]};
    class_of[s] = classes.try_emplace(lengths, static_cast<int32_t>(classes.size())).first->second;
  }
  return class_of;
}

// The machine whose states are the classes; `class_of[0]` must be 0.
StateMachine Quotient(const StateMachine& machine, const std::vector<int32_t>& class_of,
                      int32_t num_classes) {
  StateMachine result;
  result.states.resize(num_classes);
  std::vector<bool> done(num_classes, false);
  for (size_t s = 0; s < machine.states.size(); ++s) {
    if (done[class_of[s]]) continue;
    done[class_of[s]] = true;
    MachineState& state = result.states[class_of[s]];
    state = machine.states[s];
    for (CharEdge& edge : state.chars) edge.target = class_of[edge.target];
    for (CallEdge& edge : state.calls) edge.target = class_of[edge.target];
    MergeRanges(&state.chars);
  }
  return result;
}

}  // namespace

bool StateMachine::IsEmpty() const { return !Productive(*this)[0]; }

bool StateMachine::Accepts(std::u32string_view text) const {
  int32_t at = 0;
  for (char32_t c : text) {
    const std::vector<CharEdge>& chars = states[at].chars;
    auto edge = std::find_if(chars.begin(), chars.end(),
                             [c](const CharEdge& e) { return e.first <= c && c <= e.last; });
    if (edge == chars.end()) return false;
    at = edge->target;
  }
  return states[at].accepting;
}

Nfa ToNfa(const StateMachine& machine) {
  Nfa nfa;
  for (const MachineState& state : machine.states) {
    nfa.states.push_back(
        {.chars = state.chars, .calls = state.calls, .accepting = state.accepting});
  }
  return nfa;
}

StateMachine Trim(const StateMachine& machine) {
  const std::vector<bool> productive = Productive(machine);
  std::vector<int32_t> new_id(machine.states.size(), -1);
  std::vector<int32_t> order = {0};
  new_id[0] = 0;
  auto reach = [&](int32_t target) {
    if (!productive[target] || new_id[target] >= 0) return;
    new_id[target] = static_cast<int32_t>(order.size());
    order.push_back(target);
  };
  for (size_t i = 0; i < order.size(); ++i) {
    ForEachTarget(machine.states[order[i]], reach);
  }
  StateMachine result;
  for (int32_t old : order) {
    MachineState& state = result.states.emplace_back();
    state.accepting = machine.states[old].accepting;
    for (CharEdge edge : machine.states[old].chars) {
      edge.target = new_id[edge.target];
      if (edge.target >= 0) state.chars.push_back(edge);
    }
    for (CallEdge edge : machine.states[old].calls) {
      edge.target = new_id[edge.target];
      if (edge.target >= 0) state.calls.push_back(edge);
    }
  }
  return result;
}

StateMachine Minimize(const StateMachine& untrimmed, Budget* budget) {
  if (!Spend(budget, CountEdges(untrimmed)).ok()) return untrimmed;
  StateMachine machine = Trim(untrimmed);
  const size_t n = machine.states.size();
  const int64_t edges = CountEdges(machine);
  std::vector<int32_t> class_of = ClassesByLength(machine);
  size_t num_classes = 0;
  for (int64_t work = 0; work < kMaxRefinementWork; work += edges) {
    if (!Spend(budget, edges).ok()) return machine;
    // Classes are numbered by their first state, so that state 0 stays in class 0.
    absl::flat_hash_map<Signature, int32_t> classes;
    classes.reserve(n);
    std::vector<int32_t> refined(n);
    for (size_t s = 0; s < n; ++s) {
      refined[s] = classes
                       .try_emplace(SignatureOf(machine.states[s], class_of[s], class_of),
                                    static_cast<int32_t>(classes.size()))
                       .first->second;
    }
    class_of.swap(refined);
    if (classes.size() == num_classes) {
      return Quotient(machine, class_of, static_cast<int32_t>(num_classes));
    }
    num_classes = classes.size();
  }
  return machine;
}

absl::StatusOr<StateMachine> Intersect(const StateMachine& a, const StateMachine& b,
                                       int32_t max_states, Budget* budget) {
  StateMachine result;
  size_t num_edges = 0;
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> ids;
  std::vector<std::pair<int32_t, int32_t>> order;
  auto id_of = [&](int32_t in_a, int32_t in_b) {
    auto [it, is_new] = ids.try_emplace({in_a, in_b}, static_cast<int32_t>(order.size()));
    if (is_new) order.emplace_back(in_a, in_b);
    return it->second;
  };
  id_of(0, 0);
  for (size_t i = 0; i < order.size(); ++i) {
    if (static_cast<int32_t>(order.size()) > max_states || num_edges > kMaxEdges) {
      return absl::ResourceExhaustedError(base::StrCat(
          "the combined conditions on a string need more than ", max_states, " states"));
    }
    const MachineState& in_a = a.states[order[i].first];
    const MachineState& in_b = b.states[order[i].second];
    HEDDLE_RETURN_IF_ERROR(
        Spend(budget, 1 + static_cast<int64_t>(in_a.chars.size() + in_b.chars.size())));
    MachineState state{.accepting = in_a.accepting && in_b.accepting};
    for (size_t x = 0, y = 0; x < in_a.chars.size() && y < in_b.chars.size();) {
      const CharEdge& edge_a = in_a.chars[x];
      const CharEdge& edge_b = in_b.chars[y];
      const char32_t first = std::max(edge_a.first, edge_b.first);
      const char32_t last = std::min(edge_a.last, edge_b.last);
      if (first <= last) state.chars.push_back({first, last, id_of(edge_a.target, edge_b.target)});
      ++(edge_a.last < edge_b.last ? x : y);
    }
    num_edges += state.chars.size();
    result.states.push_back(std::move(state));
  }
  StateMachine least = Minimize(result, budget);
  HEDDLE_RETURN_IF_ERROR(StatusOf(budget));
  return least;
}

StateMachine Complement(const StateMachine& machine, Budget* budget) {
  if (!Spend(budget, CountEdges(machine)).ok()) return machine;
  StateMachine result = machine;
  const auto all = static_cast<int32_t>(result.states.size());
  result.states.emplace_back();  // accepts everything behind what `machine` cannot read
  for (MachineState& state : result.states) {
    state.accepting = !state.accepting;
    std::vector<CharEdge> chars;
    CodePointSet read;
    for (const CharEdge& edge : state.chars) read.Add(edge.first, edge.last);
    const CodePointSet unread = read.Complement();
    chars = state.chars;
    for (const CodePointRange& range : unread.ranges()) {
      chars.push_back({range.first, range.last, all});
    }
    std::sort(chars.begin(), chars.end(),
              [](const CharEdge& a, const CharEdge& b) { return a.first < b.first; });
    state.chars = std::move(chars);
  }
  return Minimize(result, budget);
}

StateMachine AnyTextOfLength(int32_t min, int32_t max) {
  StateMachine result;
  const CodePointSet all = CodePointSet::All();
  const int32_t length = max < 0 ? min : max;
  for (int32_t i = 0; i <= length; ++i) {
    MachineState& state = result.states.emplace_back();
    state.accepting = i >= min;
    if (i == length && max >= 0) break;
    for (const CodePointRange& range : all.ranges()) {
      state.chars.push_back({range.first, range.last, std::min(i + 1, length)});
    }
  }
  return result;
}

}  // namespace heddle::engine::grammar
