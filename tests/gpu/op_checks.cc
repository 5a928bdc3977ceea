#include "tests/gpu/op_checks.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/gpu/on_device.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/testing.h"

namespace heddle::gpu {
namespace {

using kernels::Activation;
using kernels::AdapterMatrix;
using kernels::AttentionArgs;
using kernels::BF16ToF32;
using kernels::CreateReferenceDevice;
using kernels::Device;
using kernels::DType;
using kernels::Epilogue;
using kernels::F32ToBF16;
using kernels::Info;
using kernels::Ops;
using kernels::SampleArgs;
using kernels::SampleRowParams;
using kernels::WeightSource;
using kernels::test::BatchSpec;
using kernels::test::GrowTrees;
using kernels::test::MakeRowScaledWeight;
using kernels::test::MakeWeight;
using kernels::test::Matrix;
using kernels::test::Random;
using kernels::test::SharePages;
using kernels::test::TestBatch;
using kernels::test::TestCache;
using kernels::test::TestWeight;

// Largest |found - expected| over 1 % of the largest expected value: what BF16 roundings of inputs,
// weights and output stay well under, and any wrong index exceeds.
double Worst(const std::vector<float>& found, const std::vector<float>& expected) {
  double largest = 1e-6, worst = 0;
  for (float value : expected) largest = std::max<double>(largest, std::fabs(value));
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::fabs(static_cast<double>(found[i]) - expected[i]);
    worst = std::isnan(error) ? 1e9 : std::max(worst, error);
  }
  return worst / (0.01 * largest);
}

std::vector<float> Multiply(Device& device, const TestWeight& weight, Matrix x, Epilogue epilogue) {
  const DType act = device.activation_dtype();
  WeightSource source = weight.source();
  source.takes_int8_x = true;
  auto packed = Must(device.Pack({&source, 1}));
  OnDevice input(device, act, x);
  Matrix zeros(x.num_rows(), epilogue == Epilogue::kGated ? weight.rows / 2 : weight.rows);
  OnDevice out(device, act, zeros);
  Must(device.Run([&](Ops& ops) {
    ops.Linear({.x = input.tensor(),
                .weight = packed.get(),
                .epilogue = epilogue,
                .activation = epilogue == Epilogue::kGated ? Activation::kSilu : Activation::kNone,
                .out = out.tensor()});
  }));
  return out.Read();
}

CheckResult CheckLinear(Device& device, DType dtype, int64_t n, int64_t cols, int64_t rows,
                        Epilogue epilogue) {
  Random random(static_cast<uint32_t>(n + cols + rows));
  const TestWeight weight = MakeWeight(random, dtype, rows, cols);
  Matrix x = Matrix::RandomOf(random, n, cols);
  for (int64_t i = 0; i < n * cols; ++i) {
    float& value = *x.at(i / cols, i % cols);
    value = BF16ToF32(F32ToBF16(value));
  }
  auto reference = CreateReferenceDevice();
  return {absl::StrCat("linear ", std::string(Info(dtype).name), " [", n, ", ", cols, "] x [", rows,
                       ", ", cols, "]", epilogue == Epilogue::kGated ? " gated" : ""),
          Worst(Multiply(device, weight, x, epilogue), Multiply(*reference, weight, x, epilogue))};
}

// x that rows of codes hold exactly: E4M3 up to 448, or integers up to 127, in steps of 1 / 8.
float ExactInCodes(Random& random, bool is_int, bool is_first) {
  if (is_first) return is_int ? 127.0f / 8 : 448.0f / 8;
  const int32_t sign = random.Below(2) == 0 ? -1 : 1;
  const int32_t magnitude =
      is_int ? random.Below(128) : (8 + random.Below(8)) << random.Below(5);  // 8 .. 240
  return static_cast<float>(sign * magnitude) / 8;
}

// One scale per row: many rows are multiplied as codes where library and device do that.
CheckResult CheckCodes(Device& device, DType dtype, int64_t n, Epilogue epilogue) {
  constexpr int64_t kCols = 384, kRows = 160;
  Random random(static_cast<uint32_t>(n));
  const TestWeight weight = MakeRowScaledWeight(random, dtype, kRows, kCols);
  Matrix x(n, kCols);
  for (int64_t i = 0; i < n * kCols; ++i) {
    *x.at(i / kCols, i % kCols) =
        ExactInCodes(random, dtype == DType::kInt8G128, i % kCols == i / kCols % kCols);
  }
  auto reference = CreateReferenceDevice();
  return {absl::StrCat("linear ", std::string(Info(dtype).name), ", one scale per row [", n, ", ",
                       kCols, "]", epilogue == Epilogue::kGated ? " gated" : ""),
          Worst(Multiply(device, weight, x, epilogue), Multiply(*reference, weight, x, epilogue))};
}

CheckResult CheckAdapters(Device& device, int32_t rows, int32_t rank) {
  constexpr int64_t kCols = 264, kOut = 136;
  TestBatch batch({{{rows, rows}}, 16});
  std::vector<int32_t> slots(static_cast<size_t>(rows));
  for (size_t t = 0; t < slots.size(); ++t) slots[t] = static_cast<int32_t>(t % 5) - 1;
  auto add = [&](Device& on) {
    Random random(6);
    const TestWeight weight = MakeWeight(random, DType::kBF16, kOut, kCols);
    const WeightSource source = weight.source();
    auto packed = Must(on.Pack({&source, 1}));
    const AdaptersOnDevice adapters(on, /*slots=*/4, rank, kOut, kCols);
    const AdapterMatrix matrix = adapters.view();
    Matrix x = Matrix::RandomOf(random, rows, kCols), zeros(rows, kOut);
    { OnDevice rounded(device, device.activation_dtype(), x); }
    OnDevice input(on, on.activation_dtype(), x), out(on, on.activation_dtype(), zeros);
    kernels::HostBatch view = batch.view();
    view.adapter_slot = slots;
    Must(on.Plan(view));
    Must(on.Run([&](Ops& ops) {
      ops.Linear(
          {.x = input.tensor(), .weight = packed.get(), .out = out.tensor(), .adapters = &matrix});
    }));
    return out.Read();
  };
  return {absl::StrCat("adapters of rank ", rank, ", ", rows, " rows"),
          Worst(add(device), add(*CreateReferenceDevice()))};
}

std::vector<float> Attend(Device& device, const TestBatch& batch, const TestCache& cache, Matrix q,
                          int32_t n_heads, int32_t window) {
  const DType act = device.activation_dtype();
  CacheOnDevice on_device(device, cache);
  OnDevice input(device, act, q);
  Matrix zeros(q.num_rows(), q.num_cols());
  OnDevice out(device, act, zeros);
  AttentionArgs args = ArgsFor(input, out, on_device.view, n_heads);
  args.window = window;
  Must(device.Plan(batch.view()));
  Must(device.Run([&](Ops& ops) { ops.Attention(args); }));
  return out.Read();
}

TestBatch Mixed() {
  return TestBatch({{{1, 1}, {1, 77}, {37, 90, 9}, {1, 900, 100}, {3, 131, 5}}, 16});
}

// Tiles and stages of one row and one key more or less, and a page that ends early.
TestBatch Prompts() { return TestBatch({{{150, 150}, {65, 193, 50}}, 32}); }

// Drafts of 64 rows and of one, among decodes and a chunk that is split along its context.
TestBatch Trees() {
  TestBatch batch({{{64, 75}, {1, 40}, {33, 1200, 77}, {1, 150}, {20, 900}}, 16});
  Random random(4);
  GrowTrees(random, {0, 1, 2}, &batch);
  return batch;
}

// Of one prompt, as long as any device reads it once for all with 8 KV heads.
TestBatch OnePrompt() {
  BatchSpec spec{{}, 16};
  std::vector<int32_t> all;
  for (int32_t s = 0; s < 12; ++s) {
    all.push_back(s);
    spec.sequences.push_back({s == 7 ? 5 : 1, 405 + 9 * s});
  }
  TestBatch batch(spec);
  SharePages({all, 400}, &batch);
  return batch;
}

struct AttentionShape {
  int32_t head_dim, n_heads, n_kv_heads, window;
};

CheckResult CheckAttention(Device& device, DType dtype, const AttentionShape& shape,
                           const TestBatch& batch, const char* kind = "attention ") {
  const auto [head_dim, n_heads, n_kv_heads, window] = shape;
  const int32_t page_tokens = *std::max_element(batch.span_tokens.begin(), batch.span_tokens.end());
  TestCache cache(dtype, batch.num_pages, page_tokens, n_kv_heads, head_dim, 1);
  Random random(static_cast<uint32_t>(head_dim));
  Matrix q = Matrix::RandomOf(random, static_cast<int64_t>(batch.token_ids.size()),
                              int64_t{n_heads} * head_dim);
  { OnDevice rounded(device, device.activation_dtype(), q); }
  auto reference = CreateReferenceDevice();
  return {
      absl::StrCat(kind, std::string(Info(dtype).name), " head_dim ", head_dim, " heads ", n_heads,
                   "/", n_kv_heads, " window ", window, " rows ", batch.token_ids.size()),
      Worst(Attend(device, batch, cache, q, n_heads, window),
            Attend(*reference, batch, cache, q, n_heads, window))};
}

// Greedy and filtered draws: the share of tokens that differ from the reference must be 0.
CheckResult CheckSample(Device& device) {
  Random random(3);
  Matrix logits = Matrix::RandomOf(random, 4, 5000);
  std::vector<SampleRowParams> rows(40);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logit_row = static_cast<int32_t>(i % 4);
    rows[i].temperature = i % 5 == 0 ? 0.0f : 0.8f;
    rows[i].top_k = i % 2 == 0 ? 40 : 0;
    rows[i].top_p = i % 3 == 0 ? 0.9f : 1.0f;
    rows[i].counter = i;
  }
  auto draw = [&](Device& on) {
    OnDevice copy(on, DType::kF32, logits);
    std::vector<int32_t> tokens(rows.size(), -7);
    SampleArgs args;
    args.logits = copy.tensor();
    args.rows = rows;
    args.tokens = tokens.data();
    Must(on.Run([&](Ops& ops) { ops.Sample(args); }));
    return tokens;
  };
  return {"sampling, 40 rows of 5000", draw(device) == draw(*CreateReferenceDevice()) ? 0.0 : 1e9};
}

}  // namespace

std::vector<CheckResult> CheckOps(Device& device) {
  std::vector<CheckResult> results;
  for (DType dtype : kernels::test::kAllTypes) {
    if (Info(dtype).block_elements > 32) {  // 1536: scales of several groups for every warp
      results.push_back(CheckLinear(device, dtype, 5, 1536, 77, Epilogue::kNone));
      results.push_back(CheckLinear(device, dtype, 20, 256, 74, Epilogue::kGated));
      results.push_back(CheckLinear(device, dtype, 70, 512, 149, Epilogue::kNone));
      continue;
    }
    for (int64_t n : {1, 9, 32, 70}) {
      results.push_back(CheckLinear(device, dtype, n, 288, 149, Epilogue::kNone));
      results.push_back(CheckLinear(device, dtype, n, 96, 74, Epilogue::kGated));
    }
  }
  // Many rows of codes: several tiles, and columns dealt to several blocks.
  for (DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kMXFP4}) {
    if (device.activation_dtype() != DType::kBF16) break;
    results.push_back(CheckLinear(device, dtype, 33, 1184, 260, Epilogue::kAdd));
    results.push_back(CheckLinear(device, dtype, 150, 800, 270, Epilogue::kGated));
  }
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    for (int32_t window : {0, 50}) {
      results.push_back(CheckAttention(device, dtype, {64, 4, 2, window}, Mixed()));
      results.push_back(CheckAttention(device, dtype, {128, 8, 1, window}, Mixed()));
      results.push_back(CheckAttention(device, dtype, {256, 2, 2, window}, Mixed()));
      results.push_back(CheckAttention(device, dtype, {64, 4, 2, window}, Trees(), "trees "));
      if (device.activation_dtype() != DType::kBF16) continue;
      if (dtype != DType::kF16 && dtype != DType::kBF16) continue;
      results.push_back(CheckAttention(device, dtype, {64, 4, 2, window}, Prompts()));
      results.push_back(CheckAttention(device, dtype, {128, 4, 1, window}, Prompts()));
    }
    if (device.activation_dtype() == DType::kBF16) {
      results.push_back(CheckAttention(device, dtype, {64, 16, 8, 0}, OnePrompt(), "one prompt "));
    }
  }
  for (DType dtype : {DType::kF8G128, DType::kInt8G128}) {
    for (int64_t n : {7, 40, 200}) {
      results.push_back(CheckCodes(device, dtype, n, Epilogue::kNone));
      results.push_back(CheckCodes(device, dtype, n, Epilogue::kGated));
    }
  }
  for (int32_t rank : {1, 16, 200}) {
    for (int32_t rows : {3, 40}) results.push_back(CheckAdapters(device, rows, rank));
  }
  results.push_back(CheckSample(device));
  return results;
}

}  // namespace heddle::gpu
