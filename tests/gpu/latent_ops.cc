#include "tests/gpu/latent_ops.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
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
using kernels::Ops;
using kernels::PackedStack;
using kernels::Tensor;
using kernels::WeightSource;
using kernels::test::BatchSpec;
using kernels::test::MakeWeight;
using kernels::test::Matrix;
using kernels::test::Random;
using kernels::test::TestBatch;
using kernels::test::TestCache;
using kernels::test::TestWeight;

// DeepSeek's.
constexpr int32_t kRotated = 64, kNope = 128, kValue = 128, kRank = 512, kDim = kRotated + kRank;
constexpr int32_t kQueryDim = kNope + kRotated;

// Inputs and outputs of one layer's ops. All heads have the same matrices.
struct Latents {
  Latents(Device& on, const BatchSpec& spec, DType cache_type, int32_t heads)
      : n_heads(heads),
        batch(spec),
        cache(on, TestCache(cache_type, batch.num_pages, 16, 1, kDim, /*seed=*/2)) {
    Random random(1);
    const auto pack = [&](int64_t rows, int64_t cols) {
      const TestWeight one = MakeWeight(random, DType::kBF16, rows, cols);
      const std::vector<WeightSource> all(static_cast<size_t>(n_heads), one.source());
      return Must(on.PackStack(all, n_heads));
    };
    keys = pack(kRank, kNope);
    values = pack(kValue, kRank);
    const auto n = static_cast<int64_t>(batch.token_ids.size());
    Matrix x = RepeatedRows(n, int64_t{n_heads} * kQueryDim);
    Matrix wide(n, int64_t{n_heads} * kDim), narrow(n, int64_t{n_heads} * kValue);
    const DType act = on.activation_dtype();
    queries = std::make_unique<OnDevice>(on, act, x);
    absorbed = std::make_unique<OnDevice>(on, act, wide);
    attended = std::make_unique<OnDevice>(on, act, wide);
    out = std::make_unique<OnDevice>(on, act, narrow);
    cache.view.values = cache.view.keys;
    Must(on.Plan(batch.view()));
  }

  kernels::LatentAttentionArgs args() const {
    Tensor latents = attended->tensor();
    latents.data =
        static_cast<uint8_t*>(latents.data) + kRotated * kernels::Info(attended->dtype).block_bytes;
    kernels::AttentionArgs attention = ArgsFor(*absorbed, *attended, cache.view, n_heads);
    attention.scale = 0.5f / std::sqrt(static_cast<float>(kQueryDim));
    return {.attention = attention,
            .queries = {.x = queries->tensor(),
                        .x_step = kQueryDim,
                        .heads = keys.get(),
                        .carried = kRotated,
                        .out = absorbed->tensor(),
                        .out_step = kDim},
            .values = {.x = latents,
                       .x_step = kDim,
                       .heads = values.get(),
                       .out = out->tensor(),
                       .out_step = kValue}};
  }
  void Attend(Ops& ops, bool at_once) const {
    const kernels::LatentAttentionArgs all = args();
    ops.HeadLinear(all.queries);
    if (at_once) return ops.AttendLatents(all);
    ops.Attention(all.attention);
    ops.HeadLinear(all.values);
  }

  int32_t n_heads;
  TestBatch batch;
  CacheOnDevice cache;
  std::unique_ptr<PackedStack> keys, values;
  std::unique_ptr<OnDevice> queries, absorbed, attended, out;
};

}  // namespace

double CheckLatents(Device& device, DType cache) {
  const auto attend = [&](bool at_once) {
    const Latents latents(device, {{{1, 40}, {300, 330}, {9, 30}}, 16}, cache, /*heads=*/2);
    Must(device.Run([&](Ops& ops) { latents.Attend(ops, at_once); }));
    return latents.out->Read();
  };
  const std::vector<float> found = attend(true), expected = attend(false);
  float largest = 0, worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::fmax(largest, std::fabs(expected[i]));
    const float error = std::fabs(found[i] - expected[i]);
    worst = std::isfinite(error) ? std::fmax(worst, error) : INFINITY;
  }
  return worst / (16 * 0x1p-8 * largest);  // some roundings of BF16 on either side
}

void TimeLatents(Device& device, int32_t repeats, const TimingReport& report) {
  const int32_t tokens = Sized(4096, 40), heads = Sized(16, 2);
  for (const bool at_once : {true, false}) {
    const std::string name =
        absl::StrCat("latent attention with projections, 4096 tokens, 16 heads, ",
                     at_once ? "made of latents" : "over latents");
    if (!report.begins(name)) continue;
    const Latents latents(device, {{{tokens, tokens}}, 16}, DType::kBF16, heads);
    const double us = Time(device, std::max(1, repeats / 10),
                           [&](Ops& ops, int32_t) { latents.Attend(ops, at_once); });
    // Operations of heads of 192 and 128, of which causal rows see half of the keys.
    report.ends({name, us, 4096.0 * 4096 * 16 * (kQueryDim + kValue), false});
  }
}

}  // namespace heddle::gpu
