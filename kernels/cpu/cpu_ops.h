// The ops of a step on the CPU: each divides its rows among the pool's threads and ends when all
// are done.
//
// One thread calls at a time. Scratch memory grows to what the largest step needs and is kept.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "kernels/cpu/adapters.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear/experts.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/rank_ops.h"
#include "kernels/cpu/sampler.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/selection.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/wkv.h"
#include "kernels/late_sums.h"
#include "kernels/logit_batch.h"
#include "kernels/ops.h"
#include "kernels/owned_batch.h"

namespace heddle::kernels::cpu {

class CpuOps final : public Ops, public LateSums {
 public:
  CpuOps(const KernelTable& table, ThreadPool& pool) : table_(table), pool_(pool) {}

  // Keeps a copy of the batch, for which the ops that follow are.
  absl::Status Plan(const HostBatch& batch);
  // Makes this rank one of a group, or this stage one of a pipeline.
  void JoinGroup(std::shared_ptr<Communicator> communicator);
  void JoinStages(std::shared_ptr<Communicator> stages) { stages_ = std::move(stages); }

  void Embed(const PackedWeight& table, float scale, Tensor out) override;
  void AddPositions(const PackedWeight& table, int32_t offset, Tensor x) override;
  void AddTokenTypes(const PackedWeight& table, Tensor x) override;
  void AddSegments(const SegmentArgs& args) override;
  void AdaptEmbedding(const AdapterMatrix& adapters, Tensor x) override;
  void Norm(const NormArgs& args) override;
  void Linear(const LinearArgs& args) override;
  void RopeAngles(const RopeAnglesArgs& args) override;
  void RopeKvWrite(const RopeKvWriteArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void TokenShift(const TokenShiftArgs& args) override;
  void TimeMix(const WkvArgs& args) override;
  void SquashElements(Squash kind, Tensor x) override;
  void SelectPositions(const SelectArgs& args) override;
  bool SeesMoreThan(int32_t group, int32_t positions) const override;
  void ShortConv(const ShortConvArgs& args) override;
  void Recurrence(const RecurrenceArgs& args) override;
  void GateElements(Tensor gate, Tensor x) override;
  void Sharpen(const SharpenArgs& args) override;
  void Xielu(const XieluArgs& args) override;
  void Multiply(Tensor factor, Tensor x) override;
  void Scale(Tensor x, float factor) override;
  void PredictStreams(const StreamsArgs& args) override;
  void CorrectStreams(const StreamsArgs& args) override;
  void MatchMagnitude(Tensor like, Tensor x) override;
  void SparseGate(const SparseGateArgs& args) override;
  void Route(const RouteArgs& args) override { cpu::Route(args, pool_); }
  void ExpertMix(const ExpertMixArgs& args) override;
  void HeadLinear(const HeadLinearArgs& args) override;
  void GateRows(Tensor gate_f32, Tensor x) override;
  bool EndsWithLogitRows() const override { return LogitBatch::IsMadeOf(batch()); }
  void NarrowToLogitRows() override;
  void GatherLogitRows(Tensor x, Tensor out) override;
  void CopyRows(Tensor x, Tensor out) override;
  void ScaleLogits(Tensor logits_f32, float scale, float softcap) override;
  void Sample(const SampleArgs& args) override;

  // Whoever aborts the stages' group reports it; a step that is given up has no result.
  void SendRows(Tensor rows, int32_t to) override;
  void RecvRows(Tensor rows, int32_t from) override;
  void EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out) override;
  void AllReduce(const AllReduceArgs& args) override;
  void BeginAllReduce(const AllReduceArgs& args) override;
  void EndAllReduce(const AllReduceArgs& args) override;
  void GatherColumns(const GatherColumnsArgs& args) override;

 private:
  const HostBatch& batch() const { return narrow_ == nullptr ? batch_.view() : *narrow_; }

  template <typename F>
  void EachRow(int64_t n, double row_cost, const F& body) {
    pool_.ForRange(n, row_cost, [&](int64_t begin, int64_t end, int32_t thread) {
      for (int64_t t = begin; t < end; ++t) body(t, thread);
    });
  }

  void Sum(const AllReduceArgs& args, bool is_begun);
  // The adapter of a row; -1: none.
  int32_t SlotOf(const AdapterRows& rows, int64_t t) const;
  bool IsAdapted(const NormArgs& args) const;
  // Per thread, room for the weights and biases of a row with an adapter.
  float* NormVectors(const NormArgs& args);
  void NormRow(const NormArgs& args, int64_t t, int32_t thread, float* vectors) const;
  // Points `row` to weights and biases in `own` [2, dim] if the row's adapter changes them.
  void AdaptNorm(const NormArgs& args, int64_t t, float* own, NormRowArgs* row) const;

  void LinearWithAdapters(const LinearArgs& args, const AdapterGroups& groups);
  // The product of rows with these adapters, which need not be rows of the batch.
  void LinearOfSlots(const LinearArgs& args, std::span<const int32_t> slots);

  // Per thread, room for the weights of the heads' norms of a row with an adapter.
  float* HeadNormVectors(const RopeKvWriteArgs& args);
  struct HeadNorm {
    const float* weight;  // nullptr: none
    const AdapterMatrix* adapters;
    float* own;  // [head_dim] room for a row's weights
  };
  void Rotate(const RopeKvWriteArgs& args, const HeadNorm& norm, int64_t t, int32_t heads,
              float* row) const;
  void WriteKv(const RopeKvWriteArgs& args, int64_t t, int64_t slot) const;

  const KernelTable table_;
  ThreadPool& pool_;
  OwnedBatch batch_;
  LogitBatch logit_batch_;
  const HostBatch* narrow_ = nullptr;  // behind NarrowToLogitRows
  AdapterGroups adapter_groups_;
  AdapterGroups other_groups_;      // of rows that are not those of the batch
  std::vector<int32_t> row_slots_;  // of logit rows
  LinearScratch linear_;
  AdapterScratch adapters_;
  Scratch position_rows_;
  Scratch recurrence_;
  Scratch time_mix_;
  Scratch norm_vectors_;
  Scratch conv_inputs_;
  AttentionScratch attention_;
  SelectionScratch selection_;
  ExpertScratch experts_;
  std::vector<SamplerScratch> samplers_;
  std::optional<RankOps> ranks_;  // of a device in a group
  Scratch stage_wire_;
  std::shared_ptr<Communicator> stages_;  // of one in a pipeline
};

}  // namespace heddle::kernels::cpu
