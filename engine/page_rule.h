// The most pages that a sequence may need: the scheduler keeps to it, and capacity planning relies
// on it. Pure arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace heddle::engine {

struct PageRule {
  int32_t page_tokens = 0;   // a power of two
  int32_t window_grain = 1;  // sliding windows give positions back in multiples of this
  int32_t step_tokens = 0;   // rows of a step, at most
  // Groups of layers with state, the last ones: their windows give back single pages, because
  // nothing is summed over positions beyond them.
  int32_t state_groups = 0;

  // The multiple of positions that the window of a group gives back, of `n_groups`.
  int32_t GrainOf(int64_t group, int64_t n_groups) const {
    return group >= n_groups - state_groups ? page_tokens : window_grain;
  }

  // The most positions that a sequence of `tokens` keeps at a time in a group of layers with
  // `window` positions (0: all) and this grain. With a window it keeps the window, one grain, the
  // rows of a step, a page at either end, and one page that is being copied.
  int64_t MostHeld(int64_t tokens, int32_t window, int32_t grain) const {
    if (window == 0) return tokens;
    return std::min(tokens, int64_t{window} + grain + step_tokens + 3 * int64_t{page_tokens});
  }

  // `passable` that windows pass all of a sequence.
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

  // The most pages that a sequence of `tokens` holds in one group, and over all of them; `windows`
  // has one entry for each group (0: no window). Windows pass the first `passable` tokens alone:
  // nothing behind them is given back.
  int64_t MostPagesOf(int64_t tokens, std::span<const int32_t> windows, size_t group,
                      int64_t passable = kAll) const {
    const int32_t grain =
        GrainOf(static_cast<int64_t>(group), static_cast<int64_t>(windows.size()));
    const int64_t held = MostHeld(std::min(tokens, passable), windows[group], grain) +
                         std::max<int64_t>(0, tokens - passable);
    return (held + page_tokens - 1) / page_tokens;
  }
  int64_t MostPages(int64_t tokens, std::span<const int32_t> windows,
                    int64_t passable = kAll) const {
    int64_t pages = 0;
    for (size_t group = 0; group < windows.size(); ++group) {
      pages += MostPagesOf(tokens, windows, group, passable);
    }
    return pages;
  }

  // The longest sequence, up to `limit`, that holds at most `num_pages`.
  int32_t LongestWithin(int64_t num_pages, std::span<const int32_t> windows, int32_t limit,
                        int64_t passable = kAll) const {
    int32_t fits = 0;
    for (int32_t beyond = limit; fits < beyond;) {  // bisection: MostPages never decreases
      const int32_t middle = beyond - (beyond - fits) / 2;
      if (MostPages(middle, windows, passable) <= num_pages) {
        fits = middle;
      } else {
        beyond = middle - 1;
      }
    }
    return fits;
  }
};

}  // namespace heddle::engine
