// Families whose attention few others have, on the emulated CUDA device: norms behind the rotation,
// chunks, positions that indexers choose. Logits are those of transformers, and answers are the
// same alone and under load.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/model/speculated_load.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/long_runs.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using kernels::DType;
using scheduler::GenerationRequest;

std::unique_ptr<engine::LocalExecutor> Load(const test::Golden& golden, DType activations,
                                            const std::string& kv_type = "f32") {
  test::TempDir dir;
  engine::LoadOptions options;
  options.make_device = [activations] {
    return kernels::CreateCudaDevice(
        {.activations = activations, .workspace_bytes = int64_t{4} << 20});
  };
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.host_kv_bytes = 1 << 20;
  options.capacity.page_tokens = 8;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = kv_type;
  auto model = engine::LoadLocalModel(test::WriteSyntheticModel(golden, dir.path()), options);
  INFO(golden.name << ": " << model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

// The largest error of the logits that the golden has.
double WorstOf(const test::Golden& golden, const std::vector<float>& logits) {
  const size_t vocab = logits.size() / golden.prompt.size();
  double worst = 0;
  const auto meet = [&](size_t row, size_t token, double wanted) {
    const double error = std::fabs(logits[row * vocab + token] - wanted);
    worst = std::max(worst, std::isnan(error) ? 1e9 : error);
  };
  for (size_t t = 0; t < golden.prompt.size(); ++t) {
    for (const auto& [token, logit] : golden.top[t]) meet(t, static_cast<size_t>(token), logit);
  }
  for (size_t i = 0; i < golden.last.size(); ++i) {
    const size_t row = golden.prompt.size() - golden.last.size() + i;
    for (size_t v = 0; v < vocab; ++v) meet(row, v, golden.last[i][v]);
  }
  return worst;
}

TEST_CASE("Families with attention of their own have transformers' logits", "[cuda]") {
  for (const char* name : test::Some<const char*>(
           4, {"hunyuan", "llama4", "deepseek_v32", "glm_moe_dsa_shared", "hunyuan_moe",
               "llama4_plain", "glm_moe_dsa", "hunyuan_moe_stacked"})) {
    INFO(name);
    const test::Golden golden = test::LoadGolden(name);
    const auto executor = Load(golden, DType::kF32);
    CHECK(WorstOf(golden, test::AllLogits(*executor, golden.prompt, 17)) < 1e-3);
  }
}

// With BF16 and its kernels: every layer rounds some dozen results, so that logits err by some
// 2^-8 of their spread for each; other positions are chosen where scores are close.
TEST_CASE("Families with attention of their own stay near in BF16", "[cuda]") {
  for (const auto& [name, most] :
       {std::pair{"hunyuan", 0.1}, {"llama4", 0.1}, {"deepseek_v32", 0.3}}) {
    INFO(name);
    const test::Golden golden = test::LoadGolden(name);
    const auto logits = test::AllLogits(*Load(golden, DType::kBF16, "bf16"), golden.prompt, 64);
    const size_t vocab = logits.size() / golden.prompt.size();
    double sum = 0, squares = 0;
    for (size_t v = 0; v < vocab; ++v) {
      const double wanted = golden.last[1][v];
      sum += std::pow(logits[(golden.prompt.size() - 1) * vocab + v] - wanted, 2);
      squares += wanted * wanted;
    }
    CHECK(std::sqrt(sum / squares) < most);
  }
}

// Half of them share a prefix; one has branches.
std::vector<GenerationRequest> Requests(int32_t vocab) {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 1; i <= 4; ++i) {
    GenerationRequest request;
    request.id = scheduler::RequestId{static_cast<uint64_t>(i)};
    for (int32_t t = 0; t < (i % 2 == 0 ? 35 : 9 + i); ++t) {
      const int32_t salt = i % 2 == 0 && t < 33 ? 0 : 7 * i;
      request.prompt.push_back(3 + (t * 37 + salt) % (vocab - 3));
    }
    request.max_tokens = i % 2 == 0 ? 6 : 8;
    request.num_branches = i == 4 ? 2 : 1;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    request.sampling.num_logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_CASE("Answers are the same in chunks of seven or by lists, alone, under load and with drafts",
          "[cuda]") {
  for (const char* name : test::Some<const char*>(1, {"deepseek_v32", "llama4", "hunyuan_moe"})) {
    INFO(name);
    const auto executor = Load(test::LoadGolden(name), DType::kF32);
    const scheduler::SchedulerOptions roomy = test::PlainOptions(executor->limits());
    const std::vector<GenerationRequest> requests = Requests(executor->limits().vocab);
    test::Outcomes alone;
    for (const GenerationRequest& request : requests) {
      test::SpeculatedLoad load(executor.get(), roomy, nullptr, 1);
      load.Run({request}, 0, 0);
      alone.insert(load.outcomes().begin(), load.outcomes().end());
    }
    scheduler::SchedulerOptions tight = roomy;
    tight.num_pages =
        static_cast<int32_t>(tight.page_rule().MostPages(48, executor->limits().windows) + 3);
    tight.num_host_pages = std::min(40, executor->limits().num_host_pages);
    tight.max_step_tokens = 30;
    tight.prefix_cache = true;
    test::SpeculatedLoad load(executor.get(), tight, &alone, 5);
    load.Run(requests, 1, 0);
    test::CheckSame(requests, alone, load.outcomes());
    const scheduler::SchedulerStats stats = load.stats();
    INFO("cached " << stats.cached_tokens << ", accepted " << stats.accepted_tokens << " of "
                   << stats.drafted_tokens);
    CHECK(stats.cached_tokens > 0);
    CHECK(stats.accepted_tokens > 5);
    CHECK(stats.drafted_tokens > stats.accepted_tokens);
  }
}

}  // namespace
}  // namespace heddle
