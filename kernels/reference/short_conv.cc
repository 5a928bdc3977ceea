#include <vector>

#include "base/check.h"
#include "kernels/kv_element.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

// The slots of all positions of a sequence's spans.
std::vector<int64_t> SlotsOf(const HostBatch& batch, int32_t page_tokens, size_t seq) {
  std::vector<int64_t> slots;
  for (int32_t s = batch.span_begin[seq]; s < batch.span_begin[seq + 1]; ++s) {
    const auto span = static_cast<size_t>(s);
    for (int32_t i = 0; i < batch.span_tokens[span]; ++i) {
      slots.push_back(int64_t{batch.span_page[span]} * page_tokens + i);
    }
  }
  return slots;
}

}  // namespace

void ShortConv(const HostBatch& batch, const ShortConvArgs& args) {
  const int64_t channels = args.out.cols;
  std::vector<float> y(static_cast<size_t>(channels));
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    const float* b = args.bcx.row<float>(t);
    const float* x = b + 2 * channels;
    for (int64_t i = 0; i < channels; ++i) y[static_cast<size_t>(i)] = b[i] * x[i];
    StoreKvRow(args.cache, args.cache.keys, batch.kv_slot[static_cast<size_t>(t)], 0, y.data());
  }
  for (int32_t seq = 0; seq < batch.n_seqs(); ++seq) {
    const auto s = static_cast<size_t>(seq);
    HEDDLE_CHECK(!batch.IsTree(seq), "a convolution over a tree of drafts");
    const std::vector<int64_t> slots = SlotsOf(batch, args.cache.page_tokens, s);
    const int64_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t t = batch.q_begin[s] + i;
      const int64_t position = static_cast<int64_t>(slots.size()) - rows + i;
      std::vector<double> sums(static_cast<size_t>(channels), 0.0);
      for (int32_t j = 0; j < args.taps; ++j) {
        const int64_t at = position - args.taps + 1 + j;
        if (at < 0) continue;
        LoadKvRow(args.cache, args.cache.keys, slots[static_cast<size_t>(at)], 0, y.data());
        for (int64_t c = 0; c < channels; ++c) {
          sums[static_cast<size_t>(c)] +=
              double{args.weight[j * channels + c]} * y[static_cast<size_t>(c)];
        }
      }
      const float* gate = args.bcx.row<float>(t) + channels;
      for (int64_t c = 0; c < channels; ++c) {
        const double bias = args.bias == nullptr ? 0.0 : args.bias[c];
        args.out.row<float>(t)[c] =
            static_cast<float>(gate[c] * (bias + sums[static_cast<size_t>(c)]));
      }
    }
  }
}

}  // namespace heddle::kernels::reference
