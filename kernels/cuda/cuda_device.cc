#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cuda/cuda_device_class.h"
#include "kernels/cuda/cuda_device_parts.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/ranks/apart_communicator.h"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/weight_sources.h"

namespace heddle::kernels::cuda {
namespace {

// Memory for kernels' code, their stacks, graphs, and a library's timing of its algorithms. It is
// taken while the device runs, more of it for larger batches.
constexpr int64_t kLeastReserve = int64_t{256} << 20;
constexpr int64_t kMostReserve = int64_t{2} << 30;
// The same after steps of all sizes have run: a few more graphs, and rarely used kernels.
constexpr int64_t kLeastWarmReserve = int64_t{128} << 20;
constexpr int64_t kMostWarmReserve = int64_t{512} << 20;

absl::Status NoHalves(std::string_view where) {
  return absl::UnimplementedError(
      absl::StrCat("steps run whole ", std::string(where),
                   ": halves are for GPUs of one process that share all layers and reach each "
                   "other's memory; leave the tune profile out"));
}

}  // namespace

absl::Status CudaDevice::Init() {
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

CudaDevice::~CudaDevice() {
  runtime_->Bind();
  LeaveGroups();
  runtime_->Synchronize().IgnoreError();  // steps that nobody waited for
  for (Launched& launched : launched_) runtime_->FreePinned(launched.host_results);
}

std::string CudaDevice::description() const {
  const DeviceInfo& info = runtime_->info();
  std::string carriers;
  for (const auto& [group, noun] : {std::pair(group_.get(), "ranks"), {stages_.get(), "stages"}}) {
    if (group == nullptr || group->carrier().empty()) continue;
    absl::StrAppend(&carriers, ", ", noun, " meet over ", group->carrier());
  }
  return absl::StrFormat("cuda:%d (%s, sm_%d%d, %d multiprocessors, %.1f GiB, %s%s%s)",
                         info.ordinal, info.name, info.major, info.minor, info.num_multiprocessors,
                         static_cast<double>(info.total_bytes) / (int64_t{1} << 30),
                         std::string(Info(options_.activations).name),
                         DescribeLibrary(library_.get()), carriers);
}

std::optional<DeviceMemory> CudaDevice::memory() const {
  runtime_->Bind();
  const int64_t total = runtime_->info().total_bytes;
  const bool may_use_nccl = options_.rank_network != RankNetwork::kHost && !UsesNccl();
  const int64_t carrier = may_use_nccl ? kNcclBytes : 0;
  return DeviceMemory{
      .total_bytes = total,
      .available_bytes = runtime_->FreeBytes(),
      .reserve_bytes = std::clamp(total / 32, kLeastReserve, kMostReserve) + carrier,
      .warm_reserve_bytes = std::clamp(total / 128, kLeastWarmReserve, kMostWarmReserve) + carrier};
}

absl::StatusOr<std::unique_ptr<Buffer>> CudaDevice::Allocate(int64_t bytes) {
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("a buffer of ", bytes, " bytes"));
  bytes = std::max<int64_t>(bytes, 64);
  runtime_->Bind();
  HEDDLE_ASSIGN_OR_RETURN(void* data, runtime_->AllocateDevice(bytes));
  return std::make_unique<CudaBuffer>(*runtime_, data, bytes);
}

absl::StatusOr<std::unique_ptr<PackedWeight>> CudaDevice::Pack(
    std::span<const WeightSource> sources) {
  runtime_->Bind();
  return PackWeight(*runtime_, sources, options_.activations);
}

absl::StatusOr<std::unique_ptr<PackedStack>> CudaDevice::PackStack(
    std::span<const WeightSource> sources, int32_t count) {
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

absl::Status CudaDevice::Upload(void* to_device, const void* from_host, int64_t bytes) {
  runtime_->Bind();
  HEDDLE_RETURN_IF_ERROR(runtime_->CopyToDevice(to_device, from_host, bytes));
  return runtime_->Synchronize();
}

absl::Status CudaDevice::Download(void* to_host, const void* from_device, int64_t bytes) {
  runtime_->Bind();
  HEDDLE_RETURN_IF_ERROR(runtime_->CopyToHost(to_host, from_device, bytes));
  return runtime_->Synchronize();
}

absl::Status CudaDevice::UploadBeside(void* to_device, const void* from_host, int64_t bytes) {
  runtime_->Bind();
  return runtime_->CopyBeside(Runtime::Way::kToDevice, to_device, from_host, bytes);
}

absl::Status CudaDevice::DownloadBeside(void* to_host, const void* from_device, int64_t bytes) {
  runtime_->Bind();
  return runtime_->CopyBeside(Runtime::Way::kToHost, to_host, from_device, bytes);
}

absl::StatusOr<DeviceLimits> CudaDevice::MeasureLimits() {
  runtime_->Bind();
  return cuda::MeasureLimits(*runtime_, workspace(), library_.get());
}

// Ranks of a stage take the same way for products that they all make, such as a router's, whose
// last bits have to be the same: the predicted one.
absl::Status CudaDevice::JoinGroup(std::shared_ptr<Communicator> communicator) {
  LeaveGroups();
  HEDDLE_ASSIGN_OR_RETURN(communicator, WithinReach(std::move(communicator)));
  if (!nano_batches_.rules.empty() && !communicator->shares_memory()) {
    absl::Status status = NoHalves("where ranks do not read each other's memory");
    communicator->Abort(status);  // the others do not wait for this one
    return status;
  }
  HEDDLE_ASSIGN_OR_RETURN(group_, Join(communicator, /*shares_layers=*/true));
  // Meetings through the host are answered one behind the other.
  if (!communicator->shares_memory()) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(halves_, Join(std::move(communicator), /*shares_layers=*/true));
  return absl::OkStatus();
}

// A device that has joined other ranks before it joins stages does so each time.
absl::Status CudaDevice::JoinStages(std::shared_ptr<Communicator> stages) {
  if (stages_ != nullptr) LeaveGroups();
  if (!nano_batches_.rules.empty()) {
    absl::Status status = NoHalves("in a pipeline");
    stages->Abort(status);
    return status;
  }
  HEDDLE_ASSIGN_OR_RETURN(stages, WithinReach(std::move(stages)));
  HEDDLE_ASSIGN_OR_RETURN(stages_, Join(std::move(stages), /*shares_layers=*/false));
  return absl::OkStatus();
}

// A group of this process whose devices do not read each other's memory is like one of several.
absl::StatusOr<std::shared_ptr<Communicator>> CudaDevice::WithinReach(
    std::shared_ptr<Communicator> group) {
  const bool are_here = group->shares_memory();
  HEDDLE_ASSIGN_OR_RETURN(group, MeetWithinReach(runtime_->info().ordinal, std::move(group)));
  are_apart_ = are_apart_ || (are_here && !group->shares_memory());
  return group;
}

// Says what it costs that the host carries.
void CudaDevice::AdviseOn(const PeerGroup& group) {
  const bool has_reason = !group.why_not_nccl().empty() || (are_apart_ && group.nccl() == nullptr);
  if (group.host() == nullptr || !has_reason) return;
  if (std::exchange(has_advised_, true)) return;
  const std::string& why = group.why_not_nccl();
  advice_.push_back(absl::StrCat(
      are_apart_
          ? "these GPUs do not read each other's memory (nvidia-smi topo -p2p r): what they "
            "exchange passes through the host's. Of --tp that is two sums a layer, each some "
            "20 us longer than with such access, and prompts wait for PCIe; --pp passes rows "
            "once a step"
          : "what GPUs of other processes exchange passes through the host's memory; over "
            "NCCL it would go from GPU to GPU, by RDMA where there is such a network",
      why.empty() ? "" : absl::StrCat(". Without NCCL: ", why),
      " (docs/parallel.md, --rank-network)"));
}

absl::StatusOr<std::unique_ptr<PeerGroup>> CudaDevice::Join(
    std::shared_ptr<Communicator> communicator, bool shares_layers) {
  options_.tunes = false;  // warming up would need all stages
  const auto relay = [this] {
    if (relay_ == nullptr || relay_->is_stopping()) relay_ = std::make_shared<HostRelay>();
    return relay_;
  };
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<PeerGroup> group,
                          PeerGroup::Join(*runtime_, std::move(communicator),
                                          {.wait_ms = options_.rank_wait_ms,
                                           .activations = options_.activations,
                                           .shares_layers = shares_layers,
                                           .nano_batches = &nano_batches_,
                                           .links = links_,
                                           .network = options_.rank_network,
                                           .relay = relay,
                                           .sizes = shares_layers ? room_.ranks : room_.stages,
                                           .host_free_bytes = room_.free_bytes}));
  AdviseOn(*group);
  return group;
}

bool CudaDevice::UsesNccl() const {
  return (group_ != nullptr && group_->nccl() != nullptr) ||
         (stages_ != nullptr && stages_->nccl() != nullptr);
}

// Steps that nobody has waited for are forgotten.
void CudaDevice::LeaveGroups() {
  if (group_ == nullptr && stages_ == nullptr) return;
  runtime_->Bind();
  const auto groups = {group_.get(), halves_.get(), stages_.get()};
  for (PeerGroup* group : groups) {  // our kernels first: NCCL's abort waits for them
    if (group != nullptr) group->EndKernels();
  }
  for (PeerGroup* group : groups) {
    if (group != nullptr) group->GiveUp();
  }
  if (relay_ != nullptr) relay_->Stop();
  runtime_->Synchronize().IgnoreError();
  first_launched_ += num_launched_;
  num_launched_ = 0;
  group_ = nullptr;
  halves_ = nullptr;
  stages_ = nullptr;
  relay_ = nullptr;
}

void CudaDevice::CopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens) {
  runtime_->Bind();
  // A failure here is sticky: the next Run reports it.
  Error error = LaunchCopyPage(cache, from, to, num_tokens, runtime_->stream());
  if (pending_error_.ok()) pending_error_ = runtime_->ToStatus(error, "copying a page");
}

absl::Status CudaDevice::SetNanoBatches(const NanoBatchProfile& profile) {
  const DeviceInfo& info = runtime_->info();
  HEDDLE_RETURN_IF_ERROR(CheckProfile(profile, info.name, info.num_multiprocessors));
  if (!profile.rules.empty()) {
    if (stages_ != nullptr) return NoHalves("in a pipeline");
    if (relay_ != nullptr || UsesNccl())
      return NoHalves("where ranks do not read each other's memory");
  }
  nano_batches_ = profile;
  return absl::OkStatus();
}

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
