// Products whose outputs are heads that are rotated and written to the cache, on the emulated CUDA
// device: at once and one after the other give the same bits.
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

struct HeadsCase {
  int64_t n = 1;
  int32_t n_heads = 4, n_kv_heads = 2, head_dim = 64, rotary_dim = 64;
  RopeLayout layout = RopeLayout::kHalf;
  DType cache = DType::kBF16;
  DType weight = DType::kBF16;
  int64_t more = 0;  // outputs behind the heads: gates
  bool bias = false;
  bool folds_norm = false;
  bool qk_norms = false;
  bool at_once = true;  // what the device is expected to do
  DType act = DType::kBF16;
};

constexpr float kMark = 0x1p100f;  // no sum of a case

struct HeadsResult {
  std::vector<float> out;
  std::vector<uint8_t> keys, values;
  bool gaps = false;
};

HeadsResult MakeHeads(Device& device, const HeadsCase& c, bool at_once) {
  constexpr int64_t kCols = 256;
  Random random(static_cast<uint32_t>(c.n));
  const int64_t q_cols = int64_t{c.n_heads} * c.head_dim;
  const int64_t kv_cols = int64_t{c.n_kv_heads} * c.head_dim;
  const int64_t rows = q_cols + 2 * kv_cols + c.more;
  const TestWeight weight = MakeWeight(random, c.weight, rows, kCols);
  const WeightSource source = weight.source();
  const auto packed = *device.Pack({&source, 1});
  const std::vector<float> bias = random.Normals(rows), norm = random.Normals(kCols);
  const std::vector<float> head_norm = random.Normals(c.head_dim);
  Matrix x = Matrix::RandomOf(random, c.n, kCols), marks(c.n, rows), zeros(c.n, kCols);
  for (int64_t i = 0; i < c.n * rows; ++i) *marks.at(i / rows, i % rows) = kMark;
  Activations input(c.act, x), normed(c.act, zeros), out(c.act, marks, /*pad=*/5);
  BatchSpec spec{{}, 8};
  for (int64_t t = 0; t < c.n; ++t) spec.sequences.push_back({1, static_cast<int32_t>(3 + 5 * t)});
  const TestBatch batch(spec);
  TestCache cache(c.cache, batch.num_pages, 8, c.n_kv_heads, c.head_dim, /*seed=*/1);
  std::vector<float> inv_freq, cos_sin(static_cast<size_t>(c.n * c.rotary_dim) + 1);
  for (int i = 0; i < c.rotary_dim / 2; ++i) {
    inv_freq.push_back(std::pow(100.0f, -2.0f * static_cast<float>(i) / c.rotary_dim));
  }
  const auto columns = [&](int64_t begin, int64_t count) {
    const Tensor t = out.tensor();
    return Tensor{static_cast<uint8_t*>(t.data) + begin * Info(c.act).block_bytes, t.rows, count,
                  t.stride};
  };
  LinearArgs product = {.x = input.tensor(), .weight = packed.get(), .out = out.tensor()};
  if (c.bias) product.bias = bias.data();
  if (c.folds_norm) {
    product.x = normed.tensor();
    product.norm = NormArgs{.x = input.tensor(), .weight = norm.data(), .out = normed.tensor()};
  }
  const RopeKvWriteArgs heads = {.q = columns(0, q_cols),
                                 .k = columns(q_cols, kv_cols),
                                 .v = columns(q_cols + kv_cols, kv_cols),
                                 .n_heads = c.n_heads,
                                 .q_norm = c.qk_norms ? head_norm.data() : nullptr,
                                 .k_norm = c.qk_norms ? head_norm.data() : nullptr,
                                 .cos_sin = c.rotary_dim > 0 ? cos_sin.data() : nullptr,
                                 .rotary_dim = c.rotary_dim,
                                 .layout = c.layout,
                                 .cache = cache.view};
  REQUIRE(device.Plan(batch.view()).ok());
  MustRun(device, [&](Ops& ops) {
    if (c.rotary_dim > 0) {
      ops.RopeAngles({.inv_freq = inv_freq, .scale = 1.1f, .cos_sin = cos_sin.data()});
    }
    if (at_once) {
      ops.ProjectHeads(product, heads);
    } else {
      ops.Linear(product);
      ops.RopeKvWrite(heads);
    }
  });
  HeadsResult result{{}, cache.keys, cache.values, out.GapsIntact()};
  int64_t unwritten = 0, keys_and_values = 0;
  for (int64_t t = 0; t < c.n; ++t) {
    for (int64_t r = 0; r < rows; ++r) {
      if (r < q_cols || r >= q_cols + 2 * kv_cols) {
        result.out.push_back(out(t, r));
        unwritten += out(t, r) == kMark;
      } else {
        keys_and_values += out(t, r) != kMark;
      }
    }
  }
  CHECK(unwritten == 0);
  CHECK(keys_and_values == (at_once && c.at_once ? 0 : 2 * c.n * kv_cols));
  return result;
}

void CheckHeads(const HeadsCase& c) {
  INFO(c.n << " rows, " << c.n_heads << " + " << c.n_kv_heads << " heads of " << c.head_dim
           << ", rotated " << c.rotary_dim << ", cache " << Info(c.cache).name << ", weight "
           << Info(c.weight).name);
  auto device = EmulatedDevice(c.act);
  const HeadsResult apart = MakeHeads(*device, c, false);
  const HeadsResult at_once = MakeHeads(*device, c, true);
  CHECK(at_once.gaps);
  CHECK(at_once.out == apart.out);
  CHECK(at_once.keys == apart.keys);
  CHECK(at_once.values == apart.values);
}

TEST_CASE("Heads are rotated and cached behind their product with the bits of ops apart",
          "[cuda]") {
  for (const int64_t n : {1, 4, 5, 9, 17, 32}) {  // each shape of block
    CheckHeads({.n = n});
  }
  CheckHeads({.n = 3, .folds_norm = true});
  CheckHeads(
      {.n = 2, .n_heads = 3, .n_kv_heads = 1, .head_dim = 128, .rotary_dim = 128, .bias = true});
  CheckHeads({.n = 6, .head_dim = 96, .rotary_dim = 32, .cache = DType::kF16, .more = 37});
  CheckHeads({.n = 1, .head_dim = 96, .rotary_dim = 96, .weight = DType::kQ4_0, .more = 256});
  CheckHeads({.n = 7, .cache = DType::kF8E4M3, .weight = DType::kQ8_0, .bias = true});
  CheckHeads({.n = 12, .cache = DType::kF32, .weight = DType::kF8G128});
}

TEST_CASE("Neighbouring columns are rotated behind their product, and heads that are not rotated",
          "[cuda]") {
  const RopeLayout neighbours = RopeLayout::kInterleaved;
  CheckHeads({.n = 1, .n_heads = 3, .n_kv_heads = 3, .layout = neighbours});
  CheckHeads({.n = 9, .head_dim = 22, .rotary_dim = 10, .layout = neighbours, .more = 3});
  CheckHeads({.n = 2, .head_dim = 50, .rotary_dim = 0});
  CheckHeads({.n = 20, .head_dim = 64, .rotary_dim = 0, .cache = DType::kF16});
}

TEST_CASE("Heads that no block of the product has whole are rotated afterwards", "[cuda]") {
  CheckHeads({.n = 2, .qk_norms = true, .at_once = false});
  CheckHeads({.n = 2, .cache = DType::kInt8, .at_once = false});
  CheckHeads({.n = 2, .head_dim = 80, .rotary_dim = 80, .at_once = false});
  CheckHeads({.n = 2, .head_dim = 64, .rotary_dim = 16, .at_once = false});
  CheckHeads({.n = 33, .at_once = false});
  CheckHeads({.n = 2, .at_once = false, .act = DType::kF32});
}

}  // namespace
}  // namespace heddle::kernels::test
