// Short convolutions and recurrences on the emulated CUDA device: against the reference, and the
// same bits in chunks of any lengths, beside other sequences and after rows that were taken back.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/recurrence_case.h"

namespace heddle::kernels::test {
namespace {

constexpr DType kActivations[] = {DType::kF32, DType::kBF16};

struct ConvCase {
  int32_t channels;
  int32_t taps;
  bool bias;
};

TestCache CacheOf(const ConvCase& c, int32_t num_pages, int32_t page_tokens) {
  TestCache cache(DType::kF32, num_pages, page_tokens, 1, c.channels, 5);
  cache.view.values = cache.view.keys;
  return cache;
}

Activations Convolve(Device& device, const ConvCase& c, Tensor bcx, const HostBatch& batch,
                     TestCache& cache) {
  Matrix zeros(bcx.rows, c.channels);
  Activations out(device.activation_dtype(), zeros, /*pad=*/2);
  const std::vector<float> weight = Random(4).Normals(int64_t{c.taps} * c.channels);
  const std::vector<float> bias = Random(5).Normals(c.channels);
  REQUIRE(device.Plan(batch).ok());
  MustRun(device, [&](Ops& ops) {
    ops.ShortConv({.bcx = bcx,
                   .weight = weight.data(),
                   .bias = c.bias ? bias.data() : nullptr,
                   .taps = c.taps,
                   .cache = cache.view,
                   .out = out.tensor()});
  });
  CHECK(out.GapsIntact());
  return out;
}

TEST_CASE("Short convolutions are those of the reference", "[cuda]") {
  // Starts of texts, decodes, chunks over several pages, a page that ends early.
  const TestBatch batch({{{1, 1}, {3, 3}, {1, 40}, {17, 30}, {2, 2}, {4, 50, 13}}, 16});
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  for (const DType act : kActivations) {
    for (const ConvCase c : {ConvCase{1, 1, true}, {3, 2, false}, {131, 3, false}, {17, 9, true}}) {
      INFO(Info(act).name << ", channels " << c.channels << " taps " << c.taps);
      Random random(11);
      Matrix values = Matrix::RandomOf(random, rows, int64_t{3} * c.channels);
      Activations own(act, values, /*pad=*/3, /*shift=*/1);
      Activations rounded(DType::kF32, values);
      TestCache cache = CacheOf(c, batch.num_pages, 16);
      TestCache expected_cache = CacheOf(c, batch.num_pages, 16);
      const Activations found =
          Convolve(*EmulatedDevice(act), c, own.tensor(), batch.view(), cache);
      const Activations expected =
          Convolve(*CreateReferenceDevice(), c, rounded.tensor(), batch.view(), expected_cache);
      CHECK(cache.keys == expected_cache.keys);
      int64_t wrong = 0;
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t i = 0; i < c.channels; ++i) {
          const double error = std::fabs(double{found(t, i)} - expected(t, i));
          // Terms of products of four normals, each rounded a few times.
          wrong += !(error <= RoundingOf(act, expected(t, i)) + 1.2e-7 * 64 * (1 + c.taps));
        }
      }
      CHECK(wrong == 0);
    }
  }
}

const RecurrenceCase kCases[] = {
    {{RecurrenceRule::kGatedDelta, 4, 2, 16, 16, 4}, false, 16},
    {{RecurrenceRule::kGatedDelta, 3, 1, 5, 7, 3, true}, false, 7},
    {{RecurrenceRule::kGatedDelta, 4, 2, 48, 40, 1, true}, false, 40},
    {{RecurrenceRule::kMamba2, 4, 1, 16, 8, 4}, true, 32, true},
    {{RecurrenceRule::kMamba2, 6, 3, 33, 19, 2}, true, 0},
    {{RecurrenceRule::kSelective, 1, 1, 16, 96, 4}, true},
    {{RecurrenceRule::kSelective, 1, 1, 5, 3, 1}, false, 0, false, false},
    {{RecurrenceRule::kSelective, 1, 1, 20, 35, 3}, true},
};
// Real heads, the longest keys, and norms over more columns than a warp's.
const RecurrenceCase kLargeCases[] = {
    {{RecurrenceRule::kGatedDelta, 2, 2, 128, 128, 4}, false, 128},
    {{RecurrenceRule::kMamba2, 2, 1, 128, 64, 4}, true, 128, false},
    {{RecurrenceRule::kMamba2, 2, 1, 256, 20, 4}, true, 40, true},
    {{RecurrenceRule::kMamba2, 10, 1, 8, 64, 4}, true, 640, true},
    {{RecurrenceRule::kGatedDelta, 2, 1, 96, 96, 4}, false, 96},
    {{RecurrenceRule::kGatedDelta, 1, 1, 201, 33, 3}, false, 0},
};
// Keys that two and four warps divide.
const RecurrenceCase kLongCases[] = {
    {{RecurrenceRule::kGatedDelta, 1, 1, 96, 34, 4}, false, 34},
    {{RecurrenceRule::kGatedDelta, 1, 1, 201, 9, 3}, false, 0},
    {{RecurrenceRule::kMamba2, 2, 1, 128, 16, 2}, true, 0},
    {{RecurrenceRule::kMamba2, 1, 1, 256, 33, 4}, true, 0},
};

// Runs one step, and returns its rows.
Activations RunStep(Device& device, const RecurrenceCase& c, const std::vector<Piece>& pieces,
                    SnapshotPages& pages, int32_t page_tokens = kStatePage) {
  const DType act = device.activation_dtype();
  const StepBatch batch(pieces, page_tokens);
  const int64_t n = batch.rows();
  Matrix in(n, c.shape.cols()), zeros(n, c.shape.values());
  FillRows(
      pieces, [](RecurrentLayer& layer) { return &layer.in; }, 0, in.num_cols(), &in);
  Activations rows(act, in, /*pad=*/3, /*shift=*/1);
  Activations out(act, zeros, /*pad=*/2);
  RecurrenceArgs args = ArgsOf(c, *pieces.front().layer, pages, page_tokens);
  args.in = rows.tensor();
  args.out = out.tensor();
  REQUIRE(device.Plan(batch.view()).ok());
  MustRun(device, [&](Ops& ops) { ops.Recurrence(args); });
  if (c.shape.is_selective()) {
    Matrix factors(n, 2 * int64_t{c.shape.key_dim});
    const auto steps = [](RecurrentLayer& layer) { return &layer.steps; };
    FillRows(pieces, steps, 0, c.shape.values(), &in);
    FillRows(pieces, steps, c.shape.values(), factors.num_cols(), &factors);
    Activations with_steps(act, in, /*pad=*/3, /*shift=*/1), made(act, factors, /*pad=*/1);
    args.in = with_steps.tensor();
    args.factors = made.tensor();
    MustRun(device, [&](Ops& ops) { ops.Recurrence(args); });
  }
  CHECK(out.GapsIntact());
  return out;
}

// Rounds what a layer is given as activations are.
void RoundInputs(DType act, RecurrentLayer* layer) {
  Activations in(act, layer->in), steps(act, layer->steps);
}

void CheckAgainstReference(const RecurrenceCase& c, DType act, int32_t tokens) {
  INFO(Info(act).name << ", heads " << c.shape.n_heads << " of " << c.shape.key_dim << " x "
                      << c.shape.value_dim);
  RecurrentLayer layer(c, tokens, 11);
  RoundInputs(act, &layer);
  SnapshotPages pages(c.shape), expected_pages(c.shape);
  const std::vector<Piece> text = {{&layer, kTextPages, 0, tokens}};
  const Activations expected = RunStep(*CreateReferenceDevice(), c, text, expected_pages);
  const Activations found = RunStep(*EmulatedDevice(act), c, text, pages);
  double largest = 1, worst = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < c.shape.values(); ++i) {
      const double error = std::fabs(double{found(t, i)} - expected(t, i));
      worst = std::max(worst, std::isnan(error) ? 1e9 : error);
      largest = std::max(largest, std::fabs(double{expected(t, i)}));
    }
  }
  // Sums over the state's rows and the rows of a part, of terms that decay; with BF16 o is rounded
  // before it is normed, and what a scan selects from before it is summed.
  const double rounded = act == DType::kBF16 ? 4 * 0x1p-8 : 0;
  CHECK(worst <= (1.2e-7 * 16 * (c.shape.key_dim + kScanRows) + rounded) * largest);
}

TEST_CASE("Recurrences are those of the reference", "[cuda]") {
  for (const DType act : kActivations) {
    for (const RecurrenceCase& c : kCases) CheckAgainstReference(c, act, 70);
  }
}

TEST_CASE("Recurrences of real sizes are those of the reference", "[cuda]") {
  for (const RecurrenceCase& c : kLargeCases) {
    CheckAgainstReference(c, DType::kBF16, 37);
    CheckAgainstReference(c, DType::kF32, 70);  // as many rows as have a launch of their own
  }
}

TEST_CASE("Recurrences give the same bits whole, in chunks, beside others and after drafts",
          "[cuda]") {
  constexpr int32_t kTokens = 80;
  for (const RecurrenceCase& c : kCases) {
    const DType act = c.shape.tiled ? DType::kBF16 : DType::kF32;
    INFO(Info(act).name << ", heads " << c.shape.n_heads << " of " << c.shape.key_dim << " x "
                        << c.shape.value_dim);
    RecurrentLayer layer(c, kTokens, 3);
    const auto device = EmulatedDevice(act);
    SnapshotPages pages(c.shape);
    const auto run = [&](const std::vector<Piece>& pieces, SnapshotPages& in) {
      return RunStep(*device, c, pieces, in);
    };
    const Activations expected = run({{&layer, kTextPages, 0, kTokens}}, pages);
    for (const std::vector<int32_t>& lengths :
         std::vector<std::vector<int32_t>>{{1}, {7, 17}, {31, 2, 50}}) {
      CheckSlices(run, c, layer, kTokens, expected, lengths, false);
    }
    for (const std::vector<int32_t>& lengths :
         std::vector<std::vector<int32_t>>{{3, 16, 9}, {20, 16}}) {
      CheckSlices(run, c, layer, kTokens, expected, lengths, true);
    }
  }
}

TEST_CASE("Recurrences with long keys give the same bits whole, in chunks and after drafts",
          "[cuda]") {
  constexpr int32_t kTokens = 70;
  for (const RecurrenceCase& c : kLongCases) {
    INFO("heads of " << c.shape.key_dim << " x " << c.shape.value_dim);
    RecurrentLayer layer(c, kTokens, 5);
    const auto device = EmulatedDevice(DType::kBF16);
    SnapshotPages pages(c.shape);
    const auto run = [&](const std::vector<Piece>& pieces, SnapshotPages& in) {
      return RunStep(*device, c, pieces, in);
    };
    const Activations expected = run({{&layer, kTextPages, 0, kTokens}}, pages);
    CheckSlices(run, c, layer, kTokens, expected, {7, 1, 17}, false);
    CheckSlices(run, c, layer, kTokens, expected, {20, 16}, true);
    // A GPU whose blocks have no room for two parts of long keys.
    cuda::emulate::SetMachine({.compute_major = 8, .compute_minor = 9});
    const auto small = EmulatedDevice(DType::kBF16);
    SnapshotPages its_pages(c.shape);
    const Activations found = RunStep(*small, c, {{&layer, kTextPages, 0, kTokens}}, its_pages);
    cuda::emulate::SetMachine({});
    int64_t wrong = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t i = 0; i < c.shape.values(); ++i) wrong += !(found(t, i) == expected(t, i));
    }
    CHECK(wrong == 0);
  }
}

// Pages keep two parts, so that parts of a longer page take the places of others; heads have
// several blocks of columns, which read the same of them.
TEST_CASE("Recurrences go on from pages of many parts", "[cuda]") {
  constexpr int32_t kTokens = 150;
  for (const RecurrenceCase& c :
       {RecurrenceCase{{RecurrenceRule::kGatedDelta, 2, 1, 16, 40, 4}, false, 40},
        {{RecurrenceRule::kMamba2, 2, 1, 8, 70, 2}, true, 0},
        {{RecurrenceRule::kSelective, 1, 1, 5, 70, 3}, true}}) {
    RecurrentLayer layer(c, kTokens, 6);
    const auto device = EmulatedDevice(DType::kF32);
    for (const int32_t page_tokens : {64, 128}) {
      INFO("heads of " << c.shape.key_dim << " x " << c.shape.value_dim << ", pages of "
                       << page_tokens);
      SnapshotPages pages(c.shape);
      const auto run = [&](const std::vector<Piece>& pieces, SnapshotPages& in) {
        return RunStep(*device, c, pieces, in, page_tokens);
      };
      const Activations expected = run({{&layer, kTextPages, 0, kTokens}}, pages);
      for (const std::vector<int32_t>& lengths :
           std::vector<std::vector<int32_t>>{{40, 60}, {16, 17, 70}, {15, 15, 16}}) {
        CheckSlices(run, c, layer, kTokens, expected, lengths, false, page_tokens);
      }
      CheckSlices(run, c, layer, kTokens, expected, {20, 16, 15}, true, page_tokens);
    }
  }
}

// Rows that go on from row 43 of a text, in a page that says that its S is before `border`.
Activations GoOnFrom(const RecurrenceCase& c, int32_t border) {
  RecurrentLayer layer(c, 60, 8);
  const auto device = EmulatedDevice(DType::kF32);
  SnapshotPages pages(c.shape);
  static_cast<void>(RunStep(*device, c, {{&layer, kTextPages, 0, 27}}, pages, 64));
  static_cast<void>(RunStep(*device, c, {{&layer, kTextPages, 27, 16}}, pages, 64));
  const KvCacheView view = pages.view();
  std::memcpy(static_cast<char*>(view.keys) + view.PageOffset(kTextPages[0]), &border,
              sizeof(border));
  return RunStep(*device, c, {{&layer, kTextPages, 43, 4}}, pages, 64);
}

TEST_CASE("Pages whose state is said to be elsewhere are read where they may be", "[cuda]") {
  constexpr int32_t kRows = 4;
  for (const RecurrenceCase& c :
       {RecurrenceCase{{RecurrenceRule::kGatedDelta, 2, 1, 16, 16, 4}, false, 16},
        {{RecurrenceRule::kSelective, 1, 1, 5, 7, 3}, true}}) {
    const int32_t end = c.shape.is_selective() ? 43 : 32;
    const Activations first = GoOnFrom(c, end - kScanRows), last = GoOnFrom(c, end);
    const Activations before = GoOnFrom(c, -1'000'000), behind = GoOnFrom(c, 1'000'000);
    int64_t wrong = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t i = 0; i < c.shape.values(); ++i) {
        wrong += !(before(t, i) == first(t, i)) + !(behind(t, i) == last(t, i));
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("A copied snapshot goes on as the one that it was copied from", "[cuda]") {
  const RecurrenceCase& c = kCases[0];
  RecurrentLayer layer(c, 60, 8);
  const auto device = EmulatedDevice(DType::kF32);
  SnapshotPages pages(c.shape);
  static_cast<void>(RunStep(*device, c, {{&layer, kTextPages, 0, 43}}, pages));
  device->CopyPage(pages.view(), kTextPages[1], 8, 1);
  const Activations own = RunStep(*device, c, {{&layer, kTextPages, 43, 12}}, pages);
  const Activations copy = RunStep(*device, c, {{&layer, {kTextPages[0], 8}, 43, 12}}, pages);
  int64_t wrong = 0;
  for (int64_t t = 0; t < 12; ++t) {
    for (int64_t i = 0; i < c.shape.values(); ++i) wrong += own(t, i) != copy(t, i);
  }
  CHECK(wrong == 0);
}

TEST_CASE("States beyond the kernels' are refused with the numbers", "[cuda]") {
  const RecurrenceCase c = {{RecurrenceRule::kMamba2, 1, 1, 257, 4, 1}};
  RecurrentLayer layer(c, 1, 2);
  SnapshotPages pages(c.shape);
  Matrix in(1, c.shape.cols()), out(1, c.shape.values());
  const auto device = EmulatedDevice(DType::kF32);
  RecurrenceArgs args = ArgsOf(c, layer, pages);
  args.in = in.tensor();
  args.out = out.tensor();
  const StepBatch batch({{&layer, kTextPages, 0, 1}});
  REQUIRE(device->Plan(batch.view()).ok());
  const absl::Status status = device->Run([&](Ops& ops) { ops.Recurrence(args); });
  CHECK(absl::IsUnimplemented(status));
  CHECK(status.message().find("257; CUDA has kernels up to 256") != absl::string_view::npos);
}

TEST_CASE("Steps have more rows than a grid has blocks along y", "[cuda]") {
  constexpr int32_t kRows = 65'600;
  const ConvCase c{1, 2, false};
  Matrix values(kRows, 3);
  for (int64_t t = 0; t < kRows; ++t) std::fill_n(values.at(t, 0), 3, 1.0f);
  Activations bcx(DType::kF32, values);
  const auto device = EmulatedDevice(DType::kF32);
  const TestBatch batch(BatchSpec{{{kRows, kRows}}, 1024});
  TestCache cache = CacheOf(c, batch.num_pages, 1024);
  const Activations out = Convolve(*device, c, bcx.tensor(), batch.view(), cache);
  CHECK(out(kRows - 1, 0) == out(1, 0));
  MustRun(*device, [&](Ops& ops) { ops.Scale(bcx.tensor(), 2.0f); });
  CHECK(bcx(kRows - 1, 2) == 2);
}

TEST_CASE("Gates, factors and squashed elements are those by hand, in columns of wider tensors",
          "[cuda]") {
  for (const DType act : kActivations) {
    Random random(3);
    constexpr int64_t kCols = 37;
    Matrix gates = Matrix::RandomOf(random, 3, kCols), values = Matrix::RandomOf(random, 3, kCols);
    Activations gate(act, gates, 2, 1), gated(act, values, 3), scaled(act, values, 3);
    Activations tanh(act, values, 1), sigmoid(act, values, 1);
    const auto device = EmulatedDevice(act);
    REQUIRE(device->Plan(TestBatch(BatchSpec{{{3, 3}}, 16}).view()).ok());
    MustRun(*device, [&](Ops& ops) {
      ops.GateElements(gate.tensor(), gated.tensor());
      ops.Scale(scaled.tensor(), -1.5f);
      ops.SquashElements(Squash::kTanh, tanh.tensor());
      ops.SquashElements(Squash::kSigmoid, sigmoid.tensor());
    });
    for (const Activations* made : {&gated, &scaled, &tanh, &sigmoid}) CHECK(made->GapsIntact());
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t i = 0; i < kCols; ++i) {
        const double x = values(t, i);
        const auto near = [&](double found, double wanted) {
          return std::fabs(found - wanted) <= RoundingOf(act, wanted) + 1e-6;
        };
        CHECK(near(gated(t, i), x / (1 + std::exp(-double{gates(t, i)}))));
        CHECK(near(scaled(t, i), x * -1.5));
        CHECK(near(tanh(t, i), std::tanh(x)));
        CHECK(near(sigmoid(t, i), 1 / (1 + std::exp(-x))));
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
