// Prompts over caches of F8 whose scores are products of codes, against the reference with the same
// codes for queries: what is left are the roundings of sums and weights.
#include <tuple>
#include <utility>

#include "catch2/catch.hpp"
#include "kernels/cuda/cuda_device.h"
#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

AttentionCase Coded(BatchSpec batch) {
  return {.batch = std::move(batch),
          .n_heads = 8,
          .n_kv_heads = 1,
          .head_dim = 128,
          .cache = DType::kF8E4M3,
          .codes_queries = true};
}

// Tiles of 128 packed rows with one row more or less, pages that end early, groups that divide no
// tile. Each key is in three tiles or more, so that values are copied.
TEST_CASE("Scores of codes match the reference on pages and heads of any size", "[cuda][hopper]") {
  for (const auto& [page_tokens, heads, kv_heads] :
       {std::tuple(8, 16, 2), std::tuple(64, 7, 1), std::tuple(128, 9, 1)}) {
    AttentionCase c = Coded({{{1, 90}, {97, 161, 50}, {1, 20}, {86, 86}}, page_tokens});
    c.n_heads = heads;
    c.n_kv_heads = kv_heads;
    c.pad = 8;
    CheckAttention(c, DType::kBF16);
  }
}

TEST_CASE("Scores of codes keep windows, chunks, soft caps, sinks and halves", "[cuda][hopper]") {
  AttentionCase c = Coded({{{120, 150}, {70, 90}}, 16});
  c.window = 90;
  c.sinks = true;
  CheckAttention(c, DType::kBF16);
  c.batch.sequences = {{200, 200}};
  c.window = 150;
  c.in_chunks = true;
  CheckAttention(c, DType::kBF16);
  c = Coded({{{120, 150}, {70, 90}}, 16});
  c.softcap = 2;
  c.sinks = true;
  CheckAttention(c, DType::kBF16);
  c = Coded({{{110, 150}}, 16});
  c.half_keys = true;
  CheckAttention(c, DType::kBF16);
}

TEST_CASE("Scores of codes are computed in parts", "[cuda][hopper]") {
  AttentionCase c = Coded({{{100, 900, 77}}, 16});
  CheckAttention(c, DType::kBF16);
}

TEST_CASE("Queries stay as they are in steps with drafts, trees or other short rows beside chunks",
          "[cuda][hopper]") {
  AttentionCase c = Coded({{{120, 150}, {20, 50}}, 16});
  c.codes_queries = false;
  CheckAttention(c, DType::kBF16);
  c.trees = {1};
  c.softcap = 3;
  CheckAttention(c, DType::kBF16);
  c = Coded({{{129, 200}, {64, 64}}, 16});
  c.codes_queries = false;
  CheckAttention(c, DType::kBF16);
}

TEST_CASE("Without scores of codes queries stay as they are", "[cuda][hopper]") {
  AttentionCase c = Coded({{{97, 161, 50}}, 16});
  c.codes_queries = false;
  const TestBatch batch = BatchOf(c);
  const auto device = *CreateCudaDevice(
      {.workspace_bytes = int64_t{4} << 20, .graphs = false, .scores_codes = false});
  CheckAttentionOf(*device, c, batch.view(), batch.num_pages, 0);
}

}  // namespace
}  // namespace heddle::kernels::test
