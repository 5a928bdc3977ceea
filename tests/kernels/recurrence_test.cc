// Recurrences of every level against the reference, and their independence of chunks, of rows that
// were taken back, of pages, batch and threads, bit for bit.
#include <algorithm>
#include <cmath>
#include <string>

#include "catch2/catch.hpp"
#include "kernels/copy_page.h"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

constexpr int32_t kPage = 32;
constexpr int32_t kPages = 12;

struct RecurrenceCase {
  RecurrenceShape shape;
  bool skip = false;
  int64_t norm_width = 0;  // 0: no norm
  bool gates_first = false;
  bool gates = true;
};

const RecurrenceCase kCases[] = {
    {{RecurrenceRule::kGatedDelta, 4, 2, 16, 16, 4}, false, 16},
    {{RecurrenceRule::kGatedDelta, 3, 1, 5, 7, 3, true}, false, 7},
    {{RecurrenceRule::kGatedDelta, 6, 2, 24, 40, 1, true}, false, 40},
    {{RecurrenceRule::kGatedDelta, 2, 2, 128, 128, 4}, false, 128},
    {{RecurrenceRule::kMamba2, 4, 1, 16, 8, 4}, true, 32, true},
    {{RecurrenceRule::kMamba2, 6, 3, 33, 19, 2}, true, 0},
    {{RecurrenceRule::kMamba2, 2, 1, 128, 64, 4}, true, 64, false},
    {{RecurrenceRule::kSelective, 1, 1, 16, 96, 4}, true},
    {{RecurrenceRule::kSelective, 1, 1, 8, 35, 3}, true},
    {{RecurrenceRule::kSelective, 1, 1, 5, 3, 1}, false, 0, false, false},
    {{RecurrenceRule::kSelective, 1, 1, 32, 529, 4}, true},
};

// Weights and the inputs of a text.
struct RecurrentLayer {
  RecurrentLayer(const RecurrenceCase& c, int64_t rows, uint32_t seed)
      : in(MakeInputs(c, rows, seed)), steps(MakeSteps(c, rows, seed)) {
    Random random(seed + 1);
    const RecurrenceShape& shape = c.shape;
    const bool selects = shape.is_selective();
    conv = random.Normals(shape.taps * shape.channels());
    conv_bias = random.Normals(shape.channels());
    step_bias = random.Normals(shape.n_heads);
    skip = random.Normals(selects ? shape.values() : shape.n_heads);
    norm = random.Normals(std::max<int64_t>(1, shape.values()));
    const int64_t decays =
        selects ? ChannelBlocks(shape.values()) * kChannelBlock * shape.key_dim : shape.n_heads;
    for (int64_t i = 0; i < decays; ++i) decay.push_back(-random.Uniform(0.02f, 2.0f));
  }
  // What is made of the rows between the two calls of a selective scan: dt, and then k and q.
  static Matrix MakeSteps(const RecurrenceCase& c, int64_t rows, uint32_t seed) {
    Random random(seed + 2);
    return Matrix::RandomOf(random, rows, c.shape.values() + 2 * int64_t{c.shape.key_dim});
  }
  static Matrix MakeInputs(const RecurrenceCase& c, int64_t rows, uint32_t seed) {
    Random random(seed);
    return Matrix::RandomOf(random, rows, c.shape.cols(), /*pad=*/3, /*shift=*/1);
  }
  Matrix in;
  Matrix steps;
  std::vector<float> conv, conv_bias, step_bias, skip, norm, decay;
};

// Pages of snapshots, and a text's place in them.
class Pages {
 public:
  explicit Pages(const RecurrenceShape& shape)
      : floats_(RecurrenceState(shape).floats),
        memory_(static_cast<size_t>(kPages * (floats_ + 5)), std::nanf("")) {}
  KvCacheView view() {
    return {.keys = memory_.data(),
            .values = memory_.data(),
            .dtype = DType::kF32,
            .num_pages = kPages,
            .page_tokens = 1,
            .n_kv_heads = 1,
            .head_dim = static_cast<int32_t>(floats_),
            .page_stride = (floats_ + 5) * static_cast<int64_t>(sizeof(float))};
  }

 private:
  int64_t floats_;
  std::vector<float> memory_;
};

// Rows [begin, begin + n) of a layer's text.
struct Piece {
  RecurrentLayer* layer;
  std::vector<int32_t> pages;  // of the text from its beginning
  int32_t begin;
  int32_t n;
  int32_t dropped = 0;  // pages that the window has passed
};

// Runs one step, and returns its rows.
Matrix RunStep(Device& device, const RecurrenceCase& c, const std::vector<Piece>& pieces,
               Pages& pages) {
  std::vector<int32_t> tokens, q_begin = {0}, span_begin = {0}, span_page, span_tokens, context;
  std::vector<int64_t> slots;
  for (const Piece& piece : pieces) {
    const int32_t end = piece.begin + piece.n;
    for (int32_t p = piece.begin; p < end; ++p) {
      tokens.push_back(0);
      slots.push_back(int64_t{piece.pages[static_cast<size_t>(p / kPage)]} * kPage + p % kPage);
    }
    for (int32_t p = piece.dropped * kPage; p < end; p += kPage) {
      span_page.push_back(piece.pages[static_cast<size_t>(p / kPage)]);
      span_tokens.push_back(std::min(kPage, end - p));
    }
    context.push_back(end - piece.dropped * kPage);
    q_begin.push_back(static_cast<int32_t>(tokens.size()));
    span_begin.push_back(static_cast<int32_t>(span_page.size()));
  }
  const HostBatch batch{.token_ids = tokens,
                        .positions = tokens,
                        .kv_slot = slots,
                        .q_begin = q_begin,
                        .span_begin = span_begin,
                        .span_page = span_page,
                        .span_tokens = span_tokens,
                        .context_len = context,
                        .logit_rows = {}};
  const auto n = static_cast<int64_t>(tokens.size());
  Matrix in(n, c.shape.cols(), /*pad=*/1);
  int64_t t = 0;
  for (const Piece& piece : pieces) {
    for (int32_t i = 0; i < piece.n; ++i, ++t) {
      std::copy_n(piece.layer->in.at(piece.begin + i, 0), in.num_cols(), in.at(t, 0));
    }
  }
  Matrix out(n, c.shape.values(), /*pad=*/2);
  const RecurrentLayer& layer = *pieces.front().layer;
  RecurrenceArgs args{.shape = c.shape,
                      .in = in.tensor(),
                      .conv = layer.conv.data(),
                      .conv_bias = layer.conv_bias.data(),
                      .decay = layer.decay.data(),
                      .step_bias = layer.step_bias.data(),
                      .skip = c.skip ? layer.skip.data() : nullptr,
                      .norm = c.norm_width > 0 ? layer.norm.data() : nullptr,
                      .norm_width = c.norm_width,
                      .gates_first = c.gates_first,
                      .gates = c.gates,
                      .max_step = 1.5f,
                      .cache = pages.view(),
                      .page_tokens = kPage,
                      .out = out.tensor()};
  REQUIRE(device.Plan(batch).ok());
  REQUIRE(device.Run([&](Ops& ops) { ops.Recurrence(args); }).ok());
  if (c.shape.is_selective()) {
    Matrix factors(n, 2 * int64_t{c.shape.key_dim}, /*pad=*/3);
    int64_t row = 0;
    for (const Piece& piece : pieces) {
      for (int32_t i = 0; i < piece.n; ++i, ++row) {
        const float* made = piece.layer->steps.at(piece.begin + i, 0);
        std::copy_n(made, c.shape.values(), in.at(row, 0));
        std::copy_n(made + c.shape.values(), factors.num_cols(), factors.at(row, 0));
      }
    }
    args.factors = factors.tensor();
    REQUIRE(device.Run([&](Ops& ops) { ops.Recurrence(args); }).ok());
  }
  CHECK(out.GapsIntact());
  return out;
}

double Worst(const Matrix& found, const Matrix& expected, double* largest) {
  double worst = 0;
  for (int64_t t = 0; t < found.num_rows(); ++t) {
    for (int64_t i = 0; i < found.num_cols(); ++i) {
      const double error = std::fabs(double{found(t, i)} - expected(t, i));
      worst = std::max(worst, std::isnan(error) ? 1e9 : error);
      *largest = std::max(*largest, std::fabs(double{expected(t, i)}));
    }
  }
  return worst;
}

const std::vector<int32_t> kTextPages = {3, 0, 7, 5};

TEST_CASE("Recurrences agree with the reference at every level", "[kernels][kernel]") {
  constexpr int32_t kTokens = 100;
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (const RecurrenceCase& c : kCases) {
    RecurrentLayer layer(c, kTokens, 11);
    Pages expected_pages(c.shape);
    const Matrix expected =
        RunStep(*reference, c, {{&layer, kTextPages, 0, kTokens}}, expected_pages);
    for (auto& [name, device] : CpuDevices(2)) {
      INFO(name << " heads " << c.shape.n_heads << " of " << c.shape.key_dim << " x "
                << c.shape.value_dim);
      Pages pages(c.shape);
      const Matrix found = RunStep(*device, c, {{&layer, kTextPages, 0, kTokens}}, pages);
      double largest = 1;
      const double worst = Worst(found, expected, &largest);
      // Sums over the state's rows and the rows of a part, of terms that decay.
      CHECK(worst <= 1.2e-7 * 16 * (c.shape.key_dim + kScanRows) * largest);
    }
  }
}

// One row at a time the reference's state is exact; its parts in F32 are what it keeps between
// steps.
TEST_CASE("The reference's recurrence is that of single rows", "[kernels][kernel]") {
  constexpr int32_t kTokens = 40;
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (const RecurrenceCase& c : kCases) {
    RecurrentLayer layer(c, kTokens, 5);
    Pages whole_pages(c.shape), pages(c.shape);
    const Matrix whole = RunStep(*reference, c, {{&layer, kTextPages, 0, kTokens}}, whole_pages);
    for (int32_t p = 0; p < kTokens; ++p) {
      const Matrix row = RunStep(*reference, c, {{&layer, kTextPages, p, 1}}, pages);
      for (int64_t i = 0; i < row.num_cols(); ++i) {
        CHECK(row(0, i) == Approx(whole(p, i)).epsilon(1e-4).margin(1e-4));
      }
    }
  }
}

// Runs the text from `begin` on in slices of these lengths, over and over, beside a text of another
// sequence; checks each row.
void CheckSlices(Device& device, const RecurrenceCase& c, RecurrentLayer& layer, int32_t tokens,
                 const Matrix& expected, const std::vector<int32_t>& lengths, bool takes_back) {
  Pages pages(c.shape);
  const std::vector<int32_t> other_pages = {9, 10, 11};
  int32_t other = 0;
  size_t step = 0;
  for (int32_t begin = 0; begin < tokens; ++step) {
    const int32_t n = std::min(lengths[step % lengths.size()], tokens - begin);
    Piece piece{&layer, kTextPages, begin, n};
    piece.dropped = std::max(0, begin - std::max(2, c.shape.taps) + 1) / kPage;
    const int32_t others = std::min(3, 2 * kPage - other);
    const Matrix found = RunStep(device, c, {{&layer, other_pages, other, others}, piece}, pages);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t col = 0; col < found.num_cols(); ++col) {
        REQUIRE(found(others + i, col) == expected(begin + i, col));
      }
    }
    other = other + others == 2 * kPage ? 0 : other + others;
    // At least the first row stays where rows can be taken back.
    begin += takes_back && n <= kScanRows ? 1 + static_cast<int32_t>(step % 5) % n : n;
  }
}

TEST_CASE("A recurrence gives the same bits whole, in chunks, beside others and after drafts",
          "[kernels][kernel]") {
  constexpr int32_t kTokens = 90;
  for (const RecurrenceCase& c : kCases) {
    RecurrentLayer layer(c, kTokens, 3);
    for (auto& [name, device] : CpuDevices(3)) {
      INFO(name << " heads " << c.shape.n_heads << " of " << c.shape.key_dim << " x "
                << c.shape.value_dim);
      Pages pages(c.shape);
      const Matrix expected = RunStep(*device, c, {{&layer, kTextPages, 0, kTokens}}, pages);
      for (const std::vector<int32_t>& lengths :
           std::vector<std::vector<int32_t>>{{1}, {7}, {16}, {17}, {31, 2, 50}, {32, 1}}) {
        CheckSlices(*device, c, layer, kTokens, expected, lengths, false);
      }
      for (const std::vector<int32_t>& lengths :
           std::vector<std::vector<int32_t>>{{16}, {3, 16, 9}, {20, 16}}) {
        CheckSlices(*device, c, layer, kTokens, expected, lengths, true);
      }
    }
  }
}

TEST_CASE("A copied snapshot goes on as the one that it was copied from", "[kernels][kernel]") {
  constexpr int32_t kTokens = 60;
  const RecurrenceCase& c = kCases[0];
  RecurrentLayer layer(c, kTokens, 8);
  for (auto& [name, device] : CpuDevices(1)) {
    INFO(name);
    Pages pages(c.shape);
    static_cast<void>(RunStep(*device, c, {{&layer, kTextPages, 0, 43}}, pages));
    CopyHostPage(pages.view(), kTextPages[1], 8, 1);
    const Matrix own = RunStep(*device, c, {{&layer, kTextPages, 43, 12}}, pages);
    const Matrix copy = RunStep(*device, c, {{&layer, {kTextPages[0], 8}, 43, 12}}, pages);
    CHECK(SameBits(own, copy));
  }
}

TEST_CASE("Products of elements and factors are those by hand, in columns of wider tensors too",
          "[kernels][kernel]") {
  Random random(3);
  for (const int64_t cols : {1, 7, 16, 37, 256}) {
    std::vector<NamedDevice> devices = CpuDevices(1);
    devices.push_back({"reference", CreateReferenceDevice()});
    Matrix factor = Matrix::RandomOf(random, 3, cols + 2, 2, 1);
    for (auto& [name, device] : devices) {
      INFO(name << " with " << cols << " columns");
      Matrix x = Matrix::RandomOf(random, 3, cols + 2, 3);
      const Matrix before = x;
      const auto inside = [cols](Tensor tensor) {
        return Tensor{static_cast<float*>(tensor.data) + 1, tensor.rows, cols, tensor.stride};
      };
      REQUIRE(device
                  ->Run([&](Ops& ops) {
                    ops.Multiply(inside(factor.tensor()), inside(x.tensor()));
                    ops.Scale(inside(x.tensor()), -1.5f);
                  })
                  .ok());
      CHECK(x.GapsIntact());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < cols + 2; ++i) {
          const bool is_inside = i > 0 && i <= cols;
          const float product = before(t, i) * factor(t, i);
          CHECK(x(t, i) == (is_inside ? product * -1.5f : before(t, i)));
        }
      }
    }
  }
}

TEST_CASE("Gates of elements agree with the reference", "[kernels][kernel]") {
  Random random(2);
  for (const int64_t cols : {1, 7, 16, 37, 256}) {
    Matrix gate = Matrix::RandomOf(random, 3, cols, 2, 1);
    for (auto& [name, device] : CpuDevices(1)) {
      Matrix x = Matrix::RandomOf(random, 3, cols, 3);
      const Matrix before = x;
      REQUIRE(device->Run([&](Ops& ops) { ops.GateElements(gate.tensor(), x.tensor()); }).ok());
      CHECK(x.GapsIntact());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < cols; ++i) {
          const double factor = 1 / (1 + std::exp(-double{gate(t, i)}));
          CHECK(x(t, i) == Approx(before(t, i) * factor).epsilon(1e-6).margin(1e-7));
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
