// Ops of the CPU backend at the shapes of TinyLlama-1.1B, each with its rate and the share of this
// machine's limit, measured just before it. Flags of Google Benchmark apply, and environment
// variables: HEDDLE_BENCH_ISA (auto), HEDDLE_BENCH_THREADS (0: all cores; 1: times are the CPU time
// of the thread, which other programs on the machine disturb less).
//
//   kernels_bench --benchmark_filter='linear/.*/n:1$' --benchmark_repetitions=3
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/usable_cpus.h"
#include "kernels/device.h"
#include "tests/bench/op_bench.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels {
namespace {

using test::Matrix;
using test::Random;
using test::TestBatch;
using test::TestCache;

// Weights must come from memory: copies of a matrix are used in turn, and together far exceed every
// cache.
constexpr int64_t kRotationBytes = int64_t{256} << 20;

// The peak of the instruction that multiplies weights of this format.
Peak PeakOf(DType dtype) {
  if (dtype == DType::kBF16 || dtype >= DType::kF8G32) return Peak::kBf16;
  return dtype == DType::kF32 || dtype == DType::kF16 ? Peak::kF32 : Peak::kInt8;
}

// Packed copies of a random matrix, made once per shape and format.
struct Rotation {
  std::vector<std::unique_ptr<PackedWeight>> copies;
  size_t next = 0;
  const PackedWeight& Next() { return *copies[next++ % copies.size()]; }
};

Rotation MakeRotation(DType dtype, int64_t rows, int64_t cols, bool gated) {
  Rotation rotation;
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * RowBytes(dtype, cols)));
  std::mt19937 random(1);
  // No huge exponents, and for floats no tiny ones: products below 2^-126 take a hundred times as
  // long.
  const uint8_t least = dtype <= DType::kBF16 ? 0x30 : 0;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((random() & 0x3b) | least);
  int64_t half = rows / 2;
  std::vector<WeightSource> sources = {{bytes.data(), dtype, rows, cols, "bench"}};
  if (gated) {
    const uint8_t* up = bytes.data() + half * RowBytes(dtype, cols);
    sources = {{bytes.data(), dtype, half, cols, "gate"}, {up, dtype, half, cols, "up"}};
  }
  auto count = static_cast<size_t>(kRotationBytes / static_cast<int64_t>(bytes.size()) + 1);
  for (size_t i = 0; i < count; ++i) {
    rotation.copies.push_back(OrDie(TheBench().device->Pack(sources)));
  }
  return rotation;
}

void BenchLinear(State& state, DType dtype, int64_t rows, int64_t cols, bool gated) {
  static std::map<std::string, Rotation> rotations;
  std::string key = std::string(Info(dtype).name) + std::to_string(rows) + "x" +
                    std::to_string(cols) + (gated ? "g" : "");
  if (!rotations.contains(key)) {
    rotations.clear();  // one at a time in memory
    rotations[key] = MakeRotation(dtype, rows, cols, gated);
  }
  Rotation& rotation = rotations[key];
  int64_t n = state.range(0);
  Random random(1);
  Matrix x = Matrix::RandomOf(random, n, cols);
  Matrix out(n, gated ? rows / 2 : rows);
  Work work;
  work.bytes = static_cast<double>(rows * RowBytes(dtype, cols));
  work.ops = 2.0 * static_cast<double>(n * rows * cols);
  work.peak = PeakOf(dtype);
  Measure(state, work, [&](Ops& ops) {
    LinearArgs args;
    args.x = x.tensor();
    args.weight = &rotation.Next();
    args.epilogue = gated ? Epilogue::kGated : Epilogue::kNone;
    args.activation = gated ? Activation::kSilu : Activation::kNone;
    args.out = out.tensor();
    ops.Linear(args);
  });
}

// Blocks of TinyLlama's 22 layers in a page, keys and values.
constexpr int64_t kStride = 44;

// TinyLlama's heads: 32 query heads, 4 KV heads, 64 dimensions. `trees`: the rows of a sequence are
// a tree of drafts.
void BenchAttention(State& state, DType dtype, int32_t n_heads, int32_t n_kv_heads, bool trees) {
  constexpr int32_t kDim = 64;
  auto seqs = static_cast<int32_t>(state.range(0));
  auto rows = static_cast<int32_t>(state.range(1));
  auto context = static_cast<int32_t>(state.range(2));
  auto page_tokens = static_cast<int32_t>(state.range(3));
  test::BatchSpec spec;
  spec.sequences.assign(static_cast<size_t>(seqs), {rows, context});
  spec.page_tokens = page_tokens;
  TestBatch batch(spec);
  Random random(1);
  std::vector<int32_t> sequences(trees ? static_cast<size_t>(seqs) : 0);
  std::iota(sequences.begin(), sequences.end(), 0);
  test::GrowTrees(random, sequences, &batch);
  TestCache cache(dtype, batch.num_pages, page_tokens, n_kv_heads, kDim, /*seed=*/2);
  // In memory as the engine has it, which may be huge pages: between a page's block and the next
  // page's lie those of other layers.
  const int64_t block = cache.view.block_bytes();
  const int64_t stride = state.range(4) * block;
  std::unique_ptr<Buffer> storage[2];
  for (int i = 0; i < 2; ++i) {
    const std::vector<uint8_t>& source = i == 0 ? cache.keys : cache.values;
    storage[i] = OrDie(TheBench().device->Allocate(batch.num_pages * stride));
    for (int64_t page = 0; page < batch.num_pages; ++page) {
      std::memcpy(static_cast<char*>(storage[i]->data()) + page * stride,
                  source.data() + page * block, static_cast<size_t>(block));
    }
  }
  cache.view.page_stride = stride;
  cache.view.keys = storage[0]->data();
  cache.view.values = storage[1]->data();
  Matrix q = Matrix::RandomOf(random, int64_t{seqs} * rows, int64_t{n_heads} * kDim);
  Matrix out(int64_t{seqs} * rows, int64_t{n_heads} * kDim);
  if (!TheBench().device->Plan(batch.view()).ok()) std::exit(1);
  double seen = static_cast<double>(rows) * (context - (rows - 1) / 2.0) * seqs;
  Work work;
  work.bytes = 2.0 * seqs * context * n_kv_heads * KvRowBytes(dtype, kDim);
  work.ops = 4.0 * seen * n_heads * kDim;
  const bool exact = dtype == DType::kF32 || dtype == DType::kF16;
  work.peak = exact ? Peak::kF32 : Peak::kBf16;
  Measure(state, work, [&](Ops& ops) {
    AttentionArgs args;
    args.q = q.tensor();
    args.n_heads = n_heads;
    args.cache = cache.view;
    args.scale = 0.125f;
    args.out = out.tensor();
    ops.Attention(args);
  });
}

// Low-rank adapters of a linear of [kSize, kSize] in BF16, so many that they exceed every cache.
struct AdapterRotation {
  static constexpr int64_t kSize = 2048;
  static constexpr int32_t kSlots = 32;

  explicit AdapterRotation(int32_t rank) {
    const int64_t elements = rank * kSize;
    const int64_t count = kRotationBytes / 4 / (4 * elements) + kSlots;
    values.assign(static_cast<size_t>(2 * count * elements), 0x3c23);  // 0.01
    for (int64_t i = 0; i < 2 * count; ++i) blocks.push_back(values.data() + i * elements);
    for (int64_t i = 0; i < count; ++i) {
      factors.push_back({.a = &blocks[static_cast<size_t>(2 * i)],
                         .b = &blocks[static_cast<size_t>(2 * i + 1)],
                         .rank = rank,
                         .block_rows = rank});
    }
    matrix = {.parts = {&part, 1}, .n_slots = kSlots, .slot_stride = 1, .max_rank = rank};
  }
  // The adapters of the next `used` slots.
  const AdapterMatrix& Next(int64_t used) {
    matrix.factors = factors.data() + at;
    at = (at + used) % (static_cast<int64_t>(factors.size()) - kSlots);
    return matrix;
  }

  std::vector<uint16_t> values;
  std::vector<const void*> blocks;
  std::vector<AdapterFactors> factors;
  AdapterPart part = {0, kSize};
  AdapterMatrix matrix;
  int64_t at = 0;
};

// A linear in Q4_0 whose rows have an adapter each, or all the same one; with:0 is the linear
// alone. Bytes and operations include both.
void BenchAdapters(State& state, int32_t rank, bool shared) {
  constexpr int64_t kSize = AdapterRotation::kSize;
  const int64_t n = state.range(0);
  const bool with = state.range(1) != 0;
  Rotation weights = MakeRotation(DType::kQ4_0, kSize, kSize, false);
  AdapterRotation adapters(rank);
  test::BatchSpec spec{{}, 16};
  std::vector<int32_t> slots;
  for (int64_t t = 0; t < n; ++t) {
    spec.sequences.push_back({1, 1});
    slots.push_back(shared ? 0 : static_cast<int32_t>(t % AdapterRotation::kSlots));
  }
  const TestBatch batch(spec);
  HostBatch view = batch.view();
  view.adapter_slot = slots;
  static_cast<void>(TheBench().device->Plan(view));
  Random random(1);
  Matrix x = Matrix::RandomOf(random, n, kSize), out(n, kSize);
  const int64_t used = shared ? 1 : std::min<int64_t>(n, AdapterRotation::kSlots);
  const auto elements = static_cast<double>(rank * kSize);
  Work work = {.bytes = static_cast<double>(kSize * RowBytes(DType::kQ4_0, kSize)),
               .ops = 2.0 * static_cast<double>(n * kSize * kSize),
               .peak = Peak::kInt8};
  if (with) {
    work.bytes += 4.0 * static_cast<double>(used) * elements;
    work.ops += 4.0 * static_cast<double>(n) * elements;
  }
  Measure(state, work, [&](Ops& ops) {
    ops.Linear({.x = x.tensor(),
                .weight = &weights.Next(),
                .out = out.tensor(),
                .adapters = with ? &adapters.Next(used) : nullptr});
  });
}

void BenchNorm(State& state) {
  int64_t n = state.range(0);
  Random random(1);
  Matrix x = Matrix::RandomOf(random, n, 2048), residual = x, out(n, 2048);
  std::vector<float> weight = random.Normals(2048);
  Measure(state, {.bytes = 4.0 * 4 * 2048 * static_cast<double>(n)}, [&](Ops& ops) {
    NormArgs args;
    args.x = x.tensor();
    args.residual = residual.tensor();
    args.weight = weight.data();
    args.out = out.tensor();
    ops.Norm(args);
  });
}

void BenchSample(State& state, float top_p, int32_t top_k) {
  int64_t vocab = state.range(0);
  Random random(1);
  Matrix logits = Matrix::RandomOf(random, 1, vocab);
  for (int64_t i = 0; i < vocab; ++i) *logits.at(0, i) *= 3.0f;
  SampleRowParams params;
  params.top_p = top_p;
  params.top_k = top_k;
  int32_t token = 0;
  Measure(state, {.bytes = 4.0 * static_cast<double>(vocab)}, [&](Ops& ops) {
    ++params.counter;
    ops.Sample({logits.tensor(), {&params, 1}, 0, &token, nullptr, nullptr, nullptr});
  });
}

// The cost that every op of a forward has beside its work.
void BenchForkJoin(State& state) {
  const CpuDeviceOptions options = Options();
  const int32_t threads =
      options.num_threads > 0 ? options.num_threads : cpu::FindUsableCpus().num_cores;
  cpu::ThreadPool pool(threads, options.pin_threads);
  for (auto _ : state) {
    const double start = Now();
    pool.OnEveryThread([](int32_t) {});
    state.SetIterationTime(Now() - start);
  }
}

benchmark::internal::Benchmark* Finish(benchmark::internal::Benchmark* bench) {
  return bench->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.3);
}

void RegisterAll() {
  struct Shape {
    const char* name;
    int64_t rows, cols;
    bool gated;
  };
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kQ8_0, DType::kQ4_0,
                      DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kMXFP4,
                      DType::kInt4G128, DType::kF8G128}) {
    for (const Shape& s : {Shape{"gate_up", 11264, 2048, true}, Shape{"down", 2048, 5632, false},
                           Shape{"head", 32000, 2048, false}}) {
      std::string name = "linear/" + std::string(Info(dtype).name) + "/" + s.name;
      auto* bench =
          benchmark::RegisterBenchmark(name.c_str(), BenchLinear, dtype, s.rows, s.cols, s.gated);
      bench->ArgName("n");
      for (int64_t n : {1, 2, 4, 8, 16, 32, 512}) bench->Arg(n);
      Finish(bench);
    }
  }
  for (auto [dtype, type_name] : {std::pair(DType::kF32, "f32"), std::pair(DType::kF16, "f16"),
                                  std::pair(DType::kBF16, "bf16"), std::pair(DType::kInt8, "int8"),
                                  std::pair(DType::kF8E4M3, "fp8")}) {
    for (auto [heads, kv_heads] : {std::pair(32, 4), std::pair(32, 8), std::pair(32, 32)}) {
      std::string name = "attention/" + std::string(type_name) + "/" + std::to_string(heads) + "_" +
                         std::to_string(kv_heads);
      Finish(
          benchmark::RegisterBenchmark(name.c_str(), BenchAttention, dtype, heads, kv_heads, false)
              ->ArgNames({"seqs", "rows", "context", "page", "stride"})
              ->Args({1, 1, 2048, 16, 1})
              ->Args({1, 1, 2048, 16, kStride})
              ->Args({16, 1, 2048, 16, 1})
              ->Args({16, 1, 2048, 16, kStride})
              ->Args({16, 1, 2048, 64, kStride})
              ->Args({1, 512, 512, 16, kStride})
              ->Args({1, 1, 1024, 16, 1})
              ->Args({1, 1, 8192, 16, 1})
              ->Args({1, 1, 32768, 16, 1})
              ->Args({1, 512, 1024, 16, 1})
              ->Args({1, 512, 8192, 16, 1})
              ->Args({1, 512, 32768, 16, 1}));
      for (const bool trees : {false, true}) {
        const std::string of_64 = (trees ? "tree/" : "rows/") + name;
        Finish(benchmark::RegisterBenchmark(of_64.c_str(), BenchAttention, dtype, heads, kv_heads,
                                            trees)
                   ->ArgNames({"seqs", "rows", "context", "page", "stride"})
                   ->Args({1, 64, 1088, 16, 1}));
      }
    }
  }
  Finish(benchmark::RegisterBenchmark("fork_join", BenchForkJoin));
  for (int32_t rank : {16, 64}) {
    for (bool shared : {false, true}) {
      const std::string name =
          "adapters/rank_" + std::to_string(rank) + (shared ? "/shared" : "/own");
      auto* bench = benchmark::RegisterBenchmark(name.c_str(), BenchAdapters, rank, shared);
      bench->ArgNames({"n", "with"});
      for (int64_t n : {1, 8, 32, 512}) bench->Args({n, 0})->Args({n, 1});
      Finish(bench);
    }
  }
  Finish(benchmark::RegisterBenchmark("norm", BenchNorm)->Arg(1)->Arg(512));
  for (int64_t vocab : {32000, 151936}) {
    Finish(benchmark::RegisterBenchmark("sample/plain", BenchSample, 1.0f, 0)->Arg(vocab));
    Finish(benchmark::RegisterBenchmark("sample/top_p", BenchSample, 0.9f, 0)->Arg(vocab));
    Finish(benchmark::RegisterBenchmark("sample/top_k", BenchSample, 1.0f, 40)->Arg(vocab));
  }
}

}  // namespace
}  // namespace heddle::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  heddle::kernels::RegisterAll();
  auto& bench = heddle::kernels::TheBench();
  auto limits = bench.meter.All();
  std::printf("%s\nlimits: read %.1f GB/s, F32 %.0f GFLOP/s, int8 %.0f GOP/s\n",
              bench.device->description().c_str(), limits.read_gb_s, limits.fma_gflop_s,
              limits.int8_gop_s);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
