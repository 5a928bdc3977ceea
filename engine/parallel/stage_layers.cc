#include "engine/parallel/stage_layers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace heddle::engine {
namespace {

// The part of a usual load's time in which rows need logits, so that the output head counts to
// stage 0: all rows of streams do, and one row of each prompt (docs/decisions/0113).
constexpr double kHeadShare = 0.25;

// Streams of a usual load: so many rows choose experts in a step.
constexpr double kStreams = 8;

// Experts of a mixture that a decoding step reads, in the mean.
double ExpertsRead(const MoeSpec& moe) {
  const double share = static_cast<double>(moe.rule.top_k) / moe.n_experts;
  return moe.n_experts * (1 - std::pow(1 - std::min(share, 1.0), kStreams));
}

// Weights that a decoding step reads of a layer, or nearly so, for each hidden feature.
double CostOfLayer(const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  const double heads =
      2.0 * (attention.n_heads + attention.n_kv_heads) * attention.head_dim +
      4.0 * attention.conv.channels + 2.0 * attention.memory.channels +
      (attention.recurrence.is_here() ? static_cast<double>(attention.recurrence.shape.cols() +
                                                            attention.recurrence.shape.values())
                                      : 0.0);
  const double matrices = layer.mlp.gated ? 3 : 2;
  const double experts = layer.moe.n_experts > 0 ? ExpertsRead(layer.moe) : 0.0;
  return heads + matrices * layer.mlp.inter + 3.0 * experts * layer.moe.inter;
}

// [values + 1] the sums of the first i of them.
std::vector<double> SumsOf(std::span<const double> values) {
  std::vector<double> sums(values.size() + 1);
  std::partial_sum(values.begin(), values.end(), sums.begin() + 1);
  return sums;
}

// A cut of n layers into runs for stages.
struct Runs {
  double worst = 0;  // of all stages
  std::vector<int32_t> counts;
};

// The division whose worst stage is best. worst_of(s, begin, end): of layers [begin, end) in stage
// s.
template <typename WorstOf>
Runs LeastWorst(size_t n, size_t n_stages, const WorstOf& worst_of) {
  // best[s][i]: the best worst stage of the first i layers in stages 0 to s; from[s][i]: where
  // stage s then begins.
  std::vector<std::vector<double>> best(n_stages, std::vector<double>(n + 1));
  std::vector<std::vector<size_t>> from(n_stages, std::vector<size_t>(n + 1));
  for (size_t i = 0; i <= n; ++i) best[0][i] = worst_of(0, 0, i);
  for (size_t s = 1; s < n_stages; ++s) {
    for (size_t i = 0; i <= n; ++i) {
      for (size_t begin = 0; begin <= i; ++begin) {
        const double worst = std::max(best[s - 1][begin], worst_of(s, begin, i));
        // Among equal ones, more for the stages before.
        if (begin > 0 && worst > best[s][i]) continue;
        best[s][i] = worst;
        from[s][i] = begin;
      }
    }
  }
  Runs runs = {.worst = best.back()[n], .counts = std::vector<int32_t>(n_stages)};
  size_t end = n;
  for (size_t s = n_stages; s-- > 0;) {
    const size_t begin = from[s][end];
    runs.counts[s] = static_cast<int32_t>(end - begin);
    end = begin;
  }
  return runs;
}

}  // namespace

// First how much the stage that lacks most has to lack; then the fastest division that lacks no
// more.
std::vector<int32_t> DivideLayers(std::span<const double> costs, double first,
                                  std::span<const StageMeans> stages, const LayerSizes& sizes) {
  const size_t n = costs.size();
  const std::vector<double> times = SumsOf(costs);
  const std::vector<double> bytes =
      sizes.layers.size() == n ? SumsOf(sizes.layers) : std::vector<double>(n + 1);
  // The bytes that stage s lacks with layers [begin, end), as a share of its room.
  const auto lack_of = [&](size_t s, size_t begin, size_t end) {
    const double size = bytes[end] - bytes[begin] + (s == 0 ? sizes.first : 0);
    return std::max(0.0, size / std::max(stages[s].room, 1.0) - 1);
  };
  const double least_lack = LeastWorst(n, stages.size(), lack_of).worst;
  const auto time_of = [&](size_t s, size_t begin, size_t end) {
    if (lack_of(s, begin, end) > least_lack) return std::numeric_limits<double>::infinity();
    return (times[end] - times[begin] + (s == 0 ? first : 0)) / stages[s].speed;
  };
  return LeastWorst(n, stages.size(), time_of).counts;
}

std::vector<int32_t> StageLayers(const ModelSpec& spec, std::span<const StageMeans> stages,
                                 const LayerSizes& sizes) {
  std::vector<double> costs;      // of units
  LayerSizes unit_sizes;          // the same
  std::vector<int32_t> n_layers;  // the same
  unit_sizes.first = sizes.first;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (spec.layers[i].attention_input != AttentionInput::kShared || costs.empty()) {
      costs.push_back(0.0);
      unit_sizes.layers.push_back(0.0);
      n_layers.push_back(0);
    }
    costs.back() += CostOfLayer(spec.layers[i]);
    if (i < sizes.layers.size()) unit_sizes.layers.back() += sizes.layers[i];
    ++n_layers.back();
  }
  std::vector<int32_t> counts;
  auto next = n_layers.begin();
  for (const int32_t units : DivideLayers(costs, kHeadShare * spec.vocab, stages, unit_sizes)) {
    counts.push_back(std::accumulate(next, next + units, 0));
    next += units;
  }
  return counts;
}

}  // namespace heddle::engine
