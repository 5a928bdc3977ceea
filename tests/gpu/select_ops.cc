#include "tests/gpu/select_ops.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/sizes.h"
#include "tests/gpu/timed.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/selection_cases.h"
#include "tests/kernels/testing.h"

namespace heddle::gpu {
namespace {

using kernels::ChosenPlaces;
using kernels::CreateReferenceDevice;
using kernels::Device;
using kernels::DType;
using kernels::Ops;
using kernels::SelectArgs;
using kernels::test::BatchSpec;
using kernels::test::FillWithIntegers;
using kernels::test::GrowTrees;
using kernels::test::Integers;
using kernels::test::KeysAlone;
using kernels::test::Matrix;
using kernels::test::Random;
using kernels::test::TestBatch;
using kernels::test::TestCache;

constexpr int32_t kPageTokens = 16;

struct Indexer {
  int32_t n_heads, head_dim, top_k;
};

// An indexer's keys, queries and weights, and where its lists go. Numbers are small integers, of
// which all devices make the same sums.
struct Choice {
  Choice(Device& on, const Indexer& of, const TestBatch& batch, DType cache_type)
      : indexer(of),
        keys(on, CacheOf(of, batch, cache_type)),
        rows(static_cast<int64_t>(batch.token_ids.size())) {
    Random random(7);
    Matrix q = Integers(random, rows, int64_t{of.n_heads} * of.head_dim, 0);
    Matrix w = Integers(random, rows, of.n_heads, 0);
    queries = std::make_unique<OnDevice>(on, on.activation_dtype(), q);
    weights = std::make_unique<OnDevice>(on, DType::kF32, w);
    places = Copy(on, std::vector<int32_t>(static_cast<size_t>(rows * chosen().stride())));
    keys.view.values = keys.view.keys;
  }
  static TestCache CacheOf(const Indexer& of, const TestBatch& batch, DType type) {
    TestCache cache = KeysAlone(type, batch, kPageTokens, of.head_dim);
    Random random(5);
    FillWithIntegers(random, batch, &cache);
    return cache;
  }
  ChosenPlaces chosen() const {
    return {places == nullptr ? nullptr : static_cast<const int32_t*>(places->data()),
            indexer.top_k};
  }
  void Select(Ops& ops) const {
    ops.SelectPositions({.q = queries->tensor(),
                         .weights = weights->tensor(),
                         .n_heads = indexer.n_heads,
                         .cache = keys.view,
                         .top_k = indexer.top_k,
                         .out = static_cast<int32_t*>(places->data())});
  }
  // The lists; what is behind their ends is zeros, as it was.
  std::vector<int32_t> Lists(Device& device) const {
    std::vector<int32_t> lists(static_cast<size_t>(rows * chosen().stride()));
    Must(device.Download(lists.data(), places->data(),
                         static_cast<int64_t>(lists.size() * sizeof(int32_t))));
    return lists;
  }

  Indexer indexer;
  CacheOnDevice keys;
  int64_t rows;
  std::unique_ptr<OnDevice> queries, weights;
  std::unique_ptr<kernels::Buffer> places;
};

struct Found {
  std::vector<int32_t> lists;
  std::vector<float> attended;
};

Found ChooseAndAttend(Device& device, const TestBatch& batch, DType cache_type, Matrix q) {
  constexpr int32_t kHeads = 5, kDim = 80;
  const Choice choice(device, {7, 40, 30}, batch, cache_type);
  CacheOnDevice latents(device, TestCache(cache_type, batch.num_pages, kPageTokens, 1, kDim, 2));
  latents.view.values = latents.view.keys;
  Matrix zeros(q.num_rows(), q.num_cols());
  OnDevice input(device, device.activation_dtype(), q);
  OnDevice out(device, device.activation_dtype(), zeros);
  kernels::AttentionArgs args = ArgsFor(input, out, latents.view, kHeads);
  args.chosen = choice.chosen();
  Must(device.Plan(batch.view()));
  Must(device.Run([&](Ops& ops) {
    choice.Select(ops);
    ops.Attention(args);
  }));
  return {choice.Lists(device), out.Read()};
}

}  // namespace

double CheckSelection(Device& device, DType cache) {
  TestBatch batch({{{1, 300}, {20, 45}, {1, 9}, {5, 1100, 77}, {2, 700}}, kPageTokens});
  Random random(3);
  GrowTrees(random, {3}, &batch);
  Matrix q = Matrix::RandomOf(random, static_cast<int64_t>(batch.token_ids.size()), 5 * 80);
  { OnDevice rounded(device, device.activation_dtype(), q); }
  const Found found = ChooseAndAttend(device, batch, cache, q);
  const Found expected = ChooseAndAttend(*CreateReferenceDevice(), batch, cache, q);
  if (found.lists != expected.lists) return 1e9;
  float worst = 0;
  for (size_t i = 0; i < found.attended.size(); ++i) {
    const float error = std::fabs(found.attended[i] - expected.attended[i]);
    worst = std::isfinite(error) ? std::fmax(worst, error) : INFINITY;
  }
  // Values are up to 5; weights and outputs are rounded.
  return worst / (device.activation_dtype() == DType::kF32 ? 1e-4f : 8 * 0x1p-8f);
}

void TimeSelection(Device& device, int32_t repeats, const TimingReport& report) {
  const Indexer indexer = {Sized(64, 4), 128, Sized(2048, 32)};
  const int32_t context = Sized(32768, 300), heads = Sized(128, 2);
  for (const int32_t rows : {1, 64}) {
    const int32_t n = Sized(rows, 2);
    const TestBatch batch(BatchSpec{{{n, context}}, kPageTokens});
    const std::string choosing =
        absl::StrCat("choice of 2048 of 32768 positions, 64 heads, ", rows, " rows");
    const std::string attending =
        absl::StrCat("attention over 2048 chosen latents, 128 heads, ", rows, " rows");
    if (report.begins(choosing)) {
      const Choice choice(device, indexer, batch, DType::kBF16);
      Must(device.Plan(batch.view()));
      const double us = Time(device, repeats, [&](Ops& ops, int32_t) { choice.Select(ops); });
      report.ends({choosing, us, 2.0 * rows * 32768 * 64 * 128, false});
    }
    if (!report.begins(attending)) continue;
    const Choice choice(device, indexer, batch, DType::kBF16);
    CacheOnDevice latents(device, TestCache(DType::kBF16, batch.num_pages, kPageTokens, 1, 576, 2));
    latents.view.values = latents.view.keys;
    Matrix q = RepeatedRows(n, int64_t{heads} * 576), zeros(n, int64_t{heads} * 576);
    const OnDevice input(device, DType::kBF16, q), out(device, DType::kBF16, zeros);
    kernels::AttentionArgs args = ArgsFor(input, out, latents.view, heads);
    args.chosen = choice.chosen();
    Must(device.Plan(batch.view()));
    Must(device.Run([&](Ops& ops) { choice.Select(ops); }));
    const double us = Time(device, repeats, [&](Ops& ops, int32_t) { ops.Attention(args); });
    report.ends({attending, us, 2.0 * rows * 2048 * 128 * 2 * 576, false});
  }
}

}  // namespace heddle::gpu
