// Alternating updates and sparse gates of every level against the reference, and the reference
// against sums by hand.
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

// Widths around those of vectors and of the blocks that kernels work on.
constexpr int64_t kWidths[] = {1, 7, 16, 63, 64, 65, 200};

// The columns of the matrix that lie behind its first one.
Tensor Inside(Matrix& matrix) {
  const Tensor all = matrix.tensor();
  return {all.row<float>(0) + 1, all.rows, all.cols - 1, all.stride};
}

void CheckClose(const Matrix& found, const Matrix& expected) {
  CHECK(found.GapsIntact());
  for (int64_t t = 0; t < found.num_rows(); ++t) {
    for (int64_t i = 0; i < found.num_cols(); ++i) {
      CHECK(found(t, i) == Approx(expected(t, i)).epsilon(2e-6).margin(2e-6));
    }
  }
}

// Runs `body` on a copy of x with each device, the reference first, and compares.
template <typename Body>
void CheckAgainstReference(const Matrix& x, const Body& body) {
  const auto run = [&](Device& device) {
    Matrix own = x;
    REQUIRE(device.Run([&](Ops& ops) { body(ops, own); }).ok());
    return own;
  };
  const Matrix expected = run(*CreateReferenceDevice());
  for (auto& [name, device] : CpuDevices(2)) {
    INFO(name);
    CheckClose(run(*device), expected);
  }
}

TEST_CASE("Streams are predicted and corrected as by hand", "[kernels][kernel]") {
  std::vector<NamedDevice> devices = CpuDevices(1);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    std::vector<float> streams = {1, 2, 10, 20};    // two streams of two columns
    std::vector<float> factors = {0, 0.5f, -1, 2};  // [stream][of which]
    std::vector<float> computed = {5, 5};
    const StreamsArgs args{.streams = {streams.data(), 1, 4, 4},
                           .count = 2,
                           .factors = {factors.data(), 1, 4, 4},
                           .computed = {computed.data(), 1, 2, 2},
                           .active = 1};
    REQUIRE(device->Run([&](Ops& ops) { ops.PredictStreams(args); }).ok());
    CHECK(streams == std::vector<float>{6, 12, 29, 58});
    REQUIRE(device->Run([&](Ops& ops) { ops.CorrectStreams(args); }).ok());
    // The change of the active stream is {-24, -53}; factors are 1 and 1.5.
    CHECK(streams == std::vector<float>{-18, -41, -7, -21.5f});
  }
}

TEST_CASE("Streams of every level agree with the reference", "[kernels][kernel]") {
  Random random(1);
  for (const int32_t count : {1, 3, 4, kMaxStreams}) {
    for (const int64_t width : kWidths) {
      INFO(count << " streams of " << width);
      Matrix factors = Matrix::RandomOf(random, 3, count * count, 2, 1);
      Matrix computed = Matrix::RandomOf(random, 3, width, 1);
      CheckAgainstReference(Matrix::RandomOf(random, 3, count * width, 5, 3),
                            [&](Ops& ops, Matrix& x) {
                              const StreamsArgs args{.streams = x.tensor(),
                                                     .count = count,
                                                     .factors = factors.tensor(),
                                                     .computed = computed.tensor(),
                                                     .active = count - 1};
                              ops.PredictStreams(args);
                              ops.CorrectStreams(args);
                            });
    }
  }
}

TEST_CASE("Magnitudes are matched, and rows near zero grow by no more than the least",
          "[kernels][kernel]") {
  Random random(2);
  for (const int64_t width : kWidths) {
    INFO(width);
    Matrix like = Matrix::RandomOf(random, 3, width + 1, 2, 1);
    Matrix x = Matrix::RandomOf(random, 3, width + 1, 4);
    for (int64_t i = 0; i <= width; ++i) *x.at(1, i) = 1e-6f;
    CheckAgainstReference(
        x, [&](Ops& ops, Matrix& own) { ops.MatchMagnitude(Inside(like), Inside(own)); });
  }
  std::vector<float> like = {3, 4};
  std::vector<float> x = {0.5f, -0.5f};
  auto device = CreateReferenceDevice();
  REQUIRE(
      device->Run([&](Ops& ops) {
              ops.MatchMagnitude({like.data(), 1, 2, 2}, {x.data(), 1, 2, 2});
            })
          .ok());
  CHECK(x[0] == Approx(std::sqrt(12.5)));
}

TEST_CASE("Sparse gates keep what lies above the cut", "[kernels][kernel]") {
  std::vector<NamedDevice> devices = CpuDevices(1);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    // The gates' mean is 2 and their deviation 2, so that the cut is at 4.
    std::vector<float> gate_up = {0, 0, 2, 6, 2, 2, /*ups*/ 1, 1, 1, 3, 1, 1};
    const SparseGateArgs args{{gate_up.data(), 1, 12, 12}, 1.0f, Activation::kRelu};
    REQUIRE(device->Run([&](Ops& ops) { ops.SparseGate(args); }).ok());
    CHECK(gate_up == std::vector<float>{0, 0, 0, 6, 0, 0, 1, 1, 1, 3, 1, 1});
  }
}

TEST_CASE("Sparse gates of every level agree with the reference", "[kernels][kernel]") {
  Random random(3);
  for (const Activation activation : {Activation::kNone, Activation::kSilu, Activation::kGelu,
                                      Activation::kGeluTanh, Activation::kRelu2}) {
    for (const int64_t inter : kWidths) {
      for (const float deviations : {-0.5f, 0.0f, 1.6448536f}) {
        INFO("activation " << static_cast<int>(activation) << ", " << inter << " gates, "
                           << deviations);
        CheckAgainstReference(Matrix::RandomOf(random, 3, 2 * inter, 3, 1),
                              [&](Ops& ops, Matrix& x) {
                                ops.SparseGate({x.tensor(), deviations, activation});
                              });
      }
    }
  }
}

TEST_CASE("Tokens that a table lacks have its first row", "[kernels][kernel]") {
  Random random(4);
  const TestWeight table = MakeWeight(random, DType::kF32, 5, 7);
  const BatchSpec spec{{{.rows = 3, .context = 3}}};
  TestBatch batch(spec);
  batch.token_ids = {4, 5, 1000};
  std::vector<NamedDevice> devices = CpuDevices(1);
  devices.push_back({"reference", CreateReferenceDevice()});
  for (auto& [name, device] : devices) {
    INFO(name);
    const WeightSource source = table.source();
    auto packed = device->Pack({&source, 1});
    REQUIRE(packed.ok());
    Matrix out(3, 7);
    REQUIRE(device->Plan(batch.view()).ok());
    REQUIRE(device->Run([&](Ops& ops) { ops.Embed(**packed, 2.0f, out.tensor()); }).ok());
    for (int64_t i = 0; i < 7; ++i) {
      CHECK(out(0, i) == 2.0f * table.decoded[static_cast<size_t>(4 * 7 + i)]);
      CHECK(out(1, i) == 2.0f * table.decoded[static_cast<size_t>(i)]);
      CHECK(out(2, i) == out(1, i));
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::test
