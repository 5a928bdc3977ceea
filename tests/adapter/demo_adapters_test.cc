// The demo model's adapters give the tokens that transformers and PEFT give.
#include <fstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/adapter/load_adapter.h"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/paths.h"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr double kLeastMargin = 0.02;  // of logits, where the order of sums must not matter

LocalModel LoadDemo(int32_t tp = 1) {
  LoadOptions options;
  options.layout.tp = tp;
  options.cpu.num_threads = 2;
  options.cpu.isa = "portable";  // other levels round activations to BF16
  options.kv_type = "f32";
  options.capacity.kv_bytes = 16 << 20;
  options.capacity.max_batch_tokens = 128;
  options.capacity.adapter_max_rank = 16;
  auto model = LoadLocalModel(test::SourceDir() / "share/demo-model", options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model).value();
}

test::RunAdapter LoadFrom(const std::filesystem::path& path, const LocalModel& model) {
  const ExecutorLimits& limits = model.executor->limits();
  auto loaded = LoadAdapter(path, {.model = &model.model,
                                   .dtype = limits.adapter_dtype,
                                   .page_bytes = limits.page_bytes,
                                   .max_rank = limits.adapter_max_rank,
                                   .base = {},
                                   .shares = model.shares,
                                   .rank_page_bytes = model.capacity.rank_page_bytes});
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  loaded->image->id = AdapterId{1};
  return {loaded->image, 1.0f};
}

int CheckCases(LocalModel& model, const json& cases, const test::RunAdapter& adapter) {
  int checked = 0;
  for (const json& one : cases) {
    if (one.contains("smallest_margin") && one["smallest_margin"].get<double>() < kLeastMargin) {
      continue;
    }
    const auto prompt = one["prompt_ids"].get<std::vector<TokenId>>();
    const auto ids = one["greedy_ids"].get<std::vector<TokenId>>();
    INFO(one["text"].dump());
    const auto run = test::RunGreedy(
        *model.executor, prompt,
        {.max_tokens = static_cast<int32_t>(ids.size()), .stop = {}, .adapter = adapter});
    CHECK(run.ids == ids);
    ++checked;
  }
  return checked;
}

TEST_CASE("The demo model's adapters answer as PEFT does, with patterns of ranks and rsLoRA",
          "[golden]") {
  const int32_t tp = GENERATE(1, 2, 3);
  INFO(tp << " ranks");
  LocalModel model = LoadDemo(tp);
  const json goldens = test::LoadGoldenJson("demo_adapters.json");
  CHECK(CheckCases(model, goldens["base"], {}) >= 10);
  for (const std::string name : {"pirate", "upper"}) {
    const auto path = test::SourceDir() / "share/demo-model/adapters" / name;
    CHECK(CheckCases(model, goldens[name], LoadFrom(path, model)) >= 10);
  }
}

TEST_CASE("The adapters for rhymes and JSON answer as their evaluation says", "[golden]") {
  LocalModel model = LoadDemo();
  for (const std::string name : {"rhyme", "json"}) {
    const auto folder = test::SourceDir() / "tests/demo_model/adapters" / name;
    std::ifstream in(folder / "expected.json");
    CHECK(CheckCases(model, json::parse(in), LoadFrom(folder, model)) >= 3);
  }
}

}  // namespace
}  // namespace heddle::engine
