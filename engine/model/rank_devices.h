// Ranks that have a device each: the devices, made before memory is planned, and the plan, in which
// the one with the least room decides.
//
// Thread-safety: none; used while a model is loaded.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/memory/host_memory.h"
#include "engine/model/capacity.h"
#include "engine/model/load.h"
#include "engine/model/model_spec.h"

namespace heddle::engine {

// If the options have several ranks with a device each: makes those beside the head's, fills
// rank_memory, and lets make_rank_device hand the devices out, once each. Ranks that share a device
// share its memory.
absl::Status MakeRankDevices(const kernels::Device& head, LoadOptions* options);

// A warning for each device that several ranks share; one line each.
std::vector<std::string> AdviceForRanks(std::span<const int32_t> rank_devices);

// PlanCapacity for ranks with a memory each: `options` has the specs of all, and a drafter's needs
// are the head's. What they take is added up, and the limits are those of the rank with the least
// room. A failure names the rank.
absl::StatusOr<Capacity> PlanRanks(const ModelSpec& spec, std::span<const RankMemory> ranks,
                                   std::span<const HostMemory> memory,
                                   const CapacityOptions& options);

}  // namespace heddle::engine
