// Timings of ops, of shapes that serving has.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/gpu/expert_ops.h"
#include "tests/gpu/head_ops.h"
#include "tests/gpu/latent_ops.h"
#include "tests/gpu/mix_ops.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/op_checks.h"
#include "tests/gpu/select_ops.h"
#include "tests/gpu/sizes.h"
#include "tests/gpu/state_ops.h"
#include "tests/gpu/stream_ops.h"
#include "tests/gpu/timed.h"
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
using kernels::SampleRowParams;
using kernels::WeightSource;
using kernels::test::BatchSpec;
using kernels::test::MakeRowScaledWeight;
using kernels::test::MakeTileScaledWeight;
using kernels::test::MakeWeight;
using kernels::test::Matrix;
using kernels::test::Random;
using kernels::test::SharePages;
using kernels::test::TestBatch;
using kernels::test::TestCache;
using kernels::test::TestWeight;

// Most columns and rows of a rehearsal.
constexpr int64_t kRehearsedSize = 256, kRehearsedRows = 40;

using Copies = std::vector<std::unique_ptr<PackedWeight>>;

// Makes a weight of a type, with so many rows and columns.
using MakesWeight = TestWeight (*)(Random&, DType, int64_t, int64_t);

// Copies of one [rows, cols] weight, used in turn, so that none stays in the L2. Its rows repeat as
// those of RepeatedRows.
Copies PackCopies(Device& device, DType dtype, int64_t rows, int64_t cols, MakesWeight make) {
  constexpr int64_t kDistinct = 128;
  const int64_t more_than_cached = Sized(int64_t{200} << 20, 1);
  rows = Sized(rows, kRehearsedSize), cols = Sized(cols, kRehearsedSize);
  Random random(1);
  TestWeight weight = make(random, dtype, kDistinct, cols);
  const std::vector<uint8_t> distinct = weight.bytes;
  weight.bytes.clear();
  for (weight.rows = 0; weight.rows < rows; weight.rows += kDistinct) {
    weight.bytes.insert(weight.bytes.end(), distinct.begin(), distinct.end());
  }
  WeightSource source = weight.source();
  source.takes_int8_x = true;
  const auto bytes = static_cast<int64_t>(weight.bytes.size());
  Copies packed;
  for (int64_t all = 0; all < more_than_cached; all += bytes) {
    packed.push_back(Must(device.Pack({&source, 1})));
  }
  return packed;
}

// The rows and columns of the timed weights.
constexpr int64_t kTimedSize = 8192;
struct LinearCase {
  std::string type;
  const Copies& packed;
  int64_t n;

  std::string name() const {
    return absl::StrCat("linear ", type, " ", kTimedSize, " x ", kTimedSize, ", ", n, " rows");
  }
};

Timing TimeLinear(Device& device, const LinearCase& c, int32_t repeats) {
  const int64_t size = c.packed[0]->rows, n = Sized(c.n, kRehearsedRows);
  Matrix x = RepeatedRows(n, size);
  OnDevice input(device, device.activation_dtype(), x), out(device, device.activation_dtype(), x);
  PlanRows(device, n);
  const double us = Time(device, repeats, [&](Ops& ops, int32_t i) {
    ops.Linear({.x = input.tensor(),
                .weight = c.packed[static_cast<size_t>(i) % c.packed.size()].get(),
                .out = out.tensor()});
  });
  const bool bandwidth = c.n <= 64;
  const double flops = 2.0 * static_cast<double>(c.n) * static_cast<double>(size * size);
  return {c.name(), us, bandwidth ? static_cast<double>(c.packed[0]->bytes) : flops, bandwidth};
}

// The dimensions of Llama 3.1 8B's MLP. `apart`: its norm and its gate leave BF16.
constexpr int64_t kTimedHidden = 4096, kTimedInter = 14336;
struct MlpCase {
  const char* type;
  int64_t n;
  bool apart;

  std::string name() const {
    return absl::StrCat("gated mlp ", type, ", ", n, " rows", apart ? ", passes apart" : "");
  }
};

Timing TimeMlp(Device& device, const MlpCase& c, const Copies& ups, const Copies& downs,
               int32_t repeats) {
  const DType act = device.activation_dtype();
  const int64_t n = Sized(c.n, kRehearsedRows);
  Matrix rows = RepeatedRows(n, downs[0]->rows), inner(n, downs[0]->cols);
  const OnDevice x(device, act, rows), normed(device, act, rows), out(device, act, rows);
  const OnDevice between(device, act, inner);
  PlanRows(device, n);
  const kernels::NormArgs norm{.x = x.tensor(), .out = normed.tensor()};
  const double us = Time(device, repeats, [&](Ops& ops, int32_t i) {
    const PackedWeight* up = ups[static_cast<size_t>(i) % ups.size()].get();
    const PackedWeight* down = downs[static_cast<size_t>(i) % downs.size()].get();
    if (c.apart) ops.Norm(norm);
    ops.Linear({.x = normed.tensor(),
                .weight = up,
                .epilogue = kernels::Epilogue::kGated,
                .activation = kernels::Activation::kSilu,
                .out = between.tensor(),
                .norm = c.apart ? std::nullopt : std::optional(norm),
                .reader = c.apart ? nullptr : down});
    ops.Linear({.x = between.tensor(), .weight = down, .out = out.tensor()});
  });
  return {c.name(), us, 6.0 * static_cast<double>(c.n * kTimedHidden * kTimedInter), false};
}

// Rows that each have an adapter of their own, beside the weight.
Timing TimeAdapters(Device& device, const std::string& name, const Copies& packed, int32_t n,
                    int32_t rank, int32_t repeats) {
  const int64_t size = packed[0]->rows;
  Matrix x = RepeatedRows(n, size);
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
  return {name, us, static_cast<double>(packed[0]->bytes) + adapters.bytes, true};
}

// The dimensions of the timed attention: Llama 3.1 8B's, and those of DeepSeek-V2-Lite and V3,
// whose keys are their values.
struct TimedHeads {
  int32_t n_heads = 32, n_kv_heads = 8, dim = 128;
  bool latent = false;
};
constexpr TimedHeads kLite = {16, 1, 576, true}, kV3 = {128, 1, 576, true};
constexpr TimedHeads kGemma4 = {8, 2, 512};  // E4B's layers without windows

// A cache as large as `batch` needs, the pages of a small one over and over.
CacheOnDevice RepeatedPages(Device& device, DType dtype, const TestBatch& batch,
                            const TimedHeads& heads) {
  constexpr int32_t kDistinct = 64;
  TestCache cache(dtype, std::min(batch.num_pages, kDistinct), 16, heads.n_kv_heads, heads.dim,
                  /*seed=*/2);
  const auto distinct = static_cast<int64_t>(cache.keys.size());
  cache.view.num_pages = batch.num_pages;
  const int64_t bytes = cache.view.PageOffset(batch.num_pages);
  CacheOnDevice all(cache.view, Must(device.Allocate(bytes)), Must(device.Allocate(bytes)));
  for (int64_t at = 0; at < bytes; at += distinct) {
    const int64_t part = std::min(distinct, bytes - at);
    Must(device.Upload(static_cast<uint8_t*>(all.view.keys) + at, cache.keys.data(), part));
    Must(device.Upload(static_cast<uint8_t*>(all.view.values) + at, cache.values.data(), part));
  }
  return all;
}

double TimeAttention(Device& device, DType dtype, const TestBatch& batch, const TimedHeads& heads,
                     int32_t repeats) {
  CacheOnDevice cache = RepeatedPages(device, dtype, batch, heads);
  if (heads.latent) cache.view.values = cache.view.keys;
  Matrix q = RepeatedRows(static_cast<int64_t>(batch.token_ids.size()),
                          int64_t{heads.n_heads} * heads.dim);
  OnDevice input(device, device.activation_dtype(), q), out(device, device.activation_dtype(), q);
  const AttentionArgs args = ArgsFor(input, out, cache.view, heads.n_heads);
  Must(device.Plan(batch.view()));
  return Time(device, repeats, [&](Ops& ops, int32_t) { ops.Attention(args); });
}

// The projections around attention over latents, of both sides.
Timing TimeHeads(Device& device, const std::string& name, const TimedHeads& heads, int64_t n,
                 int32_t repeats) {
  constexpr int64_t kRank = 512, kDim = 128;
  const DType act = device.activation_dtype();
  Random random(1);
  const TestWeight up = MakeWeight(random, DType::kBF16, kRank, kDim);
  const TestWeight down = MakeWeight(random, DType::kBF16, kDim, kRank);
  const auto pack = [&](const TestWeight& one) {
    const std::vector<WeightSource> all(static_cast<size_t>(heads.n_heads), one.source());
    return Must(device.PackStack(all, heads.n_heads));
  };
  const auto ups = pack(up), downs = pack(down);
  Matrix narrow = RepeatedRows(n, heads.n_heads * kDim), wide(n, heads.n_heads * kRank);
  const OnDevice x(device, act, narrow), out(device, act, narrow), latents(device, act, wide);
  PlanRows(device, n);
  const double us = Time(device, repeats, [&](Ops& ops, int32_t) {
    ops.HeadLinear({x.tensor(), kDim, ups.get(), /*carried=*/0, latents.tensor(), kRank, nullptr});
    ops.HeadLinear(
        {latents.tensor(), kRank, downs.get(), /*carried=*/0, out.tensor(), kDim, nullptr});
  });
  const int64_t moved = ups->bytes + downs->bytes + 4 * n * heads.n_heads * (kRank + kDim);
  return {name, us, static_cast<double>(moved), true};
}

// Bytes of keys and values.
double BytesOf(DType dtype, const TimedHeads& heads, int64_t positions) {
  return (heads.latent ? 1.0 : 2.0) * static_cast<double>(positions) * heads.n_kv_heads *
         static_cast<double>(kernels::KvRowBytes(dtype, heads.dim));
}

struct AttentionCase {
  enum Kind { kDecode, kChunk, kPrefill } kind;
  DType dtype;
  int32_t n;            // sequences, or tokens of the only one
  int32_t context = 0;  // of each; kPrefill: n
  int32_t shared = 0;   // kDecode: its first positions, on the same pages for all sequences
  TimedHeads heads = {};

  std::string name() const {
    std::string type(Info(dtype).name);
    if (heads.latent) absl::StrAppend(&type, " latents of ", heads.n_heads, " heads");
    if (heads.dim > 256 && !heads.latent) absl::StrAppend(&type, " heads of ", heads.dim);
    if (kind == kPrefill) return absl::StrCat("prefill attention ", type, ", ", n, " tokens");
    if (kind == kChunk) {
      return absl::StrCat("chunk attention ", type, ", ", n, " tokens of ", context);
    }
    return absl::StrCat("decode attention ", type, ", ", n, " sequences of ", context,
                        shared > 0 ? absl::StrCat(", ", shared, " shared") : "");
  }

  TestBatch batch() const {
    const int32_t length = Sized(kind == kPrefill ? n : context, 70);
    if (kind == kPrefill) return TestBatch({{{length, length}}, 16});
    if (kind == kChunk) return TestBatch({{{Sized(n, 9), length}}, 16});
    BatchSpec spec{{}, 16};
    std::vector<int32_t> all;
    for (int32_t s = 0; s < Sized(n, 4); ++s) {
      all.push_back(s);
      spec.sequences.push_back({1, length});
    }
    TestBatch made(spec);
    if (shared > 0) SharePages({all, Sized(shared, 48)}, &made);
    return made;
  }

  // Bytes, each counted once; or, for a prompt against itself, operations: a causal row sees half
  // of the context on average.
  double amount() const {
    if (kind == kPrefill) return 4.0 * n * (n / 2.0) * heads.n_heads * heads.dim;
    if (kind == kChunk) return BytesOf(dtype, heads, context);
    return BytesOf(dtype, heads, int64_t{n} * (context - shared) + shared);
  }
};

// Draws from logits of Llama 3's vocabulary, spread as a model's are.
struct DrawCase {
  int64_t n;
  float temperature;
  float top_p;

  static constexpr int64_t kVocab = 128256;
  std::string name() const {
    const char* how = temperature == 0 ? "greedy" : top_p < 1 ? "top_p" : "plain";
    return absl::StrCat("sampling, ", how, ", ", n, " rows of ", kVocab);
  }
  double amount() const { return static_cast<double>(n * kVocab) * sizeof(float); }
};

double TimeDraws(Device& device, const DrawCase& c, int32_t repeats) {
  const int64_t n = Sized(c.n, 3), vocab = Sized(DrawCase::kVocab, 2000);
  Matrix logits = RepeatedRows(n, vocab);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < vocab; ++i) *logits.at(r, i) *= 3;
  }
  OnDevice on(device, DType::kF32, logits);
  std::vector<SampleRowParams> rows(static_cast<size_t>(n));
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logit_row = static_cast<int32_t>(i);
    rows[i].temperature = c.temperature;
    rows[i].top_p = c.top_p;
    rows[i].counter = i;
  }
  std::vector<int32_t> tokens(rows.size());
  PlanRows(device, n);
  return Time(device, repeats, [&](Ops& ops, int32_t) {
    ops.Sample({.logits = on.tensor(), .rows = rows, .tokens = tokens.data()});
  });
}

// All timings of one device, one after the other.
class Timings {
 public:
  Timings(Device& device, int32_t repeats, const TimingReport& report)
      : device_(device), repeats_(repeats), report_(report) {}

  void Run() {
    Goals();
    for (DType dtype : {DType::kF8G128, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kMXFP4}) {
      Linears(dtype, {1, 8, 16, 32, 64, 128, 256, 512, 1024});
    }
    Linears(DType::kF8G128, {1, 16, 64, 128, 200, 256, 512, 4096}, "fp8 per row",
            MakeRowScaledWeight);
    Linears(DType::kF8G128, {1, 16, 64, 128, 200, 256, 512, 4096}, "fp8 per tile",
            MakeTileScaledWeight);
    Linears(DType::kInt8G128, {1, 16, 64, 512, 4096}, "int8 per row", MakeRowScaledWeight);
    Mlps(DType::kF8G128, "fp8 per row", MakeRowScaledWeight);
    Mlps(DType::kF8G128, "fp8 per tile", MakeTileScaledWeight);
    Mlps(DType::kInt8G128, "int8 per row", MakeRowScaledWeight);
    using enum AttentionCase::Kind;
    for (DType dtype : {DType::kF8E4M3, DType::kInt8}) {
      Attention({kDecode, dtype, 64, 1024});
      Attention({kDecode, dtype, 64, 8192});
    }
    for (DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      Attention({kDecode, dtype, 1, 32768});
      Attention({kChunk, dtype, 32, 32768});
    }
    Attention({kDecode, DType::kBF16, 64, 2560});
    Attention({kDecode, DType::kBF16, 64, 2560, /*shared=*/2048});
    for (int32_t tokens : {512, 2048, 8192}) {
      Attention({kPrefill, DType::kBF16, tokens});
      Attention({kPrefill, DType::kF8E4M3, tokens});
    }
    for (DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      Attention({kDecode, dtype, 64, 4096, /*shared=*/0, kLite});
      Attention({kDecode, dtype, 64, 4096, /*shared=*/0, kV3});
      Attention({kPrefill, dtype, 4096, 0, 0, kLite});
      Attention({kDecode, dtype, 64, 4096, /*shared=*/0, kGemma4});
      Attention({kPrefill, dtype, 4096, 0, 0, kGemma4});
    }
    for (const int64_t n : {1, 64, 4096}) {
      const std::string name = absl::StrCat("projections of 16 latent heads, ", n, " rows");
      if (!report_.begins(name)) continue;
      report_.ends(TimeHeads(device_, name, kLite, Sized(n, kRehearsedRows), repeats_));
    }
    TimeProjectedHeads(device_, repeats_, report_);
    TimeLatents(device_, repeats_, report_);
    TimeSelection(device_, std::max(1, repeats_ / 10), report_);
    TimeExperts(device_, report_);
    TimeStates(device_, repeats_, report_);
    TimeStreamOps(device_, repeats_, report_);
    TimeMixes(device_, repeats_, report_);
    Draws();
  }

  void RunDequantized() {
    for (DType dtype : {DType::kQ4_0, DType::kQ4_K, DType::kQ8_0}) {
      Linears(dtype, {64, 128, 256, 512, 1024},
              absl::StrCat(std::string(Info(dtype).name), " by way of bf16"));
    }
  }

 private:
  void Goals() {
    using enum AttentionCase::Kind;
    Linears(DType::kBF16, {16, 1, 8, 32, 64, 128, 200, 512, 4096});
    Linears(DType::kQ4_0, {16, 1, 8, 32, 64, 128, 256, 512, 1024, 4096});
    Attention({kDecode, DType::kBF16, 64, 1024});
    Attention({kDecode, DType::kBF16, 64, 8192});
    Attention({kPrefill, DType::kBF16, 16384});
  }

  // The name includes `kind` if there is one: weights with other scales, or another way.
  void Linears(DType dtype, const std::vector<int64_t>& rows, const std::string& kind = "",
               MakesWeight make = MakeWeight) {
    const std::string type = kind.empty() ? std::string(Info(dtype).name) : kind;
    Copies packed;  // made with the first that is asked for
    for (int64_t n : rows) {
      if (!report_.begins(absl::StrCat("linear ", type, ", ", n, " rows"))) continue;
      if (packed.empty()) packed = PackCopies(device_, dtype, kTimedSize, kTimedSize, make);
      const int32_t repeats = n > 128 ? std::max(1, repeats_ / 10) : repeats_;
      report_.ends(TimeLinear(device_, {type, packed, n}, repeats));
    }
    if (dtype != DType::kBF16) return;
    const std::string name =
        absl::StrCat("linear bf16 ", kTimedSize, " x ", kTimedSize, " with 32 adapters of rank 16");
    if (!report_.begins(name)) return;
    if (packed.empty()) packed = PackCopies(device_, dtype, kTimedSize, kTimedSize, make);
    report_.ends(TimeAdapters(device_, name, packed, Sized(32, 3), 16, repeats_));
  }

  void Mlps(DType dtype, const char* type, MakesWeight make) {
    Copies ups, downs;
    for (int64_t n : {256, 4096}) {
      for (bool apart : {false, true}) {
        const MlpCase c = {type, n, apart};
        if (!report_.begins(c.name())) continue;
        if (ups.empty()) {
          ups = PackCopies(device_, dtype, 2 * kTimedInter, kTimedHidden, make);
          downs = PackCopies(device_, dtype, kTimedHidden, kTimedInter, make);
        }
        report_.ends(TimeMlp(device_, c, ups, downs, std::max(1, repeats_ / 10)));
      }
    }
  }

  void Attention(const AttentionCase& c) {
    if (!report_.begins(c.name())) return;
    const bool is_long = c.kind == AttentionCase::kPrefill || c.context >= 8192;
    const double us = TimeAttention(device_, c.dtype, c.batch(), c.heads,
                                    is_long ? std::max(1, repeats_ / 10) : repeats_);
    report_.ends({c.name(), us, c.amount(), c.kind != AttentionCase::kPrefill});
  }

  void Draws() {
    for (int64_t n : {1, 32, 256}) {
      for (const DrawCase& c : {DrawCase{n, 1, 1}, {n, 0, 1}, {n, 1, 0.9f}}) {
        if (!report_.begins(c.name())) continue;
        report_.ends({c.name(), TimeDraws(device_, c, std::min(repeats_, 20)), c.amount()});
      }
    }
  }

  Device& device_;
  const int32_t repeats_;
  const TimingReport& report_;
};

// A chain of kernels of one row.
class Gaps {
 public:
  explicit Gaps(Device& device)
      : device_(device),
        start_(RepeatedRows(1, Sized(kHidden, kRehearsedSize))),
        x_(device, device.activation_dtype(), start_),
        y_(device, device.activation_dtype(), start_),
        normed_(device, device.activation_dtype(), start_) {
    PlanRows(device, 1);
  }

  double OfNorms() {
    return Time(device_, Sized(kChain, 4), [&](Ops& ops, int32_t) {
      ops.Norm({.x = x_.tensor(), .residual = {}, .out = x_.tensor()});
    });
  }

  double OfNormsAndProducts(const Copies& packed) {
    return Time(device_, Sized(kChain, 4), [&](Ops& ops, int32_t i) {
      OnDevice& from = i % 2 == 0 ? x_ : y_;
      OnDevice& to = i % 2 == 0 ? y_ : x_;
      ops.Norm({.x = from.tensor(), .residual = {}, .out = normed_.tensor()});
      ops.Linear({.x = normed_.tensor(),
                  .weight = packed[static_cast<size_t>(i) % packed.size()].get(),
                  .out = to.tensor()});
    });
  }

  static constexpr int64_t kHidden = 4096;
  static constexpr int32_t kChain = 64;

 private:
  Device& device_;
  Matrix start_;
  OnDevice x_, y_, normed_;
};

}  // namespace

void TimeGaps(Device& device, const std::string& how, const TimingReport& report) {
  Gaps gaps(device);
  const std::string norms = absl::StrCat(Gaps::kChain, " dependent small kernels, each, ", how);
  if (report.begins(norms)) {
    report.ends({norms, gaps.OfNorms(), 4.0 * Gaps::kHidden});  // a row in, a row out
  }
  const std::string pairs =
      absl::StrCat("norm and linear bf16 4096 x 4096, 1 row, in a chain, ", how);
  if (!report.begins(pairs)) return;
  const Copies packed = PackCopies(device, DType::kBF16, Gaps::kHidden, Gaps::kHidden, MakeWeight);
  report.ends({pairs, gaps.OfNormsAndProducts(packed), static_cast<double>(packed[0]->bytes)});
}

void TimeOps(Device& device, int32_t repeats, const TimingReport& report) {
  Timings(device, repeats, report).Run();
}

void TimeDequantized(Device& dequantizing, int32_t repeats, const TimingReport& report) {
  Timings(dequantizing, repeats, report).RunDequantized();
}

}  // namespace heddle::gpu
