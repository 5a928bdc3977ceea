// A model whose steps are split in halves, on the emulated GPU or the PTX machine; and what `heddle
// tune` makes of times.
#include <optional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/nano_batch.h"
#include "server/cli/tune_profile.h"
#include "server/cli/tune_run.h"
#include "tests/support/paths.h"

namespace heddle {
namespace {

using engine::TokenId;
using kernels::DType;
using kernels::NanoBatchProfile;
using kernels::NanoBatchRule;
using kernels::StepKind;

engine::LocalModel Load(bool graphs, int32_t max_batch_tokens = 64) {
  engine::LoadOptions options;
  options.make_device = [graphs] {
    return kernels::CreateCudaDevice(
        {.activations = DType::kF32, .workspace_bytes = int64_t{4} << 20, .graphs = graphs});
  };
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = max_batch_tokens;
  options.kv_type = "f32";
  auto model = engine::LoadLocalModel(test::SharedDataOrSkip("stories260K"), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model).value();
}

// Greedy tokens of four prompts that are read and continued side by side.
std::vector<std::vector<TokenId>> Continue(engine::LocalExecutor& executor, int32_t max_tokens) {
  const int32_t page_tokens = executor.limits().page_tokens;
  std::vector<std::vector<TokenId>> texts = {{1, 403, 407}, {1, 31, 5, 9, 12}, {1, 77}, {1, 8, 8}};
  engine::StepPlan plan;
  engine::StepResult result;
  engine::SamplingParams greedy;
  greedy.temperature = 0.0f;
  for (size_t s = 0; s < texts.size(); ++s) {
    plan.begun.push_back({.id = engine::SequenceId{s + 1}, .sampling = greedy, .prompt = {}});
  }
  std::vector<int32_t> done(texts.size(), 0);
  for (int32_t step = 0; step < max_tokens; ++step, plan.Clear()) {
    for (size_t s = 0; s < texts.size(); ++s) {
      const auto end = static_cast<int32_t>(texts[s].size());
      engine::SequenceSlice slice{.id = engine::SequenceId{s + 1},
                                  .token_begin = static_cast<int32_t>(plan.token_ids.size()),
                                  .num_tokens = end - done[s],
                                  .span_begin = static_cast<int32_t>(plan.spans.size()),
                                  .num_spans = (end + page_tokens - 1) / page_tokens,
                                  .context_tokens = end};
      const auto page = [&](int32_t i) {
        return static_cast<engine::PageId>(i * static_cast<int32_t>(texts.size()) +
                                           static_cast<int32_t>(s));
      };
      for (int32_t i = done[s]; i < end; ++i) {
        plan.token_ids.push_back(texts[s][static_cast<size_t>(i)]);
        plan.positions.push_back(i);
        plan.kv_slots.push_back({page(i / page_tokens), i % page_tokens});
      }
      for (int32_t i = 0; i < slice.num_spans; ++i) {
        plan.spans.push_back({page(i), std::min(page_tokens, end - i * page_tokens)});
      }
      plan.samples.push_back(
          {.id = slice.id, .row = slice.token_begin + slice.num_tokens - 1, .position = end});
      plan.sequences.push_back(slice);
      done[s] = end;
    }
    REQUIRE(executor.Submit(plan, {}).ok());
    const absl::Status status = executor.Wait(&result);
    INFO(status.ToString());
    REQUIRE(status.ok());
    for (size_t s = 0; s < texts.size(); ++s) texts[s].push_back(result.tokens[s].token);
  }
  return texts;
}

TEST_CASE("Tokens are the same with steps split in halves and without", "[cuda][nano]") {
  for (const bool graphs : {true, false}) {
    auto model = Load(graphs);
    const auto whole = Continue(*model.executor, 6);
    for (const int32_t multiprocessors : {0, 2}) {
      auto split = Load(graphs);
      const auto device = split.executor->device().nano_batch_device();
      REQUIRE(device.ok());
      const NanoBatchProfile profile = {.device_name = device->name,
                                        .rules = {{.attention_multiprocessors = multiprocessors}}};
      REQUIRE(split.executor->device().SetNanoBatches(profile).ok());
      CHECK(Continue(*split.executor, 6) == whole);
    }
  }
}

TEST_CASE("Steps are timed whole and split, and run whole afterwards", "[cuda][nano]") {
  auto model = Load(true);
  const auto timing = server::TimePoint(*model.executor, {.sequences = 2, .context = 16}, 1);
  REQUIRE(timing.ok());
  CHECK(timing->whole_us > 0);
  CHECK(timing->split_us > 0);
  const auto of_chunk =
      server::TimePoint(*model.executor, {.sequences = 1, .context = 24, .chunk = 16}, 1);
  REQUIRE(of_chunk.ok());
  CHECK(of_chunk->whole_us > 0);
  CHECK(of_chunk->split_us > 0);
  const auto device = model.executor->device().nano_batch_device();
  REQUIRE(device.ok());
  CHECK(timing->attention_multiprocessors < device->num_multiprocessors);
  engine::LoadOptions on_cpu;
  on_cpu.reference_ops = true;
  on_cpu.capacity.kv_bytes = 8 << 20;
  auto reference = engine::LoadLocalModel(test::SharedDataOrSkip("stories260K"), on_cpu);
  REQUIRE(reference.ok());
  CHECK(absl::IsUnimplemented(
      server::TimePoint(*reference->executor, {.sequences = 2, .context = 16}, 1).status()));
}

TEST_CASE("Sizes are those that limits have room for", "[nano]") {
  const engine::ExecutorLimits limits{.num_pages = 64 * 34,
                                      .page_tokens = 16,
                                      .max_context = 4096,
                                      .max_batch_tokens = 256,
                                      .max_batch_seqs = 128,
                                      .vocab = 512};
  std::string found;
  for (const auto& point : server::TunePoints(limits)) {
    found += point.chunk > 0 ? std::to_string(point.chunk) + " up to "
                             : std::to_string(point.sequences) + "x";
    found += std::to_string(point.context) + " ";
  }
  CHECK(found == "16x512 16x2048 32x512 64x512 256 up to 256 ");
}

TEST_CASE("Rules follow the times, and reach no further than they were measured", "[nano]") {
  const std::vector<server::TuneTiming> timings = {
      {.point = {64, 512}, .whole_us = 100, .split_us = 120, .attention_multiprocessors = 0},
      {.point = {64, 2048}, .whole_us = 200, .split_us = 160, .attention_multiprocessors = 44},
      {.point = {128, 512}, .whole_us = 100, .split_us = 99, .attention_multiprocessors = 3},
      {.point = {1, 512, 512}, .whole_us = 100, .split_us = 99},
      {.point = {1, 1024, 1024}, .whole_us = 120, .split_us = 100},
      {.point = {1, 8192, 1024}, .whole_us = 240, .split_us = 200}};
  const server::TunedProfile tuned = server::RulesOf(timings, "NVIDIA H200");
  const std::vector<NanoBatchRule> expected = {
      {.min_rows = 64,
       .max_rows = 95,
       .min_context = 2048,
       .attention_multiprocessors = 44,
       .steps = StepKind::kDecodes},
      {.min_rows = 64,
       .max_rows = 95,
       .min_context = 512,
       .split = false,
       .steps = StepKind::kDecodes},
      {.min_rows = 96, .min_context = 512, .split = false, .steps = StepKind::kDecodes},
      {.min_rows = 512, .max_rows = 767, .split = false, .steps = StepKind::kPrompts},
      {.min_rows = 768, .min_context = 8192, .steps = StepKind::kPrompts, .cut_rows = 128},
      {.min_rows = 768, .steps = StepKind::kPrompts, .cut_rows = 128}};
  CHECK(tuned.profile.rules == expected);
  CHECK(tuned.speedups[0] == 1.25);

  const std::string text =
      server::WriteTuneProfile({.steps = tuned.profile, .model = "a \"model\""}, tuned.speedups);
  CHECK(text.substr(0, text.find('\n')) ==
        "{\"device\": \"NVIDIA H200\", \"model\": \"a \\\"model\\\"\", \"min_rows\": 64, "
        "\"max_rows\": 95, \"min_context\": 2048, \"split\": 1, "
        "\"attention_multiprocessors\": 44, \"steps\": \"decodes\", \"speedup\": 1.250}");
  const auto read = server::ReadTuneProfile(text, "p.jsonl");
  REQUIRE(read.ok());
  CHECK(read->steps.device_name == "NVIDIA H200");
  CHECK(read->model == "a \"model\"");
  CHECK(read->steps.rules == expected);
}

TEST_CASE("A tune profile that is none is refused with the place and what is expected", "[nano]") {
  const auto message = [](const std::string& text) {
    return std::string(server::ReadTuneProfile(text, "p.jsonl").status().message());
  };
  const std::string good =
      R"({"device": "d", "min_rows": 1, "max_rows": 2, "min_context": 0, "split": 1, )"
      R"("attention_multiprocessors": 0, "speedup": 1.1})";
  CHECK(message(good).empty());
  CHECK(message("") == "p.jsonl: has no rules; expected the lines that `heddle tune` writes");
  CHECK(message("[1]").find("p.jsonl:1") == 0);
  CHECK(message(good + "\n" + R"({"device": "e"})").find("p.jsonl:2") == 0);
  CHECK(message(R"({"device": "d", "min_rows": 5, "max_rows": 2})").find("\"max_rows\"") !=
        std::string::npos);
  CHECK(message(R"({"device": "d", "rows": 5})").find("\"rows\"") != std::string::npos);
  const auto with = [&](const std::string& field) {
    return message(good.substr(0, good.size() - 1) + ", " + field + "}");
  };
  CHECK(with(R"("steps": "prompts", "cut_rows": 128)").empty());
  CHECK(with(R"("steps": "both")") ==
        "p.jsonl:1: \"steps\" is \"both\"; expected \"decodes\" or \"prompts\"");
  CHECK(with(R"("steps": [])").find("p.jsonl:1: \"steps\" is []; expected a text") == 0);
  for (const char* bad : {"-1", "2147483648", "0.5", "\"128\""}) {
    CHECK(with("\"cut_rows\": " + std::string(bad)).find("p.jsonl:1: \"cut_rows\" is ") == 0);
  }
}

TEST_CASE("A tune profile names one model in all lines, or none", "[nano]") {
  const auto line = [](const std::string& model) {
    return R"({"device": "d", )" + (model.empty() ? "" : R"("model": )" + model + ", ") +
           R"("min_rows": 1, "max_rows": 2, "min_context": 0, "split": 1, )"
           R"("attention_multiprocessors": 0, "speedup": 1.1})"
           "\n";
  };
  const auto message = [](const std::string& text) {
    return std::string(server::ReadTuneProfile(text, "p").status().message());
  };
  const auto old = server::ReadTuneProfile(line("") + line(""), "p");
  REQUIRE(old.ok());
  CHECK(old->model.empty());
  CHECK(message(line("\"m\"") + line("\"m\"")).empty());
  CHECK(message(line("\"m\"") + line("\"n\"")) ==
        "p:2: \"model\" is \"n\"; expected that of the lines before: a profile is of one model");
  CHECK(message(line("\"m\"") + line("")) ==
        "p:2: \"model\" is missing; expected that of the lines before: a profile is of one model");
  CHECK(message(line("") + line("\"m\"")) ==
        "p:2: \"model\" is \"m\"; expected that of the lines before, which have none: a profile is "
        "of one model");
  CHECK(message(line("[1]")).find("p:1: \"model\" is [1]; expected a text") == 0);
  for (const std::string& bad :
       {std::string("\"\""), std::string("\"a\\nb\""), "\"" + std::string(20000, 'x') + "\""}) {
    CHECK(message(line(bad)).find("p:1: \"model\" is \"") == 0);
    CHECK(message(line(bad)).size() < 300);
  }
}

TEST_CASE("A tune profile is for as many ranks as it was measured with", "[nano]") {
  const auto device_of = [](const std::string& device, int32_t tp) {
    const auto profile =
        server::ProfileOfRank({.device_name = device, .rules = {NanoBatchRule{}}}, tp, "p.jsonl");
    return profile.ok() ? profile->device_name : std::string(profile.status().message());
  };
  const std::string two = server::TunedDevice(2, "NVIDIA H200");
  CHECK(two == "2 ranks, each NVIDIA H200");
  CHECK(server::TunedDevice(1, "NVIDIA H200") == "NVIDIA H200");
  CHECK(device_of(two, 2) == "NVIDIA H200");
  CHECK(device_of("NVIDIA H200", 1) == "NVIDIA H200");
  CHECK(device_of("", 2).empty());  // anywhere
  const std::string other = "--tune-profile p.jsonl was measured on \"";
  CHECK(device_of(two, 1) == other + two + "\"; measure it with --tp 1");
  CHECK(device_of(two, 12) == other + two + "\"; measure it with --tp 12");
  CHECK(device_of("12 ranks, each d", 2) == other + "12 ranks, each d\"; measure it with --tp 2");
  CHECK(device_of("NVIDIA H200", 2) == other + "NVIDIA H200\"; measure it with --tp 2");
}

}  // namespace
}  // namespace heddle
