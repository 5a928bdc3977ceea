// Models whose steps are split in halves, on the emulated CUDA device: answers are those of whole
// steps whichever half runs ahead, also where layers' rows have several widths.
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/nano_batch.h"
#include "tests/emulate/machine.h"
#include "tests/model/side_by_side.h"
#include "tests/support/goldens.h"
#include "tests/support/long_runs.h"
#include "tests/support/stepped_load.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using kernels::DType;

using Rules = std::vector<kernels::NanoBatchRule>;

// Without rules, steps run whole. `reads_chunks`: of a prompt that is read in several.
test::Answers AnswersOf(const std::filesystem::path& path, const Rules& rules,
                        bool reads_chunks = false, int64_t* rows_left_out = nullptr) {
  engine::LoadOptions options;
  options.make_device = [] {
    return kernels::CreateCudaDevice(
        {.activations = DType::kF32, .workspace_bytes = int64_t{4} << 20});
  };
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = reads_chunks ? 24 : 64;
  options.kv_type = "f32";
  const auto model = engine::LoadLocalModel(path, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  engine::LocalExecutor& executor = *model->executor;
  if (!rules.empty()) {
    REQUIRE(executor.device().SetNanoBatches({.device_name = {}, .rules = rules}).ok());
  }
  const engine::ExecutorLimits& limits = executor.limits();
  test::SteppedLoad load(&executor, {.num_pages = limits.num_pages,
                                     .page_tokens = limits.page_tokens,
                                     .max_context = limits.max_context,
                                     .max_step_tokens = limits.max_batch_tokens,
                                     .max_step_seqs = limits.max_batch_seqs});
  load.Run(reads_chunks ? test::LongAndShort(limits.vocab) : test::SideBySide(limits.vocab), 0);
  if (rows_left_out != nullptr) *rows_left_out = executor.rows_left_out();
  return load.answers();
}

// DeciLM's layers have one, two and four KV heads; DeepSeek's queries of heads are wider than what
// their values give, in one buffer; Gemma 4's layers have heads of two sizes, and inputs of their
// own; indexers' queries are in the buffer that values go to.
TEST_CASE("Halves of a step keep to their own rows, whichever is ahead", "[cuda][nano]") {
  const std::string name = GENERATE("decilm", "deepseek_v2_lite", "gemma4", "deepseek_v32");
  INFO(name);
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden(name), dir.path());
  kernels::cuda::emulate::SetMachine({});
  const test::Answers whole = AnswersOf(path, {});
  REQUIRE(whole.size() == 5);
  REQUIRE(kernels::cuda::emulate::SecondLaneLaunches() == 0);
  for (const int32_t lane : {0, 1}) {
    INFO("lane " << lane << " first");
    kernels::cuda::emulate::SetMachine({.first_lane = lane});
    CHECK(AnswersOf(path, {{}}) == whole);
    REQUIRE(kernels::cuda::emulate::SecondLaneLaunches() > 0);
  }
  kernels::cuda::emulate::SetMachine({});
}

// Two groups of layers with windows, positions of latents that indexers choose, layers side by
// side, chunks of attention (Llama 4).
TEST_CASE("The later half of a chunk reads the keys of the earlier one", "[cuda][nano]") {
  const std::string name =
      GENERATE(from_range(test::Some<std::string>(2, {"gemma2", "llama4", "deepseek_v32", "phi"})));
  INFO(name);
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden(name), dir.path());
  const auto answers = [&](const Rules& rules, int32_t lane) {
    kernels::cuda::emulate::SetMachine({.first_lane = lane});
    return AnswersOf(path, rules, /*reads_chunks=*/true);
  };
  const test::Answers whole = answers({}, 0);
  REQUIRE(whole.size() == 2);
  CHECK(answers({{}}, 0) == whole);
  const int64_t between = kernels::cuda::emulate::SecondLaneLaunches();
  for (const int32_t lane : {0, 1}) {
    INFO("lane " << lane << " first");
    CHECK(answers({{.cut_rows = 4}}, lane) == whole);
    CHECK(kernels::cuda::emulate::SecondLaneLaunches() > between);  // chunks by themselves, too
  }
  kernels::cuda::emulate::SetMachine({});
}

// A first step that narrows, two in halves, which keep their rows, and one that narrows again.
TEST_CASE("Steps that narrow and steps in halves take turns", "[cuda][nano]") {
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden("gemma4"), dir.path());
  kernels::cuda::emulate::SetMachine({});
  int64_t all = 0, some = 0;  // rows that end early
  const test::Answers whole = AnswersOf(path, {}, /*reads_chunks=*/true, &all);
  REQUIRE(whole.size() == 2);
  REQUIRE(kernels::cuda::emulate::SecondLaneLaunches() == 0);
  const Rules rules = {{.min_context = 60, .split = false}, {.min_context = 20, .cut_rows = 4}};
  CHECK(AnswersOf(path, rules, /*reads_chunks=*/true, &some) == whole);
  CHECK(kernels::cuda::emulate::SecondLaneLaunches() > 0);
  CHECK((some > 23 && some < all));  // more than the first step's
}

}  // namespace
}  // namespace heddle
