#include "server/simulation/machine_model.h"

#include <algorithm>
#include <vector>

#include "engine/model/spec_traffic.h"

namespace heddle::server {
namespace {

using scheduler::AttentionCost;
using scheduler::LinkTimeModel;
using scheduler::MeasuredRows;
using scheduler::StepTimeModel;

// Microseconds for `amount` bytes or operations, at a rate in 10^9 per second.
double Us(double amount, double giga_per_second) { return amount / giga_per_second / 1e3; }

// Numbers that one layer's cache has per position, up to a factor common to all layers.
double KvWidth(const engine::AttentionSpec& attention) {
  return attention.n_heads == 0 ? 0.0 : 1.0 * attention.n_kv_heads * attention.head_dim;
}

// One entry per window that some layers have. The bytes of a position are divided among the layers
// by the width of their caches.
std::vector<AttentionCost> AttentionCosts(const ModelCost& cost, double read_gb_s, double gop_s) {
  double width = 0;
  for (const engine::LayerSpec& layer : cost.spec.layers) width += KvWidth(layer.attention);
  const double bytes_per_width =
      static_cast<double>(cost.kv_bytes_per_token) / std::max(1.0, width);
  std::vector<AttentionCost> costs;
  const int32_t narrowing = engine::NarrowingLayer(cost.spec);
  for (int32_t i = 0; i < cost.spec.n_layers(); ++i) {
    const engine::AttentionSpec& attention = cost.spec.layers[static_cast<size_t>(i)].attention;
    if (attention.n_heads == 0) continue;
    auto at = std::find_if(costs.begin(), costs.end(), [&](const AttentionCost& known) {
      return known.window == attention.window;
    });
    if (at == costs.end()) at = costs.insert(at, {.window = attention.window});
    at->position_us += Us(KvWidth(attention) * bytes_per_width, read_gb_s);
    // Scores and values: a multiply-add each per dimension. Prompts pay those of all rows.
    if (i >= narrowing) continue;
    at->pair_us += Us(4.0 * attention.n_heads * attention.head_dim, gop_s);
  }
  return costs;
}

StepTimeModel Roofline(const ModelCost& cost, const Hardware& hardware, double bandwidth_share,
                       double compute_share) {
  const engine::SpecTraffic traffic = engine::TrafficOf(cost.spec, cost.weight_bytes);
  const double read_gb_s = hardware.read_gb_s * bandwidth_share;
  const double gop_s = MatrixGopPerSecond(hardware, cost.weight_format) * compute_share;
  const double missed = traffic.n_experts - traffic.top_k;
  return {.weights_us = Us(static_cast<double>(traffic.bytes), read_gb_s),
          .experts_us = Us(static_cast<double>(traffic.expert_bytes), read_gb_s),
          .expert_miss = traffic.n_experts == 0 ? 1 : missed / traffic.n_experts,
          .row_us = Us(2.0 * static_cast<double>(traffic.macs_per_token), gop_s),
          .logit_row_us = Us(2.0 * static_cast<double>(traffic.macs_per_logit_row), gop_s),
          .attention =
              AttentionCosts(cost, read_gb_s, AttentionGopPerSecond(hardware) * compute_share)};
}

// A sum of ranks in one process takes this and, for each KiB of a rank's part, the other. Measured
// with two ranks (docs/benchmarks/parallel.md).
constexpr double kSumUs = 0.8;
constexpr double kSumUsPerKib = 0.12;

// The time of a rank's part of `hidden` features of each row.
LinkTimeModel TimeOfParts(int32_t hidden, bool is_gpu, const std::optional<NetworkLink>& network) {
  const double bytes = static_cast<double>(hidden) * (is_gpu ? 2 : 4);  // in BF16, or F32
  if (!network) return {.latency_us = kSumUs, .row_us = kSumUsPerKib * bytes / 1024};
  return {.latency_us = network->latency_us, .row_us = Us(8 * bytes, network->gbit_s)};
}

// The sums of a step: of the embedding and of the blocks of each layer.
int64_t NumSums(const engine::ModelSpec& rank) {
  if (!rank.is_part()) return 0;
  int64_t sums = rank.stage == 0 ? 1 : 0;
  for (const engine::LayerSpec& layer : rank.layers) {
    sums += (layer.attention_is_part ? 1 : 0) + (layer.mlp_is_part ? 1 : 0);
  }
  return sums;
}

// Makes each time of `slowest` that of `other` if that is longer.
void KeepSlower(const StepTimeModel& other, StepTimeModel* slowest) {
  for (const auto field :
       {&StepTimeModel::fixed_us, &StepTimeModel::weights_us, &StepTimeModel::experts_us,
        &StepTimeModel::row_us, &StepTimeModel::logit_row_us}) {
    slowest->*field = std::max(slowest->*field, other.*field);
  }
  slowest->expert_miss = std::min(slowest->expert_miss, other.expert_miss);
  for (const AttentionCost& own : other.attention) {
    std::vector<AttentionCost>& costs = slowest->attention;
    const auto same = std::find_if(costs.begin(), costs.end(), [&](const AttentionCost& known) {
      return known.window == own.window;
    });
    if (same == costs.end()) {
      costs.push_back(own);
      continue;
    }
    same->position_us = std::max(same->position_us, own.position_us);
    same->pair_us = std::max(same->pair_us, own.pair_us);
  }
}

// A step of the benchmark without its attention: `sequences` sequences, each with `rows_each` new
// rows at the end of `context` positions, took `us`.
MeasuredRows WithoutAttention(const StepTimeModel& model, double sequences, int64_t rows_each,
                              int64_t context, double us) {
  const double attention = sequences * scheduler::AttentionUs(model, rows_each, context);
  // The whole step's rates attribute some of the matrices' time to attention, so at least half is
  // kept.
  return {.rows = static_cast<int64_t>(sequences * static_cast<double>(rows_each)),
          .us = std::max(us - attention, us / 2)};
}

}  // namespace

StepTimeModel PeakModel(const ModelCost& cost, const Hardware& hardware) {
  return Roofline(cost, hardware, 1, 1);
}

StepTimeModel RooflineModel(const ModelCost& cost, const Hardware& hardware) {
  StepTimeModel model = Roofline(cost, hardware, hardware.bandwidth_share, hardware.compute_share);
  model.fixed_us = hardware.step_us;
  return model;
}

RanksModel ModelOfRanks(std::span<const ModelCost> ranks, const Hardware& hardware,
                        const std::optional<NetworkLink>& network,
                        StepTimeModel (*of_one)(const ModelCost&, const Hardware&)) {
  Hardware own = hardware;
  if (!network) {
    for (const auto rate : {&Hardware::read_gb_s, &Hardware::f32_gflop_s, &Hardware::f16_gflop_s,
                            &Hardware::int8_gop_s}) {
      own.*rate /= static_cast<double>(ranks.size());
    }
  }
  const engine::ModelSpec& first = ranks.front().spec;
  const LinkTimeModel part = TimeOfParts(first.hidden, hardware.is_gpu, network);
  const size_t tp = ranks.size() / static_cast<size_t>(first.n_stages);
  RanksModel model{.link = part};
  for (size_t begin = 0; begin < ranks.size(); begin += tp) {
    StepTimeModel& stage = model.stages.emplace_back(of_one(ranks[begin], own));
    for (const ModelCost& rank : ranks.subspan(begin + 1, tp - 1)) {
      KeepSlower(of_one(rank, own), &stage);
    }
    if (begin > 0) stage.fixed_us = 0;  // the head plans and draws
    const auto sums = static_cast<double>(NumSums(ranks[begin].spec));
    stage.fixed_us += sums * part.latency_us;
    // Over a network a rank sends its part to each other one; of many rows a GPU reads the others'
    // parts of its share, and then their sums.
    const auto others = static_cast<double>(tp) - 1;
    const double parts = hardware.is_gpu ? 2 * others / static_cast<double>(tp) : others;
    stage.sum_row_us = sums * part.row_us * (network ? parts : 1);
  }
  return model;
}

double StreamTokS(const RanksModel& ranks) {
  double us = 0;
  for (const StepTimeModel& stage : ranks.stages) {
    us += stage.fixed_us + stage.sum_row_us + scheduler::MatricesUs(stage, 1, 1);
  }
  if (const size_t stages = ranks.stages.size(); stages > 1) {
    us += static_cast<double>(stages) * scheduler::HopUs(ranks.link, 1);
  }
  return 1e6 / us;
}

StepTimeModel MeasuredModel(const ModelCost& cost, std::span<const ProfilePoint> profile,
                            int32_t max_batch_tokens) {
  double read_gb_s = 0, gop_s = 0;
  for (const ProfilePoint& point : profile) {
    read_gb_s = std::max(read_gb_s, point.read_gb_s);
    gop_s = std::max(gop_s, point.gops);
  }
  StepTimeModel model{.attention = AttentionCosts(cost, read_gb_s, gop_s)};
  std::vector<MeasuredRows>& rows = model.measured;
  for (const ProfilePoint& point : profile) {
    const int64_t prompt = point.prompt_tokens;
    rows.push_back(WithoutAttention(model, point.batch, 1, prompt + point.output_tokens / 2,
                                    point.batch / point.decode_tok_s * 1e6));
    // A step of the prompts' phase: whole prompts up to the step's size, or a chunk from the
    // middle.
    const int64_t step = std::min<int64_t>(max_batch_tokens, point.batch * prompt);
    const int64_t each = std::min(prompt, step);
    rows.push_back(WithoutAttention(model, static_cast<double>(step) / static_cast<double>(each),
                                    each, (prompt + each) / 2,
                                    static_cast<double>(step) / point.prefill_tok_s * 1e6));
  }
  std::sort(rows.begin(), rows.end(), [](const MeasuredRows& a, const MeasuredRows& b) {
    return a.rows != b.rows ? a.rows < b.rows : a.us < b.us;
  });
  // Keeps the best time for each number of rows; more rows are never faster.
  rows.erase(
      std::unique(rows.begin(), rows.end(),
                  [](const MeasuredRows& a, const MeasuredRows& b) { return a.rows == b.rows; }),
      rows.end());
  for (size_t i = 1; i < rows.size(); ++i) rows[i].us = std::max(rows[i].us, rows[i - 1].us);
  return model;
}

}  // namespace heddle::server
