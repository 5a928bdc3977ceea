#include "engine/model/load_memory.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/model/load_device.h"
#include "engine/model/load_ranks.h"
#include "engine/model/rank_devices.h"
#include "kernels/cpu/usable_cpus.h"

namespace heddle::engine {
namespace {

// The memory that weights and pages are taken from.
HostMemory MemoryOf(const kernels::Device* device, const LoadOptions& options) {
  if (options.memory) return *options.memory;
  const auto own = device == nullptr ? std::nullopt : device->memory();
  if (!own) return ReadHostMemory();
  return {.total_bytes = own->total_bytes, .available_bytes = own->available_bytes};
}

// RESOURCE_EXHAUSTED on a device with its own memory: says what holds it, and the size of weights
// that would fit with these options and at least one page.
absl::Status TooLargeFor(const kernels::Device& device, const HostMemory& memory,
                         const ModelSpec& spec, CapacityOptions options, const absl::Status& why) {
  options.kv_bytes = 0;
  options.max_context = 0;
  int64_t fits = 0;  // found by bisection: the other needs depend on it in no simple way
  for (int64_t step = int64_t{1} << 40; step >= int64_t{1} << 20; step /= 2) {
    if (PlanCapacity(spec, fits + step, memory, options).ok()) fits += step;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(std::string(why.message()), ". ", device.description(), " has ",
                   base::ShowBytes(memory.total_bytes),
                   ", of which other processes, the driver and heddle's own ", "workspace hold ",
                   base::ShowBytes(memory.total_bytes - memory.available_bytes),
                   "; with these options weights of up to ", base::ShowBytes(fits), " would fit"));
}

CapacityOptions CapacityFor(const LoadOptions& options, kernels::DType kv_dtype,
                            const kernels::Device* device) {
  CapacityOptions capacity = options.capacity;
  capacity.kv_dtype = kv_dtype;
  FillStepSize(device, &capacity);
  const bool is_gpu = device != nullptr && device->memory().has_value();
  if (is_gpu) {
    capacity.cpu_threads = 0;
  } else if (capacity.cpu_threads < 0) {
    const int32_t threads = options.cpu.num_threads;
    capacity.cpu_threads = threads > 0 ? threads : kernels::cpu::FindUsableCpus().num_cores;
  }
  if (device == nullptr) return capacity;
  capacity.activation_dtype = device->activation_dtype();
  capacity.logit_rows = device->preferred_logit_rows();
  if (const auto own = device->memory()) {
    capacity.reserve_bytes = own->reserve_bytes;
    capacity.receives_messages = false;  // they come into the host's memory (meeting_sizes.h)
  }
  return capacity;
}

}  // namespace

void DividePool(ModelInfo* loaded) {
  const Capacity& capacity = loaded->capacity;
  RankMemory& head = loaded->ranks.front();
  head.kv_bytes_per_token = capacity.kv_bytes_per_token;
  head.page_bytes = capacity.page_bytes;
  for (size_t i = 1; i < loaded->ranks.size(); ++i) {
    RankMemory& rank = loaded->ranks[i];
    const ModelSpec part = SpecOfShare(loaded->model.spec, loaded->shares, static_cast<int32_t>(i));
    rank.kv_bytes_per_token = KvBytesPerToken(KvLayers(part), loaded->kv_dtype);
    rank.page_bytes = capacity.rank_page_bytes[i];
    head.kv_bytes_per_token -= rank.kv_bytes_per_token;
    head.page_bytes -= rank.page_bytes;
  }
  for (RankMemory& rank : loaded->ranks) {
    rank.kv_bytes = rank.page_bytes * capacity.limits.num_pages;
  }
}

absl::Status PlanMemory(kernels::DType weights, const LoadOptions& options,
                        const kernels::Device* device, ModelInfo* loaded) {
  int64_t weight_bytes = 0;
  for (const RankMemory& rank : loaded->ranks) weight_bytes += rank.weight_bytes;
  HEDDLE_ASSIGN_OR_RETURN(loaded->kv_dtype, KvType(options, weights, device));
  if (device != nullptr && !device->HasKvType(loaded->kv_dtype)) {
    return absl::UnimplementedError(absl::StrCat("kv-type is \"", options.kv_type, "\", which ",
                                                 device->description(),
                                                 " does not have; it has f32, f16 and bf16"));
  }
  CapacityOptions capacity = CapacityFor(options, loaded->kv_dtype, device);
  if (weights == kernels::DType::kF32) capacity.adapter_dtype = weights;
  capacity.rank_specs = SpecsOfRanks(loaded->model.spec, loaded->shares);
  if (options.meeting != nullptr) {
    const auto own = static_cast<size_t>(options.meeting->rank());
    capacity.group_specs = std::move(capacity.rank_specs);
    capacity.rank_specs = {capacity.group_specs[own]};
  }
  if (!options.rank_memory.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(loaded->capacity, PlanRanks(loaded->model.spec, loaded->ranks,
                                                        options.rank_memory, capacity));
    DividePool(loaded);
    return absl::OkStatus();
  }
  const HostMemory memory = MemoryOf(device, options);
  absl::StatusOr<Capacity> planned =
      PlanCapacity(loaded->model.spec, weight_bytes, memory, capacity);
  if (!absl::IsResourceExhausted(planned.status()) || device == nullptr || !device->memory()) {
    HEDDLE_ASSIGN_OR_RETURN(loaded->capacity, std::move(planned));
    DividePool(loaded);
    return absl::OkStatus();
  }
  return TooLargeFor(*device, memory, loaded->model.spec, capacity, planned.status());
}

absl::Status FitPool(const LoadOptions& options, LocalModel* loaded) {
  // Tries less than all that seems free if that cannot be had: memory is allocated in pieces, and
  // other programs take some too.
  constexpr double kShares[] = {1.0, 0.97, 0.9};
  LocalExecutor& executor = *loaded->executor;
  const kernels::DeviceMemory own = *executor.device().memory();
  const Capacity planned = loaded->capacity;
  const int64_t pool_bytes = executor.page_bytes() * executor.limits().num_pages;
  const HostMemory memory = {.total_bytes = own.total_bytes,
                             .available_bytes = own.available_bytes + pool_bytes +
                                                planned.weight_bytes + planned.workspace_bytes};
  CapacityOptions capacity = CapacityFor(options, loaded->kv_dtype, &executor.device());
  capacity.reserve_bytes = own.warm_reserve_bytes;
  capacity.adapter_dtype = planned.limits.adapter_dtype;
  absl::Status status;
  for (const double share : kShares) {
    capacity.automatic_share = share;
    HEDDLE_ASSIGN_OR_RETURN(
        loaded->capacity, PlanCapacity(loaded->model.spec, planned.weight_bytes, memory, capacity));
    loaded->capacity.available_bytes = planned.available_bytes;
    status = executor.ReplacePool(loaded->capacity.limits);
    if (!absl::IsResourceExhausted(status)) break;
  }
  DividePool(loaded);
  return status;
}

}  // namespace heddle::engine
