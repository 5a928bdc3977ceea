#include "tests/gpu/op_checks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/logit_batch.h"
#include "kernels/nano_batch.h"
#include "tests/gpu/code_format.h"
#include "tests/gpu/expert_ops.h"
#include "tests/gpu/head_ops.h"
#include "tests/gpu/latent_ops.h"
#include "tests/gpu/mix_ops.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/select_ops.h"
#include "tests/gpu/state_ops.h"
#include "tests/gpu/stream_ops.h"
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
using kernels::HostBatch;
using kernels::Info;
using kernels::LogitBatch;
using kernels::Ops;
using kernels::QueryRotation;
using kernels::RopeLayout;
using kernels::SampleArgs;
using kernels::SampleRowParams;
using kernels::WeightSource;
using kernels::test::BatchSpec;
using kernels::test::CutPieces;
using kernels::test::GrowTrees;
using kernels::test::MakeRowScaledWeight;
using kernels::test::MakeTileScaledWeight;
using kernels::test::MakeWeight;
using kernels::test::Matrix;
using kernels::test::Random;
using kernels::test::SharePages;
using kernels::test::TestBatch;
using kernels::test::TestCache;
using kernels::test::TestWeight;

struct Product {
  DType dtype = DType::kBF16;
  int64_t n = 1, cols = 0, rows = 0;
  Epilogue epilogue = Epilogue::kNone;
  bool out_f32 = false;
};

std::string NameOf(const Product& p, const char* kind) {
  const char* ends = p.epilogue == Epilogue::kGated ? " gated"
                     : p.epilogue == Epilogue::kAdd ? " added"
                                                    : "";
  return absl::StrCat("linear ", std::string(Info(p.dtype).name), kind, " [", p.n, ", ", p.cols,
                      "] x [", p.rows, ", ", p.cols, "]", ends, p.out_f32 ? " to F32" : "");
}

std::vector<float> Multiply(Device& device, const Product& p, const TestWeight& weight, Matrix x) {
  const DType act = device.activation_dtype();
  WeightSource source = weight.source();
  source.takes_int8_x = true;
  auto packed = Must(device.Pack({&source, 1}));
  OnDevice input(device, act, x);
  Random random(8);
  Matrix before =
      Matrix::RandomOf(random, p.n, p.epilogue == Epilogue::kGated ? p.rows / 2 : p.rows);
  OnDevice out(device, p.out_f32 ? DType::kF32 : act, before);
  PlanRows(device, p.n);
  Must(device.Run([&](Ops& ops) {
    ops.Linear(
        {.x = input.tensor(),
         .weight = packed.get(),
         .epilogue = p.epilogue,
         .activation = p.epilogue == Epilogue::kGated ? Activation::kSilu : Activation::kNone,
         .out = out.tensor(),
         .out_f32 = p.out_f32});
  }));
  return out.Read();
}

double CheckLinear(Device& device, const Product& p) {
  Random random(static_cast<uint32_t>(p.n + p.cols + p.rows));
  const TestWeight weight = MakeWeight(random, p.dtype, p.rows, p.cols);
  Matrix x = Matrix::RandomOf(random, p.n, p.cols);
  for (int64_t i = 0; i < p.n * p.cols; ++i) {
    float& value = *x.at(i / p.cols, i % p.cols);
    value = BF16ToF32(F32ToBF16(value));
  }
  auto reference = CreateReferenceDevice();
  return Worst(Multiply(device, p, weight, x), Multiply(*reference, p, weight, x));
}

// x that rows of codes hold exactly: E4M3 up to 448, or integers up to 127, in steps of 1 / 8.
float ExactInCodes(Random& random, bool is_int, bool is_first) {
  if (is_first) return is_int ? 127.0f / 8 : 448.0f / 8;
  const int32_t sign = random.Below(2) == 0 ? -1 : 1;
  const int32_t magnitude =
      is_int ? random.Below(128) : (8 + random.Below(8)) << random.Below(5);  // 8 .. 240
  return static_cast<float>(sign * magnitude) / 8;
}

double CheckCodes(Device& device, const Product& p, const CodeFormat& format) {
  Random random(static_cast<uint32_t>(p.n));
  const TestWeight weight = format.Make(random, p.rows, p.cols);
  Matrix x(p.n, p.cols);
  const int64_t scaled = format.tiled ? 128 : p.cols;  // columns with one scale
  for (int64_t i = 0; i < p.n * p.cols; ++i) {
    *x.at(i / p.cols, i % p.cols) = ExactInCodes(random, p.dtype == DType::kInt8G128,
                                                 i % p.cols % scaled == i / p.cols % scaled);
  }
  auto reference = CreateReferenceDevice();
  return Worst(Multiply(device, p, weight, x), Multiply(*reference, p, weight, x));
}

// A gated MLP whose norm and products use codes if the device does that.
std::vector<float> RunMlp(Device& device, const TestWeight& up, const TestWeight& down, Matrix x) {
  const DType act = device.activation_dtype();
  Matrix normed(x.num_rows(), up.cols), inner(x.num_rows(), down.cols);
  Matrix zeros(x.num_rows(), down.rows);
  const OnDevice in(device, act, x), between(device, act, normed), mid(device, act, inner);
  const OnDevice out(device, act, zeros);
  WeightSource sources[] = {up.source(), down.source()};
  sources[0].takes_int8_x = sources[1].takes_int8_x = true;
  const auto up_packed = Must(device.Pack({&sources[0], 1}));
  const auto down_packed = Must(device.Pack({&sources[1], 1}));
  PlanRows(device, x.num_rows());
  Must(device.Run([&](Ops& ops) {
    ops.Linear({.x = between.tensor(),
                .weight = up_packed.get(),
                .epilogue = Epilogue::kGated,
                .activation = Activation::kSilu,
                .out = mid.tensor(),
                .norm = kernels::NormArgs{.x = in.tensor(), .out = between.tensor()},
                .reader = down_packed.get()});
    ops.Linear({.x = mid.tensor(), .weight = down_packed.get(), .out = out.tensor()});
  }));
  return out.Read();
}

double CheckMlp(Device& device, const CodeFormat& format, int64_t n) {
  constexpr int64_t kHidden = 256, kInter = 384;
  Random random(static_cast<uint32_t>(n));
  const TestWeight up = format.Make(random, 2 * kInter, kHidden);
  const TestWeight down = format.Make(random, kHidden, kInter);
  const Matrix x = Matrix::RandomOf(random, n, kHidden);
  auto reference = CreateReferenceDevice();
  const std::vector<float> expected = RunMlp(*reference, up, down, x);
  const std::vector<float> found = RunMlp(device, up, down, x);
  return WorstOfCodes(found, expected);
}

double CheckAdapters(Device& device, int32_t rows, int32_t rank) {
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
  return Worst(add(device), add(*CreateReferenceDevice()));
}

struct AttentionShape {
  int32_t head_dim, n_heads, n_kv_heads, window;
  float softcap = 0;
  bool sinks = false;
  bool latent = false;  // the keys are the values
  bool half_keys = false;
  bool in_chunks = false;
  bool codes = false;  // queries become codes (attention_hopper_f8.h)
  bool turns = false;  // queries are rotated further for pieces
  bool narrows = false;
};

std::vector<float> Attend(Device& device, const HostBatch& batch, const TestCache& cache, Matrix q,
                          const AttentionShape& shape) {
  const DType act = device.activation_dtype();
  CacheOnDevice on_device(device, cache);
  OnDevice input(device, act, q);
  Matrix zeros(q.num_rows(), int64_t{shape.n_heads} * shape.head_dim);
  OnDevice out(device, act, zeros);
  AttentionArgs args = ArgsFor(input, out, on_device.view, shape.n_heads);
  args.window = shape.window;
  args.in_chunks = shape.in_chunks;
  args.softcap = shape.softcap;
  args.half_keys = shape.half_keys;
  if (shape.latent) args.cache.values = args.cache.keys;
  Random random(9);
  Matrix logits = Matrix::RandomOf(random, 1, shape.n_heads);
  OnDevice sinks(device, DType::kF32, logits);
  if (shape.sinks) args.sinks = static_cast<const float*>(sinks.buffer->data());
  const std::vector<float> inv_freq(static_cast<size_t>(shape.head_dim) / 4, 0.01f);
  const QueryRotation rotation = {.inv_freq = inv_freq, .layout = RopeLayout::kHalf};
  if (shape.turns) args.rotation = &rotation;
  Must(device.Plan(batch));
  Must(device.Run([&](Ops& ops) {
    if (batch.n_tokens() > q.num_rows()) ops.NarrowToLogitRows();
    ops.Attention(args);
  }));
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

// Contexts in pieces, of chunks and of rows that decode, beside others.
TestBatch Pieces(bool turns) {
  TestBatch batch({{{21, 75}, {1, 9}, {33, 250}, {1, 500}, {20, 90}}, 16});
  Random random(6);
  CutPieces(random, {0, 2, 3}, turns, &batch);
  return batch;
}

// One prompt, long enough that any device reads it once for all with 8 KV heads.
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

// Enough tiles of 128 packed rows that some multiprocessors get more than one.
TestBatch ManyTiles(Device& device, const AttentionShape& shape) {
  const int32_t multiprocessors = Must(device.nano_batch_device()).num_multiprocessors;
  const int32_t rows = 128 * shape.n_kv_heads / shape.n_heads;  // of a tile
  BatchSpec spec{{}, 16};
  for (int32_t s = 0; s < multiprocessors / shape.n_kv_heads + 2; ++s) {
    spec.sequences.push_back({rows - s % 3, rows + 130 + 7 * s});
  }
  return TestBatch(spec);
}

std::string NameOf(DType dtype, const AttentionShape& shape, const TestBatch& batch,
                   const char* kind) {
  return absl::StrCat(kind, std::string(Info(dtype).name), " head_dim ", shape.head_dim, " heads ",
                      shape.n_heads, "/", shape.n_kv_heads, " window ", shape.window, " rows ",
                      batch.token_ids.size(), shape.softcap > 0 ? " capped" : "",
                      shape.sinks ? " with sinks" : "", shape.latent ? " latent" : "",
                      shape.half_keys ? " half keys" : "", shape.in_chunks ? " in chunks" : "",
                      shape.turns ? " turned" : "", shape.narrows ? " narrowed" : "");
}

double CheckAttention(Device& device, DType dtype, const AttentionShape& shape,
                      const TestBatch& batch) {
  const int32_t page_tokens = *std::max_element(batch.span_tokens.begin(), batch.span_tokens.end());
  TestCache cache(dtype, batch.num_pages, page_tokens, shape.n_kv_heads, shape.head_dim, 1);
  LogitBatch logit_batch;
  HostBatch rows = shape.narrows ? logit_batch.Make(batch.view()) : batch.view();
  rows.kv_slot = rows.kv_slot.first(rows.token_ids.size());
  Random random(static_cast<uint32_t>(shape.head_dim));
  Matrix q = Matrix::RandomOf(random, rows.n_tokens(),
                              int64_t{shape.n_heads} * shape.head_dim / (shape.half_keys ? 2 : 1));
  { OnDevice rounded(device, device.activation_dtype(), q); }
  auto reference = CreateReferenceDevice();
  const std::vector<float> expected = Attend(*reference, rows, cache, q, shape);
  const std::vector<float> found = Attend(device, batch.view(), cache, q, shape);
  return shape.codes ? WorstOfCodes(found, expected) : Worst(found, expected);
}

// Greedy and filtered draws: the share of tokens that differ from the reference must be 0.
double CheckSample(Device& device, size_t count, int64_t vocab) {
  Random random(3);
  Matrix logits = Matrix::RandomOf(random, 4, vocab);
  std::vector<SampleRowParams> rows(count);
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
  return draw(device) == draw(*CreateReferenceDevice()) ? 0.0 : 1e9;
}

// All checks of one device, one after the other.
class Checks {
 public:
  Checks(Device& device, const CheckReport& report)
      : device_(device), report_(report), is_bf16_(device.activation_dtype() == DType::kBF16) {}

  void Run() {
    Products();
    Codes();
    Attentions();
    for (DType dtype : {DType::kBF16, DType::kQ4_0, DType::kF8G128}) {
      for (int64_t n : {5, 30, 80, 200}) {  // chunks of 8, 32, 64 and 128 rows
        Check(absl::StrCat("experts ", std::string(Info(dtype).name), ", ", n, " rows"),
              [&] { return CheckExperts(device_, dtype, n); });
      }
    }
    for (bool tiled : {false, true}) {  // by codes where many rows share an expert
      const CodeFormat format = {DType::kF8G128, tiled};
      for (int64_t n : {30, 80, 203}) {
        Check(absl::StrCat("experts fp8", format.words(), ", ", n, " rows"),
              [&] { return CheckExperts(device_, format, n); });
      }
    }
    for (int64_t n : {1, 6, 12, 30}) {
      Check(absl::StrCat("q, k and v at once and apart, ", n, " rows"), [&] {
        return CheckHeads(device_, n == 6 ? DType::kQ4_0 : DType::kBF16,
                          n == 12 ? DType::kF8E4M3 : DType::kBF16, n);
      });
    }
    for (DType cache : {DType::kBF16, DType::kF8E4M3}) {
      Check(absl::StrCat("keys and values made of latents, cache ", std::string(Info(cache).name)),
            [&] { return CheckLatents(device_, cache); });
    }
    for (DType cache : {DType::kBF16, DType::kF8E4M3}) {
      Check(absl::StrCat("chosen positions, cache ", std::string(Info(cache).name)),
            [&] { return CheckSelection(device_, cache); });
    }
    for (int32_t rank : {1, 16, 200}) {
      for (int32_t rows : {3, 40}) {
        Check(absl::StrCat("adapters of rank ", rank, ", ", rows, " rows"),
              [&] { return CheckAdapters(device_, rows, rank); });
      }
    }
    Check("sampling, 40 rows of 5000", [&] { return CheckSample(device_, 40, 5000); });
    Check("sampling, 3 rows of 128256", [&] { return CheckSample(device_, 3, 128256); });
    CheckStates(device_, report_);
    CheckStreamOps(device_, report_);
    CheckMixes(device_, report_);
  }

 private:
  void Check(const std::string& name, const std::function<double()>& check) {
    if (report_.begins(name)) report_.ends(name, check());
  }
  void Linear(const Product& p) {
    Check(NameOf(p, ""), [&] { return CheckLinear(device_, p); });
  }
  void Attention(DType dtype, const AttentionShape& shape, const TestBatch& batch,
                 const char* kind = "attention ") {
    Check(NameOf(dtype, shape, batch, kind),
          [&] { return CheckAttention(device_, dtype, shape, batch); });
  }

  void Products() {
    for (DType dtype : kernels::test::kAllTypes) {
      if (Info(dtype).block_elements > 32) {  // 1536: scales of several groups for every warp
        Linear({dtype, 5, 1536, 77});
        Linear({dtype, 20, 256, 74, Epilogue::kGated});
        Linear({dtype, 70, 512, 149});
        continue;
      }
      for (int64_t n : {1, 9, 32, 70}) {
        Linear({dtype, n, 288, 149});
        Linear({dtype, n, 96, 74, Epilogue::kGated});
      }
      Linear({dtype, 130, 288, 160, Epilogue::kAdd});
    }
    if (!is_bf16_) return;
    // Many rows: several tiles, and columns dealt to several blocks.
    for (int64_t n : {40, 90, 120, 150, 200}) Linear({DType::kBF16, n, 1184, 260, Epilogue::kAdd});
    Linear({DType::kBF16, 230, 800, 270, Epilogue::kGated});
    for (DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kMXFP4}) {
      Linear({dtype, 33, 1184, 260, Epilogue::kAdd});
      Linear({dtype, 150, 800, 270, Epilogue::kGated});
    }
  }

  void Codes() {
    for (const CodeFormat& format :
         {CodeFormat{DType::kF8G128, false}, {DType::kF8G128, true}, {DType::kInt8G128, false}}) {
      for (int64_t n : {7, 40, 200, 203}) {  // tiles: in multiples of 8 and not
        for (Epilogue epilogue : {Epilogue::kNone, Epilogue::kGated, Epilogue::kAdd}) {
          const bool out_f32 = n == 200 && epilogue == Epilogue::kNone;
          const Product p = {format.dtype, n, 384, 160, epilogue, out_f32};
          Check(NameOf(p, format.words()), [&] { return CheckCodes(device_, p, format); });
        }
        Check(absl::StrCat("gated mlp ", std::string(Info(format.dtype).name), format.words(), ", ",
                           n, " rows"),
              [&] { return CheckMlp(device_, format, n); });
      }
    }
  }

  void Attentions() {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
      for (int32_t window : {0, 50}) AttentionsOf(dtype, window);
      if (is_bf16_) Attention(dtype, {64, 16, 8, 0}, OnePrompt(), "one prompt ");
    }
  }

  void AttentionsOf(DType dtype, int32_t window) {
    Attention(dtype, {64, 4, 2, window}, Mixed());
    Attention(dtype, {128, 8, 1, window}, Mixed());
    Attention(dtype, {256, 2, 2, window}, Mixed());
    Attention(dtype, {512, 4, 1, window}, Mixed());
    Attention(dtype, {64, 4, 2, window, /*softcap=*/20}, Mixed());
    Attention(dtype, {64, 4, 2, window, 0, /*sinks=*/true}, Mixed());
    Attention(dtype, {64, 4, 2, window}, Trees(), "trees ");
    const AttentionShape halves = {128, 8, 2, window, 0, false, false, /*half_keys=*/true};
    Attention(dtype, halves, Mixed());
    AttentionShape narrowed = {64, 4, 2, window};
    narrowed.narrows = true;
    Attention(dtype, narrowed, Mixed());
    AttentionShape pieces = {64, 4, 2, 3 * window};
    pieces.turns = window == 0;
    Attention(dtype, pieces, Pieces(pieces.turns), "pieces ");
    if (window > 0) {
      AttentionShape chunks = {64, 4, 2, window};
      chunks.in_chunks = true;
      Attention(dtype, chunks, Mixed());
      Attention(dtype, chunks, Trees(), "trees ");
    }
    if (!is_bf16_ || dtype == DType::kF32) return;
    // Tiles enough for each key that 8-bit caches are copied as 16 bits.
    Attention(dtype, {64, 8, 1, window}, Prompts());
    Attention(dtype, {128, 4, 1, window}, Prompts());
    Attention(dtype, {128, 4, 1, window, /*softcap=*/20, /*sinks=*/true}, Prompts());
    AttentionShape many = {128, 16, 1, window};  // each key is in many tiles
    many.codes = dtype == DType::kF8E4M3 && is_bf16_;
    Attention(dtype, many, Prompts());
    // DeepSeek's latents, with heads for tiles of 16 rows and of 64.
    for (int32_t heads : {16, 40}) {
      const AttentionShape latent = {576, heads, 1, window, 0, /*sinks=*/false, /*latent=*/true};
      Attention(dtype, latent, Mixed());
      Attention(dtype, latent, Trees(), "trees ");
    }
    if (dtype != DType::kF16 && dtype != DType::kBF16) return;
    Attention(dtype, {64, 4, 2, window}, Prompts());
    const AttentionShape wide = {128, 16, 8, window};
    Attention(dtype, wide, ManyTiles(device_, wide), "many tiles ");
  }

  Device& device_;
  const CheckReport& report_;
  const bool is_bf16_;
};

}  // namespace

void CheckOps(Device& device, const CheckReport& report) { Checks(device, report).Run(); }

}  // namespace heddle::gpu
