// Where the rows of a step's sequences are in pages of snapshots, for kernels: what
// kernels/recurrence_slices.h finds out on the host.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/fused.cuh"
#include "kernels/cuda/state/state_params.h"

namespace heddle::kernels::cuda {

// The rows of one sequence.
struct StateSlice {
  int32_t first_row = 0;     // of the tensors
  int32_t n = 0;             // 0: the tensors have none of its rows
  int32_t offset = 0;        // of the first row in its page
  int64_t page = 0;          // of the first row
  int64_t page_before = -1;  // the one before that; -1: the sequence begins in `page`

  // As in kernels/recurrence_slices.h.
  HEDDLE_DEVICE bool is_final() const { return n > kScanRows; }
  HEDDLE_DEVICE bool ends_behind() const { return is_final() || n == 1; }
};

// REQUIRES: `batch` has kv_slot and spans of the layer's group; all spans but the last of a
// sequence are whole pages.
HEDDLE_DEVICE StateSlice SliceOf(const StateBatch& batch, int32_t page_tokens, int seq) {
  StateSlice slice;
  const int32_t begin = batch.all.q_begin[seq];
  slice.first_row = begin - batch.first_row;
  if (slice.first_row < 0 || slice.first_row >= batch.n_rows) return slice;
  slice.n = batch.all.q_begin[seq + 1] - begin;
  if (slice.n == 0) return slice;
  const int64_t slot = batch.all.kv_slot[begin];
  slice.page = slot / page_tokens;
  slice.offset = static_cast<int32_t>(slot % page_tokens);
  const int32_t page_begin = batch.all.context_len[seq] - slice.n - slice.offset;
  const int32_t span = batch.all.span_begin[seq] + page_begin / page_tokens;
  if (page_begin > 0) slice.page_before = batch.all.span_page[span - 1];
  return slice;
}

// The sequence that a row of the tensors belongs to. All lanes of a warp ask for the same row.
HEDDLE_DEVICE int SequenceOf(const StateBatch& batch, int row) {
  const int32_t at = batch.first_row + row;
  int low = 0, count = batch.all.n_seqs;  // it is one of [low, low + count)
  while (count > 1) {
    const int step = (count + 31) / 32;
    const int probe = low + Lane() * step;
    const bool begins = probe < low + count && batch.all.q_begin[probe] <= at;
    const int last = PopCount(Ballot(begins)) - 1;
    const int end = low + count;
    low += last * step;
    count = step < end - low ? step : end - low;
  }
  return low;
}

HEDDLE_DEVICE float* PageOf(const StatePages& pages, int64_t page) {
  return reinterpret_cast<float*>(pages.base + page * pages.stride);
}

// Offset in the page of the position that its S is before, for a sequence that goes on behind
// offset `end`: one of the kScanRows before it, or itself. A page that says another is not the
// sequence's, and what is made of it is wrong; but it is made within the page, and of few rows.
HEDDLE_DEVICE int32_t BorderOf(const StatePages& pages, int64_t page, int32_t end) {
  const int32_t border = *reinterpret_cast<const int32_t*>(PageOf(pages, page));
  const int32_t least = end > kScanRows ? end - kScanRows : 0;
  if (border < least) return least;
  return border < end ? border : end;
}
HEDDLE_DEVICE void SetBorder(const StatePages& pages, int64_t page, int32_t offset) {
  *reinterpret_cast<int32_t*>(PageOf(pages, page)) = offset;
}

// Where a row of a slice is.
struct StatePlace {
  int64_t page;
  int32_t offset;
};
HEDDLE_DEVICE StatePlace PlaceOf(const StateBatch& batch, int32_t page_tokens, int row) {
  const int64_t slot = batch.all.kv_slot[batch.first_row + row];
  return {slot / page_tokens, static_cast<int32_t>(slot % page_tokens)};
}

// Rows of the slice that follow its row `i`, which is at `offset`, in its page.
HEDDLE_DEVICE int32_t RowsBehind(const StateSlice& slice, int32_t page_tokens, int i,
                                 int32_t offset) {
  const int32_t in_slice = slice.n - 1 - i, in_page = page_tokens - 1 - offset;
  return in_slice < in_page ? in_slice : in_page;
}

// e^x by a power of two: beside the instruction's own two, |x| units in the last place are lost.
HEDDLE_DEVICE float ExpFast(float x) {
  constexpr float kLog2E = 1.44269504f;
  return Exp2(x * kLog2E);
}
HEDDLE_DEVICE float Sigmoid(float x) { return DivideFast(1.0f, 1.0f + ExpFast(-x)); }
HEDDLE_DEVICE float Silu(float x) { return DivideFast(x, 1.0f + ExpFast(-x)); }

// log(1 + e^x), as on the CPU: max(x, 0) + log(1 + t) with t = e^-|x|, whose series is cut where
// 2e-9 of it are left.
HEDDLE_DEVICE float Softplus(float x) {
  const float t = ExpFast(-Abs(x));
  const float s = DivideFast(t, t + 2.0f);
  const float square = s * s;
  float series = 1.0f / 15;
  HEDDLE_UNROLL
  for (int power = 13; power > 0; power -= 2) {
    series = Fma(series, square, 1.0f / static_cast<float>(power));
  }
  return Fma(2.0f * s, series, Max(x, 0.0f));
}

// A causal convolution over positions, each channel alone, and SiLU.
struct StateConv {
  Tensor in;                      // [n, channels or more]
  const float* weight = nullptr;  // [taps, channels], the oldest position first
  const float* bias = nullptr;    // [channels] or nullptr
  int64_t channels = 0;
  int64_t inputs_at = 0;  // floats in a page: [input_rows, channels], by position modulo input_rows
  int32_t input_rows = 0;
  int32_t taps = 0;
};

HEDDLE_DEVICE float* InputOf(const StateConv& conv, const StatePages& pages, int64_t page,
                             int32_t offset) {
  return PageOf(pages, page) + conv.inputs_at + offset % conv.input_rows * conv.channels;
}

// Channel c of the slice's row i.
template <typename T>
HEDDLE_DEVICE float Convolved(const StateConv& conv, const StatePages& pages,
                              const StateSlice& slice, int i, int64_t c) {
  float sum = conv.bias != nullptr ? conv.bias[c] : 0.0f;
  for (int tap = 0; tap < conv.taps; ++tap) {
    const int from = i - (conv.taps - 1 - tap);
    float x;
    if (from >= 0) {
      x = ToFloat(conv.in.row<T>(slice.first_row + from)[c]);
    } else if (slice.offset + from >= 0) {
      x = InputOf(conv, pages, slice.page, slice.offset + from)[c];
    } else if (slice.page_before >= 0) {
      x = InputOf(conv, pages, slice.page_before, slice.offset + from + pages.page_tokens)[c];
    } else {
      continue;
    }
    sum = Fma(conv.weight[tap * conv.channels + c], x, sum);
  }
  return Silu(sum);
}

inline StateConv ConvOf(const RecurrenceArgs& args, const RecurrenceState& layout) {
  return {.in = args.in,
          .weight = args.conv,
          .bias = args.conv_bias,
          .channels = args.shape.channels(),
          .inputs_at = layout.inputs,
          .input_rows = static_cast<int32_t>(layout.input_rows),
          .taps = args.shape.taps};
}

inline StatePages PagesOf(const KvCacheView& cache, int32_t page_tokens) {
  return {.base = static_cast<uint8_t*>(cache.keys),
          .stride = cache.page_stride == 0 ? cache.block_bytes() : cache.page_stride,
          .page_tokens = page_tokens};
}

}  // namespace heddle::kernels::cuda
