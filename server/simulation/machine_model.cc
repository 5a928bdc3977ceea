#include "server/simulation/machine_model.h"

#include <algorithm>
#include <vector>

#include "engine/model/spec_traffic.h"

namespace heddle::server {
namespace {

using scheduler::AttentionCost;
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
  for (const engine::LayerSpec& layer : cost.spec.layers) {
    const engine::AttentionSpec& attention = layer.attention;
    if (attention.n_heads == 0) continue;
    auto at = std::find_if(costs.begin(), costs.end(), [&](const AttentionCost& known) {
      return known.window == attention.window;
    });
    if (at == costs.end()) at = costs.insert(at, {.window = attention.window});
    at->position_us += Us(KvWidth(attention) * bytes_per_width, read_gb_s);
    // Scores and values: a multiply-add each per dimension.
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
