// Rows of prompts that need no logits leave a step behind the last layer that keeps something of
// them. What is drawn has the very bits of a step in which all rows have logits, and go through
// all layers.
#include <algorithm>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "kernels/logit_batch.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

TEST_CASE("Rows without logits end where nothing is kept of them, and no bit changes", "[golden]") {
  // Layers that read keys of earlier ones, with inputs of their own; memory units; blocks of MLPs.
  const std::string name = GENERATE("gemma4", "phi4flash", "phi4flash_biases", "nemotron_h",
                                    "nemotron_h_moe", "decilm", "llama");
  const std::string isa = GENERATE("portable", "auto");
  INFO(name << " on " << isa);
  test::TempDir dir;
  engine::LoadOptions options;
  options.cpu.num_threads = 2;
  options.cpu.isa = isa;
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = 64;
  const test::Golden golden = test::LoadGolden(name);
  auto model = engine::LoadLocalModel(test::WriteGoldenModel(golden, dir.path()), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  const engine::ModelSpec& spec = model->model.spec;
  const bool narrows = name.starts_with("gemma4") || name.starts_with("phi4flash");
  const bool has_readers = spec.first_reader() < spec.n_layers();
  if (narrows || name == "llama") CHECK(has_readers == narrows);
  const auto vocab = static_cast<size_t>(model->executor->limits().vocab);
  const std::vector<float> all = test::AllLogits(*model->executor, golden.prompt, 64);
  const std::vector<float> last(all.end() - static_cast<std::ptrdiff_t>(vocab), all.end());
  for (const int32_t chunk : {64, 7}) {
    INFO("in chunks of " << chunk);
    const int64_t before = model->executor->rows_left_out();
    const auto run =
        test::RunGreedy(*model->executor, golden.prompt, {.max_tokens = 1, .prefill_chunk = chunk});
    CHECK(run.first_logits == last);
    const auto left_out = static_cast<int64_t>(golden.prompt.size()) - 1;
    CHECK(model->executor->rows_left_out() - before == (has_readers ? left_out : 0));
  }
}

kernels::HostBatch BatchOf(const std::vector<int32_t>& tokens, const std::vector<int32_t>& q_begin,
                           const std::vector<int32_t>& context,
                           const std::vector<int32_t>& logit_rows) {
  return {.token_ids = tokens,
          .positions = tokens,
          .kv_slot = {},
          .q_begin = q_begin,
          .span_begin = {},
          .span_page = {},
          .span_tokens = {},
          .context_len = context,
          .logit_rows = logit_rows};
}

TEST_CASE("A batch is narrowed to last rows alone", "[model][unit]") {
  const std::vector<int32_t> tokens = {10, 11, 12, 20, 30, 31}, q_begin = {0, 3, 4, 6},
                             context = {3, 9, 2};
  const auto may = [&](const std::vector<int32_t>& rows) {
    return kernels::LogitBatch::IsMadeOf(BatchOf(tokens, q_begin, context, rows));
  };
  CHECK(may({2, 3, 5}));
  CHECK(may({3}));
  CHECK(may({}));
  CHECK(may({1, 2, 4, 5}));
  CHECK_FALSE(may({1, 3}));     // not the last of its sequence
  CHECK_FALSE(may({0, 2, 3}));  // with a gap
  CHECK_FALSE(may({3, 2}));     // in another order
  CHECK_FALSE(may({3, 3}));     // twice
  const std::vector<int32_t> rows = {1, 2, 5}, slots = {0, 0, 0, -1, 1, 1};
  kernels::HostBatch batch = BatchOf(tokens, q_begin, context, rows);
  batch.adapter_slot = slots;
  kernels::LogitBatch narrow;
  const kernels::HostBatch& made = narrow.Make(batch);
  CHECK(made.n_tokens() == 3);
  CHECK(std::ranges::equal(made.positions, std::vector<int32_t>{11, 12, 31}));
  CHECK(std::ranges::equal(made.q_begin, std::vector<int32_t>{0, 2, 2, 3}));
  CHECK(std::ranges::equal(made.logit_rows, std::vector<int32_t>{0, 1, 2}));
  CHECK(std::ranges::equal(made.adapter_slot, std::vector<int32_t>{0, 0, 1}));
  CHECK(made.n_seqs() == 3);
  const std::vector<uint64_t> masks(6, 1);
  batch.tree_mask = masks;
  CHECK_FALSE(kernels::LogitBatch::IsMadeOf(batch));
}

}  // namespace
}  // namespace heddle
