#include "engine/grammar/utf8_lowering.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/utf8.h"

namespace heddle::engine::grammar {
namespace {

struct ByteRange {
  uint8_t first;
  uint8_t last;
  auto operator<=>(const ByteRange&) const = default;
};

// The rest of an encoding: every combination of one byte of each range, then the target.
struct Residual {
  std::vector<ByteRange> ranges;
  int32_t target;
  auto operator<=>(const Residual&) const = default;
};

// Splits the range until all bytes behind the first one that differs span whole ranges.
void SplitRange(char32_t first, char32_t last, int32_t target, std::vector<Residual>* out) {
  for (char32_t end : {char32_t{0x7F}, char32_t{0x7FF}, char32_t{0xFFFF}}) {
    if (first <= end && last > end) {
      SplitRange(first, end, target, out);
      return SplitRange(end + 1, last, target, out);
    }
  }
  std::string low;
  std::string high;
  base::AppendUtf8(first, &low);
  base::AppendUtf8(last, &high);
  for (size_t i = 1; i < low.size(); ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      SplitRange(first, first | mask, target, out);
      return SplitRange((first | mask) + 1, last, target, out);
    }
    if ((last & mask) != mask) {
      SplitRange(first, (last & ~mask) - 1, target, out);
      return SplitRange(last & ~mask, last, target, out);
    }
  }
  Residual& residual = out->emplace_back();
  residual.target = target;
  for (size_t i = 0; i < low.size(); ++i) {
    residual.ranges.push_back({static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])});
  }
}

class Lowering {
 public:
  Lowering(const StateMachine& machine, Budget* budget) : machine_(machine), budget_(budget) {}

  std::vector<ByteState> Run() {
    states_.resize(machine_.states.size());
    for (size_t s = 0; s < machine_.states.size() && !is_over_; ++s) {
      const MachineState& state = machine_.states[s];
      std::vector<Residual> residuals;
      for (const CharEdge& edge : state.chars) {
        SplitRange(edge.first, edge.last, edge.target, &residuals);
      }
      std::vector<ByteEdge> edges = Edges(std::move(residuals));
      states_[s].bytes = std::move(edges);
      states_[s].calls = state.calls;
      states_[s].accepting = state.accepting;
    }
    return std::move(states_);
  }

 private:
  // Ranges of a leading byte are equal or disjoint, since the code points are disjoint and a
  // leading range of several bytes is followed by all continuation bytes.
  std::vector<ByteEdge> Edges(std::vector<Residual> residuals) {
    std::sort(residuals.begin(), residuals.end());
    std::vector<ByteEdge> edges;
    is_over_ |= !Spend(budget_, 1 + static_cast<int64_t>(residuals.size())).ok() ||
                states_.size() > static_cast<size_t>(kMaxStates) || num_edges_ > kMaxEdges;
    for (size_t i = 0; i < residuals.size() && !is_over_;) {
      const ByteRange lead = residuals[i].ranges[0];
      std::vector<Residual> rest;
      for (; i < residuals.size() && residuals[i].ranges[0] == lead; ++i) {
        std::vector<ByteRange>& ranges = residuals[i].ranges;
        rest.push_back({{ranges.begin() + 1, ranges.end()}, residuals[i].target});
      }
      const int32_t target = rest[0].ranges.empty() ? rest[0].target : StateOf(std::move(rest));
      if (!edges.empty() && edges.back().last + 1 == lead.first && edges.back().target == target) {
        edges.back().last = lead.last;
      } else {
        edges.push_back({lead.first, lead.last, target});
      }
    }
    num_edges_ += edges.size();
    return edges;
  }

  int32_t StateOf(std::vector<Residual> residuals) {
    if (auto it = ids_.find(residuals); it != ids_.end()) return it->second;
    const auto id = static_cast<int32_t>(states_.size());
    ids_.emplace(residuals, id);
    states_.emplace_back();
    std::vector<ByteEdge> edges = Edges(std::move(residuals));
    states_[id].bytes = std::move(edges);
    return id;
  }

  const StateMachine& machine_;
  Budget* const budget_;
  bool is_over_ = false;
  size_t num_edges_ = 0;
  std::vector<ByteState> states_;
  std::map<std::vector<Residual>, int32_t> ids_;
};

}  // namespace

std::vector<ByteState> LowerToBytes(const StateMachine& machine, Budget* budget) {
  return Lowering(machine, budget).Run();
}

}  // namespace heddle::engine::grammar
