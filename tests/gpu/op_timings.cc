// Timings of ops, of shapes that serving has.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/op_checks.h"
#include "tests/kernels/batch_edits.h"

namespace heddle::gpu {
namespace {

using kernels::AdapterMatrix;
using kernels::AttentionArgs;
using kernels::Device;
using kernels::DType;
using kernels::Info;
using kernels::Ops;
using kernels::PackedWeight;
using kernels::WeightSource;
using kernels::test::BatchSpec;
using kernels::test::MakeRowScaledWeight;
using kernels::test::MakeWeight;
using kernels::test::Matrix;
using kernels::test::Random;
using kernels::test::SharePages;
using kernels::test::TestBatch;
using kernels::test::TestCache;
using kernels::test::TestWeight;

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
std::vector<std::unique_ptr<PackedWeight>> PackCopies(Device& device, DType dtype, int64_t size,
                                                      bool row_scaled = false) {
  Random random(1);
  const TestWeight weight = row_scaled ? MakeRowScaledWeight(random, dtype, size, size)
                                       : MakeWeight(random, dtype, size, size);
  WeightSource source = weight.source();
  source.takes_int8_x = true;
  std::vector<std::unique_ptr<PackedWeight>> packed;
  packed.reserve(8);
  for (int i = 0; i < 8; ++i) packed.push_back(Must(device.Pack({&source, 1})));
  return packed;
}

Timing TimeLinear(Device& device, const std::string& type,
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
  return {absl::StrCat("linear ", type, " ", size, " x ", size, ", ", n, " rows"), us,
          bandwidth ? static_cast<double>(packed[0]->bytes) : flops, bandwidth};
}

// Rows that each have an adapter of their own, beside the weight.
Timing TimeAdapters(Device& device, const std::vector<std::unique_ptr<PackedWeight>>& packed,
                    int32_t n, int32_t rank, int32_t repeats) {
  const int64_t size = packed[0]->rows;
  Random random(2);
  Matrix x = Matrix::RandomOf(random, n, size);
  OnDevice input(device, device.activation_dtype(), x), out(device, device.activation_dtype(), x);
  const AdaptersOnDevice adapters(device, n, rank, size, size);
  const AdapterMatrix matrix = adapters.view();
  BatchSpec spec{{}, 16};
  std::vector<int32_t> slots;
  for (int32_t t = 0; t < n; ++t) spec.sequences.push_back({1, 1}), slots.push_back(t);
  const TestBatch batch(spec);
  kernels::HostBatch view = batch.view();
  view.adapter_slot = slots;
  Must(device.Plan(view));
  const double us = Time(device, repeats, [&](Ops& ops, int32_t i) {
    ops.Linear({.x = input.tensor(),
                .weight = packed[static_cast<size_t>(i) % packed.size()].get(),
                .out = out.tensor(),
                .adapters = &matrix});
  });
  return {absl::StrCat("linear bf16 ", size, " x ", size, " with ", n, " adapters of rank ", rank),
          us, static_cast<double>(packed[0]->bytes) + adapters.bytes, true};
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

std::vector<Timing> TimeManyRows(Device& device, Device& dequantizing, int32_t repeats) {
  std::vector<Timing> timings;
  for (DType dtype : {DType::kQ4_0, DType::kQ4_K, DType::kQ8_0}) {
    const std::string type(Info(dtype).name);
    for (auto [own, way] : {std::pair{&device, ""}, {&dequantizing, " by way of bf16"}}) {
      const auto packed = PackCopies(*own, dtype, 8192);
      for (int64_t n : {64, 128, 256, 512, 1024}) {
        Timing timing = TimeLinear(*own, type, packed, n, repeats);
        timing.name += absl::StrCat(way, ", many rows");
        timing.amount = 2.0 * static_cast<double>(n) * 8192 * 8192;
        timing.is_bandwidth = false;
        timings.push_back(std::move(timing));
      }
    }
  }
  return timings;
}

std::vector<Timing> TimeOps(Device& device, int32_t repeats) {
  std::vector<Timing> timings;
  for (DType dtype : {DType::kBF16, DType::kF8G128, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K,
                      DType::kQ6_K, DType::kMXFP4}) {
    const auto packed = PackCopies(device, dtype, 8192);
    const std::string type(Info(dtype).name);
    for (int64_t n : {1, 8, 16, 32}) {
      timings.push_back(TimeLinear(device, type, packed, n, repeats));
    }
    if (dtype == DType::kBF16) timings.push_back(TimeAdapters(device, packed, 32, 16, repeats));
    if (dtype != DType::kBF16 && dtype != DType::kQ4_0) continue;
    for (int64_t n : {64, 512, 4096}) {
      timings.push_back(TimeLinear(device, type, packed, n, std::max(1, repeats / 10)));
    }
  }
  for (auto [dtype, type] :
       {std::pair{DType::kF8G128, "fp8 per row"}, std::pair{DType::kInt8G128, "int8 per row"}}) {
    const auto packed = PackCopies(device, dtype, 8192, /*row_scaled=*/true);
    for (int64_t n : {1, 16, 64, 512, 4096}) {
      timings.push_back(
          TimeLinear(device, type, packed, n, n > 32 ? std::max(1, repeats / 10) : repeats));
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
