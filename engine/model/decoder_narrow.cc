// Rows of a prompt that need no logits leave a step where no layer keeps anything of them.
#include "engine/model/decoder.h"
#include "engine/model/spec_traffic.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

// Values of the recurrence whose output memory units read; 0: there are none.
int64_t MemoryWidth(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    const RecurrenceSpec& recurrence = layer.attention.recurrence;
    if (recurrence.is_memory) return recurrence.shape.values();
  }
  return 0;
}

}  // namespace

// Features are of all rows.
int32_t Decoder::NarrowsAt(const kernels::Ops& ops, int32_t n_tokens, int32_t n_logit_rows) const {
  const int32_t none = spec_.n_layers();
  const int32_t first = NarrowingLayer(spec_);
  if (first == none || n_logit_rows >= n_tokens || !ops.EndsWithLogitRows()) return none;
  const bool keeps_features = keeps_features_ && !features_.empty();
  return keeps_features ? none : first;
}

void Decoder::Narrow(kernels::Ops& ops, int32_t n_tokens, int32_t n_logit_rows) {
  // Each has a buffer that is as wide, and that no layer reads across its border.
  const auto gather = [&](kernels::Buffer& rows, kernels::Buffer& spare, int64_t width) {
    const auto cols = static_cast<int32_t>(width);
    const Tensor kept = View(spare, n_logit_rows, cols);
    ops.GatherLogitRows(View(rows, n_tokens, cols), kept);
    ops.CopyRows(kept, View(rows, n_logit_rows, cols));
  };
  gather(*x_, *normed_, spec_.hidden);
  if (memory_ != nullptr) gather(*memory_, *attended_, MemoryWidth(spec_));
  if (layer_inputs_ != nullptr) gather(*layer_inputs_, *inner_, spec_.layer_inputs());
  ops.NarrowToLogitRows();
  ComputeAngles(ops);  // of the positions that are left
}

}  // namespace heddle::engine
