// Ops on the CUDA backend: checks shapes, chooses kernels, enqueues. Knows one step, whose first
// failure ends it (device_step.h).
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/device_step.h"
#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/linear_products.h"
#include "kernels/cuda/ranks/host_relay.h"
#include "kernels/cuda/state/state_params.h"
#include "kernels/late_sums.h"
#include "kernels/ops.h"

namespace heddle::kernels::cuda {

// Results that a Sample call left on the device, and where the caller wants them.
struct PendingCopy {
  void* to;
  const void* from;
  int64_t bytes;
};

struct ExpandedMemory;  // cuda_ops_latent.cc

class CudaOps final : public Ops, public LateSums {
 public:
  explicit CudaOps(DeviceStep step) : step_(std::move(step)), products_(&step_) {}
  CudaOps(const CudaOps&) = delete;
  CudaOps& operator=(const CudaOps&) = delete;

  void Embed(const PackedWeight& table, float scale, Tensor out) override;
  void AdaptEmbedding(const AdapterMatrix& adapters, Tensor x) override;
  void AddPositions(const PackedWeight& table, int32_t offset, Tensor x) override;
  void AddTokenTypes(const PackedWeight& table, Tensor x) override;
  void AddSegments(const SegmentArgs& args) override;
  void Norm(const NormArgs& args) override;
  void Linear(const LinearArgs& args) override { products_.Linear(args); }
  void RopeAngles(const RopeAnglesArgs& args) override;
  void RopeKvWrite(const RopeKvWriteArgs& args) override;
  void ProjectHeads(const LinearArgs& product, const RopeKvWriteArgs& heads) override;
  void Attention(const AttentionArgs& args) override;
  // cuda_ops_latent.cc
  void AttendLatents(const LatentAttentionArgs& args) override;
  // cuda_ops_select.cc
  void SelectPositions(const SelectArgs& args) override;
  bool SeesMoreThan(int32_t group, int32_t positions) const override;
  void Route(const RouteArgs& args) override;
  void ExpertMix(const ExpertMixArgs& args) override;
  // Takes no counters: AttendLatents calls it beside the other half's phase (split_ops.h).
  void HeadLinear(const HeadLinearArgs& args) override;
  void GateRows(Tensor gate_f32, Tensor x) override;
  // Factors of elements and several streams: kernels/cuda/cuda_ops_streams.cc.
  void Multiply(Tensor factor, Tensor x) override;
  void PredictStreams(const StreamsArgs& args) override;
  void CorrectStreams(const StreamsArgs& args) override;
  void MatchMagnitude(Tensor like, Tensor x) override;
  void SparseGate(const SparseGateArgs& args) override;
  void Sharpen(const SharpenArgs& args) override;
  void Xielu(const XieluArgs& args) override;
  // Layers with state: kernels/cuda/cuda_ops_state.cc.
  void ShortConv(const ShortConvArgs& args) override;
  void Recurrence(const RecurrenceArgs& args) override;
  void GateElements(Tensor gate, Tensor x) override;
  void Scale(Tensor x, float factor) override;
  void TokenShift(const TokenShiftArgs& args) override;
  void TimeMix(const WkvArgs& args) override;
  void SquashElements(Squash kind, Tensor x) override;
  bool EndsWithLogitRows() const override;
  void NarrowToLogitRows() override;
  void GatherLogitRows(Tensor x, Tensor out) override;
  void CopyRows(Tensor x, Tensor out) override;
  void SumRows(const SumRowsArgs& args) override;
  void ScaleLogits(Tensor logits_f32, float scale, float softcap) override;
  void Sample(const SampleArgs& args) override;
  // Ops across ranks: kernels/cuda/ranks/rank_ops.cc.
  void EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out) override;
  void AllReduce(const AllReduceArgs& args) override { SumRanks(args, /*is_begun=*/false); }
  // Sums of ranks in other processes begin early; those of one process are made where they end.
  void BeginAllReduce(const AllReduceArgs& args) override;
  void EndAllReduce(const AllReduceArgs& args) override;
  void GatherColumns(const GatherColumnsArgs& args) override;
  void SendRows(Tensor rows, int32_t to) override;
  void RecvRows(Tensor rows, int32_t from) override;

  const absl::Status& status() const { return step_.status; }
  // Whether a layer with state was among the ops.
  bool has_states() const { return has_states_; }
  // Whether attention let rows see later ones.
  bool attends_both_ways() const { return attends_both_ways_; }
  // In the order of the calls; to be done after the stream was waited for.
  const std::vector<PendingCopy>& results() const { return pending_; }
  // Used of DeviceStep::drawn, DeviceStep::results and DeviceStep::row_sums.
  int64_t drawn_bytes() const { return drawn_used_; }
  int64_t result_bytes() const { return results_used_; }
  int64_t row_sum_bytes() const { return row_sums_used_; }

 private:
  // The rows that tensors have, as a group of layers sees them.
  DeviceBatch Rows(int32_t group = 0) const;
  // The same for layers with state.
  StateBatch States(int32_t group);
  // Attention of the sequences with up to `most_rows` rows.
  struct TilesOf {
    int32_t most_rows = kAnyRows;
    bool makes_queries = false;  // AttentionGrouping
    bool turns_queries = false;  // AttentionGrouping
  };
  // AttendTiles, or AttendTurned where the batch and the layer have something to turn.
  void AttendRows(const AttentionArgs& args, const TilesOf& of);
  void AttendTiles(const AttentionArgs& args, const TilesOf& of);
  // Queries that are made in the workspace first: cuda_ops_halves.cc.
  void AttendHalves(const AttentionArgs& args);                         // AttentionArgs::half_keys
  void AttendTurned(const AttentionArgs& args, const TilesOf& of);      // ContextPiece::turn
  void TurnQueries(const PlannedAttention& plan, AttentionArgs* args);  // all that the plan names
  // Makes keys and values of `heads` heads from `first` on, and has the plan's rows attend to them.
  void AttendExpanded(const LatentAttentionArgs& args, const PlannedAttention& plan,
                      const ExpandedMemory& memory, int32_t first, int32_t heads);
  // Copies what prefill tiles read, and has them read the copy.
  void CopyWide(const KvCacheView& cache, const PlannedAttention& plan, int64_t wide_at);
  void AttendWide(AttentionParams params, const PlannedAttention& plan, int64_t wide_at,
                  int32_t multiprocessors);
  void Note(Error error, const char* op) { step_.Note(error, op); }
  void Note(const absl::Status& status) { step_.Note(status); }
  void SumRanks(const AllReduceArgs& args, bool is_begun);
  void CopyToHost(const absl::StatusOr<void*>& place, const Tensor& part, DType type);
  ExpertGroups GroupExperts(const ExpertMixArgs& args, int32_t chunk_rows);
  bool MixesCodes(const ExpertMixArgs& args) const;
  // Makes the rows of x into codes at `at`, in the order of the groups, and multiplies those.
  void MultiplyCodesOfExperts(ExpertLinearParams params, uint8_t* at, int64_t n_pairs,
                              const char* what);
  // `first`: the row of the tensors' rows that is args' row 0.
  void MixExperts(const ExpertMixArgs& args, int64_t first);
  // Computes what adapters add to one of the experts' layers, in `scratch`.
  void AdaptExperts(const ExpertMixArgs& args, const AdapterMatrix* adapters, int64_t first,
                    const Workspace& scratch, ExpertLinearParams* params);
  // Rows of a mixture whose adapters' parts fit the workspace.
  int64_t RowsOfMixture(const ExpertMixArgs& args) const;
  // False if the product is not for tiles: nothing was launched.
  bool HeadsByTiles(const HeadLinearArgs& args);
  // Room for `bytes` of results in `from`, of which `*used` are taken, or nullptr and a status.
  uint8_t* TakeResults(const Workspace& from, int64_t bytes, int64_t* used);
  // Room for `count` results in `from`, which are copied to `host`, if that is given, when the step
  // has ended.
  template <typename T>
  T* Return(T* host, int64_t count, const Workspace& from, int64_t* used) {
    static_assert(sizeof(T) == 4);  // so that all are aligned
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    auto* device = reinterpret_cast<T*>(TakeResults(from, bytes, used));
    if (host != nullptr && bytes > 0) pending_.push_back({host, device, bytes});
    return device;
  }

  DeviceStep step_;
  LinearProducts products_;
  std::vector<PendingCopy> pending_;
  bool has_states_ = false;
  bool attends_both_ways_ = false;
  int64_t drawn_used_ = 0;
  int64_t results_used_ = 0;
  int64_t row_sums_used_ = 0;
};

}  // namespace heddle::kernels::cuda
