#include "tests/gpu/op_checks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/testing.h"

namespace heddle::gpu {
namespace {

using kernels::Activation;
using kernels::AttentionArgs;
using kernels::BF16ToF32;
using kernels::Buffer;
using kernels::CreateReferenceDevice;
using kernels::DequantizeRow;
using kernels::Device;
using kernels::DType;
using kernels::Epilogue;
using kernels::F32ToBF16;
using kernels::Info;
using kernels::KvCacheView;
using kernels::Ops;
using kernels::PackedWeight;
using kernels::SampleArgs;
using kernels::SampleRowParams;
using kernels::Tensor;
using kernels::WeightSource;
using kernels::test::BatchSpec;
using kernels::test::GrowTrees;
using kernels::test::MakeWeight;
using kernels::test::Matrix;
using kernels::test::Random;
using kernels::test::SharePages;
using kernels::test::TestBatch;
using kernels::test::TestCache;
using kernels::test::TestWeight;

void Must(const absl::Status& status) { HEDDLE_CHECK(status.ok(), status.ToString()); }

template <typename T>
T Must(absl::StatusOr<T> value) {
  HEDDLE_CHECK(value.ok(), value.status().ToString());
  return std::move(value).value();
}

// A matrix of activations on a device.
struct OnDevice {
  OnDevice(Device& d, DType type, Matrix& values)
      : device(d), dtype(type), rows(values.num_rows()), cols(values.num_cols()) {
    buffer = Must(device.Allocate(rows * cols * Info(dtype).block_bytes));
    std::vector<uint16_t> halves;
    std::vector<float> floats;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        float& value = *values.at(r, c);
        halves.push_back(F32ToBF16(value));
        if (dtype == DType::kBF16) value = BF16ToF32(halves.back());
        floats.push_back(value);
      }
    }
    const void* from =
        dtype == DType::kBF16 ? static_cast<const void*>(halves.data()) : floats.data();
    Must(device.Upload(buffer->data(), from, rows * cols * Info(dtype).block_bytes));
  }
  Tensor tensor() const { return {buffer->data(), rows, cols, cols}; }
  std::vector<float> Read() const {
    std::vector<uint8_t> bytes(static_cast<size_t>(rows * cols * Info(dtype).block_bytes));
    Must(device.Download(bytes.data(), buffer->data(), static_cast<int64_t>(bytes.size())));
    std::vector<float> values(static_cast<size_t>(rows * cols));
    DequantizeRow(dtype, bytes.data(), rows * cols, values.data());
    return values;
  }
  Device& device;
  DType dtype;
  int64_t rows, cols;
  std::unique_ptr<Buffer> buffer;
};

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
  const WeightSource source = weight.source();
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

// A cache's content on a device.
struct CacheOnDevice {
  CacheOnDevice(Device& device, const TestCache& cache) : view(cache.view) {
    keys = Must(device.Allocate(static_cast<int64_t>(cache.keys.size())));
    values = Must(device.Allocate(static_cast<int64_t>(cache.values.size())));
    Must(device.Upload(keys->data(), cache.keys.data(), static_cast<int64_t>(cache.keys.size())));
    Must(device.Upload(values->data(), cache.values.data(),
                       static_cast<int64_t>(cache.values.size())));
    view.keys = keys->data();
    view.values = values->data();
  }
  KvCacheView view;
  std::unique_ptr<Buffer> keys, values;
};

AttentionArgs ArgsFor(const OnDevice& q, const OnDevice& out, const KvCacheView& cache,
                      int32_t n_heads) {
  AttentionArgs args;
  args.q = q.tensor();
  args.n_heads = n_heads;
  args.cache = cache;
  args.scale = 1.0f / std::sqrt(static_cast<float>(cache.head_dim));
  args.out = out.tensor();
  return args;
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

// Microseconds of one call of `op`.
double Time(Device& device, int32_t repeats, const std::function<void(Ops&, int32_t)>& op) {
  auto run = [&] {
    const auto start = std::chrono::steady_clock::now();
    Must(device.Run([&](Ops& ops) {
      for (int32_t i = 0; i < repeats; ++i) op(ops, i);
    }));
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
               .count() /
           repeats;
  };
  run();
  std::vector<double> times = {run(), run(), run(), run(), run()};
  std::sort(times.begin(), times.end());
  return times[2];
}

// Copies of one [size, size] weight, used in turn, so that none stays in the L2.
std::vector<std::unique_ptr<PackedWeight>> PackCopies(Device& device, DType dtype, int64_t size) {
  Random random(1);
  const TestWeight weight = MakeWeight(random, dtype, size, size);
  const WeightSource source = weight.source();
  std::vector<std::unique_ptr<PackedWeight>> packed;
  packed.reserve(8);
  for (int i = 0; i < 8; ++i) packed.push_back(Must(device.Pack({&source, 1})));
  return packed;
}

Timing TimeLinear(Device& device, DType dtype,
                  const std::vector<std::unique_ptr<PackedWeight>>& packed, int64_t n,
                  int32_t repeats) {
  const int64_t size = packed[0]->rows;
  Random random(2);
  Matrix x = Matrix::RandomOf(random, n, size);
  OnDevice input(device, device.activation_dtype(), x), out(device, device.activation_dtype(), x);
  // So that the device takes the step for what it is: rows decide between graphs and a library.
  BatchSpec spec{{}, 16};
  for (int64_t t = 0; t < n; ++t) spec.sequences.push_back({1, 1});
  Must(device.Plan(TestBatch(spec).view()));
  const double us = Time(device, repeats, [&](Ops& ops, int32_t i) {
    ops.Linear({.x = input.tensor(),
                .weight = packed[static_cast<size_t>(i) % packed.size()].get(),
                .out = out.tensor()});
  });
  const bool bandwidth = n <= 64;
  const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(size * size);
  return {absl::StrCat("linear ", std::string(Info(dtype).name), " ", size, " x ", size, ", ", n,
                       " rows"),
          us, bandwidth ? static_cast<double>(packed[0]->bytes) : flops, bandwidth};
}

// Of the attention that is timed: Llama 3.1 8B's.
constexpr int32_t kTimedHeads = 32, kTimedKvHeads = 8, kTimedDim = 128;

double TimeAttention(Device& device, DType dtype, const TestBatch& batch, int32_t repeats) {
  TestCache cache(dtype, batch.num_pages, 16, kTimedKvHeads, kTimedDim, 1);
  CacheOnDevice on_device(device, cache);
  Random random(1);
  Matrix q = Matrix::RandomOf(random, static_cast<int64_t>(batch.token_ids.size()),
                              int64_t{kTimedHeads} * kTimedDim);
  OnDevice input(device, device.activation_dtype(), q), out(device, device.activation_dtype(), q);
  const AttentionArgs args = ArgsFor(input, out, on_device.view, kTimedHeads);
  Must(device.Plan(batch.view()));
  return Time(device, repeats, [&](Ops& ops, int32_t) { ops.Attention(args); });
}

// Of keys and values.
double BytesOf(DType dtype, int64_t positions) {
  return 2.0 * static_cast<double>(positions) * kTimedKvHeads *
         static_cast<double>(kernels::KvRowBytes(dtype, kTimedDim));
}

Timing TimeDecode(Device& device, DType dtype, int32_t n_seqs, int32_t context, int32_t repeats) {
  BatchSpec spec{{}, 16};
  for (int32_t s = 0; s < n_seqs; ++s) spec.sequences.push_back({1, context});
  return {absl::StrCat("decode attention ", std::string(Info(dtype).name), ", ", n_seqs,
                       " sequences of ", context),
          TimeAttention(device, dtype, TestBatch(spec), repeats),
          BytesOf(dtype, int64_t{n_seqs} * context)};
}

// As TimeDecode, with the first `prefix` positions on the same pages for all sequences: those must
// be read once.
Timing TimeShared(Device& device, DType dtype, int32_t n_seqs, int32_t context, int32_t prefix,
                  int32_t repeats) {
  BatchSpec spec{{}, 16};
  std::vector<int32_t> all;
  for (int32_t s = 0; s < n_seqs; ++s) {
    all.push_back(s);
    spec.sequences.push_back({1, context});
  }
  TestBatch batch(spec);
  SharePages({all, prefix}, &batch);
  return {absl::StrCat("decode attention ", std::string(Info(dtype).name), ", ", n_seqs,
                       " sequences of ", context, ", ", prefix, " shared"),
          TimeAttention(device, dtype, batch, repeats),
          BytesOf(dtype, int64_t{n_seqs} * (context - prefix) + prefix)};
}

// The last rows of a long prompt, few enough that the context's bytes are what they cost.
Timing TimeChunk(Device& device, DType dtype, int32_t tokens, int32_t context, int32_t repeats) {
  return {absl::StrCat("chunk attention ", std::string(Info(dtype).name), ", ", tokens,
                       " tokens of ", context),
          TimeAttention(device, dtype, TestBatch({{{tokens, context}}, 16}), repeats),
          BytesOf(dtype, context)};
}

// One prompt against itself; a causal row sees half of the context.
Timing TimePrefill(Device& device, DType dtype, int32_t tokens, int32_t repeats) {
  return {
      absl::StrCat("prefill attention ", std::string(Info(dtype).name), ", ", tokens, " tokens"),
      TimeAttention(device, dtype, TestBatch({{{tokens, tokens}}, 16}), repeats),
      4.0 * tokens * (tokens / 2.0) * kTimedHeads * kTimedDim, false};
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
  results.push_back(CheckSample(device));
  return results;
}

std::vector<Timing> TimeOps(Device& device, int32_t repeats) {
  std::vector<Timing> timings;
  for (DType dtype : {DType::kBF16, DType::kF8G128, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K,
                      DType::kQ6_K, DType::kMXFP4}) {
    const auto packed = PackCopies(device, dtype, 8192);
    for (int64_t n : {1, 8, 16, 32}) {
      timings.push_back(TimeLinear(device, dtype, packed, n, repeats));
    }
    if (dtype != DType::kBF16 && dtype != DType::kQ4_0) continue;
    for (int64_t n : {64, 512, 4096}) {
      timings.push_back(TimeLinear(device, dtype, packed, n, std::max(1, repeats / 10)));
    }
  }
  for (DType dtype : {DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    timings.push_back(TimeDecode(device, dtype, 64, 1024, repeats));
    timings.push_back(TimeDecode(device, dtype, 64, 8192, std::max(1, repeats / 4)));
    timings.push_back(TimeDecode(device, dtype, 1, 32768, repeats));
    timings.push_back(TimeChunk(device, dtype, 32, 32768, repeats));
  }
  timings.push_back(TimeDecode(device, DType::kBF16, 64, 2560, repeats));
  timings.push_back(TimeShared(device, DType::kBF16, 64, 2560, 2048, repeats));
  for (int32_t tokens : {512, 2048, 8192, 16384}) {
    timings.push_back(TimePrefill(device, DType::kBF16, tokens, std::max(1, repeats / 10)));
  }
  return timings;
}

}  // namespace heddle::gpu
