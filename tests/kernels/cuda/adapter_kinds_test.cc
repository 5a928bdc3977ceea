// Adapters beyond low-rank products of plain linears, on the CPU's levels and on CUDA:
// gains and biases, whole matrices, embeddings, norms, members of stacks, logit rows. The reference
// specifies it; Hugging Face PEFT's numbers stand behind the reference (tests/adapter/).
#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/kv_element.h"
#include "kernels/nano_batch.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

constexpr int32_t kSlots = 3;

// Random factors of one site: products, gains and biases in all combinations over slots.
class Factors {
 public:
  struct Shape {
    int32_t members = 1;
    int64_t cols = 32;
    std::vector<AdapterPart> parts = {{0, 24}, {24, 8}};
    bool gains = true;
    bool whole = false;      // slot 1 has the identity in place of A
    bool embedding = false;  // A by token; slot 1 has the identity in place of B
  };

  Factors(Random& random, DType dtype, Shape shape) : shape_(std::move(shape)), dtype_(dtype) {
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      for (int32_t member = 0; member < shape_.members; ++member) {
        for (const AdapterPart& part : shape_.parts) AddPart(random, slot, member, part);
      }
    }
  }

  AdapterMatrix view() const {
    return {.dtype = dtype_,
            .parts = shape_.parts,
            .factors = factors_.data(),
            .n_slots = kSlots,
            .slot_stride = static_cast<int32_t>(factors_.size()) / kSlots,
            .max_rank = max_rank_,
            .num_tokens = shape_.embedding ? shape_.cols : 0,
            .has_gains = shape_.gains};
  }

 private:
  void AddPart(Random& random, int32_t slot, int32_t member, const AdapterPart& part) {
    AdapterFactors& own = factors_.emplace_back();
    const bool special = slot == 1 && (shape_.whole || shape_.embedding);
    own.rank = (slot * 5 + member * 3) % 7;  // 0 among them
    if (special) {
      own.rank = static_cast<int32_t>(shape_.embedding ? part.rows : shape_.cols);
    }
    own.block_rows = 3;
    own.token_rows = 5;
    own.scale = 0.5f;
    own.vector_scale = 0.75f;
    if (shape_.embedding) {
      own.a = Blocks(random, shape_.cols, own.token_rows, own.rank);
    } else if (!special) {
      own.a = Blocks(random, own.rank, own.block_rows, shape_.cols);
    }
    if (!special || !shape_.embedding) own.b = Blocks(random, own.rank, own.block_rows, part.rows);
    if (shape_.gains && slot != 0) own.gain = Vector(random, part.rows);
    if (slot != 1) own.bias = shape_.embedding ? nullptr : Vector(random, part.rows);
    max_rank_ = std::max(max_rank_, own.rank);
  }

  const float* Vector(Random& random, int64_t count) {
    return vectors_.emplace_back(random.Normals(count)).data();
  }

  const void* const* Blocks(Random& random, int64_t rows, int32_t block_rows, int64_t cols) {
    std::vector<const void*>& table = tables_.emplace_back();
    for (int64_t first = 0; first < rows; first += block_rows) {
      std::vector<uint8_t>& block =
          blocks_.emplace_back(static_cast<size_t>(RowBytes(dtype_, block_rows * cols)) + 1);
      for (int64_t i = 0; i < block_rows * cols; ++i) {
        StoreElement(dtype_, block.data(), i, random.Normal() * 0.3f);
      }
      table.push_back(block.data());
    }
    return table.data();
  }

  const Shape shape_;
  const DType dtype_;
  int32_t max_rank_ = 0;
  std::vector<AdapterFactors> factors_;
  std::deque<std::vector<float>> vectors_;
  std::deque<std::vector<uint8_t>> blocks_;
  std::deque<std::vector<const void*>> tables_;
};

struct Rows {
  Rows() : batch({{{1, 9}, {3, 5}, {1, 1}, {2, 7}, {9, 9}}, 16}) {
    for (size_t t = 0; t < batch.token_ids.size(); ++t) {
      slots.push_back(static_cast<int32_t>((t * 7 + t / 3) % 4) - 1);
      batch.token_ids[t] = static_cast<int32_t>(t * 5 % 32);
    }
    batch.logit_rows = {0, 3, 4, 6, 9, 15};
  }
  HostBatch view() const {
    HostBatch all = batch.view();
    all.adapter_slot = slots;
    return all;
  }
  int64_t count() const { return static_cast<int64_t>(slots.size()); }

  TestBatch batch;
  std::vector<int32_t> slots;
};

// Runs the body on all devices; outputs must be near the reference's, relative to the largest one.
// `unit_cpu`: some levels round activations to the weights' type.
using Body = std::function<Matrix(Device&, DType)>;
void CompareDevices(const Body& body, double unit_bf16 = 0x1p-6, double unit_cpu = 1e-4) {
  auto reference = CreateReferenceDevice();
  const Matrix expected = body(*reference, DType::kF32);
  double largest = 1;
  for (int64_t t = 0; t < expected.num_rows(); ++t) {
    for (int64_t c = 0; c < expected.num_cols(); ++c) {
      largest = std::max(largest, std::fabs(double{expected(t, c)}));
    }
  }
  const auto check = [&](Device& device, double unit) {
    const Matrix found = body(device, device.activation_dtype());
    double worst = 0;
    for (int64_t t = 0; t < expected.num_rows(); ++t) {
      for (int64_t c = 0; c < expected.num_cols(); ++c) {
        const double error = std::fabs(double{found(t, c)} - expected(t, c));
        worst = std::max(worst, error / (unit * largest));
      }
    }
    INFO(device.description());
    CHECK(worst <= 1);
  };
  for (int32_t threads : {1, 3}) {
    for (NamedDevice& named : CpuDevices(threads)) check(*named.device, unit_cpu);
  }
  check(*EmulatedDevice(DType::kF32), 1e-4);
  check(*EmulatedDevice(DType::kBF16), unit_bf16);
  check(*EmulatedDevice(DType::kBF16, 48 << 10), unit_bf16);  // rows in several parts
  auto halves = EmulatedDevice(DType::kBF16);
  REQUIRE(halves->SetNanoBatches({.device_name = "", .rules = {{.min_rows = 2}}}).ok());
  check(*halves, unit_bf16);
}

// Zeros that the device may write to.
struct Zeros {
  Zeros(DType act, int64_t rows, int64_t cols) : matrix(rows, cols), on_device(act, matrix) {}
  Tensor tensor() { return on_device.tensor(); }

  Matrix matrix;
  Activations on_device;
};

Matrix Result(const Activations& from, int64_t rows, int64_t cols) {
  Matrix result(rows, cols);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t c = 0; c < cols; ++c) *result.at(t, c) = from(t, c);
  }
  return result;
}

constexpr DType kFactorTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST_CASE("Gains, biases and whole matrices act on products, before the activation", "[cuda]") {
  const Epilogue epilogue = GENERATE(Epilogue::kNone, Epilogue::kAdd, Epilogue::kGated);
  const DType dtype = GENERATE(from_range(std::begin(kFactorTypes), std::end(kFactorTypes)));
  Random random(1);
  const Rows rows;
  const bool gated = epilogue == Epilogue::kGated;
  const std::vector<AdapterPart> parts = gated ? std::vector<AdapterPart>{{0, 16}, {16, 16}}
                                               : std::vector<AdapterPart>{{0, 24}, {24, 8}};
  const Factors factors(random, dtype, {.parts = parts, .whole = true});
  const TestWeight gate = MakeWeight(random, DType::kBF16, 16, 32);
  const TestWeight up = MakeWeight(random, DType::kBF16, 16, 32);
  Matrix x = Matrix::RandomOf(random, rows.count(), 32);
  Matrix out = Matrix::RandomOf(random, rows.count(), gated ? 16 : 32);
  { Activations rounded(DType::kBF16, x); }
  { Activations rounded(DType::kBF16, out); }
  const std::vector<float> bias = random.Normals(32);
  CompareDevices(
      [&](Device& device, DType act) {
        auto packed = device.Pack(std::vector{gate.source(), up.source()});
        REQUIRE(packed.ok());
        const AdapterMatrix adapters = factors.view();
        Activations own_x(act, x), own_out(act, out);
        REQUIRE(device.Plan(rows.view()).ok());
        MustRun(device, [&](Ops& ops) {
          ops.Linear({.x = own_x.tensor(),
                      .weight = packed->get(),
                      .bias = bias.data(),
                      .epilogue = epilogue,
                      .activation = gated ? Activation::kSilu : Activation::kNone,
                      .out = own_out.tensor(),
                      .adapters = &adapters});
        });
        return Result(own_out, rows.count(), out.num_cols());
      },
      0x1p-5);
}

TEST_CASE("Logit rows find the adapters of their rows, in any window", "[cuda]") {
  Random random(2);
  const Rows rows;
  const Factors factors(random, DType::kBF16, {.whole = true});
  const TestWeight weight = MakeWeight(random, DType::kBF16, 32, 32);
  Matrix x = Matrix::RandomOf(random, 6, 32);
  { Activations rounded(DType::kBF16, x); }
  const auto [first, count] = GENERATE(std::pair{0, 6}, std::pair{2, 3}, std::pair{5, 1});
  CompareDevices([&, from = first, n = count](Device& device, DType act) {
    auto packed = device.Pack(std::vector{weight.source()});
    REQUIRE(packed.ok());
    const AdapterMatrix adapters = factors.view();
    Activations own_x(act, x);
    Matrix out(n, 32);
    Tensor window = own_x.tensor();
    window.data = act == DType::kF32 ? static_cast<void*>(window.row<float>(from))
                                     : static_cast<void*>(window.row<uint16_t>(from));
    window.rows = n;
    Zeros all(act, rows.count(), 32), gathered(act, 6, 32);
    REQUIRE(device.Plan(rows.view()).ok());
    MustRun(device, [&](Ops& ops) {
      // On CUDA halves of a step join at the rows of logits.
      ops.GatherLogitRows(all.tensor(), gathered.tensor());
      ops.Linear({.x = window,
                  .weight = packed->get(),
                  .out = out.tensor(),
                  .out_f32 = true,
                  .adapters = &adapters,
                  .adapter_rows = {.of_logits = true, .first = from}});
    });
    return out;
  });
}

TEST_CASE("Norms have the weights and biases of their rows' adapters", "[cuda]") {
  const NormKind kind = GENERATE(NormKind::kRms, NormKind::kLayer);
  const bool of_logits = GENERATE(false, true);
  const bool has_weight = GENERATE(false, true);
  Random random(3);
  const Rows rows;
  const Factors factors(random, DType::kBF16, {.cols = 1, .parts = {{0, 40}}});
  const int64_t count = of_logits ? 6 : rows.count();
  Matrix x = Matrix::RandomOf(random, count, 40);
  { Activations rounded(DType::kBF16, x); }
  const std::vector<float> weight = random.Normals(40), bias = random.Normals(40);
  CompareDevices([&](Device& device, DType act) {
    const AdapterMatrix adapters = factors.view();
    Activations own_x(act, x);
    Zeros out(act, count, 40);
    Zeros all(act, rows.count(), 40), gathered(act, 6, 40);
    REQUIRE(device.Plan(rows.view()).ok());
    MustRun(device, [&](Ops& ops) {
      if (of_logits) ops.GatherLogitRows(all.tensor(), gathered.tensor());
      ops.Norm({.kind = kind,
                .x = own_x.tensor(),
                .weight = has_weight ? weight.data() : nullptr,
                .bias = has_weight ? bias.data() : nullptr,
                .weight_offset = 1.0f,
                .out = out.tensor(),
                .adapters = &adapters,
                .adapter_rows = {.of_logits = of_logits}});
    });
    return Result(out.on_device, count, 40);
  });
}

TEST_CASE("Norms of single heads have the weights of their rows' adapters", "[cuda]") {
  constexpr int32_t kHeads = 3, kKvHeads = 2, kDim = 16;
  const bool of_keys = GENERATE(false, true);
  Random random(8);
  const Rows rows;
  const Factors factors(random, DType::kBF16, {.cols = 1, .parts = {{0, kDim}}});
  const int64_t count = rows.count();
  Matrix q = Matrix::RandomOf(random, count, kHeads * kDim);
  Matrix k = Matrix::RandomOf(random, count, kKvHeads * kDim);
  { Activations rounded_q(DType::kBF16, q), rounded_k(DType::kBF16, k); }
  const std::vector<float> q_norm = random.Normals(kDim), k_norm = random.Normals(kDim);
  CompareDevices([&](Device& device, DType act) {
    const AdapterMatrix adapters = factors.view();
    Activations own_q(act, q), own_k(act, k);
    TestCache cache(DType::kF32, rows.batch.num_pages, 16, kKvHeads, kDim, 1);
    REQUIRE(device.Plan(rows.view()).ok());
    MustRun(device, [&](Ops& ops) {
      ops.RopeKvWrite({.q = own_q.tensor(),
                       .k = own_k.tensor(),
                       .n_heads = kHeads,
                       .q_norm = q_norm.data(),
                       .k_norm = k_norm.data(),
                       .q_norm_adapters = of_keys ? nullptr : &adapters,
                       .k_norm_adapters = of_keys ? &adapters : nullptr,
                       .norm_weight_offset = 1.0f,
                       .cache = cache.view});
    });
    if (!of_keys) return Result(own_q, count, kHeads * kDim);
    Matrix keys(count, kKvHeads * kDim);
    for (int64_t t = 0; t < count; ++t) {
      for (int32_t h = 0; h < kKvHeads; ++h) {
        LoadKvRow(cache.view, cache.keys.data(), rows.batch.kv_slot[static_cast<size_t>(t)], h,
                  keys.at(t, int64_t{h} * kDim));
      }
    }
    return keys;
  });
}

TEST_CASE("Rows of an embedding get their tokens' part of their adapters", "[cuda]") {
  const DType dtype = GENERATE(from_range(std::begin(kFactorTypes), std::end(kFactorTypes)));
  Random random(4);
  const Rows rows;
  const Factors factors(random, dtype, {.cols = 32, .parts = {{0, 40}}, .embedding = true});
  Matrix x = Matrix::RandomOf(random, rows.count(), 40);
  { Activations rounded(DType::kBF16, x); }
  CompareDevices([&](Device& device, DType act) {
    const AdapterMatrix adapters = factors.view();
    Activations own_x(act, x);
    REQUIRE(device.Plan(rows.view()).ok());
    MustRun(device, [&](Ops& ops) { ops.AdaptEmbedding(adapters, own_x.tensor()); });
    return Result(own_x, rows.count(), 40);
  });
}

std::unique_ptr<PackedStack> PackOf(Device& device, const std::vector<TestWeight>& weights,
                                    int32_t count) {
  std::vector<WeightSource> sources;
  for (const TestWeight& weight : weights) sources.push_back(weight.source());
  auto packed = device.PackStack(sources, count);
  REQUIRE(packed.ok());
  return std::move(packed).value();
}

TEST_CASE("Heads have adapters of their own, beside the columns that are carried", "[cuda]") {
  constexpr int32_t kHeads = 3;
  constexpr int64_t kCols = 24, kOut = 16, kCarried = 8;
  Random random(5);
  const Rows rows;
  const Factors factors(random, DType::kBF16,
                        {.members = kHeads, .cols = kCols, .parts = {{0, kOut}}, .gains = false});
  std::vector<TestWeight> heads;
  for (int32_t h = 0; h < kHeads; ++h)
    heads.push_back(MakeWeight(random, DType::kBF16, kOut, kCols));
  Matrix x = Matrix::RandomOf(random, rows.count(), kHeads * (kCols + kCarried));
  { Activations rounded(DType::kBF16, x); }
  CompareDevices([&](Device& device, DType act) {
    const AdapterMatrix adapters = factors.view();
    Activations own_x(act, x);
    Zeros out(act, rows.count(), kHeads * (kOut + kCarried));
    auto packed = PackOf(device, heads, kHeads);
    REQUIRE(device.Plan(rows.view()).ok());
    MustRun(device, [&](Ops& ops) {
      ops.HeadLinear({.x = own_x.tensor(),
                      .x_step = kCols + kCarried,
                      .heads = packed.get(),
                      .carried = kCarried,
                      .out = out.tensor(),
                      .out_step = kOut + kCarried,
                      .adapters = &adapters});
    });
    return Result(out.on_device, rows.count(), kHeads * (kOut + kCarried));
  });
}

TEST_CASE("Experts have adapters of their own in both layers", "[cuda]") {
  constexpr int32_t kExperts = 3, kTopK = 2;
  constexpr int64_t kHidden = 64, kInter = 32;
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kQ4_0);
  const bool gains = GENERATE(false, true);
  Random random(6);
  const Rows rows;
  const Factors up_factors(random, DType::kBF16,
                           {.members = kExperts,
                            .cols = kHidden,
                            .parts = {{0, kInter}, {kInter, kInter}},
                            .gains = gains});
  const Factors down_factors(
      random, DType::kBF16,
      {.members = kExperts, .cols = kInter, .parts = {{0, kHidden}}, .gains = gains});
  std::vector<TestWeight> ups, downs;
  for (int32_t e = 0; e < kExperts; ++e) {
    ups.push_back(MakeWeight(random, dtype, kInter, kHidden));
    ups.push_back(MakeWeight(random, dtype, kInter, kHidden));
    downs.push_back(MakeWeight(random, dtype, kHidden, kInter));
  }
  const std::vector<float> up_bias = random.Normals(kExperts * 2 * kInter);
  std::vector<int32_t> experts;
  std::vector<float> weights;
  for (int64_t i = 0; i < rows.count() * kTopK; ++i) {
    experts.push_back(random.Below(kExperts));
    weights.push_back(random.Uniform(0.2f, 1.0f));
  }
  Matrix x = Matrix::RandomOf(random, rows.count(), kHidden);
  { Activations rounded(DType::kBF16, x); }
  CompareDevices(
      [&](Device& device, DType act) {
        const AdapterMatrix up_adapters = up_factors.view(), down_adapters = down_factors.view();
        Activations own_x(act, x);
        Zeros out(act, rows.count(), kHidden), inner(act, rows.count() * kTopK, kInter);
        Zeros between(act, rows.count() * kTopK, kHidden);
        auto up = PackOf(device, ups, kExperts);
        auto down = PackOf(device, downs, kExperts);
        REQUIRE(device.Plan(rows.view()).ok());
        MustRun(device, [&](Ops& ops) {
          ops.ExpertMix({.x = own_x.tensor(),
                         .experts = experts.data(),
                         .weights = weights.data(),
                         .top_k = kTopK,
                         .up = up.get(),
                         .down = down.get(),
                         .up_bias = up_bias.data(),
                         .activation = Activation::kSilu,
                         .inner = inner.tensor(),
                         .rows = between.tensor(),
                         .out = out.tensor(),
                         .up_adapters = &up_adapters,
                         .down_adapters = &down_adapters});
        });
        return Result(out.on_device, rows.count(), kHidden);
      },
      dtype == DType::kQ4_0 ? 0x1p-4 : 0x1p-5, dtype == DType::kF32 ? 1e-4 : 0x1p-5);
}

}  // namespace
}  // namespace heddle::kernels::test
