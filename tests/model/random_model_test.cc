// Random weights: every format that the command line names, and shapes that a format cannot hold.
#include "engine/model/random_model.h"

#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"

namespace heddle::engine {
namespace {

ModelSpec SmallSpec(int32_t hidden) {
  LayerSpec layer;
  layer.attention.n_heads = 4;
  layer.attention.n_kv_heads = 2;
  layer.attention.head_dim = hidden / 4;
  layer.mlp.inter = 2 * hidden;
  ModelSpec spec;
  spec.hidden = hidden;
  spec.vocab = 64;
  spec.tied_embeddings = true;
  spec.layers.assign(1, layer);
  return spec;
}

// Root of the mean square of all embeddings.
double Spread(kernels::Device& device, const ModelWeights& weights, const ModelSpec& spec) {
  std::vector<int32_t> ids(static_cast<size_t>(spec.vocab)), positions(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = positions[i] = static_cast<int32_t>(i);
  kernels::HostBatch batch;
  batch.token_ids = ids;
  batch.positions = positions;
  // One sequence in one page.
  const std::vector<int64_t> slots(ids.begin(), ids.end());
  const std::vector<int32_t> rows_end = {0, spec.vocab}, spans_end = {0, 1}, page = {0};
  const std::vector<int32_t> length = {spec.vocab};
  batch.kv_slot = slots;
  batch.q_begin = rows_end;
  batch.span_begin = spans_end;
  batch.span_page = page;
  batch.span_tokens = batch.context_len = length;
  REQUIRE(device.Plan(batch).ok());
  std::vector<float> out(ids.size() * static_cast<size_t>(spec.hidden));
  const kernels::Tensor rows{out.data(), spec.vocab, spec.hidden, spec.hidden};
  REQUIRE(device.Run([&](kernels::Ops& ops) { ops.Embed(*weights.embedding, 1.0f, rows); }).ok());
  double squares = 0;
  for (float x : out) squares += static_cast<double>(x) * x;
  return std::sqrt(squares / static_cast<double>(out.size()));
}

// Layers keep the variance of their input if weights have variance 1 / hidden (He et al. 2015,
// without the factor of their activation); powers of two as scales can be off by sqrt 2.
TEST_CASE("Random weights of every format spread as 1 / sqrt(hidden)", "[model][unit]") {
  auto device = kernels::CreateCpuDevice({1, "auto", false});
  REQUIRE(device.ok());
  const ModelSpec spec = SmallSpec(512);
  for (const char* name :
       {"auto",   "int8",   "int4",  "f32",  "f16",     "bf16",      "q8_0",      "q4_0",
        "q4_1",   "q5_0",   "q5_1",  "q2_k", "q3_k",    "q4_k",      "q5_k",      "q6_k",
        "iq4_nl", "iq4_xs", "mxfp4", "fp8",  "nf4",     "int4_g128", "int8_g128", "tq2_0",
        "nvfp4",  "fp4",    "iq1",   "iq2",  "iq3_xxs", "iq3_s"}) {
    INFO(name);
    auto dtype = RandomFormat(name);
    REQUIRE(dtype.ok());
    auto weights = RandomWeights(**device, spec, *dtype, /*seed=*/1);
    REQUIRE(weights.ok());
    const double spread = Spread(**device, *weights, spec) * std::sqrt(512.0);
    CHECK(spread > 0.6);
    CHECK(spread < 1.6);
  }
}

TEST_CASE("A shape whose rows are not whole blocks is refused with the width and the block",
          "[model][unit]") {
  auto device = kernels::CreateCpuDevice({1, "portable", false});
  REQUIRE(device.ok());
  const absl::Status status =
      RandomWeights(**device, SmallSpec(896), kernels::DType::kQ4_K, 1).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(std::string(status.message()).find("896 are not whole blocks of 256") != std::string::npos);
  const absl::Status unknown = RandomFormat("q3").status();
  CHECK(absl::IsInvalidArgument(unknown));
  CHECK(std::string(unknown.message()).find("q4_k") != std::string::npos);
}

TEST_CASE("A step reads the experts that its rows chose, each once", "[model][unit]") {
  WeightTraffic traffic;
  traffic.bytes = 1000;
  traffic.experts = {{800, 8, 2}};
  CHECK(traffic.StepBytes(1) == Approx(1000 + 800 * 2 / 8.0));
  // Two rows of two among eight: 1 - (3/4)^2 of all.
  CHECK(traffic.StepBytes(2) == Approx(1000 + 800 * 7 / 16.0));
  CHECK(traffic.StepBytes(1000) == Approx(1800));
}

}  // namespace
}  // namespace heddle::engine
