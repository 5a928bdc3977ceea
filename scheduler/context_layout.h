// Contexts whose parts were computed side by side (a concurrent join): which token sees which, at
// which position, and where its keys and values lie.
//
// A context is still one list of tokens. It is cut into parts: a part begins at a place of the list
// and at a position, and its tokens see all earlier tokens but those of the parts that are hidden
// from it. The branches of a join follow each other in the list, begin at one position, and are
// hidden from each other; what follows them begins behind the largest of their positions and sees
// all of them. Joins within branches are parts as any other, so that a tree of any depth is a list.
//
// Keys and values of a part begin on pages of their own: between parts the list has holes, which no
// row computes or reads. So what a row of any part sees is a list of spans, no part needs a mask to
// be computed (again), and joining moves no key. `Index` counts tokens, `place` counts holes, too.
// Source: Yang et al., "Multiverse", 2025 (positions behind the largest one).
// Thread-safety: immutable data.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/kv_spans.h"
#include "engine/step.h"

namespace heddle::scheduler {

// Parts [begin, end) of a context.
struct PartRange {
  int32_t begin;
  int32_t end;
  bool operator==(const PartRange&) const = default;
};

struct ContextPart {
  int32_t begin = 0;              // index of its first token; a place in ContextLayout
  engine::Position position = 0;  // of that token
  int32_t segment = 0;            // SequenceSlice::segment of its tokens
  std::vector<PartRange>
      hidden;  // earlier parts that its tokens do not see; in order, not touching
  bool operator==(const ContextPart&) const = default;
};
// In order. Empty: the tokens are in plain order. Otherwise the first one begins at 0, and none is
// empty.
using ContextParts = std::vector<ContextPart>;

inline constexpr size_t kMaxContextParts = 1024;

// The parts of the first `length` tokens.
ContextParts FirstParts(const ContextParts& parts, int32_t length);

// The position of the token behind `length` tokens, if it goes on in the last part.
engine::Position PositionBehind(const ContextParts& parts, int32_t length);

// The parts of a branch that leaves the first `at` tokens of `parts` for a part of its own.
ContextParts PartsApart(ContextParts parts, int32_t at);

// The parts of a join: children [i] with lengths[i] tokens have their first `at` tokens in common,
// follow each other, and do not see each other; the tokens behind all of them do. REQUIRES: there
// is a child; each has more than `at` tokens.
ContextParts JoinParts(std::span<const ContextParts* const> children,
                       std::span<const int32_t> lengths, int32_t at);

// Parts with their places on pages.
class ContextLayout {
 public:
  ContextLayout() = default;
  // Aborts unless `parts` are as ContextParts says.
  ContextLayout(const ContextParts& parts, int32_t page_tokens);

  bool is_plain() const { return parts_.empty(); }
  int32_t num_parts() const { return static_cast<int32_t>(parts_.size()); }
  // Where the part that every layout begins with ends; the largest number in plain order.
  int32_t first_end() const { return ends_.empty() ? kOpen : ends_[0]; }

  // `length` tokens end behind this place, and the reverse; holes count as what is before them.
  int32_t PlaceOf(int32_t length) const;
  int32_t LengthOf(int32_t place) const;

  // Puts kNoToken into the holes of `tokens`, which are those of the parts.
  void AddHoles(std::vector<engine::TokenId>* tokens) const;
  // Holes from `place` to the next part.
  int32_t HolesAt(int32_t place) const;
  // Tokens from `place` to the end of its part.
  int32_t RowsAt(int32_t place) const;
  engine::Position PositionAt(int32_t place) const;
  int32_t SegmentAt(int32_t place) const;
  // Leading places, at most `length`, at which `other` is the same.
  int32_t SameAs(const ContextLayout& other, int32_t length) const;
  // The layout of the first places.
  ContextLayout First(int32_t num_places) const;

  // Adds to *seen what a row at `place` sees of `spans`, pages of the places [num_dropped, end),
  // `place` < `end` in one part with it: a span of each page, but for those of hidden parts.
  // Returns the sum. REQUIRES: num_dropped counts whole pages of the first part.
  int32_t AddSeen(std::span<const engine::KvSpan> spans, int32_t place, int32_t end,
                  std::vector<engine::KvSpan>* seen, int32_t num_dropped = 0) const;
  // Adds to *pieces those that a row at `place` sees of the places [0, end): parts that go on where
  // the one before ends are one piece. Adds none if the positions are 0, 1, 2 and so on.
  void AddPieces(int32_t place, int32_t end, std::vector<engine::ContextPiece>* pieces) const;

 private:
  static constexpr int32_t kOpen = std::numeric_limits<int32_t>::max();
  size_t PartAt(int32_t place) const;  // the last one that begins at or before `place`

  int32_t page_tokens_ = 1;
  ContextParts parts_;            // `begin` is a place
  std::vector<int32_t> ends_;     // [parts] place behind the last token; the last one is open
  std::vector<int32_t> indices_;  // [parts] of the first token
};

}  // namespace heddle::scheduler
