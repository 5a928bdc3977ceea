// Whole models on the emulated CUDA device: packing, planning, every op and sampling together.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/adapter/adapter_sites.h"
#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "kernels/cuda/cuda_device.h"
#include "nlohmann/json.hpp"
#include "tests/emulate/machine.h"
#include "tests/support/adapter_images.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/paths.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using engine::TokenId;
using kernels::DType;
using nlohmann::json;

json ReadJson(const std::filesystem::path& path) {
  std::ifstream in(path);
  return json::parse(in);
}

engine::LocalModel Load(const std::filesystem::path& path, std::optional<DType> activations,
                        const std::string& kv_type, int32_t adapter_max_rank = 0) {
  engine::LoadOptions options;
  if (activations) {
    options.make_device = [activations] {
      return kernels::CreateCudaDevice(
          {.activations = *activations, .workspace_bytes = int64_t{4} << 20});
    };
  } else {
    options.reference_ops = true;
  }
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = 64;
  options.capacity.adapter_max_rank = adapter_max_rank;
  options.kv_type = kv_type;
  auto model = engine::LoadLocalModel(path, options);
  INFO(path.string() << ": " << model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model).value();
}

TEST_CASE("Greedy ids of a trained model are the expected ones with F32 activations", "[cuda]") {
  const auto dir = test::SharedDataOrSkip("stories260K");
  const json expected = ReadJson(dir / "expected.json")[0];
  const auto prompt = expected["prompt_ids"].get<std::vector<TokenId>>();
  auto greedy = expected["greedy_ids"].get<std::vector<TokenId>>();
  greedy.resize(std::min<size_t>(greedy.size(), 12));
  auto model = Load(dir, DType::kF32, "f32");
  CHECK(model.device == "cuda:0 (emulated, sm_90, 6 multiprocessors, 8.0 GiB, f32)");
  const auto run =
      test::RunGreedy(*model.executor, prompt, {.max_tokens = static_cast<int32_t>(greedy.size())});
  CHECK(run.ids == greedy);
  for (const json& top : expected["first_step_top10"]) {
    CHECK(std::abs(run.first_logits[top["id"].get<size_t>()] - top["logit"].get<float>()) < 1e-3f);
  }
}

// Root of the mean square.
double Rms(const std::vector<float>& values) {
  double squares = 0;
  for (float x : values) squares += double{x} * x;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

TEST_CASE("A prompt multiplied as FP8 codes gives nearly the logits of activations in BF16",
          "[cuda]") {
  const auto dir = test::SharedDataOrSkip("stories260K");
  const json expected = ReadJson(dir / "expected.json")[0];
  auto prompt = expected["prompt_ids"].get<std::vector<TokenId>>();
  for (TokenId id : expected["greedy_ids"].get<std::vector<TokenId>>()) prompt.push_back(id);
  REQUIRE(prompt.size() >= 48);
  prompt.resize(48);
  engine::LoadOptions options;
  options.make_device = [] {
    kernels::cuda::emulate::SetMachine({.has_library = true});
    auto device = kernels::CreateCudaDevice({.workspace_bytes = int64_t{4} << 20});
    kernels::cuda::emulate::SetMachine({});
    return device;
  };
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = 64;
  options.weights = "fp8";
  auto model = engine::LoadLocalModel(dir, options);
  REQUIRE(model.ok());
  CHECK(model->device.find("emulated library with FP8") != std::string::npos);
  // Chunks of 24 rows go another way than one of 48.
  std::vector<float> few = test::AllLogits(*model->executor, prompt, 24);
  const std::vector<float> many = test::AllLogits(*model->executor, prompt, 48);
  const double spread = Rms(few);
  for (size_t i = 0; i < few.size(); ++i) few[i] -= many[i];
  CHECK(Rms(few) > 0.001 * spread);
  // 7 products a layer, 5 layers; half a step of E4M3 at the bottom of an octave for each.
  CHECK(Rms(few) < 0.0361 * std::sqrt(7.0 * 5) * spread);
}

TEST_CASE("Memory is planned for weights as the CUDA device packs them", "[cuda]") {
  engine::LoadOptions options;
  options.make_device = [] {
    return kernels::CreateCudaDevice({.workspace_bytes = int64_t{4} << 20});
  };
  options.kv_type = "int3";
  CHECK(engine::LoadRandomModel("tinyllama-1.1b", DType::kQ4_0, options).status().message() ==
        "kv-type is \"int3\"; valid are auto, f32, f16, bf16, fp8 and int8");
  const auto spec = *engine::KnownShape("tinyllama-1.1b");
  const auto device = *kernels::CreateCudaDevice({.workspace_bytes = int64_t{4} << 20});
  const int64_t params = engine::WeightBytes(spec, DType::kBF16) / 2;
  // 5 bits of codes, scales and offsets, and 32 bits for each row of 2048 columns or more.
  const double bits = 8.0 *
                      static_cast<double>(engine::WeightBytes(spec, DType::kQ4_K, device.get())) /
                      static_cast<double>(params);
  CHECK(bits > 5.0);
  CHECK(bits < 5.02);
  CHECK(engine::WeightBytes(spec, DType::kF32, device.get()) == 2 * params);
}

// A layer of a small model of BF16 weights.
engine::ModelSpec SmallSpec() {
  engine::ModelSpec spec = *engine::KnownShape("qwen2.5-0.5b");
  spec.layers.resize(1);
  spec.vocab = 512;
  return spec;
}

TEST_CASE("Steps and the cache are as the device prefers them, where nobody says", "[cuda]") {
  const auto limits_on = [](int64_t gib, int32_t tokens, int32_t seqs) {
    kernels::cuda::emulate::SetMachine({.total_bytes = gib << 30});
    engine::LoadOptions options;
    options.make_device = [] {
      return kernels::CreateCudaDevice({.workspace_bytes = int64_t{4} << 20});
    };
    options.capacity.kv_bytes = 16 << 20;
    options.capacity.max_batch_tokens = tokens;
    options.capacity.max_batch_seqs = seqs;
    const auto model = engine::LoadRandomModel(SmallSpec(), DType::kBF16, options);
    REQUIRE(model.ok());
    CHECK(model->kv_dtype == DType::kBF16);
    const engine::ExecutorLimits& limits = model->executor->limits();
    kernels::cuda::emulate::SetMachine({});
    return std::pair(limits.max_batch_tokens, limits.max_batch_seqs);
  };
  CHECK(limits_on(141, 0, 0) == std::pair(4096, 1024));
  CHECK(limits_on(24, 0, 0) == std::pair(2048, 512));
  CHECK(limits_on(8, 0, 0) == std::pair(512, 256));
  CHECK(limits_on(141, 64, 0) == std::pair(64, 64));
  CHECK(limits_on(8, 0, 600) == std::pair(600, 600));
}

TEST_CASE("Dimensions beyond the kernels' are refused when a model is loaded", "[cuda]") {
  engine::LoadOptions options;
  options.make_device = [] {
    return kernels::CreateCudaDevice({.workspace_bytes = int64_t{4} << 20});
  };
  const auto refusal = [&](const std::function<void(engine::LayerSpec&)>& change) {
    engine::ModelSpec spec = SmallSpec();
    change(spec.layers[0]);
    const absl::Status status = engine::LoadRandomModel(spec, DType::kBF16, options).status();
    CHECK(absl::IsUnimplemented(status));
    return std::string(status.message());
  };
  CHECK_THAT(refusal([](auto& layer) { layer.attention.head_dim = 640; }),
             Catch::Contains("640 dimensions of a head") && Catch::Contains("up to 576"));
  CHECK_THAT(refusal([](auto& layer) {
               layer.attention.head_dim = layer.attention.rope.rotary_dim = 520;
             }),
             Catch::Contains("520 rotated dimensions") && Catch::Contains("up to 512"));
  CHECK_THAT(refusal([](auto& layer) { layer.moe.n_experts = 2000; }),
             Catch::Contains("2000 experts") && Catch::Contains("up to 1024"));
  CHECK_THAT(refusal([](auto& layer) { layer.moe.rule.n_groups = 65; }),
             Catch::Contains("65 groups of experts") && Catch::Contains("up to 64"));
  const auto of_recurrence = [&](kernels::RecurrenceRule rule, int32_t key_dim) {
    return refusal(
        [&](auto& layer) { layer.attention.recurrence.shape = {rule, 2, 1, key_dim, 8, 4}; });
  };
  CHECK_THAT(of_recurrence(kernels::RecurrenceRule::kSelective, 65),
             Catch::Contains("65 states of a channel") && Catch::Contains("up to 64"));
  for (const auto rule : {kernels::RecurrenceRule::kMamba2, kernels::RecurrenceRule::kGatedDelta}) {
    CHECK_THAT(of_recurrence(rule, 257), Catch::Contains("257 elements of a recurrence's key") &&
                                             Catch::Contains("up to 256"));
  }
  CHECK_THAT(refusal([](auto& layer) { layer.attention.wkv = {.n_heads = 1, .head_dim = 65}; }),
             Catch::Contains("65 elements of a time mix's head") && Catch::Contains("up to 64"));
}

TEST_CASE("Adapters in the pool's pages give the reference's logits", "[cuda]") {
  const test::Golden golden = test::LoadGolden("llama");
  test::TempDir dir;
  const std::filesystem::path path = test::WriteSyntheticModel(golden, dir.path());
  auto reference = Load(path, std::nullopt, "f32", 8);
  auto model = Load(path, DType::kF32, "f32", 8);
  const engine::ExecutorLimits& limits = model.executor->limits();
  REQUIRE(limits.page_bytes == reference.executor->limits().page_bytes);
  const engine::ModelSpec& spec = model.executor->spec();
  std::vector<test::PlainFactors> factors;
  for (int32_t layer = 0; layer < spec.n_layers(); ++layer) {
    for (int32_t part = 0; part < 3; ++part) {
      factors.push_back({.layer = layer, .site = engine::AdapterSite::kQkv, .part = part});
    }
    factors.push_back({.layer = layer, .site = engine::AdapterSite::kDown});
    for (size_t i = factors.size() - 4; i < factors.size(); ++i) {
      test::PlainFactors& own = factors[i];
      own.rank = 1 + static_cast<int32_t>(i) % 8;
      const engine::SiteShape shape = engine::ShapeOf(spec, layer, own.site);
      const int64_t rows = shape.parts[static_cast<size_t>(own.part)];
      const int64_t cols = shape.inputs;
      for (int64_t j = 0; j < own.rank * cols; ++j) {
        own.a.push_back(0.2f * std::sin(static_cast<float>(j + 3 * own.part)));
      }
      for (int64_t j = 0; j < own.rank * rows; ++j) {
        own.b.push_back(0.2f * std::cos(static_cast<float>(2 * j)));
      }
    }
  }
  const auto image =
      test::MakeAdapterImage(factors, limits.adapter_dtype, limits.page_bytes, 2, /*seed=*/1);
  image->id = engine::AdapterId{1};
  const test::RunAdapter adapter{image, 0.5f};
  const auto expected = test::AllLogits(*reference.executor, golden.prompt, 7, adapter);
  const auto found = test::AllLogits(*model.executor, golden.prompt, 7, adapter);
  const auto base = test::AllLogits(*reference.executor, golden.prompt, 7);
  double error = 0, effect = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    error = std::max(error, std::fabs(static_cast<double>(found[i]) - expected[i]));
    effect = std::max(effect, std::fabs(static_cast<double>(base[i]) - expected[i]));
  }
  CHECK(effect > 0.05);
  CHECK(error < 1e-3);
}

TEST_CASE("A model runs with 8-bit keys and values", "[cuda]") {
  const auto dir = test::SharedDataOrSkip("stories260K");
  const json expected = ReadJson(dir / "expected.json")[0];
  const auto prompt = expected["prompt_ids"].get<std::vector<TokenId>>();
  auto greedy = expected["greedy_ids"].get<std::vector<TokenId>>();
  greedy.resize(std::min<size_t>(greedy.size(), 8));
  for (const std::string kv : {"int8", "fp8"}) {
    auto reference = Load(dir, std::nullopt, kv);
    auto model = Load(dir, DType::kF32, kv);
    const test::GreedyOptions options{.max_tokens = static_cast<int32_t>(greedy.size())};
    CHECK(test::RunGreedy(*model.executor, prompt, options).ids ==
          test::RunGreedy(*reference.executor, prompt, options).ids);
  }
}

// A bias at the output head, the activation xIELU, and queries that grow with the position.
TEST_CASE("Families with parts that few have are those of the reference", "[cuda]") {
  for (const std::string name : {"phi", "apertus", "ministral3_long", "granite_swa"}) {
    INFO(name);
    const test::Golden golden = test::LoadGolden(name);
    test::TempDir dir;
    const auto path = test::WriteSyntheticModel(golden, dir.path());
    const auto reference =
        test::AllLogits(*Load(path, std::nullopt, "f32").executor, golden.prompt, 64);
    for (const int32_t chunk : {9, 64}) {
      const auto found =
          test::AllLogits(*Load(path, DType::kF32, "f32").executor, golden.prompt, chunk);
      REQUIRE(found.size() == reference.size());
      float worst = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        worst = std::max(worst, std::abs(found[i] - reference[i]));
      }
      CHECK(worst < 1e-3f);
    }
  }
}

TEST_CASE("Layers in groups of their own windows read their own pages", "[cuda]") {
  test::Golden golden = test::LoadGolden("gemma3");
  json config = *golden.config;
  config["max_position_embeddings"] = 4096;  // windows of 8 pay
  golden.config = std::make_shared<const json>(std::move(config));
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(golden, dir.path());
  auto model = Load(path, DType::kF32, "f32");
  REQUIRE(model.executor->limits().windows.size() > 1);
  const auto reference =
      test::AllLogits(*Load(path, std::nullopt, "f32").executor, golden.prompt, 64);
  const auto found = test::AllLogits(*model.executor, golden.prompt, 9);
  REQUIRE(found.size() == reference.size());
  float worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    worst = std::max(worst, std::abs(found[i] - reference[i]));
  }
  CHECK(worst < 1e-3f);
}

// Every layer rounds some dozen intermediate results to BF16, each with a relative error of up to
// 2^-8, uniform: 2^-8 / sqrt(3) of standard deviation at most. Independent, they add up to the root
// of their number; logits are within 6 standard deviations.
double Bf16Bound(const std::vector<float>& logits, int32_t n_layers) {
  double sum = 0, squares = 0;
  for (float logit : logits) {
    sum += logit;
    squares += double{logit} * logit;
  }
  const auto n = static_cast<double>(logits.size());
  const double spread = std::sqrt(squares / n - sum / n * (sum / n));
  return 6 * 0x1p-8 / std::sqrt(3.0) * std::sqrt(12.0 * n_layers) * spread;
}

TEST_CASE("BF16 activations stay near the reference in every weight format", "[cuda]") {
  const auto dir = test::SharedDataOrSkip("stories260K");
  const json expected = ReadJson(dir / "expected.json")[0];
  auto tokens = expected["prompt_ids"].get<std::vector<TokenId>>();
  const auto greedy = expected["greedy_ids"].get<std::vector<TokenId>>();
  tokens.insert(tokens.end(), greedy.begin(), greedy.begin() + 30);
  for (const std::string name :
       {"", "stories260K-BF16.gguf", "stories260K-Q8_0.gguf", "stories260K-Q4_0.gguf"}) {
    const auto path = name.empty() ? dir : dir / name;
    auto reference = Load(path, std::nullopt, "f32");
    const int32_t vocab = reference.executor->limits().vocab;
    const auto wanted = test::AllLogits(*reference.executor, tokens, 64);
    const double bound = Bf16Bound(wanted, reference.model.spec.n_layers());
    auto model = Load(path, DType::kBF16, "f16");
    for (int32_t chunk : {64, 40, 3}) {  // tiles and flash; both kinds; fragments and splits
      if (chunk != 64 && name != "stories260K-Q4_0.gguf") continue;
      const auto found = test::AllLogits(*model.executor, tokens, chunk);
      REQUIRE(found.size() == wanted.size());
      double worst = 0;
      for (size_t i = 0; i < wanted.size(); ++i) {
        worst = std::max<double>(worst, std::abs(found[i] - wanted[i]));
      }
      INFO(name << " in chunks of " << chunk << ", vocabulary " << vocab);
      CHECK(worst < bound);
    }
  }
}

}  // namespace
}  // namespace heddle
