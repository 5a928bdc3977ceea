#include "engine/model/divide_stages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/model/capacity.h"
#include "engine/model/load_ranks.h"
#include "engine/model/share_bytes.h"
#include "engine/parallel/stage_layers.h"

namespace heddle::engine {
namespace {

// Stages whose speeds differ by less count as equal: a measurement of 30 ms on a machine that does
// other things says no more, and equal machines are to be divided equally each time.
constexpr double kEqualSpeeds = 1.15;
// The part of a machine's free memory that layers and their keys and values may take: buffers of
// steps and messages, and the rest of the system, take some.
constexpr double kUsableShare = 0.85;
// Tokens whose keys and values are to fit beside the weights, at most: some streams of a usual
// load.
constexpr int64_t kUsualTokens = 8192;

// The means of each stage's ranks together: those of the rank that is slowest, or has least room,
// for the size of its share.
std::vector<StageMeans> MeansOfStages(const Layout& layout, std::span<const RankMeans> ranks) {
  const double all = layout.weights.empty()
                         ? layout.tp
                         : std::accumulate(layout.weights.begin(), layout.weights.end(), 0.0);
  std::vector<StageMeans> stages(static_cast<size_t>(layout.pp));
  const auto is_known = [](const RankMeans& rank) { return rank.read_gb_s > 0; };
  const bool has_speeds = std::all_of(ranks.begin(), ranks.end(), is_known);
  for (StageMeans& stage : stages) stage.speed = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const size_t r = i % static_cast<size_t>(layout.tp);
    const double share = (layout.weights.empty() ? 1.0 : layout.weights[r]) / all;
    StageMeans& stage = stages[i / static_cast<size_t>(layout.tp)];
    stage.speed = std::min(stage.speed, has_speeds ? ranks[i].read_gb_s / share : 1.0);
    if (ranks[i].memory_bytes <= 0) continue;
    const double usable = kUsableShare * static_cast<double>(ranks[i].memory_bytes);
    stage.room = std::min(stage.room, usable / share);
  }
  const auto [least, most] = std::minmax_element(
      stages.begin(), stages.end(), [](const auto& a, const auto& b) { return a.speed < b.speed; });
  if (most->speed < kEqualSpeeds * least->speed) {
    for (StageMeans& stage : stages) stage.speed = 1;
  }
  return stages;
}

// A share of each layer alone, behind one of embedding and head.
LayerSizes SizesOf(const Checkpoint& checkpoint, const ModelDescription& model,
                   const WeightPolicy& policy, const kernels::Device* device,
                   const LoadOptions& options) {
  const ModelSpec& spec = model.spec;
  Layout alone;
  alone.pp = spec.n_layers() + 1;
  alone.stage_layers.assign(static_cast<size_t>(alone.pp), 1);
  alone.stage_layers.front() = 0;
  const std::vector<Share> shares =
      DivideModel(spec, alone, CutBlocksOf(checkpoint, model, policy));
  const int32_t longest =
      options.capacity.max_context > 0 ? options.capacity.max_context : spec.max_context;
  const int64_t tokens = std::min<int64_t>(longest, kUsualTokens);
  const std::vector<KvLayer> kv = KvLayers(spec);
  LayerSizes sizes;
  for (size_t i = 0; i < shares.size(); ++i) {
    auto bytes = static_cast<double>(ShareBytes(checkpoint, model, policy, shares[i], device));
    if (i == 0) {
      sizes.first = bytes;
      continue;
    }
    const KvLayer& layer = kv[i - 1];
    const int64_t rows = layer.window > 0 ? std::min<int64_t>(layer.window, tokens) : tokens;
    bytes += static_cast<double>(rows * layer.shape.RowBytes(kernels::DType::kF16));
    sizes.layers.push_back(bytes);
  }
  return sizes;
}

// The means of this process's ranks; empty: nothing is known of them.
std::vector<RankMeans> OwnMeans(const LoadOptions& options) {
  const auto world = static_cast<size_t>(options.layout.world());
  std::vector<RankMeans> ranks(world);
  if (options.rank_cpus.size() != world && options.rank_memory.size() != world) return {};
  for (size_t i = 0; i < world; ++i) {
    if (options.rank_cpus.size() == world) {
      ranks[i].read_gb_s = static_cast<double>(options.rank_cpus[i].size());
    }
    if (options.rank_memory.size() == world) {
      ranks[i].memory_bytes = options.rank_memory[i].available_bytes;
    }
  }
  return ranks;
}

}  // namespace

absl::Status DivideStages(const Checkpoint& checkpoint, const ModelDescription& model,
                          const WeightPolicy& policy, const kernels::Device* device,
                          LoadOptions* options) {
  Layout& layout = options->layout;
  if (layout.pp == 1 || !layout.stage_layers.empty()) return absl::OkStatus();
  const auto divide = [&](std::span<const RankMeans> ranks) {
    const bool has_memory = std::any_of(
        ranks.begin(), ranks.end(), [](const RankMeans& rank) { return rank.memory_bytes > 0; });
    LayerSizes sizes;
    if (has_memory) sizes = SizesOf(checkpoint, model, policy, device, *options);
    return StageLayers(model.spec, MeansOfStages(layout, ranks), sizes);
  };
  if (options->meeting == nullptr) {
    const std::vector<RankMeans> own = OwnMeans(*options);
    if (!own.empty()) layout.stage_layers = divide(own);
    return absl::OkStatus();
  }
  HEDDLE_ASSIGN_OR_RETURN(layout.stage_layers, options->meeting->StageLayers(divide));
  return CheckLayoutOf(model.spec, layout);
}

}  // namespace heddle::engine
