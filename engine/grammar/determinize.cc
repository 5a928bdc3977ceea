// Subset construction over ranges of code points.
#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {
namespace {

// Limit on members of subsets and edges looked at, per allowed state: chains of thousands of states
// need a few each; only nested counted repeats need more.
constexpr int64_t kMaxWorkPerState = 256;
constexpr int64_t kMinWork = 4'000'000;
// Members of all subsets together, 4 bytes each.
constexpr size_t kMaxMembers = size_t{1} << 24;

using Subset = std::vector<int32_t>;  // sorted

class Determinizer {
 public:
  Determinizer(const Nfa& nfa, int32_t max_states, Budget* budget)
      : nfa_(nfa),
        budget_(budget),
        max_states_(max_states),
        max_work_(std::max(kMinWork, kMaxWorkPerState * max_states)),
        seen_(nfa.states.size(), 0),
        ids_(0, Hash{this}, Equal{this}) {}

  absl::StatusOr<StateMachine> Run() {
    // The start is a separate state, because only it passes edges that require the start of the
    // text.
    const Subset start = Close({0}, /*at_begin=*/true, /*at_end=*/false);
    IdOf(start);
    for (size_t i = 0; i < order_.size(); ++i) {
      const Subset& subset = order_[i];
      MachineState state;
      state.accepting = AcceptsAtEnd(subset, /*at_begin=*/i == 0);
      state.chars = CharMoves(subset);
      state.calls = CallMoves(subset);
      num_edges_ += state.chars.size() + state.calls.size();
      result_.states.push_back(std::move(state));
      if (IsTooMuch()) break;
    }
    HEDDLE_RETURN_IF_ERROR(StatusOf(budget_));
    if (IsTooMuch()) {
      return absl::ResourceExhaustedError(
          base::StrCat("the expression needs more than ", max_states_,
                       " states; make counted repeats smaller or alternatives less ambiguous"));
    }
    return std::move(result_);
  }

 private:
  // Hashes the subsets in order_ by their members.
  struct Hash {
    using is_transparent = void;
    const Determinizer* owner;
    size_t operator()(int32_t id) const { return (*this)(owner->order_[id]); }
    size_t operator()(const Subset& subset) const { return absl::HashOf(subset); }
  };
  struct Equal {
    using is_transparent = void;
    const Determinizer* owner;
    bool operator()(int32_t a, int32_t b) const { return a == b; }
    bool operator()(int32_t a, const Subset& b) const { return owner->order_[a] == b; }
    bool operator()(const Subset& a, int32_t b) const { return owner->order_[b] == a; }
  };

  void Count(size_t work) {
    work_ += static_cast<int64_t>(work);
    is_over_ |= work_ > max_work_ || !Spend(budget_, static_cast<int64_t>(work)).ok();
  }

  bool IsTooMuch() const {
    return is_over_ || static_cast<int32_t>(order_.size()) > max_states_ ||
           num_members_ > kMaxMembers || num_edges_ > kMaxEdges;
  }

  int32_t IdOf(Subset subset) {
    const auto id = static_cast<int32_t>(order_.size());
    // No other state shares the start's number: the start may accept where the same subset later
    // does not.
    if (id > 0) {
      if (auto known = ids_.find(subset); known != ids_.end()) return *known;
    }
    num_members_ += subset.size();
    order_.push_back(std::move(subset));
    if (id > 0) ids_.insert(id);
    return id;
  }

  Subset Close(Subset members, bool at_begin, bool at_end) {
    ++stamp_;
    for (int32_t member : members) seen_[member] = stamp_;
    auto follow = [&](const std::vector<int32_t>& targets) {
      for (int32_t target : targets) {
        if (seen_[target] == stamp_) continue;
        seen_[target] = stamp_;
        members.push_back(target);
      }
    };
    for (size_t i = 0; i < members.size(); ++i) {
      const NfaState& state = nfa_.states[members[i]];
      follow(state.epsilons);
      if (at_begin) follow(state.at_begin);
      if (at_end) follow(state.at_end);
    }
    Count(members.size());
    // States with epsilons only do not distinguish subsets.
    std::erase_if(members, [this](int32_t member) {
      const NfaState& state = nfa_.states[member];
      return state.chars.empty() && state.calls.empty() && state.at_end.empty() &&
             state.at_begin.empty() && !state.accepting;
    });
    std::sort(members.begin(), members.end());
    return members;
  }

  bool AcceptsAtEnd(const Subset& subset, bool at_begin) {
    // Mostly nothing depends on the text's ends, and the subset is closed already.
    const auto is_open = [&](int32_t member) {
      const NfaState& state = nfa_.states[member];
      return !state.at_end.empty() || (at_begin && !state.at_begin.empty());
    };
    const auto accepts = [&](int32_t member) { return nfa_.states[member].accepting; };
    if (std::none_of(subset.begin(), subset.end(), is_open)) {
      return std::any_of(subset.begin(), subset.end(), accepts);
    }
    const Subset closed = Close(subset, at_begin, /*at_end=*/true);
    return std::any_of(closed.begin(), closed.end(), accepts);
  }

  int32_t Move(Subset targets) {
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    return IdOf(Close(std::move(targets), /*at_begin=*/false, /*at_end=*/false));
  }

  std::vector<CharEdge> CharMoves(const Subset& subset) {
    std::vector<CharEdge> edges;
    for (int32_t member : subset) {
      const std::vector<CharEdge>& chars = nfa_.states[member].chars;
      edges.insert(edges.end(), chars.begin(), chars.end());
    }
    Count(edges.size());
    if (edges.size() == 1) {  // most states, within words
      return {{edges[0].first, edges[0].last, Move({edges[0].target})}};
    }
    std::sort(edges.begin(), edges.end(),
              [](const CharEdge& a, const CharEdge& b) { return a.first < b.first; });
    // Sweep over the points where the set of edges that apply changes.
    std::vector<CharEdge> moves;
    std::vector<CharEdge> active;
    size_t next = 0;
    char32_t at = 0;
    while (!is_over_ && (next < edges.size() || !active.empty())) {
      if (active.empty()) at = edges[next].first;
      while (next < edges.size() && edges[next].first == at) active.push_back(edges[next++]);
      char32_t last = next < edges.size() ? edges[next].first - 1 : kMaxCodePoint;
      Subset targets;
      for (const CharEdge& edge : active) {
        last = std::min(last, edge.last);
        targets.push_back(edge.target);
      }
      Count(active.size());
      const int32_t target = Move(std::move(targets));
      if (!moves.empty() && moves.back().last + 1 == at && moves.back().target == target) {
        moves.back().last = last;
      } else {
        moves.push_back({at, last, target});
      }
      std::erase_if(active, [last](const CharEdge& edge) { return edge.last <= last; });
      at = last + 1;
    }
    return moves;
  }

  std::vector<CallEdge> CallMoves(const Subset& subset) {
    std::vector<CallEdge> edges;
    for (int32_t member : subset) {
      const std::vector<CallEdge>& calls = nfa_.states[member].calls;
      edges.insert(edges.end(), calls.begin(), calls.end());
    }
    std::sort(edges.begin(), edges.end(),
              [](const CallEdge& a, const CallEdge& b) { return a.rule < b.rule; });
    Count(edges.size());
    std::vector<CallEdge> moves;
    for (size_t i = 0; i < edges.size();) {
      const int32_t rule = edges[i].rule;
      Subset targets;
      for (; i < edges.size() && edges[i].rule == rule; ++i) targets.push_back(edges[i].target);
      moves.push_back({rule, Move(std::move(targets))});
    }
    return moves;
  }

  const Nfa& nfa_;
  Budget* const budget_;
  const int32_t max_states_;
  const int64_t max_work_;
  std::vector<uint32_t> seen_;  // [NFA states]: the closure that saw it last
  uint32_t stamp_ = 0;
  int64_t work_ = 0;
  bool is_over_ = false;
  size_t num_members_ = 0;
  size_t num_edges_ = 0;
  absl::flat_hash_set<int32_t, Hash, Equal> ids_;  // indices of order_, except the start
  std::deque<Subset> order_;                       // references stay valid while it grows
  StateMachine result_;
};

}  // namespace

absl::StatusOr<StateMachine> Determinize(const Nfa& nfa, int32_t max_states, Budget* budget) {
  return Determinizer(nfa, max_states, budget).Run();
}

}  // namespace heddle::engine::grammar
