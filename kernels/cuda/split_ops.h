// Runs a step as two halves of its rows, on two lanes of the device.
//
// Every op but attention works row by row, and attention works sequence by sequence: halves that
// hold whole sequences are independent until their rows are gathered for the logits. A sequence
// that is cut (CutBatch) has its later rows in the second half, whose attention reads the first
// half's keys of the same layer: those were written in a phase of the first half that came before
// the second half's. Each op therefore becomes two ops on rows of the same tensors. A half's
// *phase* is all work between two of its attentions, mostly matrix products. Phases take turns, and
// attentions run beside the other half's phase:
//
//   lane 0   phase 0 |attention 0      |         phase 1 |attention 1 ...
//   lane 1           |phase 0          |attention 0      |phase 1 ...
//
// Where ranks share layers, their sums end phases as attentions do, and so run beside the other
// half's products (Gond et al. 2025, "TokenWeave"). Each half meets the same half of the other
// ranks, in a group of its own, since kernels of the two lanes that wait for other ranks overlap.
//
// So that the second half's phase can wait for the first's, its ops are kept until that has been
// enqueued. As phases never overlap they may share memory that only products use. AttendLatents is
// an attention whose products of heads run beside the other half's phase: they take none of it
// (counters, the library's workspace), and nor do sums over ranks.
// Life: ops in the order of a forward, then Join once. GatherLogitRows joins, too, and so do
// columns that ranks gather; what follows runs whole, on lane 0.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/cuda_ops.h"

namespace heddle::kernels::cuda {

class SplitOps final : public Ops {
 public:
  // `first` has rows [0, first_rows) on lane 0, `second` the rest on lane 1, `whole` all on lane 0.
  struct Halves {
    CudaOps& first;
    CudaOps& second;
    CudaOps& whole;
    int64_t first_rows = 0;
    int64_t rows = 0;
    int64_t activation_bytes = 2;  // per element
  };
  SplitOps(Runtime& runtime, const Halves& halves) : runtime_(runtime), halves_(halves) {}

  void Embed(const PackedWeight& table, float scale, Tensor out) override;
  void AdaptEmbedding(const AdapterMatrix& adapters, Tensor x) override;
  void AddPositions(const PackedWeight& table, int32_t offset, Tensor x) override;
  void AddTokenTypes(const PackedWeight& table, Tensor x) override;
  void AddSegments(const SegmentArgs& args) override;
  void Norm(const NormArgs& args) override;
  void Linear(const LinearArgs& args) override;
  void RopeAngles(const RopeAnglesArgs& args) override;
  void RopeKvWrite(const RopeKvWriteArgs& args) override;
  void ProjectHeads(const LinearArgs& product, const RopeKvWriteArgs& heads) override;
  void Attention(const AttentionArgs& args) override;
  void AttendLatents(const LatentAttentionArgs& args) override;
  void SelectPositions(const SelectArgs& args) override;
  bool SeesMoreThan(int32_t group, int32_t positions) const override;
  void Route(const RouteArgs& args) override;
  void ExpertMix(const ExpertMixArgs& args) override;
  void HeadLinear(const HeadLinearArgs& args) override;
  void GateRows(Tensor gate_f32, Tensor x) override;
  void Multiply(Tensor factor, Tensor x) override;
  void PredictStreams(const StreamsArgs& args) override;
  void CorrectStreams(const StreamsArgs& args) override;
  void MatchMagnitude(Tensor like, Tensor x) override;
  void SparseGate(const SparseGateArgs& args) override;
  void Sharpen(const SharpenArgs& args) override;
  void Xielu(const XieluArgs& args) override;
  void ShortConv(const ShortConvArgs& args) override;
  void Recurrence(const RecurrenceArgs& args) override;
  void GateElements(Tensor gate, Tensor x) override;
  void Scale(Tensor x, float factor) override;
  void TokenShift(const TokenShiftArgs& args) override;
  void TimeMix(const WkvArgs& args) override;
  void SquashElements(Squash kind, Tensor x) override;
  void GatherLogitRows(Tensor x, Tensor out) override;
  void CopyRows(Tensor x, Tensor out) override;
  void SumRows(const SumRowsArgs& args) override;
  void ScaleLogits(Tensor logits_f32, float scale, float softcap) override;
  void Sample(const SampleArgs& args) override;
  void EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out) override;
  void AllReduce(const AllReduceArgs& args) override;
  void GatherColumns(const GatherColumnsArgs& args) override;

  // Orders lane 0 after both halves.
  void Join();

  // The first failure of any part.
  absl::Status status() const;

 private:
  struct Half {
    int64_t begin;
    int64_t count;
  };
  // Calls fn(ops, half) for both halves, for the second one when its turn comes; or once, for all
  // rows.
  template <typename Fn>
  void Each(Fn fn);
  void EndPhases(const std::function<void(CudaOps&)>& between);
  Half HalfOf(const CudaOps& ops) const {
    if (&ops == &halves_.first) return {0, halves_.first_rows};
    return {halves_.first_rows, halves_.rows - halves_.first_rows};
  }
  void Note(const absl::Status& status);
  NormArgs NormOf(const NormArgs& args, const Half& half) const;
  LinearArgs ProductOf(const LinearArgs& args, const Half& half) const;
  RopeKvWriteArgs HeadsOf(const RopeKvWriteArgs& args, const Half& half) const;
  // The half's rows of a tensor that has some multiple of the step's: heads, or layers, as rows.
  Half RowsOf(const Tensor& tensor, const Half& half) const;
  Tensor Rows(Tensor tensor, const Half& half, int64_t element_bytes) const;
  Tensor Rows(Tensor tensor, const Half& half) const {
    return Rows(tensor, half, halves_.activation_bytes);
  }

  Runtime& runtime_;
  Halves halves_;
  std::vector<std::function<void()>> kept_;  // ops of the second half's phase
  bool first_waits_ = false;                 // its next phase comes after the second half's last
  bool joined_ = false;
  absl::Status status_;
};

}  // namespace heddle::kernels::cuda
