// Workers that see each other's tokens, on real forwards: their tokens and log-probabilities are
// those of a plain forward that rotates keys for each reader, and do not depend on what else runs,
// bit for bit.
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/nano_batch.h"
#include "nlohmann/json.hpp"
#include "scheduler/scheduler.h"
#include "server/loop/engine_loop_options.h"
#include "tests/emulate/machine.h"
#include "tests/support/goldens.h"
#include "tests/support/long_runs.h"
#include "tests/support/stepped_load.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using engine::TokenId;
using nlohmann::json;
using scheduler::GenerationRequest;
using scheduler::RequestId;
using scheduler::SchedulerOptions;
using test::SteppedLoad;

std::unique_ptr<engine::LocalExecutor> Load(const std::string& name,
                                            const std::filesystem::path& folder, int32_t tp = 1,
                                            const char* kv_type = "f32", bool reference_ops = false,
                                            int64_t cuda_workspace_bytes = 0) {
  engine::LoadOptions options;
  if (cuda_workspace_bytes > 0) {
    options.make_device = [cuda_workspace_bytes] {
      return kernels::CreateCudaDevice(
          {.activations = kernels::DType::kF32, .workspace_bytes = cuda_workspace_bytes});
    };
  }
  options.layout.tp = tp;
  options.reference_ops = reference_ops;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.page_tokens = 8;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = kv_type;
  auto model =
      engine::LoadLocalModel(test::WriteSyntheticModel(test::LoadGolden(name), folder), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

// The server's, on a plan at a time.
SchedulerOptions OptionsFor(const engine::ExecutorLimits& limits) {
  SchedulerOptions options = server::SchedulerOptionsFor(limits, {});
  options.max_step_seqs = 16;
  options.max_in_flight = 1;
  return options;
}

GenerationRequest Workers(const json& group) {
  GenerationRequest request;
  request.id = RequestId{1};
  request.prompt = group["prompt"].get<std::vector<TokenId>>();
  request.workers = group["given"].get<std::vector<std::vector<TokenId>>>();
  request.num_branches = static_cast<int32_t>(request.workers.size());
  request.max_tokens = static_cast<int32_t>(group["tokens"][0].size());
  request.sampling.temperature = 0;
  request.sampling.num_logprobs = 0;
  return request;
}

// The largest relative difference from the golden's log-probabilities; fails unless all tokens are
// the golden's.
double WorstOfWorkers(engine::LocalExecutor* executor, const std::string& name) {
  const json golden = test::LoadGoldenJson("workers.json");
  double worst = 0;
  for (const json& group : golden[name]) {
    const GenerationRequest request = Workers(group);
    SchedulerOptions options = OptionsFor(executor->limits());
    options.max_in_flight = executor->max_in_flight();
    const absl::Status valid = scheduler::Scheduler::Validate(request, options);
    INFO(valid.ToString());
    REQUIRE(valid.ok());
    SteppedLoad load(executor, options);
    load.Run({request}, 0);
    if (options.max_in_flight > 1) CHECK(load.num_ahead() >= request.max_tokens - 1);
    for (int32_t w = 0; w < request.num_branches; ++w) {
      const auto& answer = load.answers().at({request.id, w});
      REQUIRE(answer.size() == group["tokens"][w].size());
      for (size_t i = 0; i < answer.size(); ++i) {
        REQUIRE(answer[i].first == group["tokens"][w][i].get<TokenId>());
        const double want = group["logprobs"][w][i];
        worst = std::max(worst, std::abs(answer[i].second - want) / (1 + std::abs(want)));
      }
    }
  }
  return worst;
}

TEST_CASE("Workers have the tokens of a forward that rotates keys for each reader",
          "[model][golden]") {
  const std::string name = GENERATE("llama", "qwen3", "mistral_window", "llama_yarn_rope");
  const bool reference_ops = GENERATE(false, true);
  const int32_t tp = GENERATE(1, 2);
  if (reference_ops && tp > 1) return;
  if (name == "mistral_window" && tp > 1) return;  // it has one head of keys
  INFO(name << (reference_ops ? ", reference" : "") << ", tp " << tp);
  const test::TempDir folder;
  const auto executor = Load(name, folder.path(), tp, "f32", reference_ops);
  CHECK(WorstOfWorkers(executor.get(), name) < 1e-5);
}

// From now on steps of several sequences run as halves, of which the second one is ahead.
void InHalves(engine::LocalExecutor* executor) {
  kernels::cuda::emulate::SetMachine({.first_lane = 1});
  const kernels::NanoBatchProfile always = {.device_name = {}, .rules = {{.cut_rows = 1}}};
  REQUIRE(executor->device().SetNanoBatches(always).ok());
}

TEST_CASE("Workers have the same tokens on CUDA", "[model][cuda]") {
  for (const char* name :
       test::Some<const char*>(1, {"mistral_window", "qwen3", "llama", "llama_yarn_rope"})) {
    INFO(name);
    const test::TempDir folder;
    const auto executor = Load(name, folder.path(), 1, "f32", false, int64_t{4} << 20);
    CHECK(WorstOfWorkers(executor.get(), name) < 1e-4);
    InHalves(executor.get());
    CHECK(WorstOfWorkers(executor.get(), name) < 1e-4);
    CHECK(kernels::cuda::emulate::SecondLaneLaunches() > 0);
  }
}

// 12 branches of a page each, of all of which the window leaves a part: 2 KiB hold some of these
// parts of a row.
TEST_CASE("A context of more pieces than the workspace holds at once is served on CUDA",
          "[model][cuda]") {
  constexpr int32_t kPrompt = 6, kBranches = 12;
  GenerationRequest request;
  request.id = RequestId{1};
  const scheduler::ContextParts apart = scheduler::PartsApart({}, kPrompt);
  std::vector<int32_t> lengths(kBranches, kPrompt + 8);
  lengths[3] = kPrompt + 5;
  request.parts = scheduler::JoinParts(
      std::vector<const scheduler::ContextParts*>(kBranches, &apart), lengths, kPrompt);
  const int32_t length = request.parts.back().begin + 5;
  for (int32_t i = 0; i < length; ++i) request.prompt.push_back(3 + 7 * i % 60);
  request.max_tokens = 6;
  request.sampling.temperature = 0;
  request.sampling.num_logprobs = 0;
  std::vector<std::vector<std::pair<TokenId, float>>> answers;
  for (const int64_t workspace_bytes : {0, 2 << 10}) {
    const test::TempDir folder;
    const auto executor = Load("mistral_window", folder.path(), 1, "f32", false, workspace_bytes);
    const SchedulerOptions options = OptionsFor(executor->limits());
    const absl::Status valid = scheduler::Scheduler::Validate(request, options);
    INFO(valid.ToString());
    REQUIRE(valid.ok());
    // Two of them are in halves of steps.
    for (const size_t count : {size_t{1}, size_t{2}}) {
      if (count > 1 && workspace_bytes > 0) InHalves(executor.get());
      std::vector<GenerationRequest> requests(count, request);
      requests.back().id = RequestId{count};
      SteppedLoad load(executor.get(), options);
      load.Run(requests, 0);
      for (const auto& [owner, answer] : load.answers()) answers.push_back(answer);
    }
  }
  REQUIRE(answers.size() == 6);
  CHECK(kernels::cuda::emulate::SecondLaneLaunches() > 0);
  for (const auto& answer : answers) {
    REQUIRE(answer.size() == answers[0].size());
    for (size_t i = 0; i < answer.size(); ++i) {
      CHECK(answer[i].first == answers[0][i].first);
      CHECK(answer[i].second == Approx(answers[0][i].second).margin(1e-4));
    }
  }
}

TEST_CASE("What workers draw does not depend on what else runs, bit for bit", "[model][golden]") {
  const std::string name = GENERATE("llama", "gemma3");
  const std::string kv_type = GENERATE("f16", "int8");
  const test::TempDir folder;
  const auto executor = Load(name, folder.path(), 1, kv_type.c_str());
  GenerationRequest request;
  request.id = RequestId{1};
  for (int32_t i = 0; i < 21; ++i) request.prompt.push_back(3 + 7 * i % 200);
  request.workers = {{5, 6, 7}, {8}, {9, 10}};
  request.num_branches = 3;
  request.max_tokens = 25;
  request.priority = 5;
  request.sampling.seed = 3;
  request.sampling.num_logprobs = 0;
  SchedulerOptions options = OptionsFor(executor->limits());
  SteppedLoad alone(executor.get(), options);
  alone.Run({request}, 0);
  const test::Answers expected = alone.answers();
  options.policy = scheduler::PolicyKind::kPriority;
  options.num_pages =
      24 * static_cast<int32_t>(options.windows.size());  // they take up to 16 of each group
  std::mt19937 random(4);
  std::vector<GenerationRequest> load = {request};
  for (uint64_t i = 2; i < 14; ++i) {
    GenerationRequest other;
    other.id = RequestId{i};
    for (size_t n = 1 + random() % 60; n > 0; --n) {
      other.prompt.push_back(3 + static_cast<TokenId>(random() % 200));
    }
    other.max_tokens = 1 + static_cast<int32_t>(random() % 20);
    load.push_back(other);
  }
  SteppedLoad crowded(executor.get(), options);
  crowded.Run(load, 5);
  CHECK(crowded.stats().preemptions > 0);
  for (int32_t w = 0; w < 3; ++w) {
    CHECK(crowded.answers().at({request.id, w}) == expected.at({request.id, w}));
  }
}

TEST_CASE("Models whose queries cannot be rotated further say so", "[model][golden]") {
  const std::string name = GENERATE("gpt2", "llama4", "lfm2", "hunyuan");
  INFO(name);
  const test::TempDir folder;
  CHECK_FALSE(Load(name, folder.path())->limits().turns_queries);
}

}  // namespace
}  // namespace heddle
