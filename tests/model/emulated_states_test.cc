// Models with state in place of keys and values, or with layers that read the keys, inputs and
// memories of others, on the emulated CUDA device: the reference's logits, and tokens that depend
// neither on chunks, prefix hits, preemption, swaps and branches nor on drafts that are partly
// taken back.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/nano_batch.h"
#include "tests/model/speculated_load.h"
#include "tests/support/gguf_model.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/long_runs.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using engine::TokenId;
using kernels::DType;
using scheduler::GenerationRequest;

engine::LoadOptions OptionsOn(DType activations) {
  engine::LoadOptions options;
  options.make_device = [activations] {
    return kernels::CreateCudaDevice(
        {.activations = activations, .workspace_bytes = int64_t{4} << 20});
  };
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.host_kv_bytes = 1 << 20;
  options.capacity.page_tokens = 16;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  return options;
}

std::unique_ptr<engine::LocalExecutor> Load(const std::filesystem::path& path,
                                            const engine::LoadOptions& options) {
  auto model = engine::LoadLocalModel(path, options);
  INFO(path.string() << ": " << model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

double WorstOf(const std::vector<float>& found, const std::vector<float>& wanted) {
  REQUIRE(found.size() == wanted.size());
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::abs(double{found[i]} - wanted[i]);
    worst = std::max(worst, std::isnan(error) ? 1e9 : error);
  }
  return worst;
}

void CheckLogits(const char* name) {
  INFO(name);
  const test::Golden golden = test::LoadGolden(name);
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(golden, dir.path());
  engine::LoadOptions plain = OptionsOn(DType::kF32);
  plain.make_device = nullptr;
  plain.reference_ops = true;
  const std::vector<float> wanted = test::AllLogits(*Load(path, plain), golden.prompt, 64);
  const auto executor = Load(path, OptionsOn(DType::kF32));
  for (const int32_t chunk : {5, 64}) {
    CHECK(WorstOf(test::AllLogits(*executor, golden.prompt, chunk), wanted) < 1e-3);
  }
}

TEST_CASE("Families with state have the reference's logits", "[cuda]") {
  for (const char* name : test::Some<const char*>(6, {"lfm2",
                                                      "granitemoehybrid_groups",
                                                      "qwen3_next",
                                                      "jamba",
                                                      "rwkv7",
                                                      "falcon_h1_norm",
                                                      "mamba2_biases",
                                                      "qwen3_5",
                                                      "nemotron_h",
                                                      "nemotron_h_moe",
                                                      "bamba",
                                                      "lfm2_moe",
                                                      "granitemoehybrid",
                                                      "granitemoehybrid_state",
                                                      "granitemoehybrid_experts",
                                                      "mamba2",
                                                      "mamba_biases",
                                                      "falcon_mamba",
                                                      "falcon_h1",
                                                      "qwen3_5_moe",
                                                      "lfm2_first"})) {
    CheckLogits(name);
  }
}

// Keys of other layers, inputs of single layers, factors of the stream and of experts; pairs of
// heads and memory units; several streams and sparse gates.
TEST_CASE("Families whose layers read what others have made have the reference's logits",
          "[cuda]") {
  for (const char* name : test::Some<const char*>(
           3,
           {"gemma4_moe", "phi4flash", "gemma3n", "gemma4", "gemma4_dense", "phi4flash_biases"})) {
    CheckLogits(name);
  }
}

TEST_CASE("Time mixes with and without gates and norms have the reference's logits", "[cuda]") {
  const std::string name = GENERATE("arwkv7", "arwkv7_plain");
  INFO(name);
  const test::GgufModel golden = test::LoadGgufGolden(name);
  test::TempDir dir;
  const auto path = test::WriteGguf(golden, dir.path() / "model.gguf");
  engine::LoadOptions plain = OptionsOn(DType::kF32);
  plain.make_device = nullptr;
  plain.reference_ops = true;
  const std::vector<TokenId>& prompt = golden.folder.prompt;
  const std::vector<float> wanted = test::AllLogits(*Load(path, plain), prompt, 64);
  const auto executor = Load(path, OptionsOn(DType::kF32));
  CHECK(WorstOf(test::AllLogits(*executor, prompt, 7), wanted) < 1e-3);
}

// Some sixteen roundings to BF16 in every layer, of up to 2^-8 each, uniform; norms of small
// outputs and decays make more of some: up to three times the mean.
void CheckRounded(const char* name) {
  INFO(name);
  const test::Golden golden = test::LoadGolden(name);
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(golden, dir.path());
  engine::LoadOptions plain = OptionsOn(DType::kF32);
  plain.make_device = nullptr;
  plain.reference_ops = true;
  const auto reference = Load(path, plain);
  const std::vector<float> wanted = test::AllLogits(*reference, golden.prompt, 64);
  double sum = 0, squares = 0;
  for (const float logit : wanted) sum += logit, squares += double{logit} * logit;
  const auto n = static_cast<double>(wanted.size());
  const double spread = std::sqrt(squares / n - sum / n * (sum / n));
  const double expected =
      0x1p-8 / std::sqrt(3.0) * std::sqrt(16.0 * reference->spec().n_layers()) * spread;
  const auto found = test::AllLogits(*Load(path, OptionsOn(DType::kBF16)), golden.prompt, 9);
  double errors = 0;
  for (size_t i = 0; i < found.size(); ++i) errors += std::pow(double{found[i]} - wanted[i], 2);
  CHECK(std::sqrt(errors / n) < 3 * expected);
}

TEST_CASE("Families with state stay near the reference with BF16 activations", "[cuda]") {
  for (const char* name : test::Some<const char*>(
           2, {"granitemoehybrid_groups", "qwen3_5", "lfm2", "jamba", "rwkv7"})) {
    CheckRounded(name);
  }
}

TEST_CASE("Families with inputs of layers stay near the reference with BF16 activations",
          "[cuda]") {
  for (const char* name :
       test::Some<const char*>(2, {"phi4flash", "gemma3n", "gemma4", "gemma4_moe"})) {
    CheckRounded(name);
  }
}

// Half of them share a prefix; one has branches.
std::vector<GenerationRequest> Requests(int32_t vocab) {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 1; i <= 5; ++i) {
    GenerationRequest request;
    request.id = scheduler::RequestId{static_cast<uint64_t>(i)};
    for (int32_t t = 0; t < (i % 2 == 0 ? 35 : 9 + i); ++t) {
      const int32_t salt = i % 2 == 0 && t < 33 ? 0 : 7 * i;
      request.prompt.push_back(3 + (t * 37 + salt) % (vocab - 3));
    }
    request.max_tokens = i % 2 == 0 ? 8 : 16 + i;
    request.num_branches = i == 4 ? 2 : 1;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    request.sampling.num_logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

// With room for `spare` pages, and three more for drafts, beside those of one text; answers end
// after `most_tokens`.
void CheckUnderLoad(const char* name, int32_t spare, int32_t most_tokens = 1000) {
  INFO(name);
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden(name), dir.path());
  const auto executor = Load(path, OptionsOn(DType::kF32));
  const scheduler::SchedulerOptions roomy = test::PlainOptions(executor->limits());
  std::vector<GenerationRequest> requests = Requests(executor->limits().vocab);
  for (GenerationRequest& request : requests) {
    request.max_tokens = std::min(request.max_tokens, most_tokens);
  }
  test::Outcomes alone;
  for (const GenerationRequest& request : requests) {
    test::SpeculatedLoad load(executor.get(), roomy, nullptr, 1);
    load.Run({request}, 0, 0);
    alone.insert(load.outcomes().begin(), load.outcomes().end());
  }
  scheduler::SchedulerStats sum;
  for (const bool drafts : {false, true}) {
    scheduler::SchedulerOptions tight = roomy;
    tight.num_pages = static_cast<int32_t>(
        tight.page_rule().MostPages(48, executor->limits().windows) + (drafts ? spare + 3 : spare));
    tight.num_host_pages = std::min(40, executor->limits().num_host_pages);
    tight.max_step_tokens = drafts ? 40 : 23;
    tight.prefix_cache = true;
    test::SpeculatedLoad load(executor.get(), tight, drafts ? &alone : nullptr, 5);
    load.Run(requests, 2, 0);
    INFO("drafts " << drafts);
    test::CheckSame(requests, alone, load.outcomes());
    const scheduler::SchedulerStats stats = load.stats();
    sum.preemptions += stats.preemptions;
    sum.cached_tokens += stats.cached_tokens;
    sum.accepted_tokens += stats.accepted_tokens;
    sum.drafted_tokens += stats.drafted_tokens;
  }
  INFO("preempted " << sum.preemptions << ", cached " << sum.cached_tokens << ", accepted "
                    << sum.accepted_tokens << " of " << sum.drafted_tokens);
  CHECK(sum.cached_tokens > 0);
  CHECK(sum.accepted_tokens > 10);
  CHECK(sum.drafted_tokens - sum.accepted_tokens > 10);
  // Without keys a text holds two pages in each group, however long it is: none is preempted.
  const engine::ExecutorLimits& limits = executor->limits();
  const bool has_keys = limits.state_groups < static_cast<int32_t>(limits.windows.size());
  CHECK((sum.preemptions > 0) == has_keys);
}

TEST_CASE("Answers of models with state are the same under load, with drafts, and alone",
          "[cuda]") {
  for (const char* name :
       test::Some<const char*>(1, {"qwen3_next", "jamba", "rwkv7", "lfm2", "mamba2"})) {
    CheckUnderLoad(name, 5);
  }
}

// Ten seconds each: prompts take most of them, and a prefix that texts share has two pages.
TEST_CASE("Answers of models with shared keys and inputs of layers are the same under load",
          "[cuda]") {
  for (const auto& [name, spare] : test::Some<std::pair<const char*, int32_t>>(
           1, {{"phi4flash", 8}, {"gemma3n", 2}, {"gemma4", 2}, {"gemma4_moe", 2}})) {
    CheckUnderLoad(name, spare, /*most_tokens=*/8);
  }
}

// Pages of several parts, as serving has them: states go on in the middle of pages.
TEST_CASE("Answers of models with state are the same in chunks and with drafts in long pages",
          "[cuda]") {
  for (const char* name :
       test::Some<const char*>(1, {"qwen3_next", "mamba2", "rwkv7", "jamba", "lfm2"})) {
    INFO(name);
    test::TempDir dir;
    const auto path = test::WriteSyntheticModel(test::LoadGolden(name), dir.path());
    engine::LoadOptions options = OptionsOn(DType::kF32);
    options.capacity.page_tokens = 64;
    const auto executor = Load(path, options);
    std::vector<GenerationRequest> requests = Requests(executor->limits().vocab);
    requests.resize(2);
    for (GenerationRequest& request : requests) {
      const std::vector<TokenId> prompt = request.prompt;
      while (request.prompt.size() < 40) {
        request.prompt.insert(request.prompt.end(), prompt.begin(), prompt.end());
      }
    }
    scheduler::SchedulerOptions options_of_load = test::PlainOptions(executor->limits());
    test::SpeculatedLoad whole(executor.get(), options_of_load, nullptr, 1);
    whole.Run(requests, 0, 0);
    options_of_load.max_step_tokens = 41;
    test::SpeculatedLoad drafted(executor.get(), options_of_load, &whole.outcomes(), 5);
    drafted.Run(requests, 2, 0);
    test::CheckSame(requests, whole.outcomes(), drafted.outcomes());
    CHECK(drafted.stats().accepted_tokens > 10);
  }
}

void CheckHalves(const char* name) {
  INFO(name);
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden(name), dir.path());
  std::vector<test::Outcomes> both;
  for (const bool split : {false, true}) {
    const auto executor = Load(path, OptionsOn(DType::kF32));
    if (split) {
      const auto device = executor->device().nano_batch_device();
      REQUIRE(device.ok());
      REQUIRE(executor->device()
                  .SetNanoBatches(kernels::NanoBatchProfile{
                      .device_name = device->name, .rules = {{.attention_multiprocessors = 2}}})
                  .ok());
    }
    test::SpeculatedLoad load(executor.get(), test::PlainOptions(executor->limits()), nullptr, 1);
    load.Run(Requests(executor->limits().vocab), 1, 0);
    both.push_back(load.outcomes());
  }
  for (const auto& [id, outcome] : both[0]) CHECK(both[1].at(id).tokens == outcome.tokens);
}

// Those with attention, too, run whole whatever a profile says: their layers' rows have several
// widths.
TEST_CASE("Models with state bring the same tokens with a profile for halves of steps", "[cuda]") {
  for (const char* name : test::Some<const char*>(1, {"qwen3_5", "mamba2", "lfm2", "rwkv7"})) {
    CheckHalves(name);
  }
}

}  // namespace
}  // namespace heddle
