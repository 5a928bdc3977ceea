// Expected times by hand.
#include "scheduler/simulation/step_time.h"

#include "catch2/catch.hpp"
#include "engine/model/random_model.h"
#include "engine/parallel/shard.h"
#include "server/simulation/machine_model.h"

namespace heddle::server {
namespace {

using scheduler::AttentionUs;
using scheduler::MatricesUs;
using scheduler::StepTimeModel;

engine::StepPlan PlanOf(std::vector<engine::SequenceSlice> slices, size_t samples) {
  engine::StepPlan plan;
  for (const engine::SequenceSlice& slice : slices) {
    plan.token_ids.resize(plan.token_ids.size() + static_cast<size_t>(slice.num_tokens));
  }
  plan.sequences = std::move(slices);
  plan.samples.resize(samples);
  return plan;
}

TEST_CASE("A step takes the slower of reading the weights and computing the rows", "[simulation]") {
  const StepTimeModel model{.fixed_us = 5, .weights_us = 100, .row_us = 3, .logit_row_us = 1};
  CHECK(StepUs(model, PlanOf({{.num_tokens = 10, .context_tokens = 10}}, 1)) == 105);
  CHECK(StepUs(model, PlanOf({{.num_tokens = 40, .context_tokens = 40}}, 2)) == 127);
  CHECK(StepUs(model, PlanOf({}, 0)) == 0);
}

TEST_CASE("Attention counts every position once to read and every pair to compute",
          "[simulation]") {
  const StepTimeModel reads{.attention = {{.window = 0, .position_us = 2}}};
  CHECK(AttentionUs(reads, 1, 50) == 100);
  CHECK(AttentionUs(reads, 10, 50) == 100);
  const StepTimeModel pairs{.attention = {{.window = 0, .pair_us = 1}}};
  CHECK(AttentionUs(pairs, 4, 4) == 1 + 2 + 3 + 4);
  CHECK(AttentionUs(pairs, 2, 10) == 9 + 10);
}

TEST_CASE("A row sees no more than its window, of each kind of layer", "[simulation]") {
  const StepTimeModel reads{.attention = {{.window = 8, .position_us = 1}}};
  CHECK(AttentionUs(reads, 1, 5) == 5);
  CHECK(AttentionUs(reads, 1, 50) == 8);
  CHECK(AttentionUs(reads, 4, 50) == 8 + 3);
  const StepTimeModel pairs{.attention = {{.window = 3, .pair_us = 1}}};
  CHECK(AttentionUs(pairs, 5, 5) == 1 + 2 + 3 + 3 + 3);
  CHECK(AttentionUs(pairs, 2, 50) == 3 + 3);
  const StepTimeModel both{
      .attention = {{.window = 0, .position_us = 1}, {.window = 8, .position_us = 1}}};
  CHECK(AttentionUs(both, 1, 50) == 50 + 8);
}

TEST_CASE("Measured steps are joined by lines, flat before and proportional after",
          "[simulation]") {
  const StepTimeModel model{.weights_us = 1e9, .measured = {{4, 100}, {8, 120}, {16, 320}}};
  CHECK(MatricesUs(model, 1, 1) == 100);
  CHECK(MatricesUs(model, 4, 1) == 100);
  CHECK(MatricesUs(model, 6, 1) == 110);
  CHECK(MatricesUs(model, 16, 1) == 320);
  CHECK(MatricesUs(model, 32, 1) == 640);
}

TEST_CASE("Of the experts only those are read that rows are sent to", "[simulation]") {
  // 8 experts, 2 per row: one row reads a quarter of them.
  const StepTimeModel model{.weights_us = 10, .experts_us = 80, .expert_miss = 0.75};
  CHECK(MatricesUs(model, 1, 1) == Approx(10 + 20));
  CHECK(MatricesUs(model, 2, 1) == Approx(10 + 80 * (1 - 0.5625)));
  CHECK(MatricesUs(model, 1000, 1) == Approx(90));
}

TEST_CASE("The roofline of Llama 3.1 8B on an H100 is that of its data sheets", "[simulation]") {
  // 8.03e9 parameters, of which 0.525e9 are looked up (the embedding); BF16; 3350 GB/s, 989
  // TFLOP/s.
  const auto spec = engine::KnownShape("llama-3.1-8b");
  REQUIRE(spec.ok());
  const auto h100 = FindHardware("h100");
  REQUIRE(h100.ok());
  const ModelCost cost{.spec = *spec,
                       .weight_bytes = engine::WeightBytes(*spec, kernels::DType::kBF16),
                       .weight_format = "bf16",
                       .kv_bytes_per_token = 131072};
  const StepTimeModel peak = PeakModel(cost, *h100);
  CHECK(peak.weights_us == Approx(2 * 7.505e9 / 3350e9 * 1e6).epsilon(0.001));
  CHECK(peak.row_us == Approx(2 * 6.979e9 / 989e12 * 1e6).epsilon(0.001));
  CHECK(peak.logit_row_us == Approx(2 * 0.5253e9 / 989e12 * 1e6).epsilon(0.001));
  // 32 layers * 2 * 8 heads * 128 * 2 bytes = 128 KiB per position.
  REQUIRE(peak.attention.size() == 1);
  CHECK(peak.attention[0].position_us == Approx(131072 / 3350e9 * 1e6).epsilon(0.001));
  const StepTimeModel real = RooflineModel(cost, *h100);
  CHECK(real.weights_us > peak.weights_us);
  CHECK(real.row_us > peak.row_us);
}

// TinyLlama in BF16 on two cores, or on machines of that kind.
RanksModel TinyLlamaOn(const engine::Layout& layout, const std::optional<NetworkLink>& network) {
  const auto spec = engine::KnownShape("tinyllama-1.1b");
  REQUIRE(spec.ok());
  const auto hardware = FindHardware("cpu-2core");
  REQUIRE(hardware.ok());
  const auto shares = engine::DivideModel(*spec, layout, {32, 32, 32});
  std::vector<engine::ModelSpec> parts;
  for (int32_t i = 0; i < layout.world(); ++i) {
    parts.push_back(engine::SpecOfShare(*spec, shares, i));
  }
  std::vector<ModelCost> costs;
  for (const auto& part : parts) {
    costs.push_back({.spec = part,
                     .weight_bytes = engine::WeightBytes(part, kernels::DType::kBF16),
                     .weight_format = "bf16",
                     .kv_bytes_per_token = 22528 / layout.world()});
  }
  return ModelOfRanks(costs, *hardware, network, RooflineModel);
}

TEST_CASE("Ranks take as long as the slowest of them, and their sums", "[simulation]") {
  const auto model_of = [](int32_t tp) { return TinyLlamaOn({.tp = tp}, {}).stages.front(); };
  const StepTimeModel one = model_of(1);
  const StepTimeModel two = model_of(2);
  // Even halves at half of the rates; 45 sums of 8 KiB a row.
  CHECK(two.weights_us == Approx(one.weights_us).epsilon(0.001));
  CHECK(two.row_us == Approx(one.row_us).epsilon(0.001));
  CHECK(two.attention[0].position_us == Approx(one.attention[0].position_us).epsilon(0.001));
  CHECK(two.fixed_us == Approx(one.fixed_us + 45 * 0.8));
  CHECK(two.sum_row_us == Approx(45 * 8 * 0.12));
  CHECK(one.sum_row_us == 0);
  engine::StepPlan plan;
  plan.token_ids = {1, 2, 3};
  CHECK(StepUs(two, plan) - two.fixed_us - MatricesUs(two, 3, 0) == Approx(3 * two.sum_row_us));
  // 8 pieces of 4 KV heads for 5 ranks: some have two, and a quarter of the heads.
  CHECK(model_of(5).weights_us > 1.05 * one.weights_us);
}

TEST_CASE("Stages on machines of their own pass rows at the network's rate", "[simulation]") {
  const StepTimeModel one = TinyLlamaOn({}, {}).stages.front();
  const double one_tok_s = StreamTokS(TinyLlamaOn({}, {}));
  const RanksModel here = TinyLlamaOn({.pp = 2}, {});
  REQUIRE(here.stages.size() == 2);
  const auto sum_of = [](const RanksModel& model, double StepTimeModel::*field) {
    return model.stages[0].*field + model.stages[1].*field;
  };
  // Each half at half of the rates: a stream takes twice as long as on one rank with all threads.
  CHECK(sum_of(here, &StepTimeModel::weights_us) == Approx(2 * one.weights_us).epsilon(0.001));
  CHECK(sum_of(here, &StepTimeModel::row_us) == Approx(2 * one.row_us).epsilon(0.001));
  CHECK(here.stages[1].logit_row_us == 0);
  CHECK(here.stages[1].fixed_us == 0);
  CHECK(StreamTokS(here) == Approx(one_tok_s / 2).epsilon(0.02));

  const RanksModel apart = TinyLlamaOn({.pp = 2}, NetworkLink{.latency_us = 100, .gbit_s = 1});
  CHECK(sum_of(apart, &StepTimeModel::weights_us) == Approx(one.weights_us).epsilon(0.001));
  // 2048 features of 4 bytes, at 8 bits per nanosecond.
  CHECK(apart.link.row_us == Approx(65.536));
  CHECK(HopUs(apart.link, 3) == Approx(100 + 3 * 65.536));
  CHECK(HopUs(apart.link, 0) == 0);
  CHECK(1e6 / StreamTokS(apart) == Approx(1e6 / one_tok_s + 2 * (100 + 65.536)).epsilon(0.001));

  // 45 sums, to each of two others.
  const StepTimeModel three =
      TinyLlamaOn({.tp = 3}, NetworkLink{.latency_us = 100, .gbit_s = 1}).stages.front();
  CHECK(three.fixed_us == Approx(one.fixed_us + 45 * 100));
  CHECK(three.sum_row_us == Approx(45 * 2 * 65.536));
}

TEST_CASE("A profile's own steps take as long as they were measured", "[simulation]") {
  const auto spec = engine::KnownShape("tinyllama-1.1b");
  REQUIRE(spec.ok());
  const ModelCost cost{.spec = *spec, .weight_format = "q4_0", .kv_bytes_per_token = 22528};
  const ProfilePoint one{1, 64, 32, 600, 60, 37, 1400};
  const ProfilePoint many{32, 64, 32, 640, 530, 20, 1500};
  const StepTimeModel model = MeasuredModel(cost, std::vector{one, many}, 512);
  auto decode_us = [&](int64_t batch) {
    return MatricesUs(model, batch, batch) +
           static_cast<double>(batch) * AttentionUs(model, 1, 64 + 16);
  };
  CHECK(decode_us(1) == Approx(1e6 / 60).epsilon(0.001));
  CHECK(decode_us(32) == Approx(32e6 / 530).epsilon(0.001));
  // 8 whole prompts of 64 in a step of 512.
  CHECK(MatricesUs(model, 512, 8) + 8 * AttentionUs(model, 64, 64) ==
        Approx(512e6 / 640).epsilon(0.01));
}

TEST_CASE("Unknown hardware is answered with the names there are", "[simulation]") {
  const auto unknown = FindHardware("h300");
  REQUIRE_FALSE(unknown.ok());
  CHECK(std::string(unknown.status().message()).find("h200") != std::string::npos);
}

}  // namespace
}  // namespace heddle::server
