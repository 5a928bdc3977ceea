// The class behind cuda_device.h, for its two sources: cuda_device.cc has what lives as long as the
// device (memory, weights, what it says about itself), cuda_device_steps.cc what belongs to a step.
// Ownership: the runtime, the workspace and everything staged. Thread-safety: none, one thread uses
// it; see kernels/device.h.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/attention/attention_params.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_limits.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_sizes.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/library_matmul.h"
#include "kernels/cuda/linear/linear_choice.h"
#include "kernels/cuda/linear/linear_ways.h"
#include "kernels/cuda/nano_split.h"
#include "kernels/cuda/ranks/peer_group.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda/runtime/tape.h"
#include "kernels/cuda/staged_batch.h"
#include "kernels/cuda/state/state_params.h"
#include "kernels/device.h"
#include "kernels/host_meetings.h"
#include "kernels/nano_batch.h"

namespace heddle::kernels::cuda {

// Bytes of the logprobs and alternatives of one step: 65,536 rows with 20 alternatives are 10.3
// MiB. The step's tokens come first: a quarter of a million.
inline constexpr int64_t kDrawnBytes = int64_t{1} << 20;
inline constexpr int64_t kSampleBytes = int64_t{12} << 20;
// Sums of rows, behind those: pooled states of 512 texts of 4,096 columns.
inline constexpr int64_t kRowSumBytes = int64_t{8} << 20;
inline constexpr int64_t kResultBytes = kSampleBytes + kRowSumBytes;
// Steps of more rows are launched directly: they take milliseconds.
inline constexpr int32_t kGraphRows = 256;
inline constexpr int kMaxInFlight = Staging::kSets;
// The begin of a step is still read when the second step behind it is launched.
inline constexpr uint64_t kClocks = kMaxInFlight + 1;
static_assert(2 * kClocks == Runtime::kStepMarks);

class CudaDevice final : public Device, public HostMeetings {
 public:
  CudaDevice(std::unique_ptr<Runtime> runtime, const CudaDeviceOptions& options)
      : runtime_(std::move(runtime)), options_(options), staging_(*runtime_), graphs_(*runtime_) {}

  absl::Status Init();

  ~CudaDevice() override;

  std::string description() const override;
  DType activation_dtype() const override { return options_.activations; }
  bool HasKvType(DType) const override { return true; }
  int32_t max_row_sums(int64_t dim) const override {
    return static_cast<int32_t>(kRowSumBytes / (dim * int64_t{sizeof(float)}));
  }
  DType preferred_kv_type() const override { return DType::kBF16; }  // F16's range may not do
  StepSize preferred_step() const override { return StepFor(runtime_->info().total_bytes); }
  int32_t max_rotary_dim() const override { return 2 * kMaxFrequencies; }
  int32_t max_head_dim() const override { return kMaxAttentionHeadDim; }
  StateSizes max_states() const override {
    return {.key_dim = kMaxStateRows, .selected = kMaxSelectedRows, .mix_dim = kMaxTimeMixDim};
  }
  int64_t PackedRowBytes(DType dtype, int64_t cols) const override {
    return cuda::PackedRowBytes(dtype, cols, options_.activations);
  }
  std::optional<DeviceMemory> memory() const override;
  std::span<const int32_t> warm_up_rows() const override {
    return options_.tunes ? RowSteps() : std::span<const int32_t>();
  }
  std::vector<std::string> Advice() const override { return advice_; }
  std::vector<std::string> TimedChoices() const override { return ways_.Describe(); }
  int32_t preferred_logit_rows() const override { return kLogitRows; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override;

  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(
      std::span<const WeightSource> sources) override;

  absl::StatusOr<std::unique_ptr<PackedStack>> PackStack(std::span<const WeightSource> sources,
                                                         int32_t count) override;

  absl::Status Upload(void* to_device, const void* from_host, int64_t bytes) override;

  absl::Status Download(void* to_host, const void* from_device, int64_t bytes) override;

  absl::Status UploadBeside(void* to_device, const void* from_host, int64_t bytes) override;

  absl::Status DownloadBeside(void* to_host, const void* from_device, int64_t bytes) override;

  absl::StatusOr<DeviceLimits> MeasureLimits() override;

  absl::Status SetNanoBatches(const NanoBatchProfile& profile) override;
  absl::Status JoinGroup(std::shared_ptr<Communicator> communicator) override;
  absl::Status JoinStages(std::shared_ptr<Communicator> stages) override;
  void SetRoom(Room room) override { room_ = std::move(room); }
  absl::StatusOr<NanoBatchDevice> nano_batch_device() const override {
    return NanoBatchDevice{runtime_->info().name, runtime_->info().num_multiprocessors};
  }
  absl::Status Plan(const HostBatch& batch) override;
  absl::Status Run(const std::function<void(Ops&)>& body) override;
  int32_t max_in_flight() const override { return kMaxInFlight; }
  absl::Status Launch(const std::function<void(Ops&)>& body) override;
  absl::Status Extend(const std::function<void(Ops&)>& body) override;
  absl::StatusOr<RunTiming> Finish() override;
  absl::Status Synchronize() override {
    runtime_->Bind();
    return runtime_->Synchronize();
  }

  void CopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens) override;

 private:
  // A step from its launch to its end.
  struct Launched {
    uint8_t* host_results = nullptr;  // [kResultBytes] pinned
    std::vector<PendingCopy> copies;
  };

  // A part of a step: all of it, or one of its halves.
  enum Part { kWhole, kFirst, kSecond, kParts };

  Workspace workspace(Part part = kWhole) const {
    auto* data = static_cast<uint8_t*>(workspace_->data());
    const int64_t half = workspace_->bytes() / 512 * 256;
    if (part == kWhole) return {data, workspace_->bytes()};
    return {part == kFirst ? data : data + half, half};
  }
  absl::StatusOr<std::shared_ptr<Communicator>> WithinReach(std::shared_ptr<Communicator> group);
  absl::StatusOr<std::unique_ptr<PeerGroup>> Join(std::shared_ptr<Communicator> communicator,
                                                  bool shares_layers);
  void AdviseOn(const PeerGroup& group);
  void LeaveGroups();
  bool UsesNccl() const;
  bool StepsOverNccl() const;
  // RESOURCE_EXHAUSTED if the workspace lacks the room for two partial results of a row: one of 256
  // MiB has it for 512 heads of 512.
  absl::Status StageAttention(const AttentionGrouping& grouping, Part part);
  absl::StatusOr<PlannedAttention> PlanFor(const AttentionGrouping& grouping, Part part);
  absl::StatusOr<NarrowBatch> Narrow();
  static bool MayNarrow(const HostBatch& batch);
  CudaOps OpsFor(Part part);
  absl::Status Enqueue(uint64_t step, const std::function<void(Ops&)>& body);
  absl::Status RunBody(uint64_t step, const std::function<void(Ops&)>& body);
  bool SuitsGraph() const;
  bool MaySplit(const HostBatch& batch) const;
  absl::Status MarkBegin();
  absl::Status LeaveTape(bool for_good);
  absl::Status CallLibrary(bool last, std::function<absl::Status()> call);
  absl::Status CallLast();
  absl::Status FetchResults(const CudaOps& ops, Launched* launched);
  // The number of the step that is planned or launched next.
  uint64_t next_step() const { return first_launched_ + num_launched_; }
  Launched& At(uint64_t step) { return launched_[step % kMaxInFlight]; }
  // Marks of the runtime.
  static int BeginOf(uint64_t step) { return static_cast<int>(step % kClocks); }
  static int EndOf(uint64_t step) { return static_cast<int>(kClocks + step % kClocks); }

  std::unique_ptr<Runtime> runtime_;
  CudaDeviceOptions options_;
  StagedBatch batch_;
  Staging staging_;
  GraphCache graphs_;
  Tape tape_;
  std::vector<std::function<absl::Status()>> last_calls_;  // behind the tape
  bool is_taped_ = false;                    // launches of the present step are kept there
  uint64_t enqueued_ = 0;                    // the present step
  int32_t last_rows_ = 0;                    // of the step before
  std::bitset<kGraphRows + 1> direct_rows_;  // steps of so many rows ask the library
  std::unique_ptr<LibraryMatmul> library_;   // nullptr: our own kernels
  std::shared_ptr<HostRelay> relay_;         // to ranks out of reach; nullptr: there are none
  // The communicators of all groups.
  const std::shared_ptr<NcclLinks> links_ = std::make_shared<NcclLinks>();
  Room room_;                          // for what passes through it
  std::unique_ptr<PeerGroup> group_;   // of ranks that share layers; nullptr: none do
  std::unique_ptr<PeerGroup> halves_;  // the same ranks, for second halves of steps, or null
  std::unique_ptr<PeerGroup> stages_;  // of a pipeline; nullptr: there is none
  std::vector<std::string> advice_;
  bool are_apart_ = false;  // devices of this process are out of each other's reach
  bool has_advised_ = false;
  LinearWays ways_;  // CudaDeviceOptions::tunes
  std::unique_ptr<Buffer> workspace_;
  std::unique_ptr<Buffer> results_;
  // Zeros between ops. Phases of halves never overlap; what runs beside them takes none.
  std::unique_ptr<Buffer> counters_;
  std::vector<AttentionGrouping> groupings_;       // known so far; planned with every batch
  std::vector<PlannedAttention> planned_[kParts];  // for this batch
  NanoBatchProfile nano_batches_;
  std::optional<NanoSplit> split_;  // for this batch
  CutBatch cut_batch_;              // for this batch, if the split cuts a sequence
  bool knows_layers_ = false;       // a step of several groups has run whole
  bool has_states_ = false;         // layers with state were among its ops
  bool has_run_ = false;            // a step has, so that what follows is known
  bool attends_both_ways_ = false;  // rows saw later ones, which must not be in the other half
  bool narrows_ = false;            // a step was narrowed to its logit rows
  Launched launched_[kMaxInFlight];
  uint64_t first_launched_ = 0;
  uint64_t num_launched_ = 0;
  absl::Status pending_error_;
};

}  // namespace heddle::kernels::cuda
