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
#include "nlohmann/json.hpp"
#include "tests/model/emulated_model.h"
#include "tests/model/speculated_load.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/long_runs.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using scheduler::GenerationRequest;

std::unique_ptr<engine::LocalExecutor> Load(const test::Golden& golden) {
  test::TempDir dir;
  return test::LoadOn(test::WriteSyntheticModel(golden, dir.path()),
                      test::EmulatedOptions(kernels::DType::kF32, 8));
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
    const auto executor = Load(golden);
    CHECK(WorstOf(golden, test::AllLogits(*executor, golden.prompt, 17)) < 1e-3);
  }
}

TEST_CASE("Families with attention of their own stay near in BF16", "[cuda]") {
  for (const char* name : {"hunyuan", "llama4"}) test::CheckRounded(name, "bf16");
}

// Where scores are close, roundings choose other positions. They are most of the right ones: logits
// differ by less than half of what attending to all positions changes.
TEST_CASE("Positions that indexers choose in BF16 are mostly those of the reference", "[cuda]") {
  test::Golden golden = test::LoadGolden("deepseek_v32");
  test::TempDir dir;
  const auto wanted = test::AllLogits(
      *test::LoadReference(test::WriteSyntheticModel(golden, dir.path())), golden.prompt, 64);
  const std::vector<float> found = test::RoundedLogits(golden, "bf16");
  nlohmann::json config = *golden.config;
  config["index_topk"] = golden.prompt.size();
  golden.config = std::make_shared<const nlohmann::json>(std::move(config));
  const auto all =
      test::AllLogits(*test::LoadReference(test::WriteSyntheticModel(golden, dir.path() / "all")),
                      golden.prompt, 64);
  CHECK(test::Apart(found, wanted) < test::Apart(all, wanted) / 2);
}

TEST_CASE("Answers are the same in chunks of seven or by lists, alone, under load and with drafts",
          "[cuda]") {
  for (const char* name : test::Some<const char*>(1, {"deepseek_v32", "llama4", "hunyuan_moe"})) {
    INFO(name);
    const auto executor = Load(test::LoadGolden(name));
    const scheduler::SchedulerOptions roomy = test::PlainOptions(executor->limits());
    const std::vector<GenerationRequest> requests =
        test::SharingRequests(executor->limits().vocab, 4, 8);
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
