#include "engine/grammar/code_points.h"

#include <algorithm>

namespace heddle::engine::grammar {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800;
constexpr char32_t kLastSurrogate = 0xDFFF;

}  // namespace

CodePointSet::CodePointSet(std::initializer_list<CodePointRange> ranges) {
  for (const CodePointRange& range : ranges) Add(range.first, range.last);
}

CodePointSet CodePointSet::All() { return {{0, kMaxCodePoint}}; }

void CodePointSet::Add(char32_t first, char32_t last) {
  last = std::min(last, kMaxCodePoint);
  if (first > last) return;
  if (first <= kLastSurrogate && last >= kFirstSurrogate) {
    if (first < kFirstSurrogate) Add(first, kFirstSurrogate - 1);
    if (last > kLastSurrogate) Add(kLastSurrogate + 1, last);
    return;
  }
  auto at = std::lower_bound(
      ranges_.begin(), ranges_.end(), first,
      [](const CodePointRange& range, char32_t value) { return range.last + 1 < value; });
  auto end = at;
  while (end != ranges_.end() && end->first <= last + 1) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
    ++end;
  }
  at = ranges_.erase(at, end);
  ranges_.insert(at, {first, last});
}

CodePointSet CodePointSet::OfRanges(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  CodePointSet result;
  for (const CodePointRange& range : ranges) result.Add(range.first, range.last);
  return result;
}

void CodePointSet::Add(const CodePointSet& other) {
  if (other.ranges_.size() == 1) return Add(other.ranges_[0].first, other.ranges_[0].last);
  std::vector<CodePointRange> all(ranges_.size() + other.ranges_.size());
  std::merge(ranges_.begin(), ranges_.end(), other.ranges_.begin(), other.ranges_.end(),
             all.begin(),
             [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  ranges_.clear();
  for (const CodePointRange& range : all) Add(range.first, range.last);
}

CodePointSet CodePointSet::Complement() const {
  CodePointSet result;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) result.Add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) result.Add(next, kMaxCodePoint);
  return result;
}

CodePointSet CodePointSet::WithBothAsciiCases() const {
  CodePointSet result = *this;
  for (char32_t lower = 'a'; lower <= 'z'; ++lower) {
    const char32_t upper = lower - 'a' + 'A';
    if (Contains(lower)) result.Add(upper, upper);
    if (Contains(upper)) result.Add(lower, lower);
  }
  return result;
}

bool CodePointSet::Contains(char32_t code_point) const {
  auto at = std::lower_bound(
      ranges_.begin(), ranges_.end(), code_point,
      [](const CodePointRange& range, char32_t value) { return range.last < value; });
  return at != ranges_.end() && at->first <= code_point;
}

}  // namespace heddle::engine::grammar
