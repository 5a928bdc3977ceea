#include "tests/gpu/head_ops.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/sizes.h"
#include "tests/gpu/timed.h"
#include "tests/kernels/testing.h"

namespace heddle::gpu {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::LinearArgs;
using kernels::Ops;
using kernels::PackedWeight;
using kernels::RopeKvWriteArgs;
using kernels::Tensor;
using kernels::WeightSource;
using kernels::test::BatchSpec;
using kernels::test::MakeWeight;
using kernels::test::Matrix;
using kernels::test::Random;
using kernels::test::TestBatch;
using kernels::test::TestCache;
using kernels::test::TestWeight;

struct HeadShape {
  int32_t n_heads, n_kv_heads, dim;
  int64_t rows() const { return int64_t{n_heads + 2 * n_kv_heads} * dim; }
};

// Rows of one sequence each, and all that the ops read and write but the weight.
struct Heads {
  Heads(Device& on, const HeadShape& shape_of, DType cache_type, int64_t n, int64_t cols)
      : device(on),
        shape(shape_of),
        batch(SpecOf(n)),
        content(cache_type, batch.num_pages, 16, shape.n_kv_heads, shape.dim, /*seed=*/2),
        cache(on, content),
        frequencies(static_cast<size_t>(shape.dim / 2), 0.1f),
        angles(Must(on.Allocate(n * shape.dim * int64_t{sizeof(float)}))) {
    Matrix rows = RepeatedRows(n, cols), zeros(n, shape.rows());
    x = std::make_unique<OnDevice>(on, on.activation_dtype(), rows);
    out = std::make_unique<OnDevice>(on, on.activation_dtype(), zeros);
    Must(on.Plan(batch.view()));
  }

  static BatchSpec SpecOf(int64_t n) {
    BatchSpec spec{{}, 16};
    for (int64_t t = 0; t < n; ++t) {
      spec.sequences.push_back({1, static_cast<int32_t>(5 + 7 * t)});
    }
    return spec;
  }
  float* cos_sin() { return static_cast<float*>(angles->data()); }
  void Turn(Ops& ops) { ops.RopeAngles({.inv_freq = frequencies, .cos_sin = cos_sin()}); }
  void Make(Ops& ops, const PackedWeight& weight, bool at_once) {
    const auto columns = [&](int64_t begin, int64_t heads) {
      const Tensor t = out->tensor();
      const int64_t bytes = kernels::Info(out->dtype).block_bytes;
      return Tensor{static_cast<uint8_t*>(t.data) + begin * shape.dim * bytes, t.rows,
                    heads * shape.dim, t.stride};
    };
    const LinearArgs product = {.x = x->tensor(), .weight = &weight, .out = out->tensor()};
    const RopeKvWriteArgs heads = {.q = columns(0, shape.n_heads),
                                   .k = columns(shape.n_heads, shape.n_kv_heads),
                                   .v = columns(shape.n_heads + shape.n_kv_heads, shape.n_kv_heads),
                                   .n_heads = shape.n_heads,
                                   .cos_sin = cos_sin(),
                                   .rotary_dim = shape.dim,
                                   .cache = cache.view};
    if (at_once) return ops.ProjectHeads(product, heads);
    ops.Linear(product);
    ops.RopeKvWrite(heads);
  }
  // The queries, and the bytes of the cache.
  std::pair<std::vector<float>, std::vector<uint8_t>> Read() const {
    std::vector<float> queries = out->Read();
    const auto cols = static_cast<size_t>(shape.n_heads * shape.dim);
    const auto stride = static_cast<size_t>(shape.rows());
    for (size_t t = 0; t * stride < queries.size(); ++t) {
      std::fill(queries.begin() + static_cast<ptrdiff_t>(t * stride + cols),
                queries.begin() + static_cast<ptrdiff_t>((t + 1) * stride), 0.0f);
    }
    std::vector<uint8_t> bytes(2 * content.keys.size());
    const auto half = static_cast<int64_t>(content.keys.size());
    Must(device.Download(bytes.data(), cache.view.keys, half));
    Must(device.Download(bytes.data() + half, cache.view.values, half));
    return {std::move(queries), std::move(bytes)};
  }

  Device& device;
  HeadShape shape;
  TestBatch batch;
  TestCache content;
  CacheOnDevice cache;
  std::vector<float> frequencies;
  std::unique_ptr<kernels::Buffer> angles;
  std::unique_ptr<OnDevice> x, out;
};

}  // namespace

double CheckHeads(Device& device, DType weight_type, DType cache, int64_t n) {
  constexpr HeadShape kShape = {4, 2, 64};
  constexpr int64_t kCols = 288;
  Random random(static_cast<uint32_t>(n));
  const TestWeight weight = MakeWeight(random, weight_type, kShape.rows(), kCols);
  const WeightSource source = weight.source();
  const auto packed = Must(device.Pack({&source, 1}));
  const auto made = [&](bool at_once) {
    Heads heads(device, kShape, cache, n, kCols);
    Must(device.Run([&](Ops& ops) {
      heads.Turn(ops);
      heads.Make(ops, *packed, at_once);
    }));
    return heads.Read();
  };
  return made(true) == made(false) ? 0.0 : 1e9;
}

void TimeProjectedHeads(Device& device, int32_t repeats, const TimingReport& report) {
  const HeadShape shape = {Sized(32, 4), Sized(8, 2), Sized(128, 64)};
  const int64_t cols = Sized(4096, 256);
  std::vector<std::unique_ptr<PackedWeight>> copies;  // in turn, so that none stays in the L2
  for (const bool at_once : {true, false}) {
    const std::string name =
        absl::StrCat("q, k and v bf16, rotated and cached, 1 row, ", at_once ? "at once" : "apart");
    if (!report.begins(name)) continue;
    if (copies.empty()) {
      Random random(1);
      const TestWeight weight = MakeWeight(random, DType::kBF16, shape.rows(), cols);
      const WeightSource source = weight.source();
      for (int i = 0; i < Sized(5, 1); ++i) copies.push_back(Must(device.Pack({&source, 1})));
    }
    Heads heads(device, shape, DType::kBF16, 1, cols);
    const double us = Time(device, repeats, [&](Ops& ops, int32_t i) {
      if (i == 0) heads.Turn(ops);
      heads.Make(ops, *copies[static_cast<size_t>(i) % copies.size()], at_once);
    });
    report.ends({name, us, static_cast<double>(copies[0]->bytes), true});
  }
}

}  // namespace heddle::gpu
