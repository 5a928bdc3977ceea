// For each state of a machine, the states with an edge to it, in two flat arrays.
// Thread-safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::engine::grammar {

class SourceIndex {
 public:
  // `for_each_target(state, visit)` calls visit(target) for each edge of the state, and is called
  // twice for each state.
  template <typename ForEachTarget>
  SourceIndex(size_t num_states, const ForEachTarget& for_each_target) : begin_(num_states + 2, 0) {
    // begin_[s + 2] counts, then begin_[s + 1] is where the next source of s goes, which is at last
    // where those of s + 1 begin.
    for (size_t s = 0; s < num_states; ++s) {
      for_each_target(static_cast<int32_t>(s), [this](int32_t target) { ++begin_[target + 2]; });
    }
    for (size_t i = 2; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    sources_.resize(static_cast<size_t>(begin_.back()));
    for (size_t s = 0; s < num_states; ++s) {
      const auto source = static_cast<int32_t>(s);
      for_each_target(source, [this, source](int32_t target) {
        sources_[static_cast<size_t>(begin_[target + 1]++)] = source;
      });
    }
  }

  // One entry per edge.
  std::span<const int32_t> of(int32_t state) const {
    return {sources_.data() + begin_[state], sources_.data() + begin_[state + 1]};
  }

 private:
  std::vector<int32_t> begin_;
  std::vector<int32_t> sources_;
};

}  // namespace heddle::engine::grammar
