// The snapshots of a layer with RWKV-7's time mix (kernels/wkv.h), for kernels on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/batch.h"
#include "kernels/recurrence_slices.h"
#include "kernels/wkv.h"

namespace heddle::kernels {

class WkvPages {
 public:
  explicit WkvPages(const WkvArgs& args)
      : cache_(args.cache), layout_(args.n_heads, args.head_dim, 0), head_dim_(args.head_dim) {
    HEDDLE_CHECK(cache_.dtype == DType::kF32 && cache_.head_dim >= layout_.floats &&
                     args.page_tokens % kScanRows == 0,
                 "pages of another layer's state");
  }

  float* page(int64_t index) const {
    return reinterpret_cast<float*>(static_cast<char*>(cache_.keys) + cache_.PageOffset(index));
  }
  int32_t border(int64_t index) const {
    int32_t offset = 0;
    std::memcpy(&offset, page(index), sizeof(offset));
    return offset;
  }
  void set_border(int64_t index, int32_t offset) const {
    std::memcpy(page(index), &offset, sizeof(offset));
  }
  float* state(int64_t index, int32_t head) const {
    return page(index) + layout_.state + int64_t{head} * head_dim_ * head_dim_;
  }
  // Part `part` of what S takes in at a position.
  float* row(int64_t index, int32_t offset, int64_t part) const {
    const int64_t at = offset % (2 * kScanRows);
    return page(index) + layout_.rows + (at * WkvState::kParts + part) * layout_.width;
  }
  int64_t width() const { return layout_.width; }

 private:
  const KvCacheView& cache_;
  const WkvState layout_;
  const int64_t head_dim_;
};

// Where the input of a shift at an offset of a page is kept.
inline float* ShiftRow(const TokenShiftArgs& args, int64_t page, int32_t offset) {
  auto* base = static_cast<char*>(args.cache.keys) + args.cache.PageOffset(page);
  return reinterpret_cast<float*>(base) + args.place + offset % WkvState::kShiftRows * args.x.cols;
}

// The row before the slice's first one; nullptr: the sequence begins there.
inline const float* ShiftBefore(const TokenShiftArgs& args, const RecurrenceSlice& slice) {
  if (slice.offset > 0) return ShiftRow(args, slice.page, slice.offset - 1);
  if (slice.page_before < 0) return nullptr;
  return ShiftRow(args, slice.page_before, args.page_tokens - 1);
}

// The rows of a slice that later steps may need, of a page: those that few others of this step
// follow there. Visits (row, page, offset, rows behind it in its page).
template <typename Visit>
void ForKeptRows(const HostBatch& batch, const RecurrenceSlice& slice, int32_t page_tokens,
                 int64_t most, const Visit& visit) {
  const int64_t end = slice.first_row + slice.n;
  for (int64_t t = slice.first_row; t < end; ++t) {
    const int64_t slot = batch.kv_slot[static_cast<size_t>(t)];
    const auto offset = static_cast<int32_t>(slot % page_tokens);
    const int64_t behind = std::min<int64_t>(end - 1 - t, page_tokens - 1 - offset);
    if (behind < most) visit(t, slot / page_tokens, offset, behind);
  }
}

// Notes in each page of the slice where the part begins that its S is before.
inline void SetBorders(const HostBatch& batch, const RecurrenceSlice& slice, int32_t page_tokens,
                       const WkvPages& pages) {
  ForKeptRows(batch, slice, page_tokens, 1, [&](int64_t t, int64_t page, int32_t offset, int64_t) {
    const int64_t row = t - slice.first_row;
    const auto first_here = static_cast<int32_t>(std::max<int64_t>(0, offset - row));
    const int32_t at = slice.is_final() ? offset : first_here;
    pages.set_border(page, at - at % kScanRows);
  });
}

// Walks the rows of a slice in one head: `replay(S, page, offset)` takes a kept position in, and
// `step(S, t)` a row of this step. `s`: memory for an S. Pages get the S that belong there.
template <typename Replay, typename Step>
void WalkSlice(const HostBatch& batch, const RecurrenceSlice& slice, const WkvArgs& args,
               int32_t head, float* s, const Replay& replay, const Step& step) {
  if (slice.n == 0) return;
  const WkvPages pages(args);
  const size_t bytes = sizeof(float) * static_cast<size_t>(args.head_dim) * args.head_dim;
  const int32_t begin = slice.offset - slice.offset % kScanRows;
  float* const own = pages.state(slice.page, head);
  // S where the first row's part begins: the part before it may have to be taken in.
  const bool is_new = slice.offset == 0;
  if (is_new && slice.page_before < 0) {
    std::memset(s, 0, bytes);
  } else {
    const int64_t from = is_new ? slice.page_before : slice.page;
    const int32_t end = is_new ? args.page_tokens : begin;
    const int32_t border = pages.border(from);
    HEDDLE_CHECK(border == end - kScanRows || (!is_new && border == end),
                 "a snapshot of another position");
    std::memcpy(s, pages.state(from, head), bytes);
    for (int32_t offset = border; offset < end; ++offset) replay(s, from, offset);
  }
  std::memcpy(own, s, bytes);
  for (int32_t offset = begin; offset < slice.offset; ++offset) replay(s, slice.page, offset);
  for (int64_t t = slice.first_row; t < slice.first_row + slice.n; ++t) {
    const int64_t slot = batch.kv_slot[static_cast<size_t>(t)];
    const auto offset = static_cast<int32_t>(slot % args.page_tokens);
    const bool begins_part = offset % kScanRows == 0 && t > slice.first_row;
    if (begins_part && (offset == 0 || slice.is_final())) {
      std::memcpy(pages.state(slot / args.page_tokens, head), s, bytes);
    }
    step(s, t);
  }
}

}  // namespace heddle::kernels
