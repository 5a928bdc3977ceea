// The snapshots of a layer with RWKV-7's time mix (kernels/wkv.h), for kernels on the host: where
// its parts are, and how a sequence's rows walk over them.
// Unit: one page = `page_tokens` positions, whose snapshot is WkvState::floats floats. Heads are
// independent of each other: each walks alone, and S of a head is [head_dim, head_dim], row-major,
// rows by key and columns by value.
// Ownership: none; pages are the cache's, and batch and arguments outlive what is made of them.
// Thread-safety: objects are not changed once made. Threads may walk different heads, and different
// sequences, at the same time; borders are written when all heads have been walked, because walks
// read the old ones.
// A page that is not what the batch says is a bug of the caller: HEDDLE_CHECK.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/batch.h"
#include "kernels/recurrence_slices.h"
#include "kernels/wkv.h"

namespace heddle::kernels {

class WkvPages : public SnapshotPages {
 public:
  // The layout without shifts: they are behind the rest, and the caller of TokenShift knows where.
  explicit WkvPages(const WkvArgs& args)
      : SnapshotPages(args.cache),
        layout_(args.n_heads, args.head_dim, 0),
        head_dim_(args.head_dim) {
    HEDDLE_CHECK(args.cache.dtype == DType::kF32 && args.cache.head_dim >= layout_.floats &&
                     args.page_tokens % kScanRows == 0,
                 "pages of another layer's state");
  }

  // S [head_dim, head_dim].
  float* state(int64_t index, int32_t head) const {
    return page(index) + layout_.state + int64_t{head} * head_dim_ * head_dim_;
  }
  // Part `part` (WkvState::kParts) of what S takes in at a position: [width], of all heads.
  float* row(int64_t index, int32_t offset, int64_t part) const {
    const int64_t at = offset % (2 * kScanRows);
    return page(index) + layout_.rows + (at * WkvState::kParts + part) * layout_.width;
  }
  int64_t width() const { return layout_.width; }
  int64_t head_dim() const { return head_dim_; }

 private:
  const WkvState layout_;
  const int64_t head_dim_;
};

// Where the input of a shift at an offset of a page is kept: [hidden].
inline float* ShiftRow(const TokenShiftArgs& args, int64_t page, int32_t offset) {
  return SnapshotPages(args.cache).page(page) + args.place +
         offset % WkvState::kShiftRows * args.x.cols;
}

// The row before the slice's first one [hidden]; nullptr: the sequence begins there.
inline const float* ShiftBefore(const TokenShiftArgs& args, const RecurrenceSlice& slice) {
  if (slice.offset > 0) return ShiftRow(args, slice.page, slice.offset - 1);
  if (slice.page_before < 0) return nullptr;
  return ShiftRow(args, slice.page_before, args.page_tokens - 1);
}

// Walks the rows of a slice in one head: `replay(S, page, offset)` takes a kept position in, and
// `run(S, t, n)` the rows [t, t + n) of this step, which are in one page. S is the page's own where
// it ends behind the rows, and `spare` [head_dim, head_dim] where they may be taken back: then
// pages have the S before their first row, and the caller keeps what S takes in of each row.
// Borders are set when all heads have been walked (SetRowBorders).
template <typename Replay, typename Run>
void WalkSlice(const RowPlaces& places, const WkvPages& pages, const RecurrenceSlice& slice,
               int32_t head, float* spare, const Replay& replay, const Run& run) {
  if (slice.n == 0) return;
  const auto dim = static_cast<size_t>(pages.head_dim());
  const size_t bytes = sizeof(float) * dim * dim;
  float* s = pages.state(slice.page, head);
  const bool is_new = slice.offset == 0;
  if (is_new && slice.page_before < 0) {
    std::memset(s, 0, bytes);
  } else {
    const int64_t from = is_new ? slice.page_before : slice.page;
    const int32_t end = is_new ? places.page_tokens() : slice.offset;
    const int32_t border = pages.border(from);
    HEDDLE_CHECK(border <= end && end - border <= kScanRows, "a snapshot of another position");
    if (is_new) std::memcpy(s, pages.state(from, head), bytes);
    for (int32_t offset = border; offset < end; ++offset) replay(s, from, offset);
  }
  if (!slice.ends_behind()) {
    std::memcpy(spare, s, bytes);
    s = spare;
  }
  const int64_t end = slice.first_row + slice.n;
  for (int64_t t = slice.first_row; t < end;) {
    if (t > slice.first_row) {  // a page begins
      float* next = pages.state(places.Page(t), head);
      std::memcpy(next, s, bytes);
      if (slice.ends_behind()) s = next;
    }
    const int32_t n = places.RowsInPage(t, end);
    run(s, t, n);
    t += n;
  }
}

}  // namespace heddle::kernels
