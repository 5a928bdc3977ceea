// The specification of every op as plain loops with double accumulation; tests compare the other
// backends with it. Never optimised. Tensors hold F32.
// Thread-safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "kernels/communicator.h"
#include "kernels/ops.h"

namespace heddle::kernels::reference {

// A row-major F32 matrix, decoded from any source format.
class Weight final : public PackedWeight {
 public:
  std::vector<float> values;  // [rows, cols]
  const float* row(int64_t r) const { return values.data() + r * cols; }
};

// The matrices of a stack, one above the other.
class Stack final : public PackedStack {
 public:
  std::unique_ptr<PackedWeight> all;  // a Weight [count * rows, cols]
  const float* row(int32_t matrix, int64_t r) const {
    return static_cast<const Weight&>(*all).row(matrix * rows + r);
  }
};

// An adapter's addition to y = W x for one member of a matrix: the sums of all parts, y included.
void AddAdapter(const AdapterMatrix& adapters, int32_t slot, int32_t member, const float* x,
                int64_t cols, std::span<double> y);
// The adapter of each row of x; -1: none.
int32_t SlotOf(const HostBatch& batch, const AdapterRows& rows, int64_t t);

double Activate(Activation activation, double x);
// The result of Epilogue::kGated for the two products.
double Gate(Activation activation, double gate, double up);

void Embed(const HostBatch& batch, const Weight& table, float scale, Tensor out);
void AddPositions(const HostBatch& batch, const Weight& table, int32_t offset, Tensor x);
void AddTokenTypes(const HostBatch& batch, const Weight& table, Tensor x);
void AddSegments(const HostBatch& batch, const SegmentArgs& args);
void AdaptEmbedding(const HostBatch& batch, const AdapterMatrix& adapters, Tensor x);
void Norm(const HostBatch& batch, const NormArgs& args);
void Linear(const HostBatch& batch, const LinearArgs& args);
void RopeAngles(const HostBatch& batch, const RopeAnglesArgs& args);
void RopeKvWrite(const HostBatch& batch, const RopeKvWriteArgs& args);
void Attention(const HostBatch& batch, const AttentionArgs& args);
void TokenShift(const HostBatch& batch, const TokenShiftArgs& args);
void TimeMix(const HostBatch& batch, const WkvArgs& args);
void SquashElements(Squash kind, Tensor x);
void SelectPositions(const HostBatch& batch, const SelectArgs& args);
void ShortConv(const HostBatch& batch, const ShortConvArgs& args);
void Recurrence(const HostBatch& batch, const RecurrenceArgs& args);
void SelectiveScan(const HostBatch& batch,
                   const RecurrenceArgs& args);  // RecurrenceRule::kSelective
void GateElements(Tensor gate, Tensor x);
void Multiply(Tensor factor, Tensor x);
void Sharpen(const HostBatch& batch, const SharpenArgs& args);
void Xielu(const XieluArgs& args);
void PredictStreams(const StreamsArgs& args);
void CorrectStreams(const StreamsArgs& args);
void MatchMagnitude(Tensor like, Tensor x);
void SparseGate(const SparseGateArgs& args);
void Route(const RouteArgs& args);
void ExpertMix(const HostBatch& batch, const ExpertMixArgs& args);
void HeadLinear(const HostBatch& batch, const HeadLinearArgs& args);
void GateRows(Tensor gate, Tensor x);
void GatherLogitRows(const HostBatch& batch, Tensor x, Tensor out);
void CopyRows(Tensor x, Tensor out);
void SumRows(const SumRowsArgs& args);
void ScaleLogits(Tensor logits, float scale, float softcap);
void Sample(const SampleArgs& args);
void EmbedShare(const HostBatch& batch, const Weight& table, int64_t first_row, float scale,
                Tensor out);
void AllReduce(const HostBatch& batch, const AllReduceArgs& args, Communicator& communicator);
void GatherColumns(const GatherColumnsArgs& args, Communicator& communicator);

}  // namespace heddle::kernels::reference
