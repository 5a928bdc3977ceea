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
#include "kernels/nano_batch.h"
#include "tests/model/emulated_model.h"
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
  const std::vector<float> wanted = test::AllLogits(*test::LoadReference(path), golden.prompt, 64);
  const auto executor = test::LoadOn(path, test::EmulatedOptions(DType::kF32, 16));
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

// All rows of a prompt but its last one, which has the bits of a step in which all have logits.
TEST_CASE("Rows without logits end on CUDA where nothing is kept of them, and no bit changes",
          "[cuda]") {
  for (const char* name : test::Some<const char*>(1, {"phi4flash", "gemma4", "gemma4_moe"})) {
    INFO(name);
    const test::Golden golden = test::LoadGolden(name);
    test::TempDir dir;
    const auto executor = test::LoadOn(test::WriteSyntheticModel(golden, dir.path()),
                                       test::EmulatedOptions(DType::kF32, 16));
    REQUIRE(executor->spec().first_reader() < executor->spec().n_layers());
    const auto vocab = static_cast<std::ptrdiff_t>(executor->limits().vocab);
    const std::vector<float> all = test::AllLogits(*executor, golden.prompt, 64);
    const std::vector<float> last(all.end() - vocab, all.end());
    for (const int32_t chunk : {64, 7}) {
      INFO("in chunks of " << chunk);
      const int64_t before = executor->rows_left_out();
      const auto run =
          test::RunGreedy(*executor, golden.prompt, {.max_tokens = 1, .prefill_chunk = chunk});
      CHECK(run.first_logits == last);
      CHECK(executor->rows_left_out() - before == static_cast<int64_t>(golden.prompt.size()) - 1);
    }
  }
}

TEST_CASE("Time mixes with and without gates and norms have the reference's logits", "[cuda]") {
  const std::string name = GENERATE("arwkv7", "arwkv7_plain");
  INFO(name);
  const test::GgufModel golden = test::LoadGgufGolden(name);
  test::TempDir dir;
  const auto path = test::WriteGguf(golden, dir.path() / "model.gguf");
  const std::vector<TokenId>& prompt = golden.folder.prompt;
  const std::vector<float> wanted = test::AllLogits(*test::LoadReference(path), prompt, 64);
  const auto executor = test::LoadOn(path, test::EmulatedOptions(DType::kF32, 16));
  CHECK(WorstOf(test::AllLogits(*executor, prompt, 7), wanted) < 1e-3);
}

TEST_CASE("Families with state stay near the reference with BF16 activations", "[cuda]") {
  for (const char* name : test::Some<const char*>(
           2, {"granitemoehybrid_groups", "qwen3_5", "lfm2", "jamba", "rwkv7"})) {
    test::CheckRounded(name);
  }
}

TEST_CASE("Families with inputs of layers stay near the reference with BF16 activations",
          "[cuda]") {
  for (const char* name :
       test::Some<const char*>(2, {"phi4flash", "gemma3n", "gemma4", "gemma4_moe"})) {
    test::CheckRounded(name);
  }
}

// With room for `spare` pages, and three more for drafts, beside those of one text; answers end
// after `most_tokens`.
void CheckUnderLoad(const char* name, int32_t spare, int32_t most_tokens = 1000) {
  INFO(name);
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden(name), dir.path());
  const auto executor = test::LoadOn(path, test::EmulatedOptions(DType::kF32, 16));
  const scheduler::SchedulerOptions roomy = test::PlainOptions(executor->limits());
  const std::vector<GenerationRequest> requests =
      test::SharingRequests(executor->limits().vocab, 5, most_tokens);
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
  const engine::ModelSpec& spec = executor->spec();
  const bool narrows = spec.first_reader() < spec.n_layers() && spec.altup.count == 0;
  CHECK((executor->rows_left_out() > 0) == narrows);
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
    engine::LoadOptions options = test::EmulatedOptions(DType::kF32, 16);
    options.capacity.page_tokens = 64;
    const auto executor = test::LoadOn(path, options);
    std::vector<GenerationRequest> requests = test::SharingRequests(executor->limits().vocab);
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
    const auto executor = test::LoadOn(path, test::EmulatedOptions(DType::kF32, 16));
    if (split) {
      const auto device = executor->device().nano_batch_device();
      REQUIRE(device.ok());
      REQUIRE(executor->device()
                  .SetNanoBatches(kernels::NanoBatchProfile{
                      .device_name = device->name, .rules = {{.attention_multiprocessors = 2}}})
                  .ok());
    }
    test::SpeculatedLoad load(executor.get(), test::PlainOptions(executor->limits()), nullptr, 1);
    load.Run(test::SharingRequests(executor->limits().vocab), 1, 0);
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
