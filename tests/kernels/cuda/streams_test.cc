// Ops that layers with inputs, factors and streams of their own need, on the emulated CUDA device
// against the reference: widths around those of groups of columns, columns of wider tensors, and
// rows that are not aligned.
#include <cmath>
#include <functional>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

constexpr DType kActivations[] = {DType::kBF16, DType::kF32};
constexpr int64_t kWidths[] = {1, 7, 8, 64, 200, 264};

// The columns behind the first `first` ones.
Tensor From(const Tensor& all, int64_t first, DType act) {
  auto* const data = static_cast<uint8_t*>(all.data) + first * Info(act).block_bytes;
  return {data, all.rows, all.cols - first, all.stride};
}

struct Operands {
  Tensor changed;
  Tensor read;
  DType act;
};

// Runs `body` on matrices of the device and of the reference, the first of which it changes, and
// checks that this one agrees within one rounding to `act` and F32 errors of sums of its width.
void CheckChanged(DType act, Matrix changed, Matrix read, int64_t pad, int64_t shift,
                  const std::function<void(Ops&, const Operands&)>& body) {
  Activations found(act, changed, pad, shift), found_read(act, read, pad, shift);
  Activations expected(DType::kF32, changed), expected_read(DType::kF32, read);
  MustRun(*EmulatedDevice(act), [&](Ops& ops) {
    body(ops, {found.tensor(), found_read.tensor(), act});
  });
  MustRun(*CreateReferenceDevice(), [&](Ops& ops) {
    body(ops, {expected.tensor(), expected_read.tensor(), DType::kF32});
  });
  CHECK(found.GapsIntact());
  int64_t wrong = 0;
  for (int64_t t = 0; t < changed.num_rows(); ++t) {
    for (int64_t i = 0; i < changed.num_cols(); ++i) {
      const double value = expected(t, i);
      const double error = std::fabs(found(t, i) - value);
      wrong += !(error <= RoundingOf(act, value) + 1e-5 * std::fabs(value) + 1e-6);
    }
  }
  CHECK(wrong == 0);
}

// Places of rows: in groups of columns, and not.
struct Place {
  int64_t pad, shift;
};
constexpr Place kPlaces[] = {{0, 0}, {8, 8}, {3, 1}};

TEST_CASE("Rows are multiplied by factors of each row, and by one F32 row for all", "[cuda]") {
  for (const DType act : kActivations) {
    for (const int64_t width : kWidths) {
      for (const Place& place : kPlaces) {
        INFO(Info(act).name << ", " << width << " columns, pad " << place.pad);
        Random random(static_cast<uint32_t>(width));
        const Matrix x = Matrix::RandomOf(random, 3, width);
        const Matrix factor = Matrix::RandomOf(random, 3, width + 1);
        CheckChanged(act, x, factor, place.pad, place.shift,
                     [](Ops& ops, const Operands& own) { ops.Multiply(own.read, own.changed); });
        CheckChanged(act, x, factor, place.pad, place.shift, [](Ops& ops, const Operands& own) {
          ops.Multiply(From(own.read, 1, own.act), own.changed);
        });
        Matrix same = Matrix::RandomOf(random, 1, width);
        CheckChanged(act, x, factor, place.pad, place.shift, [&](Ops& ops, const Operands& own) {
          Tensor row = same.tensor();
          row.rows = own.changed.rows;
          row.stride = 0;
          ops.Multiply(row, own.changed);
        });
      }
    }
  }
}

TEST_CASE("Streams are predicted and corrected as by the reference", "[cuda]") {
  for (const DType act : kActivations) {
    for (const int32_t count : {1, 3, 4, kMaxStreams}) {
      for (const int64_t width : kWidths) {
        const Place place = kPlaces[width % 3];
        INFO(Info(act).name << ", " << count << " streams of " << width);
        Random random(static_cast<uint32_t>(width));
        const Matrix streams = Matrix::RandomOf(random, 3, count * width);
        const Matrix computed = Matrix::RandomOf(random, 3, width);
        Matrix factors = Matrix::RandomOf(random, 3, count * count, 2, 1);
        CheckChanged(act, streams, computed, place.pad, place.shift,
                     [&](Ops& ops, const Operands& own) {
                       ops.PredictStreams(
                           {.streams = own.changed, .count = count, .factors = factors.tensor()});
                     });
        CheckChanged(act, streams, computed, place.pad, place.shift,
                     [&](Ops& ops, const Operands& own) {
                       ops.CorrectStreams({.streams = own.changed,
                                           .count = count,
                                           .factors = factors.tensor(),
                                           .computed = own.read,
                                           .active = count - 1});
                     });
      }
    }
  }
}

TEST_CASE("Magnitudes are matched in rows of any width and near zero", "[cuda]") {
  for (const DType act : kActivations) {
    for (const int64_t width : {1, 7, 64, 200, 3000}) {
      for (const Place& place : kPlaces) {
        INFO(Info(act).name << ", " << width << " columns, pad " << place.pad);
        Random random(static_cast<uint32_t>(width));
        Matrix x = Matrix::RandomOf(random, 3, width);
        Matrix like = Matrix::RandomOf(random, 3, width);
        for (int64_t i = 0; i < width; ++i) {
          *x.at(1, i) = 1e-6f;
          *like.at(2, i) = 0.0f;
        }
        CheckChanged(act, x, like, place.pad, place.shift, [](Ops& ops, const Operands& own) {
          ops.MatchMagnitude(own.read, own.changed);
        });
      }
    }
  }
}

TEST_CASE("Sparse gates keep what lies above the cut of their row", "[cuda]") {
  for (const DType act : kActivations) {
    for (const int64_t inter : {1, 7, 64, 264, 3000}) {
      for (const Activation activation : {Activation::kNone, Activation::kSilu, Activation::kGelu,
                                          Activation::kGeluTanh, Activation::kRelu2}) {
        const Place place = kPlaces[(inter + static_cast<int>(activation)) % 3];
        INFO(Info(act).name << ", activation " << static_cast<int>(activation) << ", " << inter);
        Random random(static_cast<uint32_t>(inter));
        const Matrix gate_up = Matrix::RandomOf(random, 3, 2 * inter);
        for (const float deviations : {-0.5f, 1.6448536f}) {
          CheckChanged(act, gate_up, Matrix(1, 1), place.pad, place.shift,
                       [&](Ops& ops, const Operands& own) {
                         ops.SparseGate({own.changed, deviations, activation});
                       });
        }
      }
    }
  }
}

TEST_CASE("Tokens that a table lacks have its first row on CUDA", "[cuda]") {
  Random random(4);
  const TestWeight table = MakeWeight(random, DType::kBF16, 5, 7);
  const WeightSource source = table.source();
  TestBatch batch({{{3, 3}}, 16});
  batch.token_ids = {4, 5, 1000};
  for (const DType act : kActivations) {
    const auto device = EmulatedDevice(act);
    const auto packed = device->Pack({&source, 1});
    REQUIRE(packed.ok());
    Matrix zeros(3, 7);
    Activations out(act, zeros);
    REQUIRE(device->Plan(batch.view()).ok());
    MustRun(*device, [&](Ops& ops) { ops.Embed(**packed, 2.0f, out.tensor()); });
    for (int64_t i = 0; i < 7; ++i) {
      CHECK(out(0, i) == 2.0f * table.decoded[static_cast<size_t>(4 * 7 + i)]);
      CHECK(out(1, i) == 2.0f * table.decoded[static_cast<size_t>(i)]);
      CHECK(out(2, i) == out(1, i));
    }
  }
}

TEST_CASE("Queries without keys are normed and rotated, and nothing is written", "[cuda]") {
  constexpr int32_t kHeads = 6, kDim = 32;
  const TestBatch batch({{{5, 9}, {1, 40}}, 8});
  const std::vector<float> frequencies(kDim / 2, 0.3f);
  for (const DType act : kActivations) {
    for (const DType cache_type : {DType::kBF16, DType::kInt8}) {
      Random random(3);
      const std::vector<float> norm = random.Normals(kDim);
      const Matrix q = Matrix::RandomOf(random, 6, kHeads * kDim);
      TestCache cache(cache_type, batch.num_pages, 8, /*n_kv_heads=*/2, kDim, 1);
      const std::vector<uint8_t> keys = cache.keys, values = cache.values;
      std::vector<float> angles(static_cast<size_t>(6 * kDim));
      const auto turn = [&](Device& device, Tensor rows) {
        REQUIRE(device.Plan(batch.view()).ok());
        MustRun(device, [&](Ops& ops) {
          ops.RopeAngles({.inv_freq = frequencies, .cos_sin = angles.data()});
          ops.RopeKvWrite({.q = rows,
                           .n_heads = kHeads,
                           .q_norm = norm.data(),
                           .cos_sin = angles.data(),
                           .rotary_dim = kDim,
                           .cache = cache.view});
        });
      };
      Matrix rounded = q;
      Activations found(act, rounded, 3), expected(DType::kF32, rounded);
      turn(*EmulatedDevice(act), found.tensor());
      turn(*CreateReferenceDevice(), expected.tensor());
      CHECK(found.GapsIntact());
      int64_t wrong = 0;
      for (int64_t t = 0; t < 6; ++t) {
        for (int64_t i = 0; i < kHeads * kDim; ++i) {
          const double value = expected(t, i);
          wrong += !(std::fabs(found(t, i) - value) <=
                     RoundingOf(act, value) + 1e-5 * std::fabs(value) + 1e-6);
        }
      }
      CHECK(wrong == 0);
      CHECK(cache.keys == keys);
      CHECK(cache.values == values);
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
