// The ops across ranks on emulated GPUs, each used by a thread of its own.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/nano_batch.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/gpu_group.h"
#include "tests/kernels/cuda/rank_results.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels {
namespace {

using test::Gpus;
using test::Matrix;
using test::Random;

TEST_CASE("GPUs sum their parts to the same bits, and norm them as Norm does", "[kernel]") {
  const int32_t world = GENERATE(1, 2, 3, 8);
  Gpus gpus(world);
  Random random(3);
  // The last one in two rounds, with three ranks and eight.
  const int64_t many = world == 3 ? 700 : 130;
  for (const auto& [rows, dim] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 2048}, {3, 17}, {40, 64}, {many, 1030}}) {
    for (const int variant : {0, 1, 2, 3}) {
      if (rows > 100 && variant % 2 == 0) continue;
      const bool adds = (variant & 1) != 0;
      const int32_t without = variant == 3 ? world - 1 : -1;  // a rank that has no part
      INFO(world << " ranks, [" << rows << ", " << dim << "], variant " << variant);
      const std::vector<float> weight = random.Normals(dim), bias = random.Normals(dim);
      const Matrix stream = Matrix::RandomOf(random, rows, dim, /*pad=*/variant == 1 ? 3 : 0);
      std::vector<Matrix> parts, targets, fused, apart;
      for (int32_t r = 0; r < world; ++r) {
        parts.push_back(Matrix::RandomOf(random, rows, dim));
        targets.push_back(stream);
        fused.emplace_back(rows, dim);
        apart.emplace_back(rows, dim);
      }
      gpus.RunWell([&](int32_t r, Ops& ops) {
        const auto rank = static_cast<size_t>(r);
        AllReduceArgs args;
        if (r != without) args.partial = parts[rank].tensor();
        if (variant >= 2) args.bias = bias.data();
        const Tensor target = targets[rank].tensor();
        (adds ? args.residual : args.out) = target;
        NormArgs norm{.x = target, .weight = weight.data(), .out = fused[rank].tensor()};
        args.norm = norm;
        ops.AllReduce(args);
        norm.out = apart[rank].tensor();
        ops.Norm(norm);
      });
      double worst = 0;
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t i = 0; i < dim; ++i) {
          double expected = adds ? stream(t, i) : 0.0;
          double magnitude = std::abs(expected) + 1;
          const double offset = variant >= 2 ? bias[static_cast<size_t>(i)] : 0.0;
          expected += offset;
          magnitude += std::abs(offset);
          for (int32_t r = 0; r < world; ++r) {
            if (r == without) continue;
            expected += double{parts[static_cast<size_t>(r)](t, i)};
            magnitude += std::abs(double{parts[static_cast<size_t>(r)](t, i)});
          }
          worst = std::max(worst, std::abs(targets[0](t, i) - expected) / magnitude);
        }
      }
      // Each of the additions rounds by half a unit in the last place at most.
      CHECK(worst <= (world + 2) * 0x1p-24);
      for (size_t r = 0; r < targets.size(); ++r) {
        CHECK(test::SameBits(targets[r], targets[0]));
        CHECK(test::SameBits(fused[r], fused[0]));
        CHECK(test::SameBits(fused[r], apart[r]));
        CHECK(targets[r].GapsIntact());
      }
    }
  }
}

TEST_CASE("GPUs add parts as a tree, in one round and in two", "[kernel]") {
  // In F32, 1 + 2^24 is 2^24: the order of the sums shows.
  const float values[] = {1.0f, 0x1p24f, 1.0f, 1.0f, -0x1p24f};
  Gpus gpus(5);
  for (const int64_t rows : {int64_t{1}, int64_t{1600}}) {
    std::vector<Matrix> outs, parts;
    for (int r = 0; r < 5; ++r) {
      outs.emplace_back(rows, 128);
      parts.emplace_back(rows, 128);
      for (int64_t t = 0; t < rows; ++t) std::fill_n(parts.back().at(t, 0), 128, values[r]);
    }
    gpus.RunWell([&](int32_t r, Ops& ops) {
      const auto rank = static_cast<size_t>(r);
      ops.AllReduce({.partial = parts[rank].tensor(), .out = outs[rank].tensor()});
    });
    for (const Matrix& out : outs) {
      CHECK(out(0, 0) == 2.0f);
      CHECK(out(rows - 1, 127) == 2.0f);
    }
  }
}

TEST_CASE("Columns of all GPUs come together in their order", "[kernel]") {
  Gpus gpus(4);
  Random random(7);
  for (const int64_t rows : {int64_t{1}, int64_t{5}}) {
    for (const int32_t root : {-1, 2}) {
      test::CheckColumns(gpus, random,
                         {.borders = {0, 3, 3, 9000, 9016}, .rows = rows, .root = root});
    }
  }
}

TEST_CASE("A GPU that does not come is named by those that wait, which then end", "[kernel]") {
  Gpus gpus(3, {.rank_wait_ms = 50});
  std::vector<Matrix> rows(3, Matrix(2, 64));
  const std::vector<absl::Status> statuses = gpus.Run([&](int32_t r, Ops& ops) {
    const Tensor x = rows[static_cast<size_t>(r)].tensor();
    if (r == 1) return;
    ops.AllReduce({.partial = x, .residual = x});
  });
  for (const int32_t rank : {0, 2}) {
    const std::string message(statuses[static_cast<size_t>(rank)].message());
    INFO(message);
    CHECK(message.find("has waited 50 ms for rank 1") != std::string::npos);
  }
}

TEST_CASE("GPUs that wait end when the group is aborted", "[kernel]") {
  Gpus gpus(2);
  Matrix x(2, 64);
  const std::vector<absl::Status> statuses = gpus.Run([&](int32_t r, Ops& ops) {
    if (r == 1) return gpus.communicator(1).Abort(absl::UnavailableError("rank 1 is lost"));
    ops.AllReduce({.partial = x.tensor(), .residual = x.tensor()});
  });
  CHECK(statuses[0].message() == "rank 1 is lost");
  CHECK(statuses[1].message() == "rank 1 is lost");
}

TEST_CASE("GPUs that do different ops at the same time are told so", "[kernel]") {
  for (const bool other_op : {false, true}) {
    const std::vector<absl::Status> statuses = test::RunDifferentOps({}, other_op);
    INFO(statuses[0].ToString());
    CHECK(statuses[0].message().find("do different ops at the same time") != std::string::npos);
    CHECK(!statuses[1].ok());
  }
}

const NanoBatchProfile kHalves = {.device_name = {}, .rules = {NanoBatchRule{}}};

// Two sums of a step of two sequences, of which each is a half.
struct SumsOfHalves {
  explicit SumsOfHalves(int32_t world)
      : batch({{{1, 9}, {2, 8}}, 16}), partials(2 * static_cast<size_t>(world), Matrix(3, 64)) {
    Random random(11);
    for (Matrix& partial : partials) partial = Matrix::RandomOf(random, 3, 64);
    sums.resize(partials.size(), Matrix(3, 64));
  }
  void Plan(Gpus& gpus, int32_t world) {
    for (int32_t r = 0; r < world; ++r) REQUIRE(gpus.device(r).Plan(batch.view()).ok());
  }
  void Sum(int32_t rank, size_t index, Ops& ops) {
    const size_t at = 2 * static_cast<size_t>(rank) + index;
    ops.AllReduce({.partial = partials[at].tensor(), .out = sums[at].tensor()});
  }

  test::TestBatch batch;
  std::vector<Matrix> partials, sums;  // two of each rank
};

TEST_CASE("GPUs sum the halves of a step to the bits of the whole", "[kernel][nano]") {
  const int32_t world = GENERATE(2, 3, 8);
  Gpus gpus(world);
  SumsOfHalves step(world);
  const auto body = [&](int32_t r, Ops& ops) {
    step.Sum(r, 0, ops);
    step.Sum(r, 1, ops);
  };
  step.Plan(gpus, world);
  gpus.RunWell(body);
  const std::vector<Matrix> whole = step.sums;
  const int64_t of_whole = cuda::emulate::Launches();
  for (int32_t r = 0; r < world; ++r) REQUIRE(gpus.device(r).SetNanoBatches(kHalves).ok());
  for (int round = 0; round < 3; ++round) {
    step.sums.assign(step.sums.size(), Matrix(3, 64));
    step.Plan(gpus, world);
    gpus.RunWell(body);
    for (size_t i = 0; i < whole.size(); ++i) CHECK(test::SameBits(step.sums[i], whole[i]));
  }
  CHECK(cuda::emulate::Launches() == 7 * of_whole);
}

TEST_CASE("Both halves of a step end when the group is aborted", "[kernel][nano]") {
  Gpus gpus(2);
  SumsOfHalves step(2);
  for (int32_t r = 0; r < 2; ++r) REQUIRE(gpus.device(r).SetNanoBatches(kHalves).ok());
  step.Plan(gpus, 2);
  const std::vector<absl::Status> statuses = gpus.Run([&](int32_t r, Ops& ops) {
    step.Sum(r, 0, ops);
    if (r == 1) return gpus.communicator(1).Abort(absl::UnavailableError("rank 1 is lost"));
    step.Sum(r, 1, ops);
  });
  CHECK(statuses[0].message() == "rank 1 is lost");
  CHECK(statuses[1].message() == "rank 1 is lost");
}

TEST_CASE("GPUs of which one does not divide its steps are told so", "[kernel][nano]") {
  // First halves meet the other rank's whole step: they have to come before second ones, which
  // nobody meets, as an emulated GPU runs one kernel at a time.
  Gpus gpus(2, {.first_lane = 0});
  SumsOfHalves step(2);
  REQUIRE(gpus.device(1).SetNanoBatches(kHalves).ok());
  step.Plan(gpus, 2);
  const std::vector<absl::Status> statuses =
      gpus.Run([&](int32_t r, Ops& ops) { step.Sum(r, 0, ops); });
  INFO(statuses[0].ToString());
  CHECK(statuses[0].message().find("do different ops at the same time") != std::string::npos);
  CHECK(!statuses[1].ok());
  // They do not get so far with a profile that they had when they joined.
  Gpus apart(2, {.joins = false});
  REQUIRE(apart.device(1).SetNanoBatches(kHalves).ok());
  const std::vector<absl::Status> joined = apart.TryToJoin();
  INFO(joined[0].ToString());
  CHECK(joined[0].message().find("have different tune profiles") != std::string::npos);
  CHECK(!joined[1].ok());
}

TEST_CASE("Halves are refused by name between stages and across processes", "[kernel][nano]") {
  for (const bool through_host : {true, false}) {
    Gpus gpus(2, {.through_host = through_host, .are_stages = !through_host});
    const char* where =
        through_host ? "where ranks do not read each other's memory" : "in a pipeline";
    const auto is_refused = [&](const absl::Status& status) {
      INFO(status.ToString());
      CHECK(absl::IsUnimplemented(status));
      CHECK(status.message().find(where) != std::string::npos);
    };
    is_refused(gpus.device(0).SetNanoBatches(kHalves));
    CHECK(gpus.device(0).SetNanoBatches({}).ok());
    Gpus later(2, {.through_host = through_host, .are_stages = !through_host, .joins = false});
    for (int32_t r = 0; r < 2; ++r) REQUIRE(later.device(r).SetNanoBatches(kHalves).ok());
    for (const absl::Status& status : later.TryToJoin()) is_refused(status);
  }
}

}  // namespace
}  // namespace heddle::kernels
