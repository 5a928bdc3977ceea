#include "kernels/cpu/linear/column_ranges.h"

#include <algorithm>

namespace heddle::kernels::cpu {
namespace {

// Appends the ranges of a part of the tree; returns whether there are any.
bool AppendTree(std::span<const int64_t> borders, std::vector<ColumnRange>* ranges) {
  const size_t count = borders.size() - 1;
  if (count == 1) {
    const int64_t cols = borders[1] - borders[0];
    if (cols > 0) ranges->push_back({borders[0], cols, 0});
    return cols > 0;
  }
  const bool has_first = AppendTree(borders.first(count / 2 + 1), ranges);
  const bool has_second = AppendTree(borders.subspan(count / 2), ranges);
  if (has_first && has_second) ++ranges->back().joins;
  return has_first || has_second;
}

}  // namespace

std::vector<ColumnRange> ColumnRangesOf(std::span<const int64_t> borders, int64_t cols) {
  if (borders.empty()) return {{0, cols, 0}};
  std::vector<ColumnRange> ranges;
  AppendTree(borders, &ranges);
  return ranges;
}

int32_t MostSums(std::span<const ColumnRange> ranges) {
  int32_t most = 0;
  int32_t waiting = 0;
  for (const ColumnRange& range : ranges) {
    most = std::max(most, waiting + 1);
    waiting += 1 - range.joins;
  }
  return most;
}

}  // namespace heddle::kernels::cpu
