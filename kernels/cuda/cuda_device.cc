#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <bitset>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cuda/attention/attention_params.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/wide_pages.h"
#include "kernels/cuda/cuda_device_parts.h"
#include "kernels/cuda/cuda_limits.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/library_matmul.h"
#include "kernels/cuda/linear/linear_choice.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/nano_split.h"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda/split_ops.h"
#include "kernels/cuda/staged_batch.h"
#include "kernels/nano_batch.h"
#include "kernels/weight_sources.h"

namespace heddle::kernels::cuda {
namespace {

// Bytes of the logprobs and alternatives of one step: 65,536 rows with 20 alternatives are 10.3
// MiB. The step's tokens come first: a quarter of a million.
constexpr int64_t kDrawnBytes = int64_t{1} << 20;
constexpr int64_t kSampleBytes = int64_t{12} << 20;
// Sums of rows, behind those: pooled states of 512 texts of 4,096 columns.
constexpr int64_t kRowSumBytes = int64_t{8} << 20;
constexpr int64_t kResultBytes = kSampleBytes + kRowSumBytes;
// Memory for kernels' code, their stacks, graphs, and a library's timing of its algorithms. It is
// taken while the device runs, more of it for larger batches.
constexpr int64_t kLeastReserve = int64_t{256} << 20;
constexpr int64_t kMostReserve = int64_t{2} << 30;
// The same after steps of all sizes have run: a few more graphs, and rarely used kernels.
constexpr int64_t kLeastWarmReserve = int64_t{128} << 20;
constexpr int64_t kMostWarmReserve = int64_t{512} << 20;
// Steps of more rows are launched directly: they take milliseconds.
constexpr int32_t kGraphRows = 256;
constexpr int kMaxInFlight = Staging::kSets;
// The begin of a step is still read when the second step behind it is launched.
constexpr uint64_t kClocks = kMaxInFlight + 1;
static_assert(2 * kClocks == Runtime::kStepMarks);

class CudaDevice final : public Device {
 public:
  CudaDevice(std::unique_ptr<Runtime> runtime, const CudaDeviceOptions& options)
      : runtime_(std::move(runtime)), options_(options), staging_(*runtime_), graphs_(*runtime_) {}

  absl::Status Init() {
    if (!options_.early_launches) runtime_->LaunchInTurn();
    if (!options_.warpgroups) runtime_->LeaveOutHopperCode();
    if (options_.one_memory_split) runtime_->DivideMemoryOnce();
    HEDDLE_ASSIGN_OR_RETURN(workspace_, Allocate(options_.workspace_bytes));
    HEDDLE_ASSIGN_OR_RETURN(results_, Allocate(kResultBytes));
    HEDDLE_ASSIGN_OR_RETURN(counters_, Allocate(kReductionCounters * int64_t{sizeof(int32_t)}));
    for (Launched& launched : launched_) {
      HEDDLE_ASSIGN_OR_RETURN(void* host, runtime_->AllocatePinned(kResultBytes));
      launched.host_results = static_cast<uint8_t*>(host);
    }
    HEDDLE_RETURN_IF_ERROR(staging_.Reserve());
    absl::StatusOr<std::unique_ptr<LibraryMatmul>> library = LibraryMatmul::Open(*runtime_);
    if (library.ok()) {
      library_ = *std::move(library);
    } else {
      advice_.push_back(absl::StrCat(library.status().message(),
                                     ". Without NVIDIA's cuBLASLt prompts and large batches take "
                                     "our own kernels, which are slower at those; it comes with "
                                     "the CUDA toolkit (package libcublas)"));
    }
    return absl::OkStatus();
  }

  ~CudaDevice() override {
    runtime_->Bind();
    runtime_->Synchronize().IgnoreError();  // steps that nobody waited for
    for (Launched& launched : launched_) runtime_->FreePinned(launched.host_results);
  }

  std::string description() const override {
    const DeviceInfo& info = runtime_->info();
    return absl::StrFormat(
        "cuda:%d (%s, sm_%d%d, %d multiprocessors, %.1f GiB, %s%s)", info.ordinal, info.name,
        info.major, info.minor, info.num_multiprocessors,
        static_cast<double>(info.total_bytes) / (int64_t{1} << 30),
        std::string(Info(options_.activations).name), DescribeLibrary(library_.get()));
  }
  DType activation_dtype() const override { return options_.activations; }
  bool HasKvType(DType) const override { return true; }
  bool has_attention_both_ways() const override { return true; }
  int32_t max_row_sums(int64_t dim) const override {
    return static_cast<int32_t>(kRowSumBytes / (dim * int64_t{sizeof(float)}));
  }
  DType preferred_kv_type() const override { return DType::kBF16; }  // F16's range may not do
  StepSize preferred_step() const override { return StepFor(runtime_->info().total_bytes); }
  int32_t max_rotary_dim() const override { return 2 * kMaxFrequencies; }
  int32_t max_head_dim() const override { return kMaxAttentionHeadDim; }
  int64_t PackedRowBytes(DType dtype, int64_t cols) const override {
    return cuda::PackedRowBytes(dtype, cols, options_.activations);
  }
  std::optional<DeviceMemory> memory() const override {
    runtime_->Bind();
    const int64_t total = runtime_->info().total_bytes;
    return DeviceMemory{
        .total_bytes = total,
        .available_bytes = runtime_->FreeBytes(),
        .reserve_bytes = std::clamp(total / 32, kLeastReserve, kMostReserve),
        .warm_reserve_bytes = std::clamp(total / 128, kLeastWarmReserve, kMostWarmReserve)};
  }
  std::span<const int32_t> warm_up_rows() const override {
    return options_.tunes ? RowSteps() : std::span<const int32_t>();
  }
  std::vector<std::string> Advice() const override { return advice_; }
  std::vector<std::string> TimedChoices() const override { return ways_.Describe(); }
  int32_t preferred_logit_rows() const override { return 1024; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("a buffer of ", bytes, " bytes"));
    bytes = std::max<int64_t>(bytes, 64);
    runtime_->Bind();
    HEDDLE_ASSIGN_OR_RETURN(void* data, runtime_->AllocateDevice(bytes));
    return std::make_unique<CudaBuffer>(*runtime_, data, bytes);
  }

  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(
      std::span<const WeightSource> sources) override {
    runtime_->Bind();
    return PackWeight(*runtime_, sources, options_.activations);
  }

  absl::StatusOr<std::unique_ptr<PackedStack>> PackStack(std::span<const WeightSource> sources,
                                                         int32_t count) override {
    HEDDLE_RETURN_IF_ERROR(CheckStack(sources, count));
    runtime_->Bind();
    auto stack = std::make_unique<CudaStack>();
    HEDDLE_ASSIGN_OR_RETURN(stack->all, PackWeight(*runtime_, sources, options_.activations));
    stack->count = count;
    stack->rows = stack->all->rows / count;
    stack->cols = stack->all->cols;
    stack->bytes = stack->all->bytes;
    return std::unique_ptr<PackedStack>(std::move(stack));
  }

  absl::Status Upload(void* to_device, const void* from_host, int64_t bytes) override {
    runtime_->Bind();
    HEDDLE_RETURN_IF_ERROR(runtime_->CopyToDevice(to_device, from_host, bytes));
    return runtime_->Synchronize();
  }

  absl::Status Download(void* to_host, const void* from_device, int64_t bytes) override {
    runtime_->Bind();
    HEDDLE_RETURN_IF_ERROR(runtime_->CopyToHost(to_host, from_device, bytes));
    return runtime_->Synchronize();
  }

  absl::Status UploadBeside(void* to_device, const void* from_host, int64_t bytes) override {
    runtime_->Bind();
    return runtime_->CopyBeside(Runtime::Way::kToDevice, to_device, from_host, bytes);
  }

  absl::Status DownloadBeside(void* to_host, const void* from_device, int64_t bytes) override {
    runtime_->Bind();
    return runtime_->CopyBeside(Runtime::Way::kToHost, to_host, from_device, bytes);
  }

  absl::StatusOr<DeviceLimits> MeasureLimits() override {
    runtime_->Bind();
    return cuda::MeasureLimits(*runtime_, workspace(), library_.get());
  }

  absl::Status SetNanoBatches(const NanoBatchProfile& profile) override;
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

  void CopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens) override {
    runtime_->Bind();
    // A failure here is sticky: the next Run reports it.
    Error error = LaunchCopyPage(cache, from, to, num_tokens, runtime_->stream());
    if (pending_error_.ok()) pending_error_ = runtime_->ToStatus(error, "copying a page");
  }

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
  void StageAttention(const AttentionGrouping& grouping, Part part);
  absl::StatusOr<PlannedAttention> PlanFor(const AttentionGrouping& grouping, Part part);
  CudaOps OpsFor(Part part);
  absl::Status Enqueue(uint64_t step, const std::function<void(Ops&)>& body);
  absl::Status RunBody(uint64_t step, const std::function<void(Ops&)>& body);
  bool SuitsGraph() const;
  absl::Status MarkBegin();
  absl::Status LeaveTape(bool for_good);
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
  bool is_taped_ = false;                    // launches of the present step are kept there
  uint64_t enqueued_ = 0;                    // the present step
  int32_t last_rows_ = 0;                    // of the step before
  std::bitset<kGraphRows + 1> direct_rows_;  // steps of so many rows ask the library
  std::unique_ptr<LibraryMatmul> library_;   // nullptr: our own kernels
  std::vector<std::string> advice_;
  LinearWays ways_;  // CudaDeviceOptions::tunes
  std::unique_ptr<Buffer> workspace_;
  std::unique_ptr<Buffer> results_;
  std::unique_ptr<Buffer> counters_;               // zeros between ops; products never overlap
  std::vector<AttentionGrouping> groupings_;       // known so far; planned with every batch
  std::vector<PlannedAttention> planned_[kParts];  // for this batch
  NanoBatchProfile nano_batches_;
  std::optional<NanoSplit> split_;  // for this batch
  Launched launched_[kMaxInFlight];
  uint64_t first_launched_ = 0;
  uint64_t num_launched_ = 0;
  absl::Status pending_error_;
};

absl::Status CudaDevice::SetNanoBatches(const NanoBatchProfile& profile) {
  const DeviceInfo& info = runtime_->info();
  HEDDLE_RETURN_IF_ERROR(CheckProfile(profile, info.name, info.num_multiprocessors));
  nano_batches_ = profile;
  return absl::OkStatus();
}

absl::Status CudaDevice::Plan(const HostBatch& batch) {
  HEDDLE_CHECK(num_launched_ < kMaxInFlight, "a third step in flight");
  HEDDLE_RETURN_IF_ERROR(batch_.Assign(batch));
  runtime_->Bind();
  staging_.Reset(static_cast<int>(next_step() % kMaxInFlight));
  batch_.Stage(staging_, static_cast<const int32_t*>(results_->data()));
  split_ = SplitOf(batch_.host(), nano_batches_);
  for (auto& planned : planned_) planned.clear();
  for (const AttentionGrouping& grouping : groupings_) {
    if (grouping.layers >= batch.n_groups()) continue;
    if (split_.has_value()) {
      StageAttention(grouping, kFirst);
      StageAttention(grouping, kSecond);
    } else {
      StageAttention(grouping, kWhole);
    }
  }
  return staging_.Send();
}

void CudaDevice::StageAttention(const AttentionGrouping& grouping, Part part) {
  SequenceRange range = {0, batch_.host().n_seqs()};
  int32_t multiprocessors = runtime_->info().num_multiprocessors;
  if (part == kFirst) range.end = split_->sequences;
  if (part == kSecond) range.begin = split_->sequences;
  if (part != kWhole && split_->attention_multiprocessors > 0) {
    multiprocessors = split_->attention_multiprocessors;
  }
  const AttentionRoom room = RoomOf(workspace(part).bytes, grouping);
  AttentionGrouping own = grouping;
  // The halves' attention and products use counters at the same time.
  own.merges_in_tiles = grouping.merges_in_tiles && part == kWhole;
  const AttentionPlan plan = PlanAttention(batch_.host().OfGroup(grouping.layers), range, own,
                                           {.multiprocessors = multiprocessors,
                                            .max_partials = static_cast<int32_t>(room.max_partials),
                                            .max_wide_pages = room.max_wide_pages});
  planned_[part].push_back(StagePlan(plan, grouping, &staging_));
}

absl::StatusOr<PlannedAttention> CudaDevice::PlanFor(const AttentionGrouping& grouping, Part part) {
  for (const PlannedAttention& planned : planned_[part]) {
    if (planned.grouping == grouping) return planned;
  }
  if (std::find(groupings_.begin(), groupings_.end(), grouping) == groupings_.end()) {
    groupings_.push_back(grouping);
  }
  StageAttention(grouping, part);
  // Always on lane 0: the other lane has to wait for it.
  HEDDLE_RETURN_IF_ERROR(staging_.Send());
  if (part == kSecond) {
    HEDDLE_RETURN_IF_ERROR(runtime_->Signal(0));
    HEDDLE_RETURN_IF_ERROR(runtime_->Wait(1, 0));
  }
  return planned_[part].back();
}

CudaOps CudaDevice::OpsFor(Part part) {
  DeviceStep step = {
      .runtime = *runtime_,
      .activations = options_.activations,
      .stream = runtime_->stream(part == kSecond ? 1 : 0),
      .groups = batch_.groups(),
      .n_rows = batch_.n_tokens(),
      .workspace = workspace(part),
      .drawn = {static_cast<uint8_t*>(results_->data()), kDrawnBytes},
      .results = {static_cast<uint8_t*>(results_->data()) + kDrawnBytes,
                  kSampleBytes - kDrawnBytes},
      .row_sums = {static_cast<uint8_t*>(results_->data()) + kSampleBytes, kRowSumBytes},
      .counters = static_cast<int32_t*>(counters_->data()),
      .adapters = batch_.adapters(),
      .logit_adapters = batch_.logit_adapters(),
      .staging = staging_,
      .library = library_.get(),
      .always_dequantizes = options_.always_dequantizes,
      .ways = options_.tunes ? &ways_ : nullptr,
      .times_products = part == kWhole && !split_.has_value(),
      .plan_attention = [this, part](const AttentionGrouping& grouping) {
        return PlanFor(grouping, part);
      }};
  if (is_taped_) {
    step.leave_tape = [this](bool for_good) { return LeaveTape(for_good); };
  }
  if (part == kWhole) return CudaOps(step);
  step.attention_multiprocessors = split_->attention_multiprocessors;
  if (part == kFirst) {
    step.n_rows = split_->rows;
  } else {
    step.first_row = split_->rows;
    step.n_rows -= split_->rows;
  }
  return CudaOps(step);
}

// Launches the ops, directly or on the tape, and asks for the results.
absl::Status CudaDevice::RunBody(uint64_t step, const std::function<void(Ops&)>& body) {
  if (library_ != nullptr) {
    library_->SpareMultiprocessors(split_.has_value() ? split_->attention_multiprocessors : 0);
  }
  CudaOps whole = OpsFor(kWhole);
  absl::Status status;
  if (split_.has_value()) {
    CudaOps first = OpsFor(kFirst), second = OpsFor(kSecond);
    SplitOps ops(*runtime_, {.first = first,
                             .second = second,
                             .whole = whole,
                             .first_rows = split_->rows,
                             .rows = batch_.n_tokens(),
                             .activation_bytes = Info(options_.activations).block_bytes});
    body(ops);
    ops.Join();
    status = ops.status();
  } else {
    body(whole);
    status = whole.status();
  }
  runtime_->set_tape(nullptr);
  HEDDLE_RETURN_IF_ERROR(status);
  if (std::exchange(is_taped_, false)) {
    HEDDLE_RETURN_IF_ERROR(MarkBegin());
    HEDDLE_RETURN_IF_ERROR(graphs_.Play(tape_, batch_.n_tokens()));
  }
  return FetchResults(whole, &At(step));
}

absl::Status CudaDevice::Run(const std::function<void(Ops&)>& body) {
  HEDDLE_CHECK(num_launched_ == 0, "Run while a step is in flight");
  HEDDLE_RETURN_IF_ERROR(Launch(body));
  return Finish().status();
}

absl::Status CudaDevice::Launch(const std::function<void(Ops&)>& body) {
  HEDDLE_CHECK(num_launched_ < kMaxInFlight, "a third step in flight");
  HEDDLE_RETURN_IF_ERROR(Enqueue(next_step(), body));
  ++num_launched_;
  return absl::OkStatus();
}

// The halves of a split step were joined where its logit rows were gathered.
absl::Status CudaDevice::Extend(const std::function<void(Ops&)>& body) {
  HEDDLE_CHECK(num_launched_ > 0, "Extend without Launch");
  HEDDLE_CHECK(At(next_step() - 1).copies.empty(), "Extend of a step that has sampled");
  split_.reset();
  return Enqueue(next_step() - 1, body);
}

// Prompts keep the device busy for longer than their launches take, and no two of their steps are
// alike; sequences that decode make one step like the other.
bool CudaDevice::SuitsGraph() const {
  const int32_t rows = batch_.n_tokens();
  if (!options_.graphs || rows > kGraphRows) return false;
  if (rows <= kSkinnyRows) return true;
  return rows == last_rows_ && !split_.has_value() && !direct_rows_[static_cast<size_t>(rows)];
}

// Halves of a step never come here: their products are not timed while they are taped, and steps of
// so few rows ask no library.
absl::Status CudaDevice::LeaveTape(bool for_good) {
  if (!std::exchange(is_taped_, false)) return absl::OkStatus();
  if (for_good) direct_rows_.set(static_cast<size_t>(batch_.n_tokens()));
  runtime_->set_tape(nullptr);
  HEDDLE_RETURN_IF_ERROR(MarkBegin());
  return runtime_->LaunchAll(tape_);
}

// Unless the ops are more of a step that has begun.
absl::Status CudaDevice::MarkBegin() {
  return enqueued_ == next_step() ? runtime_->Mark(BeginOf(enqueued_)) : absl::OkStatus();
}

// Enqueues ops as the next step, or as more of the last one.
absl::Status CudaDevice::Enqueue(uint64_t step, const std::function<void(Ops&)>& body) {
  HEDDLE_RETURN_IF_ERROR(pending_error_);
  runtime_->Bind();
  enqueued_ = step;
  is_taped_ = SuitsGraph();
  last_rows_ = batch_.n_tokens();
  tape_.Clear();
  if (is_taped_) {
    runtime_->set_tape(&tape_);
  } else {
    HEDDLE_RETURN_IF_ERROR(MarkBegin());
  }
  const absl::Status status = RunBody(step, body);
  runtime_->set_tape(nullptr);
  HEDDLE_RETURN_IF_ERROR(status);
  return runtime_->Mark(EndOf(step));
}

// Fetches tokens by one copy to pinned memory, and what else was sampled, and sums of rows, if any,
// by others.
absl::Status CudaDevice::FetchResults(const CudaOps& ops, Launched* launched) {
  launched->copies = ops.results();
  const auto* base = static_cast<const uint8_t*>(results_->data());
  const auto fetch = [&](int64_t at, int64_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    return runtime_->CopyToHost(launched->host_results + at, base + at, bytes);
  };
  HEDDLE_RETURN_IF_ERROR(fetch(0, ops.drawn_bytes()));
  HEDDLE_RETURN_IF_ERROR(fetch(kDrawnBytes, ops.result_bytes()));
  return fetch(kSampleBytes, ops.row_sum_bytes());
}

absl::StatusOr<RunTiming> CudaDevice::Finish() {
  HEDDLE_CHECK(num_launched_ > 0, "Finish without Launch");
  const uint64_t step = first_launched_++;
  --num_launched_;
  runtime_->Bind();
  HEDDLE_RETURN_IF_ERROR(runtime_->WaitForMark(EndOf(step)));
  const auto* base = static_cast<const uint8_t*>(results_->data());
  for (const PendingCopy& copy : At(step).copies) {
    const uint8_t* from = At(step).host_results + (static_cast<const uint8_t*>(copy.from) - base);
    std::copy_n(from, copy.bytes, static_cast<uint8_t*>(copy.to));
  }
  RunTiming timing;
  HEDDLE_ASSIGN_OR_RETURN(timing.run_ns, runtime_->NsBetween(BeginOf(step), EndOf(step)));
  if (step > 0) {
    HEDDLE_ASSIGN_OR_RETURN(timing.idle_ns, runtime_->NsBetween(EndOf(step - 1), BeginOf(step)));
  }
  return timing;
}

}  // namespace
}  // namespace heddle::kernels::cuda

namespace heddle::kernels {

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceOptions& options) {
  if (options.activations != DType::kBF16 && options.activations != DType::kF32) {
    return absl::InvalidArgumentError("CUDA activations are bf16 or f32");
  }
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Runtime> runtime,
                          cuda::Runtime::Open(options.ordinal));
  auto device = std::make_unique<cuda::CudaDevice>(std::move(runtime), options);
  HEDDLE_RETURN_IF_ERROR(device->Init());
  return device;
}

}  // namespace heddle::kernels
