#include "tests/gpu/expert_ops.h"

#include <memory>
#include <optional>
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

using kernels::Activation;
using kernels::CreateReferenceDevice;
using kernels::Device;
using kernels::DType;
using kernels::Ops;
using kernels::WeightSource;
using kernels::test::MakeRowScaledWeight;
using kernels::test::MakeTileScaledWeight;
using kernels::test::MakeWeight;
using kernels::test::Matrix;
using kernels::test::Random;
using kernels::test::TestWeight;

// Both products of the device and of the reference; make(random, rows, cols) makes a weight.
template <typename Make>
std::pair<std::vector<float>, std::vector<float>> MixOnBoth(Device& device, int64_t n, Make make) {
  constexpr int32_t kExperts = 3, kTopK = 2;
  constexpr int64_t kHidden = 128, kInter = 128;
  Random random(static_cast<uint32_t>(n));
  std::vector<TestWeight> ups, downs;
  for (int32_t e = 0; e < kExperts; ++e) {
    for (int i = 0; i < 2; ++i) ups.push_back(make(random, kInter, kHidden));
    downs.push_back(make(random, kHidden, kInter));
  }
  std::vector<int32_t> experts;
  std::vector<float> weights;
  for (int64_t i = 0; i < n * kTopK; ++i) {
    experts.push_back(random.Below(kExperts));
    weights.push_back(random.Uniform(0.2f, 1.0f));
  }
  Matrix x = Matrix::RandomOf(random, n, kHidden);
  { OnDevice rounded(device, device.activation_dtype(), x); }
  Matrix zeros(n, kHidden), inner(n * kTopK, kInter), rows(n * kTopK, kHidden);
  auto mix = [&](Device& on) {
    const auto pack = [&](const std::vector<TestWeight>& all) {
      std::vector<WeightSource> sources;
      sources.reserve(all.size());
      for (const TestWeight& weight : all) sources.push_back(weight.source());
      return Must(on.PackStack(sources, kExperts));
    };
    const auto up = pack(ups), down = pack(downs);
    const DType act = on.activation_dtype();
    OnDevice own_x(on, act, x), own_inner(on, act, inner), own_rows(on, act, rows);
    OnDevice out(on, act, zeros);
    const std::unique_ptr<kernels::Buffer> chosen = Copy(on, experts), shares = Copy(on, weights);
    PlanRows(on, n);
    Must(on.Run([&](Ops& ops) {
      ops.ExpertMix({.x = own_x.tensor(),
                     .experts = static_cast<const int32_t*>(chosen->data()),
                     .weights = static_cast<const float*>(shares->data()),
                     .top_k = kTopK,
                     .up = up.get(),
                     .down = down.get(),
                     .activation = Activation::kSilu,
                     .inner = own_inner.tensor(),
                     .rows = own_rows.tensor(),
                     .out = out.tensor()});
    }));
    return out.Read();
  };
  return {mix(device), mix(*CreateReferenceDevice())};
}

// The timed mixture: all experts are alike.
constexpr int32_t kTimedExperts = 128, kTimedTopK = 8;
constexpr int64_t kTimedHidden = 2048, kTimedInter = 768;

struct TimedStacks {
  std::unique_ptr<kernels::PackedStack> up, down;

  TimedStacks(Device& device, TestWeight (*make)(Random&, DType, int64_t, int64_t), DType dtype) {
    Random random(1);
    const int64_t hidden = Sized(kTimedHidden, 256), inter = Sized(kTimedInter, 128);
    const int32_t count = Sized(kTimedExperts, 8);
    const TestWeight one_up = make(random, dtype, inter, hidden);
    const TestWeight one_down = make(random, dtype, hidden, inter);
    const auto experts = static_cast<size_t>(count);
    const std::vector<WeightSource> ups(2 * experts, one_up.source());
    const std::vector<WeightSource> downs(experts, one_down.source());
    up = Must(device.PackStack(ups, count));
    down = Must(device.PackStack(downs, count));
  }
};

// `n` rows that choose all experts equally often.
Timing TimeMixture(Device& device, const std::string& name, const TimedStacks& stacks, int64_t n) {
  const int64_t n_pairs = n * kTimedTopK, hidden = stacks.up->cols, inner_cols = stacks.down->cols;
  const DType act = device.activation_dtype();
  Matrix rows = RepeatedRows(n, hidden);
  Matrix inners(n_pairs, inner_cols), wide(n_pairs, hidden);
  const OnDevice x(device, act, rows), out(device, act, rows);
  const OnDevice inner(device, act, inners), own(device, act, wide);
  std::vector<int32_t> experts(static_cast<size_t>(n_pairs));
  for (size_t i = 0; i < experts.size(); ++i) {
    const size_t row = i / kTimedTopK, choice = i % kTimedTopK;
    const size_t count = static_cast<size_t>(stacks.up->count);
    experts[i] = static_cast<int32_t>((choice * (count / kTimedTopK) + row * 5) % count);
  }
  const std::vector<float> weights(experts.size(), 1.0f / kTimedTopK);
  const auto chosen = Copy(device, experts), shares = Copy(device, weights);
  PlanRows(device, n);
  const double us = Time(device, Sized(10, 1), [&](Ops& ops, int32_t) {
    ops.ExpertMix({.x = x.tensor(),
                   .experts = static_cast<const int32_t*>(chosen->data()),
                   .weights = static_cast<const float*>(shares->data()),
                   .top_k = kTimedTopK,
                   .up = stacks.up.get(),
                   .down = stacks.down.get(),
                   .activation = Activation::kSilu,
                   .inner = inner.tensor(),
                   .rows = own.tensor(),
                   .out = out.tensor()});
  });
  return {name, us, 6.0 * static_cast<double>(n_pairs * hidden * inner_cols), false};
}

}  // namespace

double CheckExperts(Device& device, DType dtype, int64_t n) {
  const auto [found, wanted] =
      MixOnBoth(device, n, [dtype](Random& random, int64_t rows, int64_t cols) {
        return MakeWeight(random, dtype, rows, cols);
      });
  return Worst(found, wanted);
}

double CheckExperts(Device& device, const CodeFormat& format, int64_t n) {
  const auto [found, wanted] =
      MixOnBoth(device, n, [&format](Random& random, int64_t rows, int64_t cols) {
        return format.Make(random, rows, cols);
      });
  return WorstOfCodes(found, wanted);
}

void TimeExperts(Device& device, const TimingReport& report) {
  struct Format {
    const char* name;
    TestWeight (*make)(Random&, DType, int64_t, int64_t);
    DType dtype;
  };
  for (const Format& format : {Format{"bf16", MakeWeight, DType::kBF16},
                               {"fp8 per row", MakeRowScaledWeight, DType::kF8G128},
                               {"fp8 per tile", MakeTileScaledWeight, DType::kF8G128}}) {
    std::optional<TimedStacks> stacks;  // made with the first that is asked for
    for (int64_t n : {512, 4096}) {
      const std::string name = absl::StrCat("experts ", format.name, ", ", n, " rows of 8 in 128");
      if (!report.begins(name)) continue;
      if (!stacks.has_value()) stacks.emplace(device, format.make, format.dtype);
      report.ends(TimeMixture(device, name, *stacks, Sized(n, 40)));
    }
  }
}

}  // namespace heddle::gpu
