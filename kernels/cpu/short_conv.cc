#include "kernels/cpu/short_conv.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/kv_element.h"

namespace heddle::kernels::cpu {
namespace {

// Approximate nanoseconds per element and term, to decide how many threads to wake.
constexpr double kNsPerTerm = 0.15;

// Walks back through the spans of a sequence.
class SpansBack {
 public:
  SpansBack(const HostBatch& batch, const KvCacheView& cache, size_t seq)
      : batch_(batch),
        page_tokens_(cache.page_tokens),
        span_(batch.span_begin[seq + 1] - 1),
        begin_(batch.context_len[seq] - batch.span_tokens[static_cast<size_t>(span_)]) {}

  // The slot of a position in the list of spans. REQUIRES: positions decrease from call to call.
  int64_t SlotOf(int64_t position) {
    while (position < begin_) begin_ -= batch_.span_tokens[static_cast<size_t>(--span_)];
    const int64_t page = batch_.span_page[static_cast<size_t>(span_)];
    return page * page_tokens_ + position - begin_;
  }

 private:
  const HostBatch& batch_;
  const int32_t page_tokens_;
  int32_t span_;
  int64_t begin_;  // position of the span's first
};

const float* RowAt(const KvCacheView& cache, int64_t slot) {
  return reinterpret_cast<const float*>(static_cast<const char*>(cache.keys) +
                                        RowOffset(cache, slot, 0));
}

// Points to the inputs of row `i` of the sequence's `n`.
void FindInputs(const HostBatch& batch, const ShortConvArgs& args, size_t seq, int64_t i, int64_t n,
                const float** inputs) {
  const int64_t last = batch.context_len[seq] - n + i;
  SpansBack spans(batch, args.cache, seq);
  for (int32_t back = 0; back < args.taps; ++back) {
    const int64_t position = last - back;
    inputs[args.taps - 1 - back] =
        position < 0 ? nullptr : RowAt(args.cache, spans.SlotOf(position));
  }
}

}  // namespace

void ShortConv(const HostBatch& batch, const ShortConvArgs& args, const RowKernels& rows,
               ThreadPool& pool, Scratch& scratch) {
  HEDDLE_CHECK(args.cache.dtype == DType::kF32 && args.cache.n_kv_heads == 1,
               "a convolution keeps one F32 vector per position");
  const int64_t channels = args.out.cols;
  const double row_cost = kNsPerTerm * static_cast<double>(channels);
  pool.ForRange(batch.n_tokens(), 2 * row_cost, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t t = begin; t < end; ++t) {
      const float* b = args.bcx.row<float>(t);
      auto* y = const_cast<float*>(RowAt(args.cache, batch.kv_slot[static_cast<size_t>(t)]));
      rows.multiply(b, b + 2 * channels, channels, y);
    }
  });
  const int64_t pointer_bytes = args.taps * int64_t{sizeof(float*)};
  auto* pointers = static_cast<const float**>(scratch.Get(pool.num_threads() * pointer_bytes));
  pool.ForRange(
      batch.n_tokens(), row_cost * args.taps, [&](int64_t begin, int64_t end, int32_t thread) {
        const float** inputs = pointers + int64_t{thread} * args.taps;
        const auto next = std::upper_bound(batch.q_begin.begin(), batch.q_begin.end(), begin);
        auto seq = static_cast<size_t>(next - batch.q_begin.begin()) - 1;
        for (int64_t t = begin; t < end; ++t) {
          while (t >= batch.q_begin[seq + 1]) ++seq;
          HEDDLE_CHECK(!batch.IsTree(static_cast<int32_t>(seq)),
                       "a convolution over a tree of drafts");
          const int64_t first = batch.q_begin[seq];
          FindInputs(batch, args, seq, t - first, batch.q_begin[seq + 1] - first, inputs);
          rows.conv({.inputs = inputs,
                     .weight = args.weight,
                     .bias = args.bias,
                     .gate = args.bcx.row<float>(t) + channels,
                     .taps = args.taps,
                     .dim = channels,
                     .out = args.out.row<float>(t)});
        }
      });
}

}  // namespace heddle::kernels::cpu
