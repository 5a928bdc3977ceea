// Every family against Hugging Face transformers: tiny random models (tests/golden/), logits of all
// positions, on every implementation of the ops, the prompt read at once and in chunks.
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using test::Golden;

std::unique_ptr<engine::LocalExecutor> Load(const std::filesystem::path& path,
                                            const std::string& ops, int32_t tp = 1, int32_t pp = 1,
                                            int32_t max_context = 0, bool expert_parallel = false) {
  engine::LoadOptions options;
  options.capacity.max_context = max_context;
  options.layout.expert_parallel = expert_parallel;
  options.layout.tp = tp;
  options.layout.pp = pp;
  options.reference_ops = ops == "reference";
  if (!options.reference_ops) options.cpu.isa = ops;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  auto model = engine::LoadLocalModel(path, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

bool HasExperts(const nlohmann::json& config) {
  for (const auto& [key, value] : config.items()) {
    if (value.is_object() && HasExperts(value)) return true;
    const bool counts = key.find("experts") != std::string::npos && value.is_number_integer();
    if (counts && value.get<int64_t>() > 0) return true;
  }
  return false;
}

// Whether this machine has a level of kernels ("reference" and "auto" always work).
bool HasLevel(const std::string& ops) {
  return ops == "reference" || kernels::CreateCpuDevice({.num_threads = 1, .isa = ops}).ok();
}

// Largest difference to what transformers computed: the best tokens of each position, and all
// logits of the last two.
float MaxError(const Golden& golden, const std::vector<float>& logits) {
  const size_t n_tokens = golden.prompt.size();
  const size_t vocab = logits.size() / n_tokens;
  float error = 0.0f;
  for (size_t t = 0; t < n_tokens; ++t) {
    for (const auto& [token, logit] : golden.top[t]) {
      error = std::max(error, std::abs(logits[t * vocab + token] - logit));
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE(golden.last[i].size() == vocab);
    for (size_t v = 0; v < vocab; ++v) {
      error = std::max(error, std::abs(logits[(n_tokens - 2 + i) * vocab + v] - golden.last[i][v]));
    }
  }
  return error;
}

// Integer kernels round activations to 8 bits per block of 32 values. With steps of max / 127 and a
// maximum of some 2.5 times the root mean square, each matmul's relative error is about
// 2.5 / 127 / sqrt(12) = 0.6 %.
constexpr double kInt8Error = 0.006;
// BF16 dot products, of BF16 and of FP8 weights, round them to 8 bits of mantissa: by up to 2^-8,
// some 0.16 % in the mean.
constexpr double kBf16Error = 0.0016;

// A stack of n independent matmuls adds up to sqrt(n) times the error of one, and the largest of a
// thousand logits lies within 6 standard deviations.
float RoundingBound(const Golden& golden, int32_t n_layers, double error) {
  const std::vector<float>& logits = golden.last[0];
  double sum = 0.0;
  double squares = 0.0;
  for (float logit : logits) {
    sum += logit;
    squares += double{logit} * logit;
  }
  const double mean = sum / static_cast<double>(logits.size());
  const double spread = std::sqrt(squares / static_cast<double>(logits.size()) - mean * mean);
  return static_cast<float>(6.0 * error * std::sqrt(7.0 * n_layers) * spread);
}

// The error that the formats of a golden's weights allow.
float BoundOf(const Golden& golden, const std::string& ops) {
  const auto quantization = golden.config->value("quantization_config", nlohmann::json::object());
  const bool quantised = golden.gguf.has_value() || !quantization.empty();
  const bool is_fp8 = quantization.value("quant_method", "") == "fp8";
  const int32_t n_layers = golden.config->value("num_hidden_layers", 2);
  const bool bf16_kernels =
      (golden.dtype == "BF16" || is_fp8) && ops == "auto" && HasLevel("avx512_bf16");
  if (bf16_kernels) return RoundingBound(golden, n_layers, kBf16Error);
  const bool integer_kernels = quantised && ops != "reference" && !is_fp8;
  return integer_kernels ? RoundingBound(golden, n_layers, kInt8Error) : 1e-3f;
}

TEST_CASE("Every family's logits equal transformers' within 1e-3", "[golden]") {
  const std::string name = GENERATE(from_range(test::GoldenNames()));
  const std::string ops = GENERATE("reference", "portable", "avx512", "auto");
  if (!HasLevel(ops)) return;
  const Golden golden = test::LoadGolden(name);
  test::TempDir dir;
  auto executor = Load(test::WriteGoldenModel(golden, dir.path()), ops);
  for (int32_t chunk : {64, 7, 1}) {
    INFO(name << " on " << ops << " in chunks of " << chunk);
    CHECK(MaxError(golden, test::AllLogits(*executor, golden.prompt, chunk)) <
          BoundOf(golden, ops));
  }
}

TEST_CASE("A text beyond LongRoPE's original context has transformers' logits", "[golden]") {
  const std::string ops = GENERATE("reference", "portable", "auto");
  const Golden golden = test::LoadGolden("phi3_longrope_long");
  REQUIRE(golden.prompt.size() > 64);
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  for (const int32_t tp : {1, 2}) {
    auto executor = Load(path, ops, tp, /*pp=*/1, /*max_context=*/128);
    for (int32_t chunk : {64, 7}) {
      INFO(ops << ", " << tp << " ranks, in chunks of " << chunk);
      CHECK(MaxError(golden, test::AllLogits(*executor, golden.prompt, chunk)) < 1e-3f);
    }
  }
}

// Heads, features and tokens of these models divide by few of these numbers; some ranks have none.
TEST_CASE("Any number of ranks gives every family's logits", "[golden]") {
  const std::string name = GENERATE(from_range(test::RankGoldenNames()));
  const Golden golden = test::LoadGolden(name);
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  const std::vector<std::pair<std::string, int32_t>> runs = {
      {"reference", 3}, {"auto", 2}, {"auto", 3}, {"auto", 5}, {"auto", 7}};
  for (const auto& [ops, tp] : runs) {
    auto executor = Load(path, ops, tp);
    for (int32_t chunk : {64, 5}) {
      INFO(name << " on " << ops << ", " << tp << " ranks, in chunks of " << chunk);
      CHECK(MaxError(golden, test::AllLogits(*executor, golden.prompt, chunk)) <
            BoundOf(golden, ops));
    }
  }
}

TEST_CASE("Ranks that have whole experts give a mixture's logits", "[golden]") {
  const std::string name = GENERATE(from_range(test::RankGoldenNames()));
  const Golden golden = test::LoadGolden(name);
  if (!HasExperts(*golden.config)) return;
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  struct Run {
    const char* ops;
    int32_t tp, pp;
  };
  // Ranks have unequal numbers of these models' four to sixteen experts, or none.
  for (const Run& run : {Run{"auto", 2, 1}, Run{"auto", 3, 1}, Run{"auto", 3, 2}, Run{"auto", 7, 1},
                         Run{"reference", 3, 1}}) {
    auto executor = Load(path, run.ops, run.tp, run.pp, /*max_context=*/0,
                         /*expert_parallel=*/true);
    for (int32_t chunk : {64, 5}) {
      INFO(name << " on " << run.ops << ", " << run.tp << " ranks, in chunks of " << chunk);
      CHECK(MaxError(golden, test::AllLogits(*executor, golden.prompt, chunk)) <
            BoundOf(golden, run.ops));
    }
  }
}

// Most of these models have two to five layers: some stages have none.
TEST_CASE("A pipeline gives every family the very bits of one stage", "[golden]") {
  const std::string name = GENERATE(from_range(test::RankGoldenNames()));
  const Golden golden = test::LoadGolden(name);
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  for (const int32_t tp : {1, 2}) {
    const std::vector<float> expected =
        test::AllLogits(*Load(path, "auto", tp), golden.prompt, /*chunk=*/5);
    for (const int32_t pp : {2, 3, 5}) {
      if (tp * pp > 6) continue;
      INFO(name << ", " << tp << " ranks in each of " << pp << " stages");
      CHECK(test::AllLogits(*Load(path, "auto", tp, pp), golden.prompt, /*chunk=*/5) == expected);
    }
  }
  CHECK(test::AllLogits(*Load(path, "reference", 1, 2), golden.prompt, 64) ==
        test::AllLogits(*Load(path, "reference"), golden.prompt, 64));
}

TEST_CASE("Models that ranks or stages cannot share are refused by name", "[golden]") {
  struct Refusal {
    const char* golden;
    int32_t tp;
    int32_t pp;
    const char* message;  // nullptr: it is served
  };
  const Refusal refusals[] = {
      {"gemma3n", 2, 1, "--tp is 2: this model has layers with embeddings of their own"},
      {"gemma4", 2, 1, "--tp is 2: this model has layers with embeddings of their own"},
      {"gemma4", 1, 2, "--pp is 2: this model has layers with embeddings of their own"},
      {"gemma4_moe", 2, 1, "--tp is 2: this model has experts with norms of their own"},
      {"rwkv7", 2, 1, "--tp is 2: this model has recurrent layers with a share of the first"},
      {"rwkv7", 1, 2, "--pp is 2: this model has recurrent layers with a share of the first"},
      {"phi4flash", 2, 1, "--tp is 2: this model has layers that share keys and values"},
      {"phi4flash", 1, 2, "--pp is 2: this model has layers that share keys and values"},
      {"glm_moe_dsa_shared", 1, 2,
       "--pp is 2: layers of this model read the positions that an earlier layer has chosen"},
      {"gemma4_moe", 1, 2, nullptr}};
  for (const Refusal& refusal : refusals) {
    test::TempDir dir;
    const Golden golden = test::LoadGolden(refusal.golden);
    const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
    engine::LoadOptions options;
    options.layout.tp = refusal.tp;
    options.layout.pp = refusal.pp;
    options.cpu.num_threads = 2;
    options.capacity.kv_bytes = 4 << 20;
    options.capacity.max_batch_tokens = 64;
    const absl::Status status = engine::LoadLocalModel(path, options).status();
    INFO(refusal.golden << ": " << status.ToString());
    CHECK(status.ok() == (refusal.message == nullptr));
    if (refusal.message != nullptr) {
      CHECK(absl::IsUnimplemented(status));
      CHECK(status.message().find(refusal.message) != status.message().npos);
      continue;
    }
    CHECK(test::AllLogits(*Load(path, "auto", 1, refusal.pp), golden.prompt, /*chunk=*/5) ==
          test::AllLogits(*Load(path, "auto"), golden.prompt, /*chunk=*/5));
  }
}

TEST_CASE("Layers in groups of their own windows give transformers' logits too", "[golden]") {
  const std::string name = GENERATE("gemma2", "gemma3", "gemma4_dense", "ministral");
  const std::string ops = GENERATE("reference", "auto");
  test::Golden golden = test::LoadGolden(name);
  nlohmann::json config = *golden.config;
  config["max_position_embeddings"] = 4096;  // windows of 8 pay
  golden.config = std::make_shared<const nlohmann::json>(std::move(config));
  test::TempDir dir;
  auto executor = Load(test::WriteGoldenModel(golden, dir.path()), ops);
  INFO(name);
  REQUIRE(executor->limits().windows.size() > 1);
  for (int32_t chunk : {64, 7, 1}) {
    INFO(name << " on " << ops << " in chunks of " << chunk);
    CHECK(MaxError(golden, test::AllLogits(*executor, golden.prompt, chunk)) < 1e-3f);
  }
}

}  // namespace
}  // namespace heddle
