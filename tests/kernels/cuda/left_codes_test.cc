// Outputs of a product that are left as codes for the one that reads them, on the emulated device.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/kv_element.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/cuda/quantised.h"

namespace heddle::kernels::test {
namespace {

using cuda::CodeRows;
using cuda::LibraryProduct;
using cuda::WeightLayout;

// The byte of column k in a row of codes, as weight_layout.h describes groups of 64.
int64_t PlaceOf(int64_t k) {
  const int64_t lane = k % 32 / 8, block = k % 64 / 32;
  return k / 64 * 64 + 16 * lane + 8 * block + k % 8;
}

uint8_t CodeOf(float value, bool is_int) {
  return is_int ? static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(value)))
                : F32ToF8E4M3(value);
}

// Memory for codes of n rows; memory that must not be written is filled with a pattern.
struct CodeBuffer {
  CodeBuffer(WeightLayout layout, int64_t n, int64_t cols) : n_rows(n) {
    rows.layout = layout;
    rows.row_bytes = (cols + 63) / 64 * 64;
    const int64_t tiles = layout == WeightLayout::kF8Block ? (rows.row_bytes + 127) / 128 : 1;
    rows.scales_stride = layout == WeightLayout::kF8Block ? n + 3 : 0;
    codes.assign(static_cast<size_t>(n * rows.row_bytes + 16), 0xA5);
    scales.assign(static_cast<size_t>(tiles * (n + 3)), -1.0f);
    rows.codes = codes.data() + (16 - reinterpret_cast<uintptr_t>(codes.data()) % 16) % 16;
    rows.scales = scales.data();
  }

  // Whether row t holds the codes of `values`, bit for bit, and zeros behind them.
  bool Holds(int64_t t, const std::vector<float>& values) const {
    const bool is_int = rows.layout == WeightLayout::kInt8Row;
    const bool tiled = rows.layout == WeightLayout::kF8Block;
    const auto cols = static_cast<int64_t>(values.size());
    const float end = is_int ? 127.0f : 448.0f;
    bool good = true;
    for (int64_t begin = 0; begin < rows.row_bytes; begin += tiled ? 128 : rows.row_bytes) {
      const int64_t last = tiled ? std::min(begin + 128, rows.row_bytes) : rows.row_bytes;
      float largest = 1e-20f;
      for (int64_t k = begin; k < std::min(last, cols); ++k) {
        largest = std::max(largest, std::fabs(values[static_cast<size_t>(k)]));
      }
      good = good && rows.scales[begin / 128 * rows.scales_stride + t] == largest / end;
      for (int64_t k = begin; k < last; ++k) {
        const float value = k < cols ? values[static_cast<size_t>(k)] : 0.0f;
        good = good && rows.codes[t * rows.row_bytes + PlaceOf(k)] ==
                           CodeOf(value * (end / largest), is_int);
      }
    }
    return good;
  }

  int64_t n_rows;
  CodeRows rows;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

constexpr WeightLayout kLayouts[] = {WeightLayout::kF8Row, WeightLayout::kInt8Row,
                                     WeightLayout::kF8Block};

TEST_CASE("Rows become the codes that their definition gives, and come back", "[cuda]") {
  auto runtime = *cuda::Runtime::Open(0);
  for (WeightLayout layout : kLayouts) {
    for (int64_t cols : {8, 64, 136, 320, 2056}) {
      Random random(static_cast<uint32_t>(cols));
      Matrix x = Matrix::RandomOf(random, 5, cols), back(5, cols);
      for (int64_t k = 0; k < cols; ++k) *x.at(2, k) = 0;
      Activations rows(DType::kBF16, x, 8), restored(DType::kBF16, back, 8);
      const CodeBuffer buffer(layout, 5, cols);
      CHECK(cuda::LaunchQuantizeRows(rows.tensor(), buffer.rows, runtime->stream()) == 0);
      CHECK(cuda::LaunchRestoreRows(buffer.rows, restored.tensor(), runtime->stream()) == 0);
      REQUIRE(runtime->Synchronize().ok());
      CHECK(restored.GapsIntact());
      const Matrix seen = Quantised(x, layout == WeightLayout::kInt8Row ? CodeScales::kInt8Rows
                                       : layout == WeightLayout::kF8Row ? CodeScales::kF8Rows
                                                                        : CodeScales::kF8Tiles);
      int64_t wrong = 0;
      for (int64_t t = 0; t < 5; ++t) {
        std::vector<float> values;
        for (int64_t k = 0; k < cols; ++k) {
          values.push_back(x(t, k));
          wrong += restored(t, k) != BF16ToF32(F32ToBF16(seen(t, k)));
        }
        CHECK(buffer.Holds(t, values));
      }
      CHECK(wrong == 0);
    }
  }
  CHECK(cuda::emulate::TakeFindings().empty());
}

// A vector [cols] on a 16-byte boundary, as on devices.
struct AlignedFloats {
  explicit AlignedFloats(const std::vector<float>& values) : storage(values.size() + 4) {
    data = storage.data() + (16 - reinterpret_cast<uintptr_t>(storage.data()) % 16) % 16 / 4;
    std::copy(values.begin(), values.end(), data);
  }
  std::vector<float> storage;
  float* data;
};

// Row t of the result of `args`, in F64.
std::vector<double> NormedRow(const NormArgs& args, const Matrix& x, int64_t t) {
  const int64_t cols = x.num_cols();
  double mean = 0, squares = 0;
  if (args.kind == NormKind::kLayer) {
    for (int64_t k = 0; k < cols; ++k) mean += x(t, k) / static_cast<double>(cols);
  }
  for (int64_t k = 0; k < cols; ++k) squares += std::pow(x(t, k) - mean, 2);
  const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + args.eps);
  std::vector<double> out;
  for (int64_t k = 0; k < cols; ++k) {
    const double weight = args.weight == nullptr ? 1.0 : args.weight[k] + args.weight_offset;
    out.push_back((x(t, k) - mean) * scale * weight + (args.bias == nullptr ? 0 : args.bias[k]));
  }
  return out;
}

TEST_CASE("A norm's codes are those of what it leaves in F32", "[cuda]") {
  auto runtime = *cuda::Runtime::Open(0);
  for (WeightLayout layout : kLayouts) {
    const bool is_int = layout == WeightLayout::kInt8Row;
    for (int64_t cols : {8, 136, 320, 4096}) {
      Random random(static_cast<uint32_t>(cols));
      Matrix x = Matrix::RandomOf(random, 4, cols);
      for (int64_t k = 0; k < cols; ++k) *x.at(2, k) = 0;
      Activations rows(DType::kBF16, x, 8);
      const AlignedFloats weight(random.Normals(cols)), bias(random.Normals(cols));
      const NormArgs plain{.x = rows.tensor()};
      NormArgs rms = plain, layer = plain;
      rms.weight = layer.weight = weight.data;
      rms.weight_offset = 1;
      layer.kind = NormKind::kLayer;
      layer.bias = bias.data;
      for (const NormArgs& args : {plain, rms, layer}) {
        const CodeBuffer buffer(layout, 4, cols);
        CHECK(cuda::LaunchNormCodes(args, buffer.rows, runtime->stream()) == 0);
        REQUIRE(runtime->Synchronize().ok());
        int64_t wrong = 0;
        for (int64_t t = 0; t < 4; ++t) {
          const std::vector<double> exact = NormedRow(args, x, t);
          for (int64_t k = 0; k < buffer.rows.row_bytes; ++k) {
            const float scale = buffer.scales[k / 128 * buffer.rows.scales_stride + t];
            const uint8_t code = buffer.rows.codes[t * buffer.rows.row_bytes + PlaceOf(k)];
            // F32's sums and roundings may lead to the next code on a border between two.
            const double value = k < cols ? exact[static_cast<size_t>(k)] / scale : 0;
            const double slack = std::fabs(value) * 1e-5 + 1e-6 * (is_int ? 127 : 448);
            wrong += code != CodeOf(static_cast<float>(value - slack), is_int) &&
                     code != CodeOf(static_cast<float>(value + slack), is_int) &&
                     !(value == 0 && (code & 127) == 0);
          }
          double largest = 1e-20;
          const int64_t first =
              layout == WeightLayout::kF8Block ? std::min<int64_t>(cols, 128) : cols;
          for (int64_t k = 0; k < first; ++k) largest = std::max(largest, std::fabs(exact[k]));
          CHECK(buffer.scales[t] == Approx(largest / (is_int ? 127 : 448)).epsilon(1e-5));
        }
        CHECK(wrong == 0);
      }
    }
  }
  CHECK(cuda::emulate::TakeFindings().empty());
}

// Sums [n, 2 cols] in the type of a library's product.
struct Sums {
  Sums(Random& random, LibraryProduct::Type type, int64_t n, int64_t cols)
      : values(Matrix::RandomOf(random, n, 2 * cols)),
        x_scales(random.Normals(n)),
        w_scales(random.Normals(2 * cols)) {
    product.type = type;
    product.sums = {storage.data(), n, 2 * cols, 2 * cols};
    storage.resize(static_cast<size_t>(n * 2 * cols + 4));
    product.sums.data = storage.data();
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t r = 0; r < 2 * cols; ++r) Store(t, r, 2 * values(t, r));
    }
    if (type == LibraryProduct::Type::kBF16) return;
    product.x_scales = x_scales.data();
    product.w_scales = w_scales.data();
  }
  void Store(int64_t t, int64_t r, float value) {
    float& to = *values.at(t, r);
    if (product.type == LibraryProduct::Type::kBF16) {
      const uint16_t bits = F32ToBF16(value);
      to = BF16ToF32(bits);
      product.sums.row<uint16_t>(t)[r] = bits;
    } else if (product.type == LibraryProduct::Type::kF32) {
      product.sums.row<float>(t)[r] = to = value;
    } else {
      const auto sum = static_cast<int32_t>(std::lrint(value * 100));
      product.sums.row<int32_t>(t)[r] = sum;
      to = static_cast<float>(sum);
    }
  }
  float At(int64_t t, int64_t r) const {
    if (product.x_scales == nullptr) return values(t, r);
    return values(t, r) * (x_scales[static_cast<size_t>(t)] * w_scales[static_cast<size_t>(r)]);
  }

  LibraryProduct product;
  Matrix values;
  std::vector<float> x_scales, w_scales;
  std::vector<float> storage;
};

TEST_CASE("An epilogue's codes are those of its outputs in F32", "[cuda]") {
  auto runtime = *cuda::Runtime::Open(0);
  for (WeightLayout layout : kLayouts) {
    for (auto type :
         {LibraryProduct::Type::kBF16, LibraryProduct::Type::kF32, LibraryProduct::Type::kInt32}) {
      for (int64_t cols : {8, 192, 328, 5000}) {
        Random random(static_cast<uint32_t>(cols));
        const int64_t n = cols == 5000 ? 2 : 6;
        const Sums sums(random, type, n, cols);
        const std::vector<float> bias = random.Normals(2 * cols);
        Matrix x(n, 64);
        const CodeBuffer buffer(layout, n, cols);
        cuda::LinearParams params;
        params.x = x.tensor();
        params.weight.rows = 2 * cols;
        params.epilogue = Epilogue::kGated;
        params.activation = Activation::kRelu;
        params.half = cols;
        params.bias = bias.data();
        params.bias_up = bias.data() + cols;
        params.out_codes = buffer.rows;
        CHECK(cuda::LaunchEpilogue(params, sums.product, runtime->stream()) == 0);
        REQUIRE(runtime->Synchronize().ok());
        for (int64_t t = 0; t < n; ++t) {
          std::vector<float> values;
          for (int64_t r = 0; r < cols; ++r) {
            const float gate = sums.At(t, r) + bias[static_cast<size_t>(r)];
            const float up = sums.At(t, r + cols) + bias[static_cast<size_t>(r + cols)];
            values.push_back(std::max(gate, 0.0f) * up);
          }
          CHECK(buffer.Holds(t, values));
        }
      }
    }
  }
  CHECK(cuda::emulate::TakeFindings().empty());
}

// A gated MLP's two products.
struct Mlp {
  DType dtype = DType::kF8G128;
  bool tiled = false;
  int64_t n = 40;
  Activation activation = Activation::kSilu;
  cuda::emulate::Machine machine = {.has_library = true};
  int64_t workspace_bytes = int64_t{4} << 20;
  bool bulk = false;     // FP8 goes by our own kernel, which leaves no codes
  bool adapted = false;  // some rows of the batch have adapters, which have no part here
};
constexpr int64_t kHidden = 256, kInter = 384;

struct MlpRun {
  std::vector<float> out;
  bool left_codes;  // whether the rows between the products are no numbers of their own
};

MlpRun RunMlp(const Mlp& c, bool with_reader, const TestWeight& up, const TestWeight& down,
              Matrix x) {
  cuda::emulate::SetMachine(c.machine);
  auto device = CreateCudaDevice(
      {.workspace_bytes = c.workspace_bytes, .graphs = false, .warpgroups = c.bulk});
  cuda::emulate::SetMachine({});
  REQUIRE(device.ok());
  auto pack = [&](const TestWeight& weight) {
    WeightSource source = weight.source();
    source.takes_int8_x = true;
    auto packed = (*device)->Pack({&source, 1});
    REQUIRE(packed.ok());
    return std::move(*packed);
  };
  const auto up_packed = pack(up), down_packed = pack(down);
  Matrix zeros(c.n, kInter), residual(c.n, kHidden);
  Activations x_device(DType::kBF16, x), inner(DType::kBF16, zeros), out(DType::kBF16, residual);
  const TestBatch batch({{{static_cast<int32_t>(c.n), static_cast<int32_t>(c.n)}}, 16});
  HostBatch view = batch.view();
  const std::vector<int32_t> slots(static_cast<size_t>(c.n), 0);
  if (c.adapted) view.adapter_slot = slots;
  REQUIRE((*device)->Plan(view).ok());
  MustRun(**device, [&](Ops& ops) {
    ops.Linear({.x = x_device.tensor(),
                .weight = up_packed.get(),
                .epilogue = Epilogue::kGated,
                .activation = c.activation,
                .out = inner.tensor(),
                .reader = with_reader ? down_packed.get() : nullptr});
    ops.Linear({.x = inner.tensor(),
                .weight = down_packed.get(),
                .epilogue = Epilogue::kAdd,
                .out = out.tensor()});
  });
  MlpRun run;
  double size = 0;
  for (int64_t t = 0; t < c.n; ++t) {
    for (int64_t r = 0; r < kHidden; ++r) run.out.push_back(out(t, r));
    for (int64_t r = 0; r < kInter; ++r) size = std::max<double>(size, std::fabs(inner(t, r)));
  }
  run.left_codes = !(size < 1e6);
  return run;
}

double Rms(const std::vector<float>& values) {
  double squares = 0;
  for (float value : values) squares += double{value} * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// Whether codes are left for the second product; the output is that of rows in BF16 either way.
bool LeavesCodes(const Mlp& c) {
  Random random(9);
  const auto make = [&](int64_t rows, int64_t cols) {
    return c.tiled ? MakeTileScaledWeight(random, c.dtype, rows, cols)
                   : MakeRowScaledWeight(random, c.dtype, rows, cols);
  };
  const TestWeight up = make(2 * kInter, kHidden), down = make(kHidden, kInter);
  Matrix x = Matrix::RandomOf(random, c.n, kHidden);
  { Activations rounded(DType::kBF16, x); }
  const MlpRun with = RunMlp(c, true, up, down, x), without = RunMlp(c, false, up, down, x);
  CHECK(!without.left_codes);
  std::vector<float> difference = with.out;
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= without.out[i];
  INFO(Info(c.dtype).name << (c.tiled ? " tiled" : "") << ", " << c.n << " rows");
  // Codes of the same rows, rounded to BF16 before (and their largest with them) or not: values
  // move by 2^-9 in the mean, one in 45 of steps of E4M3 (2^-4 to 2^-3 of a value), so that one
  // code in 45 is the next one: sqrt(1 / 45) of 0.09.
  CHECK(Rms(difference) < 0.02 * Rms(without.out));
  if (!with.left_codes) CHECK(with.out == without.out);
  return with.left_codes;
}

TEST_CASE("A product leaves codes where the next one takes them", "[cuda]") {
  for (int64_t n : {33, 40, 45}) {
    CHECK(LeavesCodes({.n = n}));
    CHECK(LeavesCodes({.dtype = DType::kInt8G128, .n = n}));
    CHECK(LeavesCodes({.tiled = true, .n = n}));
  }
  CHECK(LeavesCodes({.machine = {.has_library = true, .scales_rows = false}}));
  CHECK(LeavesCodes({.activation = Activation::kGeluTanh}));
  // The first product in parts, the second one whole.
  CHECK(LeavesCodes({.tiled = true, .n = 48, .workspace_bytes = 80 << 10}));
}

TEST_CASE("Codes are left only for many rows of one reader whose product they fit", "[cuda]") {
  CHECK(!LeavesCodes({.n = 32}));
  CHECK(!LeavesCodes({.machine = {.has_library = false}}));
  CHECK(!LeavesCodes({.tiled = true, .machine = {.has_library = true, .scales_rows = false}}));
  CHECK(!LeavesCodes({.workspace_bytes = 16 << 10}));
  CHECK(!LeavesCodes({.adapted = true}));
  CHECK(!LeavesCodes({.bulk = true}));
  CHECK(!LeavesCodes({.tiled = true, .bulk = true}));
  // Integers are the library's alone.
  CHECK(LeavesCodes({.dtype = DType::kInt8G128, .bulk = true}));
}

// The first product's rows are normed on the way; there are kHidden columns.
std::vector<float> RunNormed(const Mlp& c, bool fused, const NormArgs& norm,
                             const TestWeight& weight, Matrix x) {
  cuda::emulate::SetMachine(c.machine);
  auto device = CreateCudaDevice(
      {.workspace_bytes = c.workspace_bytes, .graphs = false, .warpgroups = c.bulk});
  cuda::emulate::SetMachine({});
  REQUIRE(device.ok());
  WeightSource source = weight.source();
  source.takes_int8_x = true;
  auto packed = (*device)->Pack({&source, 1});
  REQUIRE(packed.ok());
  Matrix nothing(c.n, kHidden), zeros(c.n, weight.rows);
  Activations x_device(DType::kBF16, x), normed(DType::kBF16, nothing), out(DType::kBF16, zeros);
  NormArgs args = norm;
  args.x = x_device.tensor();
  args.out = normed.tensor();
  MustRun(**device, [&](Ops& ops) {
    if (!fused) ops.Norm(args);
    ops.Linear({.x = normed.tensor(),
                .weight = packed->get(),
                .out = out.tensor(),
                .norm = fused ? std::optional(args) : std::nullopt});
  });
  std::vector<float> all;
  for (int64_t t = 0; t < c.n; ++t) {
    for (int64_t r = 0; r < weight.rows; ++r) all.push_back(out(t, r));
  }
  return all;
}

// Whether normed rows become codes without being BF16; the products are nearly the same.
bool NormsToCodes(const Mlp& c, const NormArgs& norm) {
  Random random(11);
  const TestWeight weight = c.tiled ? MakeTileScaledWeight(random, c.dtype, 144, kHidden)
                                    : MakeRowScaledWeight(random, c.dtype, 144, kHidden);
  const Matrix x = Matrix::RandomOf(random, c.n, kHidden);
  std::vector<float> difference = RunNormed(c, true, norm, weight, x);
  const std::vector<float> expected = RunNormed(c, false, norm, weight, x);
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= expected[i];
  INFO(Info(c.dtype).name << (c.tiled ? " tiled" : "") << ", " << c.n << " rows");
  CHECK(Rms(difference) < 0.02 * Rms(expected));  // as above
  return Rms(difference) > 0;
}

TEST_CASE("Normed rows become codes at once where the product takes them", "[cuda]") {
  Random random(12);
  const AlignedFloats weight(random.Normals(kHidden + 1)), bias(random.Normals(kHidden));
  NormArgs rms{.weight = weight.data, .weight_offset = 1};
  const NormArgs layer{.kind = NormKind::kLayer, .weight = weight.data, .bias = bias.data};
  for (const NormArgs& norm : {rms, layer}) {
    for (int64_t n : {33, 48}) {
      CHECK(NormsToCodes({.n = n}, norm));
      CHECK(NormsToCodes({.dtype = DType::kInt8G128, .n = n}, norm));
      CHECK(NormsToCodes({.tiled = true, .n = n}, norm));
      CHECK(NormsToCodes({.n = n, .bulk = true}, norm));
      CHECK(NormsToCodes({.tiled = true, .n = n, .bulk = true}, norm));
      CHECK(NormsToCodes({.tiled = true, .n = n, .workspace_bytes = 16 << 10}, norm));  // in parts
    }
  }
  CHECK(!NormsToCodes({.n = 32}, rms));
  CHECK(!NormsToCodes({.machine = {.has_library = false}}, rms));
  CHECK(!NormsToCodes({.machine = {.has_library = true, .has_codes = false}}, rms));
  rms.weight = weight.data + 1;  // not at 16 bytes
  CHECK(!NormsToCodes({}, rms));
}

TEST_CASE("A library without the products that it promised changes no result", "[cuda]") {
  for (bool tiled : {false, true}) {
    // The products are those of BF16, but for the rows that were codes on the way.
    Mlp c{.tiled = tiled, .machine = {.has_library = true, .has_codes = false}};
    Random random(9);
    const auto make = [&](int64_t rows, int64_t cols) {
      return tiled ? MakeTileScaledWeight(random, c.dtype, rows, cols)
                   : MakeRowScaledWeight(random, c.dtype, rows, cols);
    };
    const TestWeight up = make(2 * kInter, kHidden), down = make(kHidden, kInter);
    Matrix x = Matrix::RandomOf(random, c.n, kHidden);
    { Activations rounded(DType::kBF16, x); }
    const MlpRun with = RunMlp(c, true, up, down, x), without = RunMlp(c, false, up, down, x);
    CHECK(with.left_codes);
    std::vector<float> difference = with.out;
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= without.out[i];
    CHECK(Rms(difference) > 0.001 * Rms(without.out));
    CHECK(Rms(difference) < 0.04 * Rms(without.out));  // E4M3's 2.6 % and some
  }
}

TEST_CASE("A row that is no numbers spoils no other on its way through codes", "[cuda]") {
  for (bool tiled : {false, true}) {
    const Mlp c{.tiled = tiled};
    Random random(10);
    const auto make = [&](int64_t rows, int64_t cols) {
      return tiled ? MakeTileScaledWeight(random, c.dtype, rows, cols)
                   : MakeRowScaledWeight(random, c.dtype, rows, cols);
    };
    const TestWeight up = make(2 * kInter, kHidden), down = make(kHidden, kInter);
    Matrix x = Matrix::RandomOf(random, c.n, kHidden);
    *x.at(3, 5) = std::numeric_limits<float>::quiet_NaN();
    *x.at(38, 200) = std::numeric_limits<float>::infinity();
    const MlpRun run = RunMlp(c, true, up, down, x);
    for (int64_t t = 0; t < c.n; ++t) {
      for (int64_t r = 0; r < kHidden; ++r) {
        CHECK(std::isfinite(run.out[static_cast<size_t>(t * kHidden + r)]) == (t != 3 && t != 38));
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
