#include "scheduler/context_layout.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace heddle::scheduler {
namespace {

// Whether `part` is hidden behind one of `ranges`.
bool IsHidden(std::span<const PartRange> ranges, int32_t part) {
  return std::any_of(ranges.begin(), ranges.end(), [part](const PartRange& range) {
    return range.begin <= part && part < range.end;
  });
}

// Adds a range behind those that are there, as one with the last if they touch.
void AddRange(PartRange range, std::vector<PartRange>* ranges) {
  if (range.begin == range.end) return;
  if (!ranges->empty() && ranges->back().end == range.begin) {
    ranges->back().end = range.end;
  } else {
    ranges->push_back(range);
  }
}

}  // namespace

ContextParts FirstParts(const ContextParts& parts, int32_t length) {
  ContextParts first;
  for (const ContextPart& part : parts) {
    if (part.begin < length) first.push_back(part);
  }
  return first;
}

engine::Position PositionBehind(const ContextParts& parts, int32_t length) {
  if (parts.empty()) return length;
  return parts.back().position + length - parts.back().begin;
}

ContextParts PartsApart(ContextParts parts, int32_t at) {
  parts = FirstParts(parts, at);
  if (parts.empty()) parts.emplace_back();
  ContextPart own{.begin = at,
                  .position = PositionBehind(parts, at),
                  .segment = parts.back().segment,
                  .hidden = parts.back().hidden};
  parts.push_back(std::move(own));
  return parts;
}

// The common parts are the first child's; each child's own ones follow. One that has no part of its
// own at the fork goes on in the last common part: there it gets one.
ContextParts JoinParts(std::span<const ContextParts* const> children,
                       std::span<const int32_t> lengths, int32_t at) {
  ContextParts joined = FirstParts(*children[0], at);
  if (joined.empty()) joined.emplace_back();
  const auto num_common = static_cast<int32_t>(joined.size());
  const std::vector<PartRange> hidden = joined.back().hidden;
  const int32_t segment = joined.back().segment;
  const engine::Position fork = PositionBehind(joined, at);
  engine::Position last = fork;
  int32_t length = at;
  for (size_t c = 0; c < children.size(); ++c) {
    const ContextParts& parts = *children[c];
    const auto first = static_cast<int32_t>(joined.size());
    const auto own = std::find_if(parts.begin(), parts.end(),
                                  [at](const ContextPart& part) { return part.begin >= at; });
    const auto skipped = static_cast<int32_t>(own - parts.begin());
    if (own == parts.end() || own->begin > at) {
      joined.push_back({.begin = length, .position = fork, .segment = segment, .hidden = hidden});
      AddRange({num_common, first}, &joined.back().hidden);
    }
    const int32_t shift = static_cast<int32_t>(joined.size()) - skipped;
    for (auto part = own; part != parts.end(); ++part) {
      ContextPart& added = joined.emplace_back();
      added.begin = part->begin - at + length;
      added.position = part->position;
      added.segment = part->segment;
      // The siblings stand between the common parts and the child's own.
      bool has_siblings = false;
      for (const PartRange& range : part->hidden) {
        const bool is_own = range.begin >= skipped;
        if (is_own && !has_siblings) AddRange({num_common, first}, &added.hidden);
        has_siblings = has_siblings || is_own;
        const int32_t by = is_own ? shift : 0;
        AddRange({range.begin + by, range.end + by}, &added.hidden);
      }
      if (!has_siblings) AddRange({num_common, first}, &added.hidden);
    }
    last = std::max(last, PositionBehind(joined, length + lengths[c] - at));
    length += lengths[c] - at;
  }
  joined.push_back({.begin = length, .position = last, .segment = segment, .hidden = hidden});
  return joined;
}

ContextLayout::ContextLayout(const ContextParts& parts, int32_t page_tokens)
    : page_tokens_(page_tokens), parts_(parts) {
  if (parts.empty()) return;
  HEDDLE_CHECK(parts[0].begin == 0 && parts[0].position == 0 && parts[0].hidden.empty() &&
                   parts[0].segment == 0,
               "a context begins at its first token, in segment 0");
  int32_t holes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int32_t index = parts[i].begin;
    if (i > 0) {
      HEDDLE_CHECK(index > parts[i - 1].begin, "a part of a context is empty");
      ends_.push_back(index + holes);
      const int32_t partial = (index + holes) % page_tokens;
      holes += partial == 0 ? 0 : page_tokens - partial;
    }
    for (const PartRange& range : parts[i].hidden) {
      HEDDLE_CHECK(
          range.begin > 0 && range.begin < range.end && range.end <= static_cast<int32_t>(i),
          "a part hides parts that are not before it");
    }
    indices_.push_back(index);
    parts_[i].begin = index + holes;
  }
  ends_.push_back(kOpen);
}

size_t ContextLayout::PartAt(int32_t place) const {
  const auto behind =
      std::upper_bound(parts_.begin(), parts_.end(), place,
                       [](int32_t at, const ContextPart& part) { return at < part.begin; });
  return static_cast<size_t>(behind - parts_.begin()) - 1;
}

int32_t ContextLayout::PlaceOf(int32_t length) const {
  if (parts_.empty() || length <= 0) return length;
  const auto behind = std::lower_bound(indices_.begin(), indices_.end(), length);
  const auto part = static_cast<size_t>(behind - indices_.begin()) - 1;
  return parts_[part].begin + length - indices_[part];
}

int32_t ContextLayout::LengthOf(int32_t place) const {
  if (parts_.empty() || place <= 0) return place;
  const size_t part = PartAt(place);
  return indices_[part] + std::min(place, ends_[part]) - parts_[part].begin;
}

void ContextLayout::AddHoles(std::vector<engine::TokenId>* tokens) const {
  if (parts_.empty()) return;
  std::vector<engine::TokenId> placed;
  placed.reserve(static_cast<size_t>(PlaceOf(static_cast<int32_t>(tokens->size()))));
  for (size_t i = 0; i < parts_.size(); ++i) {
    placed.resize(static_cast<size_t>(parts_[i].begin), engine::kNoToken);
    const auto end = i + 1 < parts_.size() ? tokens->begin() + indices_[i + 1] : tokens->end();
    placed.insert(placed.end(), tokens->begin() + indices_[i], end);
  }
  tokens->swap(placed);
}

int32_t ContextLayout::HolesAt(int32_t place) const {
  if (parts_.empty()) return 0;
  const size_t part = PartAt(place);
  return place < ends_[part] ? 0 : parts_[part + 1].begin - place;
}

int32_t ContextLayout::RowsAt(int32_t place) const {
  if (parts_.empty()) return kOpen;
  const int32_t end = ends_[PartAt(place)];
  return end == kOpen ? kOpen : std::max(0, end - place);
}

engine::Position ContextLayout::PositionAt(int32_t place) const {
  if (parts_.empty()) return place;
  const ContextPart& part = parts_[PartAt(place)];
  return part.position + place - part.begin;
}

int32_t ContextLayout::SegmentAt(int32_t place) const {
  return parts_.empty() ? 0 : parts_[PartAt(place)].segment;
}

// Only parts behind the first can differ.
int32_t ContextLayout::SameAs(const ContextLayout& other, int32_t length) const {
  const size_t both = std::min(parts_.size(), other.parts_.size());
  const size_t most = std::max(parts_.size(), other.parts_.size());
  for (size_t i = 1; i < most; ++i) {
    if (i < both && parts_[i] == other.parts_[i]) continue;
    int32_t differ = kOpen;
    if (i < parts_.size()) differ = parts_[i].begin;
    if (i < other.parts_.size()) differ = std::min(differ, other.parts_[i].begin);
    return std::min(length, differ);
  }
  return length;
}

ContextLayout ContextLayout::First(int32_t num_places) const {
  ContextLayout first = *this;
  while (first.parts_.size() > 1 && first.parts_.back().begin >= num_places) {
    first.parts_.pop_back();
    first.indices_.pop_back();
    first.ends_.pop_back();
    first.ends_.back() = kOpen;
  }
  return first;
}

void ContextLayout::AddPieces(int32_t place, int32_t end,
                              std::vector<engine::ContextPiece>* pieces) const {
  const size_t first = pieces->size();
  const size_t last = PartAt(place);
  engine::Position next = 0;  // behind the piece before
  for (size_t i = 0; i <= last; ++i) {
    if (IsHidden(parts_[last].hidden, static_cast<int32_t>(i))) continue;
    const int32_t count = (i == last ? end : ends_[i]) - parts_[i].begin;
    if (pieces->size() > first && parts_[i].position == next) {
      pieces->back().num_tokens += count;
    } else {
      pieces->push_back({.num_tokens = count, .position = parts_[i].position});
    }
    next = parts_[i].position + count;
  }
  if (pieces->size() == first + 1) pieces->pop_back();
}

int32_t ContextLayout::AddSeen(std::span<const engine::KvSpan> spans, int32_t place, int32_t end,
                               std::vector<engine::KvSpan>* seen, int32_t num_dropped) const {
  const size_t last = PartAt(place);
  int32_t sum = 0;
  for (size_t i = 0; i <= last; ++i) {
    if (IsHidden(parts_[last].hidden, static_cast<int32_t>(i))) continue;
    const int32_t part_end = i == last ? end : ends_[i];
    for (int32_t at = std::max(parts_[i].begin, num_dropped); at < part_end; at += page_tokens_) {
      const int32_t count = std::min(page_tokens_, part_end - at);
      seen->push_back({spans[static_cast<size_t>((at - num_dropped) / page_tokens_)].page, count});
      sum += count;
    }
  }
  return sum;
}

}  // namespace heddle::scheduler
