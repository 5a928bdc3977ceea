// The contribution of low-rank adapters to Linear: the reference, the CPU's levels and the emulated
// CUDA device against sums in double over the factors themselves.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/kv_element.h"
#include "kernels/nano_batch.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

// Adapters of one weight: random factors in blocks as a pool of pages would hold them, the last
// block of a table longer than needed.
struct TestAdapters {
  TestAdapters(Random& random, DType type, int64_t cols, std::vector<AdapterPart> of,
               const std::vector<std::vector<int32_t>>& ranks, int32_t block_rows)
      : parts(std::move(of)), dtype(type) {
    for (const std::vector<int32_t>& own : ranks) {
      for (size_t p = 0; p < parts.size(); ++p) {
        factors.push_back({.a = Blocks(random, own[p], block_rows, cols),
                           .b = Blocks(random, own[p], block_rows, parts[p].rows),
                           .rank = own[p],
                           .block_rows = block_rows,
                           .scale = 0.25f * static_cast<float>(factors.size() + 1)});
        max_rank = std::max(max_rank, own[p]);
      }
    }
  }

  AdapterMatrix view() const {
    return {.dtype = dtype,
            .parts = parts,
            .factors = factors.data(),
            .n_slots = static_cast<int32_t>(factors.size() / parts.size()),
            .slot_stride = static_cast<int32_t>(parts.size()),
            .max_rank = max_rank};
  }

  // The contribution of slot's factors to weight row r for a row of x, and the sum of magnitudes.
  double Delta(int32_t slot, const Matrix& x, int64_t t, int64_t r, double* magnitude) const {
    double sum = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      if (slot < 0 || r < parts[p].first_row || r >= parts[p].first_row + parts[p].rows) continue;
      const AdapterFactors& own = factors[static_cast<size_t>(slot) * parts.size() + p];
      for (int32_t j = 0; j < own.rank; ++j) {
        const int64_t row = j % own.block_rows;
        double shrunk = 0, shrunk_magnitude = 0;
        for (int64_t k = 0; k < x.num_cols(); ++k) {
          const double a = LoadElement(dtype, own.a[j / own.block_rows], row * x.num_cols() + k);
          shrunk += a * x(t, k);
          shrunk_magnitude += std::fabs(a * x(t, k));
        }
        const double b = LoadElement(dtype, own.b[j / own.block_rows],
                                     row * parts[p].rows + r - parts[p].first_row);
        sum += own.scale * b * shrunk;
        *magnitude += std::fabs(own.scale * b) * shrunk_magnitude;
      }
    }
    return sum;
  }

  std::vector<AdapterPart> parts;
  std::vector<AdapterFactors> factors;
  DType dtype;
  int32_t max_rank = 0;

 private:
  const void* const* Blocks(Random& random, int32_t rank, int32_t block_rows, int64_t cols) {
    std::vector<const void*> blocks;
    for (int32_t first = 0; first < rank; first += block_rows) {
      const int64_t elements = block_rows * cols;
      storage_.emplace_back(static_cast<size_t>(RowBytes(dtype, elements)));
      for (int64_t i = 0; i < elements; ++i) {
        StoreElement(dtype, storage_.back().data(), i, random.Normal() * 0.3f);
      }
      blocks.push_back(storage_.back().data());
    }
    tables_.push_back(std::move(blocks));
    return tables_.back().data();
  }

  std::deque<std::vector<uint8_t>> storage_;
  std::deque<std::vector<const void*>> tables_;
};

struct Case {
  DType weight = DType::kBF16;
  DType factors = DType::kBF16;
  int64_t cols = 96;
  std::vector<AdapterPart> parts = {{0, 40}, {40, 12}, {52, 12}};
  // Ranks of slots 0, 1, 2 and each part: many, one, none.
  std::vector<std::vector<int32_t>> ranks = {{16, 8, 0}, {1, 3, 5}, {0, 0, 33}};
  int32_t block_rows = 4;
  std::vector<BatchSpec::Sequence> sequences = {{1, 9}, {3, 5}, {1, 1}, {2, 7}, {1, 4}};
  Epilogue epilogue = Epilogue::kNone;
  bool bias = true;
};

// Slots of rows: all of them, and none, in turn.
std::vector<int32_t> SlotsOf(size_t rows) {
  std::vector<int32_t> slots(rows);
  for (size_t t = 0; t < rows; ++t) slots[t] = static_cast<int32_t>((t * 7 + t / 3) % 4) - 1;
  return slots;
}

// Everything that a run needs, and what it should give.
struct Problem {
  explicit Problem(const Case& c)
      : random(static_cast<uint32_t>(c.cols + c.block_rows)),
        batch({c.sequences, 16}),
        slots(SlotsOf(batch.token_ids.size())),
        x(Matrix::RandomOf(random, static_cast<int64_t>(slots.size()), c.cols)),
        adapters(random, c.factors, c.cols, c.parts, c.ranks, c.block_rows),
        weight(
            MakeWeight(random, c.weight, c.parts.back().first_row + c.parts.back().rows, c.cols)),
        gated(c.epilogue == Epilogue::kGated),
        out(Matrix::RandomOf(random, x.num_rows(), gated ? weight.rows / 2 : weight.rows)),
        bias(random.Normals(weight.rows)) {
    { Activations rounded(DType::kBF16, x); }
    { Activations rounded(DType::kBF16, out); }
  }

  HostBatch view() const {
    HostBatch all = batch.view();
    all.adapter_slot = slots;
    return all;
  }

  // The product of weight row r, and the magnitude that errors are relative to.
  double Product(const Case& c, int64_t t, int64_t r, double* magnitude) const {
    double sum = c.bias ? bias[static_cast<size_t>(r)] : 0.0;
    for (int64_t k = 0; k < c.cols; ++k) {
      const double term =
          static_cast<double>(x(t, k)) * weight.decoded[static_cast<size_t>(r * c.cols + k)];
      sum += term;
      *magnitude += std::fabs(term);
    }
    return sum + adapters.Delta(slots[static_cast<size_t>(t)], x, t, r, magnitude);
  }

  double Expected(const Case& c, int64_t t, int64_t r, double* magnitude) const {
    const double y = Product(c, t, r, magnitude);
    if (c.epilogue == Epilogue::kAdd) return y + out(t, r);
    if (!gated) return y;
    double up_magnitude = 0;
    const double up = Product(c, t, r + weight.rows / 2, &up_magnitude);
    *magnitude = *magnitude * (std::fabs(up) + 1) + up_magnitude * (std::fabs(y) + 1);
    return y / (1 + std::exp(-y)) * up;
  }

  Random random;
  TestBatch batch;
  std::vector<int32_t> slots;
  Matrix x;
  TestAdapters adapters;
  TestWeight weight;
  bool gated;
  Matrix out;
  std::vector<float> bias;
};

std::vector<WeightSource> SourcesOf(const Problem& problem) {
  WeightSource source = problem.weight.source();
  if (!problem.gated) return {source};
  WeightSource up = source;
  up.rows = source.rows = source.rows / 2;
  up.data = problem.weight.bytes.data() + source.rows * RowBytes(source.dtype, source.cols);
  return {source, up};
}

Matrix Run(Device& device, const Case& c, const Problem& problem) {
  const DType act = device.activation_dtype();
  auto packed = device.Pack(SourcesOf(problem));
  REQUIRE(packed.ok());
  Matrix x = problem.x, out = problem.out;
  Activations x_device(act, x), out_device(act, out);
  const AdapterMatrix adapters = problem.adapters.view();
  REQUIRE(device.Plan(problem.view()).ok());
  MustRun(device, [&](Ops& ops) {
    ops.Linear({.x = x_device.tensor(),
                .weight = packed->get(),
                .bias = c.bias ? problem.bias.data() : nullptr,
                .epilogue = c.epilogue,
                .activation = problem.gated ? Activation::kSilu : Activation::kNone,
                .out = out_device.tensor(),
                .adapters = &adapters});
  });
  for (int64_t t = 0; t < out.num_rows(); ++t) {
    for (int64_t r = 0; r < out.num_cols(); ++r) *out.at(t, r) = out_device(t, r);
  }
  return out;
}

// `unit`: of the device's arithmetic, relative to magnitudes; outputs are rounded besides.
void Check(Device& device, const Case& c, double unit) {
  const Problem problem(c);
  const Matrix found = Run(device, c, problem);
  double worst = 0;
  for (int64_t t = 0; t < found.num_rows(); ++t) {
    for (int64_t r = 0; r < found.num_cols(); ++r) {
      double magnitude = 1;
      const double expected = problem.Expected(c, t, r, &magnitude);
      const double allowed = unit * magnitude + 2 * RoundingOf(device.activation_dtype(), expected);
      worst = std::max(worst, std::fabs(found(t, r) - expected) / allowed);
    }
  }
  INFO(device.description() << " " << Info(c.factors).name << " factors, blocks of " << c.block_rows
                            << ", " << found.num_rows() << " rows, epilogue "
                            << static_cast<int>(c.epilogue));
  CHECK(worst <= 1);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (DType factors : {DType::kF32, DType::kF16, DType::kBF16}) {
    cases.push_back({.factors = factors});
    cases.push_back({.factors = factors,
                     .cols = 31,
                     .parts = {{0, 7}, {7, 30}},
                     .block_rows = 1,
                     .bias = false});
  }
  for (Case& c : cases) {
    for (std::vector<int32_t>& ranks : c.ranks) ranks.resize(c.parts.size());
  }
  cases.push_back({.epilogue = Epilogue::kAdd});
  cases.push_back({.parts = {{0, 32}, {32, 32}},
                   .ranks = {{16, 8}, {0, 3}, {256, 0}},
                   .block_rows = 64,
                   .epilogue = Epilogue::kGated});
  cases.push_back({.parts = {{0, 64}}, .ranks = {{2}, {0}, {17}}, .sequences = {{50, 50}, {3, 8}}});
  return cases;
}

TEST_CASE("Adapters of all ranks add to their rows on the reference and the CPU", "[cuda]") {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(CreateReferenceDevice());
  for (int32_t threads : {1, 3}) {
    for (NamedDevice& named : CpuDevices(threads)) devices.push_back(std::move(named.device));
  }
  for (const auto& device : devices) {
    // A level that multiplies BF16 itself rounds x, which is BF16 here, to nothing else.
    for (const Case& c : Cases()) Check(*device, c, 1e-5);
    Check(*device, {.weight = DType::kQ8_0, .bias = false}, 0x1p-7);
  }
}

TEST_CASE("Adapters of all ranks add to their rows on CUDA", "[cuda]") {
  for (const Case& c : Cases()) {
    Check(*EmulatedDevice(DType::kF32), c, 1e-5);
    Check(*EmulatedDevice(DType::kBF16), c, 1e-4);
    // A workspace that holds the deltas of some rows only.
    Check(*EmulatedDevice(DType::kBF16, 48 << 10), c, 1e-4);
  }
  Check(*EmulatedDevice(DType::kBF16), {.weight = DType::kQ4_0}, 1e-4);
}

TEST_CASE("A library's products get what adapters add, from BF16 and from codes", "[cuda]") {
  const std::vector<BatchSpec::Sequence> many = {{420, 420}, {5, 9}, {1, 3}};
  for (Epilogue epilogue : {Epilogue::kNone, Epilogue::kAdd, Epilogue::kGated}) {
    for (auto [weight, dequantizes] :
         {std::pair{DType::kBF16, false}, {DType::kQ4_0, false}, {DType::kQ4_0, true}}) {
      cuda::emulate::SetMachine({.has_library = true});
      auto device = CreateCudaDevice(
          {.workspace_bytes = 96 << 10, .graphs = false, .always_dequantizes = dequantizes});
      cuda::emulate::SetMachine({});
      REQUIRE(device.ok());
      const Case c{.weight = weight,
                   .parts = {{0, 32}, {32, 32}},
                   .ranks = {{16, 8}, {0, 3}, {5, 0}},
                   .sequences = many,
                   .epilogue = epilogue};
      Check(**device, c, weight == DType::kBF16 ? 0x1p-8 : 0x1p-7);
    }
  }
}

TEST_CASE("Halves of a step find their own rows' adapters", "[cuda]") {
  const Case c{.sequences = {{1, 9}, {1, 5}, {2, 4}, {1, 7}, {1, 3}, {1, 8}}};
  auto device = EmulatedDevice(DType::kBF16);
  REQUIRE(device->SetNanoBatches({.device_name = "", .rules = {{.min_rows = 2}}}).ok());
  Check(*device, c, 1e-4);
  Check(*device, c, 1e-4);  // as a graph
}

TEST_CASE("Narrowed steps take the adapters of their logit rows", "[cuda]") {
  const Case c;
  Problem problem(c);
  problem.batch.logit_rows = {0, 3, 4, 6, 7};  // the last of each sequence
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(EmulatedDevice(DType::kBF16));
  for (NamedDevice& named : CpuDevices(2)) devices.push_back(std::move(named.device));
  for (const auto& device : devices) {
    auto packed = device->Pack(SourcesOf(problem));
    REQUIRE(packed.ok());
    const auto n = static_cast<int64_t>(problem.batch.logit_rows.size());
    Matrix x(n, problem.x.num_cols()), out(n, problem.out.num_cols());
    for (int64_t i = 0; i < n; ++i) {
      const int32_t row = problem.batch.logit_rows[static_cast<size_t>(i)];
      std::copy_n(problem.x.at(row, 0), x.num_cols(), x.at(i, 0));
    }
    Activations x_device(device->activation_dtype(), x), found(device->activation_dtype(), out);
    const AdapterMatrix adapters = problem.adapters.view();
    REQUIRE(device->Plan(problem.view()).ok());
    MustRun(*device, [&](Ops& ops) {
      REQUIRE(ops.EndsWithLogitRows());
      ops.NarrowToLogitRows();
      ops.Linear({.x = x_device.tensor(),
                  .weight = packed->get(),
                  .bias = problem.bias.data(),
                  .out = found.tensor(),
                  .adapters = &adapters});
    });
    INFO(device->description());
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t r = 0; r < out.num_cols(); ++r) {
        double magnitude = 1;
        const double expected =
            problem.Product(c, problem.batch.logit_rows[static_cast<size_t>(i)], r, &magnitude);
        const double rounding = RoundingOf(device->activation_dtype(), expected);
        worst = std::max(worst, std::fabs(found(i, r) - expected) / (1e-4 * magnitude + rounding));
      }
    }
    CHECK(worst <= 1);
  }
}

TEST_CASE("A row's bits do not depend on other rows' adapters", "[cuda]") {
  const Case together;
  const Problem all(together);
  for (NamedDevice& named : CpuDevices(2)) {
    const Matrix found = Run(*named.device, together, all);
    Problem alone(together);
    for (size_t t = 0; t < alone.slots.size(); ++t) {
      if (t != 5) alone.slots[t] = -1;
    }
    const Matrix one = Run(*named.device, together, alone);
    INFO(named.name);
    for (int64_t r = 0; r < found.num_cols(); ++r) CHECK(one(5, r) == found(5, r));
  }
}

TEST_CASE("Rows are grouped by adapter in segments of limited length", "[cuda]") {
  AdapterGroups groups;
  groups.Assign(std::vector<int32_t>{2, -1, 0, 2, 2, -1, 0}, 2);
  CHECK(groups.rows == std::vector<int32_t>{2, 6, 0, 3, 4});
  REQUIRE(groups.segments.size() == 3);
  CHECK((groups.segments[0].slot == 0 && groups.segments[0].count == 2));
  CHECK((groups.segments[1].slot == 2 && groups.segments[1].begin == 2));
  CHECK((groups.segments[2].slot == 2 && groups.segments[2].count == 1));
  groups.Assign({}, 2);
  CHECK(groups.rows.empty());
  CHECK(groups.segments.empty());
}

TEST_CASE("A batch's adapter slots are checked", "[cuda]") {
  const Problem problem(Case{});
  for (auto make :
       {+[] { return CreateReferenceDevice(); }, +[] { return EmulatedDevice(DType::kBF16); }}) {
    auto device = make();
    HostBatch batch = problem.view();
    const std::vector<int32_t> few(problem.slots.begin(), problem.slots.end() - 1);
    batch.adapter_slot = few;
    CHECK(absl::IsInvalidArgument(device->Plan(batch)));
    std::vector<int32_t> wrong = problem.slots;
    wrong[0] = -2;
    batch.adapter_slot = wrong;
    CHECK(device->Plan(batch).message().find("adapter slot -2") != std::string::npos);
  }
}

}  // namespace
}  // namespace heddle::kernels::test
