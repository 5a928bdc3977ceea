#include "engine/model/rank_devices.h"

#include <algorithm>
#include <future>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

using MadeDevice = absl::StatusOr<std::unique_ptr<kernels::Device>>;

absl::Status Named(const absl::Status& status, size_t rank) {
  return absl::Status(status.code(),
                      absl::StrCat("rank ", rank, ": ", std::string(status.message())));
}

// A rank's part of its device's memory.
HostMemory MemoryOf(const kernels::Device& device, int64_t sharers) {
  const kernels::DeviceMemory own = device.memory().value_or(kernels::DeviceMemory());
  return {.total_bytes = own.total_bytes / sharers,
          .available_bytes = own.available_bytes / sharers};
}

// Adds what the next rank takes, and lowers the limits to what it has room for.
void AddRank(const Capacity& one, Capacity* sum) {
  sum->limits.num_pages = std::min(sum->limits.num_pages, one.limits.num_pages);
  sum->limits.max_context = std::min(sum->limits.max_context, one.limits.max_context);
  sum->context_reduced |= one.context_reduced;
  sum->weight_bytes += one.weight_bytes;
  sum->workspace_bytes += one.workspace_bytes;
  sum->kv_bytes_per_token += one.kv_bytes_per_token;
  sum->page_bytes += one.page_bytes;
  sum->limits.page_bytes += one.limits.page_bytes;
  sum->available_bytes += one.available_bytes;
}

}  // namespace

absl::Status MakeRankDevices(const kernels::Device& head, LoadOptions* options) {
  const auto world = static_cast<size_t>(options->layout.world());
  if (world == 1 || !options->make_rank_device) return absl::OkStatus();
  std::vector<std::future<MadeDevice>> pending;
  for (size_t rank = 1; rank < world; ++rank) {
    pending.push_back(std::async(std::launch::async, [options, rank] {
      return options->make_rank_device(static_cast<int32_t>(rank));
    }));
  }
  const auto made = std::make_shared<std::vector<std::unique_ptr<kernels::Device>>>(world);
  absl::Status status;
  for (size_t rank = 1; rank < world; ++rank) {
    MadeDevice device = pending[rank - 1].get();
    if (device.ok()) {
      (*made)[rank] = *std::move(device);
    } else {
      status.Update(Named(device.status(), rank));
    }
  }
  HEDDLE_RETURN_IF_ERROR(status);
  options->rank_memory.clear();
  for (size_t rank = 0; rank < world; ++rank) {
    const std::vector<int32_t>& places = options->rank_devices;
    HEDDLE_CHECK(places.size() == world, "a place for each rank");
    const kernels::Device& device = rank == 0 ? head : *(*made)[rank];
    options->rank_memory.push_back(
        MemoryOf(device, std::count(places.begin(), places.end(), places[rank])));
  }
  options->make_rank_device = [made](int32_t rank) -> MadeDevice {
    std::unique_ptr<kernels::Device>& device = (*made)[static_cast<size_t>(rank)];
    HEDDLE_CHECK(device != nullptr, "a rank's device is asked for twice");
    return std::move(device);
  };
  return absl::OkStatus();
}

std::vector<std::string> AdviceForRanks(std::span<const int32_t> rank_devices) {
  std::vector<std::string> advice;
  for (size_t rank = 1; rank < rank_devices.size(); ++rank) {
    const auto before = rank_devices.first(rank);
    const auto sharer = std::find(before.begin(), before.end(), rank_devices[rank]);
    if (sharer == before.end()) continue;
    advice.push_back(absl::StrCat("ranks ", sharer - before.begin(), " and ", rank,
                                  " share cuda:", rank_devices[rank],
                                  ", which is slower than one rank there; it is for tests"));
  }
  return advice;
}

absl::StatusOr<Capacity> PlanRanks(const ModelSpec& spec, std::span<const RankMemory> ranks,
                                   std::span<const HostMemory> memory,
                                   const CapacityOptions& options) {
  HEDDLE_CHECK(ranks.size() == memory.size() && ranks.size() == options.rank_specs.size(),
               "a memory and a part for each rank");
  Capacity sum;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    CapacityOptions own = options;
    own.group_specs = options.rank_specs;
    own.rank_specs = {options.rank_specs[rank]};
    own.receives_messages = false;
    if (rank > 0) own.draft_weight_bytes = own.draft_workspace_bytes = 0;
    absl::StatusOr<Capacity> one = PlanCapacity(spec, ranks[rank].weight_bytes, memory[rank], own);
    if (!one.ok()) return Named(one.status(), rank);
    if (rank == 0) {
      sum = *std::move(one);
    } else {
      AddRank(*one, &sum);
    }
  }
  ExecutorLimits& limits = sum.limits;
  // No sequence may need more pages than there are now.
  limits.max_context =
      sum.page_rule().LongestWithin(limits.num_pages, limits.windows, limits.max_context);
  limits.num_host_pages = static_cast<int32_t>(
      std::min<int64_t>(options.host_kv_bytes / std::max<int64_t>(1, sum.page_bytes),
                        std::numeric_limits<int32_t>::max() - limits.num_pages));
  sum.kv_bytes = sum.page_bytes * limits.num_pages;
  return sum;
}

}  // namespace heddle::engine
