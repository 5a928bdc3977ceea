#include "tests/kernels/cuda/attention_case.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "catch2/catch.hpp"
#include "kernels/cuda/attention/attention_params.h"
#include "kernels/kv_element.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

struct Result {
  Matrix out;
  Matrix lse;
};

// Frequencies for three quarters of a head; they stay where they are for all cases.
std::span<const float> Frequencies(const AttentionCase& c) {
  static const std::vector<float> all = [] {
    std::vector<float> frequencies(256);
    for (size_t i = 0; i < frequencies.size(); ++i) {
      frequencies[i] = std::pow(1000.0f, -static_cast<float>(i) / 24.0f);
    }
    return frequencies;
  }();
  return std::span(all).first(static_cast<size_t>(c.head_dim) * 3 / 8);
}

Result Attend(Device& device, const AttentionCase& c, const HostBatch& batch,
              const KvCacheView& cache, Matrix q, const std::vector<float>& sinks, int64_t pad) {
  const DType act = device.activation_dtype();
  Result result{Matrix(q.num_rows(), int64_t{c.n_heads} * c.head_dim),
                Matrix(q.num_rows(), c.n_heads)};
  Activations q_device(act, q, pad);
  Activations out(act, result.out, pad);
  REQUIRE(device.Plan(batch).ok());
  AttentionArgs args;
  args.q = q_device.tensor();
  args.n_heads = c.n_heads;
  args.half_keys = c.half_keys;
  args.cache = cache;
  args.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  args.window = c.window;
  args.in_chunks = c.in_chunks;
  args.both_ways = c.both_ways;
  constexpr int32_t kReach = 256;
  Random bias_random(5);
  const std::vector<float> biases =
      bias_random.Normals(c.n_heads * DistanceBias{nullptr, kReach}.stride());
  if (c.bias) args.bias = {biases.data(), kReach};
  const QueryRotation rotation = {.inv_freq = Frequencies(c), .layout = c.layout};
  if (c.turns) args.rotation = &rotation;
  args.softcap = c.softcap;
  args.sinks = c.sinks ? sinks.data() : nullptr;
  args.out = out.tensor();
  args.lse = c.lse ? result.lse.at(0, 0) : nullptr;
  MustRun(device, [&](Ops& ops) { ops.Attention(args); });
  CHECK(out.GapsIntact());
  for (int64_t t = 0; t < q.num_rows(); ++t) {
    for (int64_t i = 0; i < result.out.num_cols(); ++i) *result.out.at(t, i) = out(t, i);
  }
  return result;
}

// Largest |value| in the cache: bounds every output, and what rounding the weights may cost.
constexpr double kLargestValue = 5;

// Scores err by roundings of head_dim products of unit size; weights by that and by their own
// rounding to the cache's type on their way to the matrix instruction; outputs by their type's.
double Tolerance(const AttentionCase& c, DType act, double expected) {
  double scores = 4 * std::sqrt(static_cast<double>(c.head_dim)) * 0x1p-23;
  const bool halves = c.cache == DType::kF16 || c.cache == DType::kF8E4M3;
  double weights = act == DType::kF32 ? 0 : halves ? 0x1p-11 : 0x1p-8;
  return kLargestValue * (2 * scores + 1e-5 + weights) + RoundingOf(act, expected);
}

// Sets all positions of a cache of 16-bit floats that no span counts to NaN.
void PoisonRest(const HostBatch& batch, TestCache& cache) {
  const KvCacheView& view = cache.view;
  std::vector<bool> used(static_cast<size_t>(view.num_pages) * view.page_tokens, false);
  for (size_t i = 0; i < batch.span_page.size(); ++i) {
    for (int32_t j = 0; j < batch.span_tokens[i]; ++j) {
      used[static_cast<size_t>(batch.span_page[i]) * view.page_tokens + j] = true;
    }
  }
  const int64_t row_bytes = 2 * int64_t{view.head_dim};
  for (auto* storage : {&cache.keys, &cache.values}) {
    for (size_t slot = 0; slot < used.size(); ++slot) {
      for (int32_t head = 0; head < view.n_kv_heads && !used[slot]; ++head) {
        const auto page = static_cast<int64_t>(slot) / view.page_tokens;
        const auto at = static_cast<int64_t>(slot) % view.page_tokens;
        uint8_t* row = storage->data() + view.PageOffset(page) + head * view.head_bytes();
        std::fill_n(row + at * row_bytes, row_bytes, uint8_t{0xFF});
      }
    }
  }
}

// The same values in F32: the reference decodes a row again for each that sees it.
TestCache InF32(const TestCache& cache) {
  const KvCacheView& from = cache.view;
  TestCache wide(DType::kF32, from.num_pages, from.page_tokens, from.n_kv_heads, from.head_dim, 0);
  wide.view.group = from.group;
  const bool latent = from.keys == from.values;
  for (int64_t slot = 0; slot < int64_t{from.num_pages} * from.page_tokens; ++slot) {
    for (int32_t head = 0; head < from.n_kv_heads; ++head) {
      const int64_t at = RowOffset(wide.view, slot, head);
      LoadKvRow(from, from.keys, slot, head, reinterpret_cast<float*>(wide.keys.data() + at));
      if (latent) continue;
      LoadKvRow(from, from.values, slot, head, reinterpret_cast<float*>(wide.values.data() + at));
    }
  }
  if (latent) wide.view.values = wide.view.keys;
  return wide;
}

// Rounds the rows of sequences in tiles of prompts as LaunchAttentionHopperF8 does: 448 stands for
// a head's largest magnitude.
void RoundToCodes(const AttentionCase& c, const HostBatch& batch, Matrix* q) {
  const int32_t dim = c.half_keys ? c.head_dim / 2 : c.head_dim;
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
    if (rows == 1 || rows * (c.n_heads / c.n_kv_heads) <= cuda::kDecodeTileRows) continue;
    for (int32_t row = batch.q_begin[s]; row < batch.q_begin[s + 1]; ++row) {
      for (int32_t head = 0; head < c.n_heads; ++head) {
        float* const x = q->at(row, int64_t{head} * dim);
        float largest = 1e-20f;
        for (int32_t i = 0; i < dim; ++i) largest = std::max(largest, std::fabs(x[i]));
        const float scale = largest / 448, inverse = 448 / largest;
        for (int32_t i = 0; i < dim; ++i) {
          x[i] = scale * F8E4M3ToF32(F32ToF8E4M3(x[i] * inverse));
        }
      }
    }
  }
}

void Compare(const AttentionCase& c, DType act, const Result& found, const Result& expected) {
  double worst = 0, worst_lse = 0;
  // Scores are sums of products with errors of both signs: some four times that of one.
  const double scores = c.rounds_keys ? 4 * kLargestValue / 2 * 0x1p-9 : 0;
  for (int64_t t = 0; t < found.out.num_rows(); ++t) {
    for (int64_t i = 0; i < found.out.num_cols(); ++i) {
      double error = std::fabs(static_cast<double>(found.out(t, i)) - expected.out(t, i));
      if (std::isnan(error)) error = 1e9;
      worst = std::max(worst, error / Tolerance(c, act, expected.out(t, i)));
    }
    for (int64_t h = 0; h < c.n_heads; ++h) {
      double error = std::fabs(static_cast<double>(found.lse(t, h)) - expected.lse(t, h));
      worst_lse =
          std::max(worst_lse, error / (1e-4 + scores + 1e-6 * std::fabs(expected.lse(t, h))));
    }
  }
  CHECK(worst <= 1);
  CHECK(worst_lse <= 1);
}

}  // namespace

TestBatch BatchOf(const AttentionCase& c, uint32_t seed) {
  TestBatch batch(c.batch, seed);
  Random random(seed + 1);
  GrowTrees(random, c.trees, &batch);
  for (const SharedPages& shared : c.shared) SharePages(shared, &batch);
  if (!c.pieces.empty()) CutPieces(random, c.pieces, c.turns, &batch);
  for (int32_t& position : batch.positions) position += c.passed;
  return batch;
}

void CheckAttentionOf(Device& device, const AttentionCase& c, const HostBatch& batch,
                      int32_t num_pages, int32_t group, uint32_t seed) {
  TestCache cache(c.cache, num_pages, c.batch.page_tokens, c.n_kv_heads, c.head_dim, seed);
  cache.view.group = group;
  if (c.latent) cache.view.values = cache.view.keys;
  if (c.poisoned) PoisonRest(batch.OfGroup(group), cache);
  Random random(seed);
  Matrix q = Matrix::RandomOf(random, batch.n_tokens(),
                              int64_t{c.n_heads} * c.head_dim / (c.half_keys ? 2 : 1));
  { Activations rounded(device.activation_dtype(), q); }
  const std::vector<float> sinks = random.Normals(c.n_heads);
  const auto reference = CreateReferenceDevice();
  const TestCache wide = InF32(cache);
  const Result found = Attend(device, c, batch, cache.view, q, sinks, c.pad);
  if (c.codes_queries) RoundToCodes(c, batch, &q);
  const Result expected = Attend(*reference, c, batch, wide.view, q, sinks, 0);
  INFO(Info(device.activation_dtype()).name
       << " head_dim " << c.head_dim << " heads " << c.n_heads << "/" << c.n_kv_heads << " "
       << Info(c.cache).name << " window " << c.window << (c.in_chunks ? " in chunks" : "")
       << " softcap " << c.softcap << " sinks " << c.sinks << " half keys " << c.half_keys
       << " pieces " << c.pieces.size() << " turns " << c.turns << " major " << c.compute_major
       << " page " << c.batch.page_tokens << " seqs " << batch.n_seqs() << " first context "
       << batch.context_len[0] << " group " << group << " seed " << seed);
  Compare(c, device.activation_dtype(), found, expected);
}

void CheckAttention(const AttentionCase& c, DType act, uint32_t seed, int64_t workspace_bytes) {
  const TestBatch batch = BatchOf(c, seed);
  cuda::emulate::SetMachine({.compute_major = c.compute_major});
  const auto device = EmulatedDevice(act, workspace_bytes);
  CheckAttentionOf(*device, c, batch.view(), batch.num_pages, 0, seed);
  cuda::emulate::SetMachine({});
}

}  // namespace heddle::kernels::test
