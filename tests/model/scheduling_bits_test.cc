// A request's answer does not depend on how it was scheduled: with random chunk sizes, batch mates,
// preemptions, prefix cache hits and pages swapped to the host's memory, the CPU backend gives the
// tokens and log-probabilities of the request alone, bit for bit.
#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/in_flight.h"
#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "scheduler/scheduler.h"
#include "tests/support/goldens.h"
#include "tests/support/stepped_load.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using engine::TokenId;
using scheduler::GenerationRequest;
using scheduler::RequestId;
using scheduler::SchedulerOptions;
using test::Answers;
using test::SteppedLoad;

constexpr int32_t kMaxStepTokens = 64;
// Keys of configurations with recurrent layers, whose pages have a state each.
constexpr const char* kStateKeys[] = {"linear_num_key_heads", "mamba_d_state", "ssm_state_size",
                                      "state_size", "decay_low_rank_dim"};

std::unique_ptr<engine::LocalExecutor> Load(const std::string& golden_name,
                                            const std::filesystem::path& folder,
                                            bool one_kv_group = false, int32_t tp = 1,
                                            int32_t pp = 1) {
  engine::LoadOptions options;
  options.layout.tp = tp;
  options.layout.pp = pp;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.host_kv_bytes = 1 << 20;
  options.capacity.page_tokens = 8;
  options.capacity.max_batch_tokens = kMaxStepTokens;
  options.capacity.one_kv_group = one_kv_group;
  test::Golden golden = test::LoadGolden(golden_name);
  const bool recurs = std::any_of(std::begin(kStateKeys), std::end(kStateKeys),
                                  [&](const char* key) { return golden.config->contains(key); });
  if (recurs) options.capacity.page_tokens = 16;
  // Room for contexts of which windows give a part back.
  if (golden.config->contains("sliding_window")) {
    nlohmann::json config = *golden.config;
    config["max_position_embeddings"] = 2048;
    golden.config = std::make_shared<const nlohmann::json>(std::move(config));
  }
  const std::filesystem::path path =
      golden.gguf ? test::WriteSyntheticGguf(golden, kernels::DType::kQ4_0, folder / "model.gguf")
                  : test::WriteSyntheticModel(golden, folder);
  auto model = engine::LoadLocalModel(path, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

SchedulerOptions OptionsFor(const engine::ExecutorLimits& limits) {
  return {.num_pages = limits.num_pages,
          .page_tokens = limits.page_tokens,
          .max_context = limits.max_context,
          .windows = limits.windows,
          .window_grain = limits.window_grain,
          .state_groups = limits.state_groups,
          .state_is_snapshot = limits.state_is_snapshot,
          .layers_have_windows = limits.layers_have_windows,
          .reads_pieces = limits.reads_pieces,
          .max_step_tokens = limits.max_batch_tokens,
          .max_step_seqs = 16,
          .pipeline_stages = limits.pipeline_stages,
          .max_in_flight = limits.pipeline_stages == 1 ? 1 : limits.pipeline_stages + 1,
          .prefix_cache = false};
}

// Half of them share a prefix; two turns of a conversation are among them.
std::vector<GenerationRequest> Requests(std::mt19937_64* random, int32_t vocab, int32_t scale) {
  auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(*random);
  };
  std::vector<TokenId> common;
  common.reserve(static_cast<size_t>(30 * scale));
  for (int i = 0; i < 30 * scale; ++i) common.push_back(between(3, vocab - 1));
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 1; i <= 10; ++i) {
    GenerationRequest request;
    request.id = RequestId{i};
    if (i % 2 == 0) request.prompt = common;
    for (int t = between(1, 30 * scale); t > 0; --t)
      request.prompt.push_back(between(3, vocab - 1));
    request.max_tokens = between(5, 30);
    request.num_branches = i % 3 == 0 ? 2 : 1;
    request.sampling.seed = 1000 * i;
    request.sampling.temperature = i % 5 == 0 ? 0.0f : 1.0f;
    request.sampling.num_logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_CASE("Output does not depend on scheduling, bit for bit", "[golden]") {
  using Case = std::tuple<std::string, int32_t, int32_t>;
  const auto [name, tp, pp] = GENERATE(values<Case>({{"llama", 1, 1},
                                                     {"mistral_window", 1, 1},
                                                     {"gemma2", 1, 1},
                                                     {"gemma3", 1, 1},
                                                     {"gemma3n", 1, 1},
                                                     {"gemma4", 1, 1},
                                                     {"gemma4_moe", 1, 1},
                                                     {"gemma4_dense", 2, 2},
                                                     {"gemma4_moe", 1, 2},
                                                     {"llama4", 1, 1},
                                                     {"llama4", 2, 2},
                                                     {"gpt_oss", 1, 1},
                                                     {"deepseek_v32", 1, 1},
                                                     {"glm_moe_dsa_shared", 2, 1},
                                                     {"lfm2", 1, 1},
                                                     {"lfm2", 2, 2},
                                                     {"qwen3_next", 1, 1},
                                                     {"qwen3_5", 2, 2},
                                                     {"granitemoehybrid_groups", 1, 1},
                                                     {"mamba2", 1, 1},
                                                     {"mamba2", 2, 2},
                                                     {"mamba_biases", 1, 1},
                                                     {"jamba", 1, 1},
                                                     {"jamba", 2, 2},
                                                     {"rwkv7", 1, 1},
                                                     {"phi4flash", 1, 1},
                                                     {"nemotron_h_moe", 1, 1},
                                                     {"falcon_h1", 1, 1},
                                                     {"falcon_h1_norm", 2, 2},
                                                     {"llama_q4_0", 1, 1},
                                                     {"llama_q4_0", 2, 1},
                                                     {"mistral_window", 3, 1},
                                                     {"llama_q4_0", 1, 2},
                                                     {"gemma3", 2, 2}}));
  INFO(name << ", " << tp << " ranks in each of " << pp << " stages");
  test::TempDir dir;
  auto executor = Load(name, dir.path(), /*one_kv_group=*/false, tp, pp);
  std::mt19937_64 random(7);
  const SchedulerOptions plain = OptionsFor(executor->limits());
  // Windows are cut at multiples of 512 positions, and hold as much more.
  const std::vector<int32_t>& windows = executor->limits().windows;
  const bool has_state = executor->limits().state_groups > 0;
  const bool has_windows = windows.back() > 0 && !has_state;
  const auto requests = Requests(&random, executor->limits().vocab, has_windows ? 30 : 1);
  Answers alone;
  for (const GenerationRequest& request : requests) {
    SteppedLoad load(executor.get(), plain);
    load.Run({request}, 0);
    alone.insert(load.answers().begin(), load.answers().end());
  }
  int64_t preemptions = 0, cached = 0, swapped = 0, ahead = 0;
  // Prompts are thirty times as long with windows.
  const int rounds = has_windows ? 8 : 20;
  for (int round = 0; round < rounds; ++round) {
    SchedulerOptions options = plain;
    // Room for the longest request and little more.
    options.num_pages = std::uniform_int_distribution<int32_t>(16, 36)(random);
    if (has_windows) {
      options.num_pages += static_cast<int32_t>(options.page_rule().MostPages(1830, windows));
      options.num_pages = std::max(options.num_pages, 150);  // else no prefix stays whole
    }
    if (has_state) {
      options.num_pages =
          static_cast<int32_t>(options.page_rule().MostPages(92, windows)) + options.num_pages / 8;
    }
    options.num_host_pages = (round % 4 > 1) * std::min(40, executor->limits().num_host_pages);
    options.max_step_tokens = std::uniform_int_distribution<int32_t>(2, kMaxStepTokens)(random);
    options.prefix_cache = round % 4 != 0;
    INFO("pages " << options.num_pages << ", rows " << options.max_step_tokens << ", cache "
                  << options.prefix_cache << ", host pages " << options.num_host_pages);
    SteppedLoad load(executor.get(), options);
    load.Run(requests, round % 3);
    CHECK(load.answers() == alone);
    preemptions += load.stats().preemptions;
    cached += load.stats().cached_tokens;
    swapped += load.stats().pages_swapped_in;
    ahead += load.num_ahead();
  }
  INFO("swapped " << swapped << ", preempted " << preemptions << ", cached " << cached);
  // The load exercises what the test is about.
  CHECK((preemptions > 10 || has_windows || has_state));
  CHECK((ahead > 100) == (pp > 1));
  CHECK(cached > 100);
  CHECK((swapped > 3 || has_windows));
}

TEST_CASE("Layers with windows give pages back beside others that keep theirs, and nothing changes",
          "[golden]") {
  const std::string name = GENERATE("gemma2", "gemma3", "gpt_oss");
  INFO(name);
  test::TempDir dir;
  Answers kept;
  int64_t kept_bytes = 0;
  for (const bool one_group : {true, false}) {
    auto executor = Load(name, dir.path(), one_group);
    const engine::ExecutorLimits& limits = executor->limits();
    REQUIRE((limits.windows.size() > 1) == !one_group);
    REQUIRE(limits.windows[0] == 0);
    GenerationRequest request;
    request.id = RequestId{1};
    std::mt19937_64 tokens(5);
    for (int i = 0; i < 1500; ++i) {
      request.prompt.push_back(static_cast<TokenId>(3 + tokens() % (limits.vocab - 3)));
    }
    request.max_tokens = 200;
    request.sampling.num_logprobs = 0;
    SteppedLoad load(executor.get(), OptionsFor(limits));
    load.Run({request}, 0);
    const int64_t page_bytes = executor->page_bytes();
    if (one_group) {
      kept = load.answers();
      kept_bytes = load.most_pages_used() * page_bytes;
      CHECK(load.most_pages_used() == (1699 + 7) / 8);  // the last token is never computed
      continue;
    }
    CHECK(load.answers() == kept);
    // Group 0's pages hold all computed positions; those of each other group hold a window, the
    // grain of 512 positions that it gives back at a time, a step, and a page at either end.
    int64_t bound = (1699 + 7) / 8;
    for (size_t group = 1; group < limits.windows.size(); ++group) {
      bound += (limits.windows[group] + 512 + kMaxStepTokens) / 8 + 2;
    }
    CHECK(load.most_pages_used() <= bound);
    CHECK(load.most_pages_used() * page_bytes < kept_bytes * 3 / 4);
  }
}

TEST_CASE("Branches side by side read the same where windows have given pages back", "[golden]") {
  const std::string name = GENERATE("gemma2", "gemma3", "gpt_oss");
  INFO(name);
  const test::TempDir dir;
  Answers kept;
  int32_t kept_pages = 0;
  for (const bool one_group : {true, false}) {
    auto executor = Load(name, dir.path(), one_group);
    const engine::ExecutorLimits& limits = executor->limits();
    REQUIRE(limits.layers_have_windows);
    REQUIRE((limits.windows.size() > 1) == !one_group);
    GenerationRequest request;
    request.id = RequestId{1};
    std::mt19937_64 tokens(6);
    for (int i = 0; i < 1420; ++i) {
      request.prompt.push_back(static_cast<TokenId>(3 + tokens() % (limits.vocab - 3)));
    }
    const scheduler::ContextParts apart = scheduler::PartsApart({}, 1300);
    const std::vector<const scheduler::ContextParts*> children = {&apart, &apart, &apart};
    request.parts = scheduler::JoinParts(children, std::vector<int32_t>{1340, 1311, 1350}, 1300);
    request.max_tokens = 40;
    request.sampling.num_logprobs = 0;
    REQUIRE(scheduler::Scheduler::Validate(request, OptionsFor(limits)).ok());
    SteppedLoad load(executor.get(), OptionsFor(limits));
    load.Run({request}, 0);
    REQUIRE(load.answers().at({RequestId{1}, 0}).size() == 40);
    if (one_group) {
      kept = load.answers();
      kept_pages = load.most_pages_used();
    } else {
      CHECK(load.answers() == kept);
      const auto groups = static_cast<int32_t>(limits.windows.size());
      CHECK(load.most_pages_used() < kept_pages * groups);
    }
  }
}

}  // namespace
}  // namespace heddle
