// Where the rows of a step's sequences are in pages of snapshots (kernels/recurrence.h), for
// kernels on the host. It owns nothing: batches, arguments and pages outlive what is made of them.
// Thread-safety: objects are not changed once made; a page's memory belongs to whoever computes its
// sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/batch.h"
#include "kernels/recurrence.h"

namespace heddle::kernels {

// The rows of one sequence.
struct RecurrenceSlice {
  int64_t first_row = 0;
  int32_t n = 0;
  int32_t offset = 0;        // of the first row in its page
  int64_t page = 0;          // of the first row
  int64_t page_before = -1;  // the one before that; -1: the sequence begins in `page`

  // Whether none of the rows may be taken back: otherwise S is not advanced within a page by them.
  bool is_final() const { return n > kScanRows; }
  // Whether S that is advanced row by row goes on to the last row: the first row always stays.
  bool ends_behind() const { return is_final() || n == 1; }
};

inline RecurrenceSlice SliceOf(const HostBatch& batch, int32_t page_tokens, int32_t seq) {
  const auto s = static_cast<size_t>(seq);
  HEDDLE_CHECK(!batch.IsTree(seq), "a recurrence over a tree of drafts");
  RecurrenceSlice slice;
  slice.first_row = batch.q_begin[s];
  slice.n = batch.q_begin[s + 1] - batch.q_begin[s];
  if (slice.n == 0) return slice;
  const int64_t slot = batch.kv_slot[static_cast<size_t>(slice.first_row)];
  slice.page = slot / page_tokens;
  slice.offset = static_cast<int32_t>(slot % page_tokens);
  const int32_t page_begin = batch.context_len[s] - slice.n - slice.offset;
  int32_t begin = batch.context_len[s];  // of the span, in the list
  int32_t span = batch.span_begin[s + 1];
  while (begin > page_begin) begin -= batch.span_tokens[static_cast<size_t>(--span)];
  HEDDLE_CHECK(begin == page_begin && batch.span_page[static_cast<size_t>(span)] == slice.page,
               "a page of state is not whole");
  if (span > batch.span_begin[s])
    slice.page_before = batch.span_page[static_cast<size_t>(span - 1)];
  return slice;
}

// Where rows of a batch are in their pages.
class RowPlaces {
 public:
  RowPlaces(const HostBatch& batch, int32_t page_tokens)
      : batch_(batch), page_tokens_(page_tokens) {}

  int32_t page_tokens() const { return page_tokens_; }
  int64_t Page(int64_t t) const { return batch_.kv_slot[static_cast<size_t>(t)] / page_tokens_; }
  int32_t Offset(int64_t t) const {
    return static_cast<int32_t>(batch_.kv_slot[static_cast<size_t>(t)] % page_tokens_);
  }
  // Rows from t on, before `end`, that are in its page.
  int32_t RowsInPage(int64_t t, int64_t end) const {
    return static_cast<int32_t>(std::min<int64_t>(page_tokens_ - Offset(t), end - t));
  }

 private:
  const HostBatch& batch_;
  const int32_t page_tokens_;
};

// Pages of snapshots of any kind: where they are, and the number that each begins with.
class SnapshotPages {
 public:
  explicit SnapshotPages(const KvCacheView& cache) : cache_(cache) {}

  float* page(int64_t index) const {
    return reinterpret_cast<float*>(static_cast<char*>(cache_.keys) + cache_.PageOffset(index));
  }
  // Offset in the page of the position that its S is before.
  int32_t border(int64_t index) const {
    int32_t offset = 0;
    std::memcpy(&offset, page(index), sizeof(offset));
    return offset;
  }
  void set_border(int64_t index, int32_t offset) const {
    std::memcpy(page(index), &offset, sizeof(offset));
  }

 private:
  const KvCacheView& cache_;
};

// Visits the rows of a slice that later steps may need: those that fewer than `most` others of this
// step follow in their pages. visit(row, page, offset, rows behind it in its page).
template <typename Visit>
void ForKeptRows(const HostBatch& batch, const RecurrenceSlice& slice, int32_t page_tokens,
                 int64_t most, const Visit& visit) {
  const RowPlaces places(batch, page_tokens);
  const int64_t end = slice.first_row + slice.n;
  for (int64_t t = slice.first_row; t < end; ++t) {
    const int64_t behind = places.RowsInPage(t, end) - 1;
    if (behind < most) visit(t, places.Page(t), places.Offset(t), behind);
  }
}

// Notes in each page of the slice where the part begins that its S is before, for states that are
// advanced by parts of kScanRows.
inline void SetBorders(const HostBatch& batch, const RecurrenceSlice& slice, int32_t page_tokens,
                       const SnapshotPages& pages) {
  ForKeptRows(batch, slice, page_tokens, 1, [&](int64_t t, int64_t page, int32_t offset, int64_t) {
    const int64_t row = t - slice.first_row;
    const auto first_here = static_cast<int32_t>(std::max<int64_t>(0, offset - row));
    const int32_t at = slice.is_final() ? offset : first_here;
    pages.set_border(page, at - at % kScanRows);
  });
}

// The same for states that are advanced row by row: S is behind the last row of the slice in each
// page, or before the first where rows may be taken back.
inline void SetRowBorders(const RowPlaces& places, const RecurrenceSlice& slice,
                          const SnapshotPages& pages) {
  const int64_t end = slice.first_row + slice.n;
  for (int64_t t = slice.first_row; t < end;) {
    const int32_t n = places.RowsInPage(t, end);
    pages.set_border(places.Page(t), places.Offset(t) + (slice.ends_behind() ? n : 0));
    t += n;
  }
}

// Floats per row of the products with its part's keys: of q, and of the delta rule's k, in each key
// head.
inline int64_t DotFloats(const RecurrenceShape& shape) {
  const int64_t products = shape.rule == RecurrenceRule::kGatedDelta ? 2 : 1;
  return products * kScanRows * shape.n_key_heads;
}

// Floats per row that the CPU backend keeps while it runs a recurrence: q, k and v behind the
// convolution, the step and gain of each head, and products with keys. kSelective writes to its
// output.
inline int64_t WorkingFloats(const RecurrenceShape& shape) {
  return shape.is_selective() ? 0
                              : shape.channels() + 2 * int64_t{shape.n_heads} + DotFloats(shape);
}

// Floats that each of its threads keeps beside that: an S, and two products for each row of a part.
// The little that kSelective keeps is not counted.
inline int64_t ThreadWorkingFloats(const RecurrenceShape& shape) {
  return shape.is_selective() ? 0
                              : (int64_t{shape.key_dim} + 2 * kScanRows) * int64_t{shape.value_dim};
}

// The snapshots of a layer.
class RecurrencePages : public SnapshotPages {
 public:
  explicit RecurrencePages(const RecurrenceArgs& args)
      : SnapshotPages(args.cache),
        layout_(args.shape),
        shape_(args.shape),
        page_tokens_(args.page_tokens) {
    HEDDLE_CHECK(args.cache.dtype == DType::kF32 && args.cache.head_dim == layout_.floats &&
                     page_tokens_ % kScanRows == 0 && shape_.taps <= kScanRows,
                 "pages of another layer's state");
  }

  int32_t page_tokens() const { return page_tokens_; }
  const RecurrenceState& layout() const { return layout_; }
  float* state(int64_t index, int32_t head) const {
    return page(index) + layout_.state + int64_t{head} * shape_.key_dim * shape_.value_dim;
  }
  // The rows that the part with `offset` keeps: their updates and their decays.
  float* updates(int64_t index, int32_t head, int32_t offset) const {
    return page(index) + layout_.updates + Part(head, offset) * shape_.value_dim;
  }
  float* decays(int64_t index, int32_t head, int32_t offset) const {
    return page(index) + layout_.decays + Part(head, offset);
  }
  float* keys(int64_t index, int32_t key_head, int32_t offset) const {
    return page(index) + layout_.keys + Part(key_head, offset) * shape_.key_dim;
  }
  // kSelective: S of a block of channels, and v, dt and k of a position.
  float* block_state(int64_t index, int64_t block) const {
    return page(index) + layout_.state + block * shape_.key_dim * kChannelBlock;
  }
  float* kept_values(int64_t index, int32_t offset) const {
    return page(index) + layout_.updates + offset % kScanRows * shape_.values();
  }
  float* kept_steps(int64_t index, int32_t offset) const {
    return page(index) + layout_.decays + offset % kScanRows * shape_.values();
  }
  float* kept_keys(int64_t index, int32_t offset) const {
    return page(index) + layout_.keys + int64_t{offset % kScanRows} * shape_.key_dim;
  }
  // The convolution's input of a position.
  float* input(int64_t index, int32_t offset) const {
    return page(index) + layout_.inputs + offset % layout_.input_rows * shape_.channels();
  }

 private:
  // Rows before the part of `offset` of a head, which keeps two.
  static int64_t Part(int32_t head, int32_t offset) {
    return (2 * int64_t{head} + offset / kScanRows % 2) * kScanRows;
  }

  const RecurrenceState layout_;
  const RecurrenceShape& shape_;
  const int32_t page_tokens_;
};

// The convolution's input `back` positions before row t of the slice; nullptr before the first
// position.
inline const float* ConvolutionInput(const RecurrenceArgs& args, const RecurrencePages& pages,
                                     const RecurrenceSlice& slice, int64_t t, int32_t back) {
  if (t - back >= slice.first_row) return args.in.row<float>(t - back);
  const auto offset = static_cast<int32_t>(slice.offset + (t - slice.first_row) - back);
  if (offset >= 0) return pages.input(slice.page, offset);
  if (slice.page_before < 0) return nullptr;
  return pages.input(slice.page_before, offset + args.page_tokens);
}

}  // namespace heddle::kernels
