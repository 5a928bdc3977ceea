// Loading a model that ranks share (engine/parallel/shard.h): who gets what, and the ranks beside
// the head, each of which reads and packs its own part on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "engine/files/checkpoint.h"
#include "engine/model/load.h"
#include "engine/model/other_ranks.h"
#include "engine/model/rank_binding.h"
#include "engine/model/rank_worker.h"
#include "engine/model/weights.h"
#include "engine/parallel/shard.h"
#include "kernels/device.h"

namespace heddle::engine {

// The options that say so if several ranks share the model: "--tp 2 --pp 3"; else empty.
std::string LayoutText(const Layout& layout);

// INVALID_ARGUMENT or UNIMPLEMENTED, naming the option, for a layout that these options exclude.
absl::Status CheckLayout(const LoadOptions& options);

// INVALID_ARGUMENT if the lists name a processor twice, or one that this thread may not use.
absl::Status CheckRankCpus(std::span<const std::vector<int>> rank_cpus);

// How the products of a checkpoint's model may be cut, with weights kept as the policy says.
CutBlocks CutBlocksOf(const Checkpoint& checkpoint, const ModelDescription& model,
                      const WeightPolicy& policy);

// INVALID_ARGUMENT, naming the option, if the layout does not suit the model.
absl::Status CheckLayoutOf(const ModelSpec& spec, const Layout& layout);
// UNIMPLEMENTED if steps are to be split between ranks of which some have layers with state and
// some have none of their heads: they would not split the same steps.
absl::Status CheckSplits(const ModelSpec& spec, const LoadOptions& options);

// The options of one rank's processor: its part of the threads, at least one.
kernels::CpuDeviceOptions CpuOfRank(const LoadOptions& options, int32_t rank);

// Runs `load` on the head's processors: on a thread of its own if they are bound.
template <typename F>
auto OnCpusOfHead(const LoadOptions& options, const F& load) -> decltype(load()) {
  if (options.rank_cpus.empty()) return load();
  return std::async(std::launch::async,
                    [&]() -> decltype(load()) {
                      HEDDLE_RETURN_IF_ERROR(BindThisThread(options.rank_cpus[0]));
                      return load();
                    })
      .get();
}

// The specs of all ranks; empty for one alone.
std::vector<ModelSpec> SpecsOfRanks(const ModelSpec& model, std::span<const Share> shares);

// Makes the weights of a rank on its device.
using MakeWeights =
    std::function<absl::StatusOr<ModelWeights>(kernels::Device& device, int32_t rank)>;

// Loads this process's rank alone, which has joined its groups then (rank_meeting.h).
absl::StatusOr<std::unique_ptr<RankWorker>> LoadOwnRank(const LoadOptions& options,
                                                        const ModelInfo& info,
                                                        const MakeWeights& make_weights,
                                                        std::unique_ptr<kernels::Device> device);

// Loads the head's weights on `head`, and the other ranks, if there are any, at the same time; then
// `head` has joined their group.
struct LoadedRanks {
  ModelWeights head;
  std::unique_ptr<OtherRanks> others;  // null: there are none
};
absl::StatusOr<LoadedRanks> LoadRanks(const LoadOptions& options, const ModelInfo& info,
                                      const MakeWeights& make_weights, kernels::Device& head);

}  // namespace heddle::engine
