// Attention over what is no plain text: trees of drafts, and contexts in pieces.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

using Case = AttentionCase;
using Result = AttentionResult;

TEST_CASE("Rows of a tree see the context and their ancestors only", "[kernels][kernel]") {
  uint32_t seed = 400;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kF8E4M3}) {
    for (int32_t window : {0, 70}) {
      Case c;
      c.batch = {.sequences = {{64, 75}, {3, 9}, {33, 600}, {1, 40}}, .page_tokens = 16};
      c.dtype = dtype;
      c.window = window;
      c.softcap = window > 0 ? 20.0f : 0.0f;
      TestBatch batch(c.batch, ++seed);
      Random random(seed);
      GrowTrees(random, {0, 2, 3}, &batch);
      CheckBatch(c, batch, seed);
    }
  }
}

// The frequencies of `rotary_dim` dimensions.
std::vector<float> Frequencies(int32_t rotary_dim) {
  std::vector<float> frequencies;
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / rotary_dim)));
  }
  return frequencies;
}

TEST_CASE("Windows over pieces of a context count their positions", "[kernels][kernel]") {
  uint32_t seed = 700;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kF8E4M3}) {
    for (int32_t window : {0, 1, 70, 600}) {
      for (bool in_chunks : {false, true}) {
        Case c;
        c.batch = {.sequences = {{40, 75}, {1, 9}, {33, 1200}, {1, 1500}}, .page_tokens = 16};
        c.dtype = dtype;
        c.window = window;
        c.in_chunks = in_chunks && window > 0;
        TestBatch batch(c.batch, ++seed);
        Random random(seed);
        CutPieces(random, {0, 2, 3}, /*turns=*/false, &batch);
        CheckBatch(c, batch, seed);
      }
    }
  }
}

TEST_CASE("Queries are rotated further for pieces with a turn", "[kernels][kernel]") {
  uint32_t seed = 800;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    for (int32_t window : {0, 300}) {
      for (RopeLayout layout : {RopeLayout::kHalf, RopeLayout::kInterleaved}) {
        Case c;
        c.batch = {.sequences = {{40, 75}, {1, 9}, {33, 1200}, {1, 1500}}, .page_tokens = 16};
        c.dtype = dtype;
        c.window = window;
        c.layout = layout;
        c.inv_freq = Frequencies(layout == RopeLayout::kHalf ? 64 : 48);
        TestBatch batch(c.batch, ++seed);
        Random random(seed);
        CutPieces(random, {0, 2, 3}, /*turns=*/true, &batch);
        CheckBatch(c, batch, seed);
      }
    }
  }
}

TEST_CASE("A row that sees pieces has the same bits in any batch and with any threads",
          "[kernels][kernel]") {
  Case c;
  c.window = GENERATE(0, 300);
  c.dtype = GENERATE(DType::kF16, DType::kBF16);
  c.inv_freq = Frequencies(64);
  c.batch = {.sequences = {{5, 1500}}, .page_tokens = 16};
  TestBatch alone(c.batch, 9);
  Random random(9);
  CutPieces(random, {0}, /*turns=*/true, &alone);
  TestCache cache(c.dtype, alone.num_pages + 4, 16, c.n_kv_heads, c.head_dim, 9);
  Matrix q = Matrix::RandomOf(random, 6, int64_t{c.n_heads} * c.head_dim);
  // The same behind another sequence, of one row on one page.
  TestBatch second = alone;
  second.token_ids.insert(second.token_ids.begin(), 1);
  second.positions.insert(second.positions.begin(), 0);
  second.kv_slot.insert(second.kv_slot.begin(), int64_t{alone.num_pages} * 16);
  second.q_begin = {0, 1, 6};
  second.span_page.insert(second.span_page.begin(), alone.num_pages);
  second.span_tokens.insert(second.span_tokens.begin(), 1);
  second.span_begin = {0, 1, static_cast<int32_t>(second.span_page.size())};
  second.context_len = {1, 1500};
  second.logit_rows = {0, 5};
  second.piece_begin = {0, 0, static_cast<int32_t>(alone.pieces.size())};
  Matrix rows(5, q.num_cols());
  std::copy_n(q.at(1, 0), 5 * q.num_cols(), rows.at(0, 0));
  for (auto& [name, device] : CpuDevices(1)) {
    INFO(name << " window " << c.window);
    auto threaded = CreateCpuDevice({4, name, false});
    REQUIRE(threaded.ok());
    Result one = Attend(*device, c, alone, cache, rows, {});
    CHECK(SameBits(one.out, Attend(**threaded, c, alone, cache, rows, {}).out));
    Result both = Attend(*device, c, second, cache, q, {});
    Matrix found(5, q.num_cols());
    Matrix expected(5, q.num_cols());
    for (int32_t i = 0; i < 5; ++i) {
      std::copy_n(both.out.at(1 + i, 0), q.num_cols(), found.at(i, 0));
      std::copy_n(one.out.at(i, 0), q.num_cols(), expected.at(i, 0));
    }
    CHECK(SameBits(found, expected));
  }
}

TEST_CASE("A tree that is a chain has the bits of a prompt", "[kernels][kernel]") {
  Case c;
  c.batch = {.sequences = {{40, 300}}, .page_tokens = 16};
  c.window = 100;
  c.dtype = DType::kBF16;
  TestBatch prompt(c.batch, 7);
  TestBatch chain = prompt;
  chain.tree_mask.resize(40);
  for (int32_t i = 0; i < 40; ++i) chain.tree_mask[i] = (uint64_t{2} << i) - 1;
  TestCache cache(c.dtype, prompt.num_pages, 16, c.n_kv_heads, c.head_dim, 7);
  Random random(7);
  Matrix q = Matrix::RandomOf(random, 40, int64_t{c.n_heads} * c.head_dim);
  for (auto& [name, device] : CpuDevices(2)) {
    INFO(name);
    CHECK(SameBits(Attend(*device, c, prompt, cache, q, {}).out,
                   Attend(*device, c, chain, cache, q, {}).out));
  }
}

TEST_CASE("A block that is read in order has the bits of a prompt", "[kernels][kernel]") {
  Case c;
  c.batch = {.sequences = {{40, 300}, {3, 50}}, .page_tokens = 16};
  c.window = GENERATE(0, 45);
  TestBatch prompt(c.batch, 7);
  TestBatch block = prompt;
  block.tree_mask.assign(43, (uint64_t{1} << 40) - 1);
  std::fill(block.tree_mask.begin() + 40, block.tree_mask.end(), uint64_t{7});
  TestCache cache(c.dtype, prompt.num_pages, 16, c.n_kv_heads, c.head_dim, 7);
  Random random(7);
  Matrix q = Matrix::RandomOf(random, 43, int64_t{c.n_heads} * c.head_dim);
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name << ", window " << c.window);
    c.in_order = false;
    const Result in_turn = Attend(*device, c, prompt, cache, q, {});
    CHECK_FALSE(SameBits(in_turn.out, Attend(*device, c, block, cache, q, {}).out));
    c.in_order = true;
    CHECK(SameBits(in_turn.out, Attend(*device, c, block, cache, q, {}).out));
  }
}

TEST_CASE("A tree whose masks name other rows is refused", "[kernels][unit]") {
  std::unique_ptr<Device> device = CreateReferenceDevice();
  TestBatch batch({.sequences = {{3, 10}}, .page_tokens = 16});
  const std::vector<uint64_t> bad[] = {{1, 3}, {1, 3, 0xf}, {1, 1, 5}, {0, 2, 4}};
  for (const std::vector<uint64_t>& masks : bad) {
    batch.tree_mask = masks;
    CHECK(device->Plan(batch.view()).code() == absl::StatusCode::kInvalidArgument);
  }
  batch.tree_mask = {1, 3, 5};
  CHECK(device->Plan(batch.view()).ok());
  batch.positions[2] = 0;
  CHECK_FALSE(device->Plan(batch.view()).ok());
}
}  // namespace
}  // namespace heddle::kernels::test
