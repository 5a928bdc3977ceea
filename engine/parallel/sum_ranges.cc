#include "engine/parallel/sum_ranges.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"

namespace heddle::engine {
namespace {

std::array<Range, 2> HalvesOf(Range range, int64_t unit) {
  const int64_t units = (range.count + unit - 1) / unit;
  const int64_t first = std::min(range.count, (units + 1) / 2 * unit);
  return {{{range.first, first}, {range.first + first, range.count - first}}};
}

// Cuts a range into `parts`, a power of two.
void Halve(Range range, int64_t unit, int32_t parts, std::vector<Range>* ranges) {
  if (parts == 1) return ranges->push_back(range);
  for (const Range& half : HalvesOf(range, unit)) Halve(half, unit, parts / 2, ranges);
}

void HalveHeads(Range heads, const HeadUnits& units, int32_t parts, std::vector<Range>* ranges) {
  const int64_t unit = std::lcm(units.group, units.block);
  if (parts > 1 && heads.count > unit) {
    for (const Range& half : HalvesOf(heads, unit)) HalveHeads(half, units, parts / 2, ranges);
    return;
  }
  const bool is_in_group =
      heads.count > 0 && heads.first / units.group == (heads.end() - 1) / units.group;
  Halve(heads, units.may_cut && is_in_group ? units.block : unit, parts, ranges);
}

}  // namespace

std::vector<Range> SumRanges(int64_t total, int64_t unit) {
  std::vector<Range> ranges;
  Halve({0, total}, unit, kSumRanges, &ranges);
  return ranges;
}

std::vector<Range> SumRangesOfHeads(int64_t n_heads, const HeadUnits& units) {
  std::vector<Range> ranges;
  HalveHeads({0, n_heads}, units, kSumRanges, &ranges);
  return ranges;
}

Division DivideRanges(std::span<const Range> ranges, size_t world) {
  HEDDLE_CHECK(world > 0 && ranges.size() % world == 0, "ranges of sums are not whole ranks");
  const size_t each = ranges.size() / world;
  Division division;
  for (size_t first = 0; first < ranges.size(); first += each) {
    const std::span<const Range> own = ranges.subspan(first, each);
    const int64_t begin = own.front().first;
    division.ranks.push_back({begin, own.back().end() - begin});
    std::vector<int64_t>& borders = division.sum_borders.emplace_back(1, 0);
    for (const Range& range : own) borders.push_back(range.end() - begin);
  }
  return division;
}

}  // namespace heddle::engine
