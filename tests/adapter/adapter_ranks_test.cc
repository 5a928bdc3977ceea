// Adapters where ranks share the base: each rank has its part of an adapter in its own pages, and
// the sums are those of Hugging Face PEFT, for any number of ranks, even and uneven shares.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/adapter/compose_adapters.h"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "scheduler/scheduler.h"
#include "tests/adapter/golden_adapters.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/stepped_load.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using nlohmann::json;
using test::Golden;
using test::MaxError;

LoadOptions OptionsFor(int32_t tp, const std::string& ops, int32_t pp = 1) {
  LoadOptions options = test::AdapterBaseOptions();
  options.layout = {.tp = tp, .pp = pp};
  options.reference_ops = ops == "reference";
  if (!options.reference_ops) options.cpu.isa = ops;
  return options;
}

struct RanksCase {
  int32_t tp;
  std::string ops;
  int32_t pp = 1;
};

void CheckCase(const json& golden, int bits, const Golden& base,
               const std::filesystem::path& model_path, const std::filesystem::path& dir,
               const std::vector<RanksCase>& layouts) {
  for (const auto& [tp, ops, pp] : layouts) {
    INFO(tp << " ranks in each of " << pp << " stages with " << ops << " ops");
    LocalModel model = test::LoadAdapterBase(model_path, OptionsFor(tp, ops, pp));
    const test::RunAdapter adapter = test::LoadCase(golden, bits, model, model_path, dir);
    REQUIRE(adapter.image->num_ranks() == tp * pp);
    CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, 7, adapter)) < 2e-3f);
    CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, 64)) > 0.02f);
    // A scale of 0 leaves the base as it is, bit for bit.
    CHECK(test::AllLogits(*model.executor, base.prompt, 64, {adapter.image, 0.0f}) ==
          test::AllLogits(*model.executor, base.prompt, 64));
  }
}

const std::vector<RanksCase> kLayouts = {{2, "reference"},  {2, "portable"}, {3, "portable"},
                                         {5, "portable"},   {7, "portable"}, {1, "portable", 2},
                                         {2, "portable", 2}};

TEST_CASE("Adapters of every family and kind give PEFT's logits on several ranks", "[golden]") {
  const std::string file = GENERATE("adapters.json", "adapter_kinds.json");
  const json goldens = test::LoadGoldenJson(file);
  const std::string name = GENERATE_COPY(from_range(test::CaseNames(goldens)));
  INFO(file << " " << name);
  if (name == "phi4flash") return;  // no ranks share it
  const json& golden = goldens[name];
  const Golden base = test::LoadGolden(golden["base"].get<std::string>());
  test::TempDir dir;
  CheckCase(golden, goldens["bits"], base, test::WriteSyntheticModel(base, dir / "model"),
            dir.path(), kLayouts);
}

TEST_CASE("Adapters give PEFT's logits on several ranks beside bases in GGUF files", "[golden]") {
  const json families = test::LoadGoldenJson("adapters.json");
  const json kinds = test::LoadGoldenJson("adapter_kinds.json");
  const std::string name =
      GENERATE("llama", "gpt_neox", "falcon", "phi3", "gpt_oss", "olmo2", "embedding", "head",
               "bias_all_qkv", "saved_embedding", "dora_fused", "dora_transposed", "set");
  INFO(name);
  const json& goldens = families.contains(name) ? families : kinds;
  const json& golden = goldens[name];
  const std::string base = golden["base"];
  test::TempDir dir;
  CheckCase(golden, goldens["bits"], test::LoadGolden(base),
            test::WriteGgufBase(base, dir / "model.gguf"), dir.path(),
            {{2, "portable"}, {3, "portable"}, {2, "portable", 2}});
}

TEST_CASE("An adapter that is merged while ranks load the model gives PEFT's logits", "[golden]") {
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  const std::string name =
      GENERATE("embedding", "head", "bias_all_qkv", "saved_norms", "dora_fused", "dora_latent",
               "experts_mixtral", "experts_deepseek");
  const int32_t tp = GENERATE(2, 3);
  INFO(name << " on " << tp << " ranks");
  const json& golden = goldens[name];
  const Golden base = test::LoadGolden(golden["base"].get<std::string>());
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(base, dir / "model");
  LoadOptions options = OptionsFor(tp, "portable");
  options.merged_adapter = test::WriteAdapter(golden, goldens["bits"], dir / "adapter");
  const LocalModel model = test::LoadAdapterBase(path, options);
  CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, 64)) < 2e-3f);
}

TEST_CASE("Ranks have an adapter's features in the order of an act-order model", "[golden]") {
  const json goldens = test::LoadGoldenJson("adapters.json");
  const json& golden = goldens["llama"];
  const Golden base = test::LoadGolden("llama_gptq");
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(base, dir / "model");
  const auto logits = [&](int32_t tp, bool has_adapter) {
    const LocalModel model = test::LoadAdapterBase(path, OptionsFor(tp, "reference"));
    if (!has_adapter) return test::AllLogits(*model.executor, base.prompt, 7);
    return test::AllLogits(*model.executor, base.prompt, 7,
                           test::LoadCase(golden, goldens["bits"], model, path, dir.path()));
  };
  const auto difference = [](const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    float largest = 0;
    for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
  };
  const std::vector<float> expected = logits(1, true);
  CHECK(difference(expected, logits(1, false)) > 0.1f);
  // The attention's outputs are F16 on several ranks, and not codes.
  for (const int32_t tp : {2, 3, 7}) {
    INFO(tp << " ranks");
    CHECK(difference(logits(tp, true), expected) < 5e-3f);
  }
}

TEST_CASE("What is too large for all ranks together is refused, though each part would fit",
          "[golden]") {
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden("llama"), dir / "model");
  const LocalModel model = test::LoadAdapterBase(path, OptionsFor(3, "portable"));
  const auto adapter = test::WriteAdapter(goldens["dora"], goldens["bits"], dir / "adapter");
  AdapterTarget target = test::TargetOf(model, path);
  const auto whole = LoadAdapter(adapter, target);
  REQUIRE(whole.ok());
  target.max_bytes = whole->image->bytes();
  CHECK(LoadAdapter(adapter, target).ok());
  --target.max_bytes;
  const absl::Status refused = LoadAdapter(adapter, target).status();
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(std::string(refused.message()).find("for rank 2 of 3") != std::string::npos);

  const AdapterShare twice[] = {{"a", whole->image.get(), 0.5f}, {"b", whole->image.get(), 1.0f}};
  const auto set = ComposeAdapters(twice, 8, 0);
  REQUIRE(set.ok());
  CHECK(ComposeAdapters(twice, 8, (*set)->bytes()).ok());
  CHECK(absl::IsResourceExhausted(ComposeAdapters(twice, 8, (*set)->bytes() - 1).status()));
}

// Requests for the base and for each adapter.
std::vector<scheduler::GenerationRequest> Requests(
    std::span<const std::shared_ptr<AdapterImage>> images, int32_t vocab, std::mt19937_64* random) {
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(*random);
  };
  std::vector<scheduler::GenerationRequest> requests;
  for (uint64_t i = 1; i <= 18; ++i) {
    scheduler::GenerationRequest request;
    request.id = scheduler::RequestId{i};
    for (int t = between(1, 30); t > 0; --t) request.prompt.push_back(between(3, vocab - 1));
    request.max_tokens = between(4, 20);
    request.num_branches = i % 4 == 0 ? 2 : 1;
    request.sampling.seed = 100 * i;
    request.sampling.num_logprobs = 0;
    if (const size_t which = i % (images.size() + 1); which > 0) {
      const auto& image = images[which - 1];
      request.adapter = {.id = image->id,
                         .scale = i % 2 == 0 ? 1.0f : 0.5f,
                         .num_pages = image->pages_of_each_rank(),
                         .image = image};
      request.cache_space = 1000 * which + i % 2;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_CASE(
    "On several ranks a request gets the same bits alone as in a mixed batch whose adapters "
    "come and go",
    "[golden]") {
  const auto [tp, pp] = GENERATE(table<int32_t, int32_t>({{2, 1}, {3, 1}, {1, 2}, {2, 2}}));
  INFO(tp << " ranks in each of " << pp << " stages");
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden("llama"), dir / "model");
  LoadOptions options = test::AdapterBaseOptions();
  options.layout = {.tp = tp, .pp = pp};
  options.capacity.page_tokens = 8;
  LocalModel model = test::LoadAdapterBase(path, options);
  std::vector<std::shared_ptr<AdapterImage>> images;
  int32_t most = 0;
  for (const std::string name : {"dora", "head", "bias_of_b", "embedding", "saved_norms"}) {
    const auto folder = test::WriteAdapter(goldens[name], goldens["bits"], dir / name);
    auto loaded = LoadAdapter(folder, test::TargetOf(model, path));
    INFO(loaded.status().ToString());
    REQUIRE(loaded.ok());
    loaded->image->id = AdapterId{images.size() + 1};
    images.push_back(loaded->image);
    most = std::max(most, images.back()->pages_of_each_rank());
  }
  const ExecutorLimits& limits = model.executor->limits();
  scheduler::SchedulerOptions plan{.num_pages = limits.num_pages,
                                   .page_tokens = limits.page_tokens,
                                   .max_context = limits.max_context,
                                   .windows = limits.windows,
                                   .window_grain = limits.window_grain,
                                   .state_groups = limits.state_groups,
                                   .state_is_snapshot = limits.state_is_snapshot,
                                   .max_step_tokens = limits.max_batch_tokens,
                                   .max_step_seqs = 16,
                                   .pipeline_stages = pp,
                                   .max_in_flight = model.executor->max_in_flight(),
                                   .holds_pages = pp > 1,
                                   .prefix_cache = false,
                                   .adapter_slots = limits.adapter_slots};
  std::mt19937_64 random(11);
  const auto requests = Requests(images, limits.vocab, &random);
  test::Answers alone;
  for (const scheduler::GenerationRequest& request : requests) {
    test::SteppedLoad load(model.executor.get(), plan);
    load.Run({request}, 0);
    alone.insert(load.answers().begin(), load.answers().end());
  }
  int64_t evicted = 0, preempted = 0, ahead = 0;
  for (int round = 0; round < 8; ++round) {
    plan.num_pages = most + 8 + 6 * (round % 4);
    plan.max_context = std::min(limits.max_context, 60);
    plan.prefix_cache = round % 2 == 1;
    plan.max_step_tokens = 7 + 19 * (round % 3);
    INFO("pages " << plan.num_pages << ", rows " << plan.max_step_tokens);
    test::SteppedLoad load(model.executor.get(), plan);
    load.Run(requests, round % 3);
    CHECK(load.answers() == alone);
    evicted += load.stats().adapter_pages_evicted;
    preempted += load.stats().preemptions;
    ahead += load.num_ahead();
  }
  CHECK((ahead > 50) == (pp > 1));
  INFO("evicted " << evicted << ", preempted " << preempted);
  CHECK(evicted > 20);
}

}  // namespace
}  // namespace heddle::engine
