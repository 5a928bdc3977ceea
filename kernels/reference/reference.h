// The specification of every op as plain loops with double accumulation: what tests compare the
// other backends with. Never optimised. Tensors hold F32.
// Thread-safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "kernels/ops.h"

namespace heddle::kernels::reference {

// Row-major F32, decoded from whatever the sources held.
class Weight final : public PackedWeight {
 public:
  std::vector<float> values;  // [rows, cols]
  const float* row(int64_t r) const { return values.data() + r * cols; }
};

double Activate(Activation activation, double x);

void Embed(const HostBatch& batch, const Weight& table, float scale, Tensor out);
void AddPositions(const HostBatch& batch, const Weight& table, int32_t offset, Tensor x);
void Norm(const NormArgs& args);
void Linear(const LinearArgs& args);
void RopeAngles(const HostBatch& batch, const RopeAnglesArgs& args);
void RopeKvWrite(const HostBatch& batch, const RopeKvWriteArgs& args);
void Attention(const HostBatch& batch, const AttentionArgs& args);
void GatherLogitRows(const HostBatch& batch, Tensor x, Tensor out);
void ScaleLogits(Tensor logits, float scale, float softcap);
void Sample(const SampleArgs& args);

}  // namespace heddle::kernels::reference
