// Mixtures of experts in FP8 whose rows become codes, on the emulated sm_90a: against plain loops
// over the quantised rows.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/linear/cuda_weight.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/cuda/quantised.h"

namespace heddle::kernels::test {
namespace {

using cuda::WeightLayout;
using cuda::emulate::Machine;

struct Mixture {
  std::vector<int64_t> pairs;  // by expert
  int32_t top_k = 1;
  int64_t hidden = 128, inter = 128;
  bool tiled = false;
  bool gated = true;
  bool biases = false;
  Machine machine = {.has_library = true};
  int64_t workspace_bytes = int64_t{4} << 20;
  bool by_codes = true;  // is expected

  int32_t n_experts() const { return static_cast<int32_t>(pairs.size()); }
  int64_t n_pairs() const { return std::accumulate(pairs.begin(), pairs.end(), int64_t{0}); }
  int64_t n_rows() const { return n_pairs() / top_k; }
};

// One expert's weights, and one product of a row with them.
struct Stack {
  std::vector<TestWeight> parts;  // of each expert, one after the other
  std::vector<float> bias;
  int64_t rows_of_expert;

  // Product and the sum of its terms' sizes.
  std::pair<double, double> At(const Matrix& x, int64_t t, int32_t expert, int64_t r) const {
    const TestWeight& first = parts[0];
    const int64_t per_expert = rows_of_expert / first.rows;
    const TestWeight& weight = parts[static_cast<size_t>(expert * per_expert + r / first.rows)];
    double sum = 0, size = 0;
    for (int64_t k = 0; k < x.num_cols(); ++k) {
      const double term =
          double{x(t, k)} * weight.decoded[static_cast<size_t>(r % first.rows * x.num_cols() + k)];
      sum += term;
      size += std::fabs(term);
    }
    if (!bias.empty()) sum += bias[static_cast<size_t>(expert * rows_of_expert + r)];
    return {sum, size};
  }
};

std::unique_ptr<PackedStack> PackParts(Device& device, const std::vector<TestWeight>& parts,
                                       int32_t count) {
  std::vector<WeightSource> sources;
  sources.reserve(parts.size());
  for (const TestWeight& part : parts) sources.push_back(part.source());
  auto packed = device.PackStack(sources, count);
  REQUIRE(packed.ok());
  return std::move(packed).value();
}

Stack MakeStack(Random& random, const Mixture& m, int64_t rows, int64_t cols, int64_t parts) {
  Stack stack;
  for (int64_t i = 0; i < m.n_experts() * parts; ++i) {
    stack.parts.push_back(m.tiled ? MakeTileScaledWeight(random, DType::kF8G128, rows, cols)
                                  : MakeRowScaledWeight(random, DType::kF8G32, rows, cols));
  }
  stack.rows_of_expert = rows * parts;
  if (m.biases) stack.bias = random.Normals(m.n_experts() * stack.rows_of_expert);
  return stack;
}

// Choices of all rows, of different experts for each.
std::vector<int32_t> Choices(const Mixture& m) {
  std::vector<int32_t> in_order;
  for (int32_t e = 0; e < m.n_experts(); ++e) {
    in_order.insert(in_order.end(), static_cast<size_t>(m.pairs[static_cast<size_t>(e)]), e);
  }
  std::vector<int32_t> dealt(in_order.size());
  for (size_t i = 0; i < dealt.size(); ++i) dealt[i * 97 % dealt.size()] = in_order[i];
  return dealt;
}

void CheckMixture(const Mixture& m) {
  INFO(m.n_pairs() << " pairs, hidden " << m.hidden << ", inner " << m.inter << ", "
                   << (m.tiled ? "tiles" : "rows"));
  Random random(11);
  const Stack up = MakeStack(random, m, m.inter, m.hidden, m.gated ? 2 : 1);
  const Stack down = MakeStack(random, m, m.hidden, m.inter, 1);
  const std::vector<int32_t> experts = Choices(m);
  std::vector<float> shares;
  for (int64_t i = 0; i < m.n_pairs(); ++i) shares.push_back(random.Uniform(0.2f, 1.0f));
  Matrix x = Matrix::RandomOf(random, m.n_rows(), m.hidden);
  Matrix zeros(m.n_rows(), m.hidden), inner(m.n_pairs(), m.inter), rows(m.n_pairs(), m.hidden);
  cuda::emulate::SetMachine(m.machine);
  auto device = CreateCudaDevice({.workspace_bytes = m.workspace_bytes, .graphs = false});
  cuda::emulate::SetMachine({});
  REQUIRE(device.ok());
  Activations own_x(DType::kBF16, x), own_inner(DType::kBF16, inner);
  Activations own_rows(DType::kBF16, rows), out(DType::kBF16, zeros, /*pad=*/3);
  const auto ups = PackParts(**device, up.parts, m.n_experts());
  const auto downs = PackParts(**device, down.parts, m.n_experts());
  const auto layout_of = [&](int64_t cols) {  // rows of one tile have one scale
    return m.tiled && cols > 128 ? WeightLayout::kF8Block : WeightLayout::kF8Row;
  };
  CHECK(cuda::ViewOf(*ups).layout == layout_of(m.hidden));
  CHECK(cuda::ViewOf(*downs).layout == layout_of(m.inter));
  const int64_t copies = cuda::emulate::TileCopies();
  MustRun(**device, [&](Ops& ops) {
    ops.ExpertMix({.x = own_x.tensor(),
                   .experts = experts.data(),
                   .weights = shares.data(),
                   .top_k = m.top_k,
                   .up = ups.get(),
                   .down = downs.get(),
                   .up_bias = m.biases ? up.bias.data() : nullptr,
                   .down_bias = m.biases ? down.bias.data() : nullptr,
                   .gated = m.gated,
                   .activation = m.gated ? Activation::kSilu : Activation::kRelu,
                   .inner = own_inner.tensor(),
                   .rows = own_rows.tensor(),
                   .out = out.tensor()});
  });
  CHECK((cuda::emulate::TileCopies() > copies) == m.by_codes);
  CHECK(out.GapsIntact());
  if (!m.by_codes) return;
  const CodeScales scales =
      m.tiled ? CodeScales::kF8Tiles : CodeScales::kF8Rows;  // of one tile: both
  const Matrix seen = Quantised(x, scales);
  // Each product is compared by itself, so that no code differs for a rounding before it.
  Matrix found(m.n_pairs(), m.inter);
  for (int64_t p = 0; p < m.n_pairs(); ++p) {
    for (int64_t i = 0; i < m.inter; ++i) *found.at(p, i) = own_inner(p, i);
  }
  const Matrix codes = Quantised(found, scales);
  const auto rounding = [](double value, double size) {
    return 2 * RoundingOf(DType::kBF16, value) + size * 0x1p-18 + 1e-5;
  };
  double worst = 0;
  for (int64_t p = 0; p < m.n_pairs(); ++p) {
    const int32_t expert = experts[static_cast<size_t>(p)];
    for (int64_t i = 0; i < m.inter; ++i) {
      const auto [gate, gate_size] = up.At(seen, p / m.top_k, expert, i);
      double wanted = std::max(gate, 0.0), size = gate_size;
      if (m.gated) {
        const auto [other, other_size] = up.At(seen, p / m.top_k, expert, i + m.inter);
        wanted = gate / (1 + std::exp(-gate)) * other;
        size = gate_size * std::fabs(other) * 1.2 + other_size * std::fabs(gate);
      }
      worst = std::max(worst, std::fabs(found(p, i) - wanted) / rounding(wanted, size));
    }
    for (int64_t c = 0; c < m.hidden; ++c) {
      const auto [wanted, size] = down.At(codes, p, expert, c);
      worst = std::max(worst, std::fabs(own_rows(p, c) - wanted) / rounding(wanted, size));
    }
  }
  CHECK(worst <= 1);
  worst = 0;
  for (int64_t t = 0; t < m.n_rows(); ++t) {
    for (int64_t c = 0; c < m.hidden; ++c) {
      double wanted = 0;
      for (int64_t i = t * m.top_k; i < (t + 1) * m.top_k; ++i) {
        wanted += double{shares[static_cast<size_t>(i)]} * own_rows(i, c);
      }
      worst = std::max(worst, std::fabs(out(t, c) - wanted) / rounding(wanted, 1));
    }
  }
  CHECK(worst <= 1);
}

// Experts without a row, with a part of a chunk, with one row more than chunks hold, with several
// chunks; blocks of the emulated device take several tiles each.
TEST_CASE("Experts in FP8 multiply the codes of the rows that chose them", "[cuda][experts]") {
  CheckMixture({.pairs = {0, 77, 130, 193}, .top_k = 2, .hidden = 256});
  CheckMixture({.pairs = {0, 77, 98, 193}, .top_k = 2, .hidden = 256, .inter = 256, .tiled = true});
  // Columns and outputs that end within stages and blocks; more stages than are under way.
  CheckMixture({.pairs = {129, 3}, .hidden = 288, .inter = 160});
  CheckMixture({.pairs = {1, 159}, .hidden = 640, .inter = 32});
  CheckMixture({.pairs = {1, 159}, .hidden = 384, .inter = 384, .tiled = true});
}

TEST_CASE("Experts of codes have biases, and need no gate", "[cuda][experts]") {
  CheckMixture({.pairs = {70, 131}, .top_k = 1, .gated = true, .biases = true});
  CheckMixture({.pairs = {70, 131}, .hidden = 256, .tiled = true, .gated = false, .biases = true});
  CheckMixture({.pairs = {70, 131}, .inter = 288, .gated = false});
}

TEST_CASE("Producers of experts and their consumers may run in any order", "[cuda][experts]") {
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  CheckMixture({.pairs = {70, 131}, .hidden = 640});
  CheckMixture({.pairs = {70, 131}, .hidden = 640, .tiled = true});
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
}

TEST_CASE("Experts multiply codes only where a library would, with rows and memory enough",
          "[cuda][experts]") {
  const Mixture many = {.pairs = {70, 131}};
  for (const Machine& machine :
       {Machine{}, Machine{.compute_major = 8, .compute_minor = 9, .has_library = true}}) {
    Mixture other = many;
    other.machine = machine;
    other.by_codes = false;
    CheckMixture(other);
  }
  Mixture tiles = many;  // cuBLAS 12.8
  tiles.tiled = true;
  tiles.hidden = 256;
  tiles.machine.scales_rows = false;
  tiles.by_codes = false;
  CheckMixture(tiles);
  Mixture few = many;
  few.pairs = {60, 60};
  few.by_codes = false;
  CheckMixture(few);
  Mixture tight = many;  // rows of codes are 25 KiB, of the half that adapters leave
  tight.workspace_bytes = 48 << 10;
  tight.by_codes = false;
  CheckMixture(tight);
}

}  // namespace
}  // namespace heddle::kernels::test
