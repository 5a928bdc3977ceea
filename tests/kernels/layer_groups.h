// A step of a model whose layers are in two groups, for every device: a layer of group 1 reads and
// writes the same as in a step with only that group's spans. For devices with F32 activations.
#pragma once

#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

struct LayerStep {
  Matrix out;
  TestCache cache;
};

// Keys and values of the batch's rows written to a copy of `cache`, and attention over it, as a
// layer of the group does.
inline LayerStep RunLayer(Device& device, const HostBatch& batch, int32_t group, TestCache cache,
                          int32_t window) {
  constexpr int32_t kHeads = 6;
  cache.view.keys = cache.keys.data();
  cache.view.values = cache.values.data();
  cache.view.group = group;
  const int32_t dim = cache.view.head_dim;
  const int32_t kv_heads = cache.view.n_kv_heads;
  Random random(3);
  const auto n = static_cast<int64_t>(batch.token_ids.size());
  Matrix q = Matrix::RandomOf(random, n, int64_t{kHeads} * dim);
  Matrix k = Matrix::RandomOf(random, n, int64_t{kv_heads} * dim);
  Matrix v = Matrix::RandomOf(random, n, int64_t{kv_heads} * dim);
  Matrix out(n, int64_t{kHeads} * dim);
  REQUIRE(device.Plan(batch).ok());
  const absl::Status status = device.Run([&](Ops& ops) {
    ops.RopeKvWrite({.q = q.tensor(),
                     .k = k.tensor(),
                     .v = v.tensor(),
                     .n_heads = kHeads,
                     .cache = cache.view});
    ops.Attention({.q = q.tensor(),
                   .n_heads = kHeads,
                   .cache = cache.view,
                   .scale = 0.25f,
                   .window = window,
                   .out = out.tensor()});
  });
  INFO(status.ToString());
  REQUIRE(status.ok());
  return {std::move(out), std::move(cache)};
}

inline void CheckLayerGroups(Device& device) {
  // Two decodes and a chunk; the second group has lost what lies before its window.
  const TestBatch far({{{1, 300}, {5, 70}, {1, 8}}}, 1);
  const TestBatch near({{{1, 44}, {5, 70}, {1, 8}}}, 2);
  const TestBatch other({{{1, 9}, {5, 5}, {1, 8}}}, 3);
  auto spans = [](const TestBatch& batch) {
    return BatchSpans{batch.kv_slot, batch.span_begin, batch.span_page, batch.span_tokens,
                      batch.context_len};
  };
  const std::vector<BatchSpans> more = {spans(near), spans(other)};
  HostBatch grouped = far.view();
  grouped.more_groups = more;
  for (DType dtype : {DType::kF32, DType::kF16}) {
    for (int32_t group = 0; group < 3; ++group) {
      INFO(Info(dtype).name << " group " << group);
      const TestBatch& own = group == 0 ? far : group == 1 ? near : other;
      const TestCache cache(dtype, own.num_pages, 16, 2, 16, 4);
      const int32_t window = group == 0 ? 0 : 33;
      const LayerStep found = RunLayer(device, grouped, group, cache, window);
      const LayerStep expected = RunLayer(device, own.view(), 0, cache, window);
      CHECK(SameBits(found.out, expected.out));
      CHECK(found.cache.keys == expected.cache.keys);
      CHECK(found.cache.values == expected.cache.values);
      CHECK(found.cache.keys != cache.keys);
    }
  }
}

}  // namespace heddle::kernels::test
