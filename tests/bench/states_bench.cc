// Ops whose cost is a state or a choice and not a product, at the shapes of published models: time
// mixes (RWKV-7 2.9B), selective scans (Mamba 130M and 2.8B), recurrences by parts (Qwen3-Next 80B,
// Mamba-2 2.7B), short convolutions (LFM2 2.6B) and choices of positions (DeepSeek-V3.2), one layer
// of each. See op_bench.h for the environment.
//
// Layers take turns, so that states come from where they are when the products between have passed
// the caches. Decoding goes on position by position over two pages.
//
//   HEDDLE_BENCH_THREADS=1 states_bench --benchmark_filter='time_mix/'
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/host_memory.h"
#include "tests/bench/op_bench.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels {
namespace {

using test::Matrix;
using test::Random;

constexpr int32_t kPageTokens = 256;
constexpr int32_t kDecoded = 2 * kPageTokens;
constexpr int64_t kLayerBytes = int64_t{256} << 20;  // of all layers, far above every cache

// The rows of a step: `seqs` sequences with as many rows each, from a position on, in pages of
// their own.
class Step {
 public:
  Step(int32_t seqs, int32_t rows, int32_t most_positions)
      : seqs_(seqs), rows_(rows), pages_((most_positions + kPageTokens - 1) / kPageTokens) {}

  int32_t n_tokens() const { return seqs_ * rows_; }
  int32_t n_pages() const { return seqs_ * pages_; }

  void Plan(int32_t position) {
    for (auto* list : {&positions_, &q_begin_, &span_begin_, &span_page_, &span_tokens_, &context_})
      list->clear();
    slots_.clear();
    q_begin_.push_back(0);
    span_begin_.push_back(0);
    const int32_t end = position + rows_;
    for (int32_t s = 0; s < seqs_; ++s) {
      for (int32_t p = position; p < end; ++p) {
        positions_.push_back(p);
        slots_.push_back(int64_t{s * pages_ + p / kPageTokens} * kPageTokens + p % kPageTokens);
      }
      for (int32_t p = 0; p < end; p += kPageTokens) {
        span_page_.push_back(s * pages_ + p / kPageTokens);
        span_tokens_.push_back(std::min(kPageTokens, end - p));
      }
      q_begin_.push_back(static_cast<int32_t>(positions_.size()));
      span_begin_.push_back(static_cast<int32_t>(span_page_.size()));
      context_.push_back(end);
    }
    static_cast<void>(TheBench().device->Plan({.token_ids = positions_,
                                               .positions = positions_,
                                               .kv_slot = slots_,
                                               .q_begin = q_begin_,
                                               .span_begin = span_begin_,
                                               .span_page = span_page_,
                                               .span_tokens = span_tokens_,
                                               .context_len = context_,
                                               .logit_rows = {}}));
  }

  // Prompts begin at the beginning, and decoding goes on from there.
  void PlanNext() {
    Plan(next_);
    next_ = rows_ > 1 ? 0 : (next_ + 1) % kDecoded;
  }

 private:
  int32_t seqs_;
  int32_t rows_;
  int32_t pages_;  // of a sequence
  int32_t next_ = 0;
  std::vector<int32_t> positions_, q_begin_, span_begin_, span_page_, span_tokens_, context_;
  std::vector<int64_t> slots_;
};

// The snapshots of layers that take turns.
class Snapshots {
 public:
  Snapshots(int64_t floats, int32_t n_pages)
      : floats_(floats),
        n_pages_(n_pages),
        layer_floats_((floats + 16) * n_pages),
        n_layers_(std::max<int64_t>(2, kLayerBytes / (layer_floats_ * int64_t{sizeof(float)}))),
        memory_(
            OrDie(AllocateHost(n_layers_ * layer_floats_ * int64_t{sizeof(float)}, "snapshots"))) {
    // Pages that nothing was written to would all be the one of zeros.
    std::memset(memory_->data(), 0, static_cast<size_t>(memory_->bytes()));
  }

  // Goes on to the next layer, and with the first one to the next step.
  KvCacheView Next(Step* step) {
    const int64_t layer = next_++ % n_layers_;
    if (layer == 0) step->PlanNext();
    float* begin = static_cast<float*>(memory_->data()) + layer * layer_floats_;
    return {.keys = begin,
            .values = begin,
            .dtype = DType::kF32,
            .num_pages = n_pages_,
            .page_tokens = 1,
            .n_kv_heads = 1,
            .head_dim = static_cast<int32_t>(floats_),
            .page_stride = (floats_ + 16) * static_cast<int64_t>(sizeof(float))};
  }

 private:
  int64_t floats_;
  int32_t n_pages_;
  int64_t layer_floats_;
  int64_t n_layers_;
  int64_t next_ = 0;
  std::unique_ptr<Buffer> memory_;  // in huge pages, as the cache of a server
};

void BenchTimeMix(State& state, int32_t n_heads, int32_t dim) {
  const auto seqs = static_cast<int32_t>(state.range(0));
  const auto rows = static_cast<int32_t>(state.range(1));
  const int64_t width = int64_t{n_heads} * dim;
  Step step(seqs, rows, std::max(rows, kDecoded));
  Snapshots snapshots(WkvState(n_heads, dim, width).floats, step.n_pages());
  Random random(1);
  std::vector<Matrix> in;
  in.reserve(8);
  for (int i = 0; i < 8; ++i) in.push_back(Matrix::RandomOf(random, step.n_tokens(), width));
  Matrix out(step.n_tokens(), width);
  std::vector<std::vector<float>> vectors;
  vectors.reserve(5);
  for (int i = 0; i < 5; ++i) vectors.push_back(random.Normals(width));
  KvCacheView cache;
  const double n = step.n_tokens();
  // A row multiplies S five times: once for what is corrected, three times for the next S and once
  // for the output.
  const Work work = {.bytes = 4.0 * static_cast<double>(width) * (2.0 * seqs * dim + 9 * n),
                     .ops = 10.0 * static_cast<double>(width) * dim * n};
  MeasureEach(
      state, work, [&] { cache = snapshots.Next(&step); },
      [&](Ops& ops) {
        ops.TimeMix({.n_heads = n_heads,
                     .head_dim = dim,
                     .r = in[0].tensor(),
                     .k = in[1].tensor(),
                     .v = in[2].tensor(),
                     .w = in[3].tensor(),
                     .a = in[4].tensor(),
                     .m = in[5].tensor(),
                     .first_value = in[6].tensor(),
                     .gate = in[7].tensor(),
                     .key_scale = vectors[0].data(),
                     .key_mix = vectors[1].data(),
                     .bonus = vectors[2].data(),
                     .norm = vectors[3].data(),
                     .norm_bias = vectors[4].data(),
                     .cache = cache,
                     .page_tokens = kPageTokens,
                     .out = out.tensor()});
      });
}

void BenchScan(State& state, int32_t channels, bool convolves) {
  const auto seqs = static_cast<int32_t>(state.range(0));
  const auto rows = static_cast<int32_t>(state.range(1));
  RecurrenceArgs args;
  args.shape = {.rule = RecurrenceRule::kSelective,
                .n_heads = 1,
                .n_key_heads = 1,
                .key_dim = 16,
                .value_dim = channels,
                .taps = 4};
  Step step(seqs, rows, std::max(rows, kDecoded));
  Snapshots snapshots(RecurrenceState(args.shape).floats, step.n_pages());
  Random random(1);
  Matrix in = Matrix::RandomOf(random, step.n_tokens(), args.shape.cols());
  Matrix factors = Matrix::RandomOf(random, step.n_tokens(), 32);
  Matrix out = Matrix::RandomOf(random, step.n_tokens(), channels);
  std::vector<float> conv = random.Normals(int64_t{channels} * 4);
  std::vector<float> decay = random.Normals(ChannelBlocks(channels) * kChannelBlock * 16);
  for (float& x : decay) x = -std::fabs(x) - 0.01f;
  std::vector<float> skip = random.Normals(channels);
  args.in = in.tensor();
  args.conv = conv.data();
  args.decay = decay.data();
  args.skip = skip.data();
  args.page_tokens = kPageTokens;
  args.out = out.tensor();
  if (!convolves) args.factors = factors.tensor();
  const double n = step.n_tokens();
  // An element of S takes 14 instructions a row: the exponential 10, and four multiplications.
  const Work scan = {.bytes = 4.0 * channels * (16 * (2.0 * seqs + 1) + 4 * n),
                     .ops = 2.0 * 14 * 16 * channels * n};
  const Work convolution = {.bytes = 4.0 * channels * 3 * n, .ops = 2.0 * (4 + 14) * channels * n};
  MeasureEach(
      state, convolves ? convolution : scan, [&] { args.cache = snapshots.Next(&step); },
      [&](Ops& ops) { ops.Recurrence(args); });
}

// Recurrences that are computed by parts of kScanRows, with their convolutions and norms.
void BenchParts(State& state, RecurrenceRule rule, int32_t n_heads, int32_t n_key_heads,
                int32_t value_dim) {
  const auto seqs = static_cast<int32_t>(state.range(0));
  const auto rows = static_cast<int32_t>(state.range(1));
  RecurrenceArgs args;
  args.shape = {.rule = rule,
                .n_heads = n_heads,
                .n_key_heads = n_key_heads,
                .key_dim = 128,
                .value_dim = value_dim,
                .taps = 4};
  const RecurrenceShape& shape = args.shape;
  const bool delta = rule == RecurrenceRule::kGatedDelta;
  Step step(seqs, rows, std::max(rows, kDecoded));
  Snapshots snapshots(RecurrenceState(shape).floats, step.n_pages());
  Random random(1);
  Matrix in = Matrix::RandomOf(random, step.n_tokens(), shape.cols());
  Matrix out(step.n_tokens(), shape.values());
  std::vector<float> conv = random.Normals(shape.channels() * shape.taps);
  std::vector<float> decay = random.Normals(n_heads);
  for (float& x : decay) x = -std::fabs(x) - 0.01f;
  const std::vector<float> step_bias = random.Normals(n_heads);
  const std::vector<float> skip = random.Normals(n_heads);
  const std::vector<float> norm = random.Normals(shape.values());
  args.in = in.tensor();
  args.conv = conv.data();
  args.decay = decay.data();
  args.step_bias = step_bias.data();
  args.skip = delta ? nullptr : skip.data();
  args.norm = norm.data();
  args.norm_width = delta ? value_dim : shape.values();
  args.norm_per_value = !delta;
  args.gates_first = !delta;
  args.page_tokens = kPageTokens;
  args.out = out.tensor();
  const double n = step.n_tokens();
  const double floats = static_cast<double>(n_heads) * shape.key_dim * value_dim;
  const auto channels = static_cast<double>(shape.channels());
  const auto values = static_cast<double>(shape.values());
  // A row multiplies S by q and the delta rule's k, and is a row of what S takes in; the products
  // of its k and q with those of its part, and eight of the part's updates on average. 18
  // instructions for the convolution and SiLU of each channel, and as many for the norm and gate of
  // each value. S is read for each step, and written once in a part.
  const double products = delta ? 2.0 : 1.0;
  const double macs = (products + 1) * floats + products * kScanRows * shape.key_dim * n_heads +
                      products * kScanRows / 2 * values + 18 * (channels + values);
  const double passes = seqs * (rows > 1 ? 2.0 : 1.0 + 1.0 / kScanRows);
  const Work work = {.bytes = 4.0 * (floats * passes + n * (channels + 2 * values)),
                     .ops = 2.0 * macs * n};
  MeasureEach(
      state, work, [&] { args.cache = snapshots.Next(&step); },
      [&](Ops& ops) { ops.Recurrence(args); });
}

void BenchShortConv(State& state, int32_t channels, int32_t taps) {
  const auto seqs = static_cast<int32_t>(state.range(0));
  const auto rows = static_cast<int32_t>(state.range(1));
  Step step(seqs, rows, std::max(rows, kDecoded));
  test::TestCache cache(DType::kF32, step.n_pages(), kPageTokens, 1, channels, 5);
  cache.view.values = cache.view.keys;
  Random random(1);
  Matrix bcx = Matrix::RandomOf(random, step.n_tokens(), 3 * int64_t{channels});
  Matrix out(step.n_tokens(), channels);
  const std::vector<float> weight = random.Normals(int64_t{channels} * taps);
  const double n = step.n_tokens();
  // A row's three inputs, its product, which is kept, and its output; the kept ones before it.
  const double kept = rows > 1 ? 1 : taps;
  const Work work = {.bytes = 4.0 * channels * n * (4 + kept),
                     .ops = 2.0 * (2 + taps) * channels * n};
  MeasureEach(
      state, work, [&] { step.PlanNext(); },
      [&](Ops& ops) {
        ops.ShortConv({.bcx = bcx.tensor(),
                       .weight = weight.data(),
                       .taps = taps,
                       .cache = cache.view,
                       .out = out.tensor()});
      });
}

void BenchSelection(State& state, DType dtype, int32_t n_heads, int32_t dim, int32_t top_k) {
  const auto seqs = static_cast<int32_t>(state.range(0));
  const auto rows = static_cast<int32_t>(state.range(1));
  const auto context = static_cast<int32_t>(state.range(2));
  Step step(seqs, rows, context);
  test::TestCache cache(dtype, step.n_pages(), kPageTokens, 1, dim, 5);
  cache.view.values = cache.view.keys;
  Random random(1);
  Matrix q = Matrix::RandomOf(random, step.n_tokens(), int64_t{n_heads} * dim);
  Matrix weights = Matrix::RandomOf(random, step.n_tokens(), n_heads);
  std::vector<int32_t> out(static_cast<size_t>(step.n_tokens()) * (1 + top_k));
  const double pairs = static_cast<double>(context) * step.n_tokens();
  const Work work = {
      .bytes = static_cast<double>(context) * seqs * static_cast<double>(RowBytes(dtype, dim)),
      .ops = 2.0 * n_heads * dim * pairs};
  MeasureEach(
      state, work, [&] { step.Plan(context - rows); },
      [&](Ops& ops) {
        ops.SelectPositions({.q = q.tensor(),
                             .weights = weights.tensor(),
                             .n_heads = n_heads,
                             .cache = cache.view,
                             .top_k = top_k,
                             .out = out.data()});
      });
}

template <typename... Args>
benchmark::internal::Benchmark* Register(const std::string& name, Args... args) {
  return benchmark::RegisterBenchmark(name.c_str(), args...)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

void RegisterAll() {
  const auto of_steps = [](benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"seqs", "rows"})->Args({1, 1})->Args({8, 1})->Args({1, 8})->Args({1, 512});
  };
  of_steps(Register("time_mix/2.9b", BenchTimeMix, 40, 64));
  for (const int32_t channels : {1536, 5120}) {
    const std::string shape = channels == 1536 ? "130m" : "2.8b";
    of_steps(Register("scan/" + shape, BenchScan, channels, false));
    of_steps(Register("convolution/" + shape, BenchScan, channels, true));
  }
  of_steps(Register("delta/80b", BenchParts, RecurrenceRule::kGatedDelta, 32, 16, 128));
  of_steps(Register("mamba2/2.7b", BenchParts, RecurrenceRule::kMamba2, 80, 1, 64));
  of_steps(Register("short_conv/2.6b", BenchShortConv, 2048, 3));
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    Register("selection/" + std::string(Info(dtype).name), BenchSelection, dtype, 64, 128, 2048)
        ->ArgNames({"seqs", "rows", "context"})
        ->Args({1, 1, 8192})
        ->Args({1, 1, 32768})
        ->Args({1, 1, 131072})
        ->Args({8, 1, 32768})
        ->Args({1, 64, 32768});
  }
}

}  // namespace
}  // namespace heddle::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  heddle::kernels::RegisterAll();
  std::printf("%s\n", heddle::kernels::TheBench().device->description().c_str());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
