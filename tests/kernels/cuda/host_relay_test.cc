// Emulated GPUs that share no memory: the host brings them the bits that they would read.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/late_sums.h"
#include "tests/kernels/cuda/gpu_group.h"
#include "tests/kernels/cuda/rank_results.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels {
namespace {

using test::Gpus;
using test::Matrix;
using test::Random;

TEST_CASE("Ranks that share no memory have the bits of those that do", "[kernel]") {
  test::CheckSameResults(GENERATE(2, 3), {.through_host = true});
}

// Sums that begin one behind the other and end a sum later, with a gather between.
TEST_CASE("Sums that begin early have the bits of those made at once", "[kernel]") {
  const bool through_host = GENERATE(true, false);
  constexpr int32_t kWorld = 3, kSums = 6;
  Gpus gpus(kWorld, {.through_host = through_host});
  Random random(2);
  for (const int64_t rows : {int64_t{1}, int64_t{40}, int64_t{3}}) {
    std::vector<Matrix> parts, late, at_once;
    for (int32_t i = 0; i < kWorld * kSums; ++i)
      parts.push_back(Matrix::RandomOf(random, rows, 96));
    const Matrix stream = Matrix::RandomOf(random, rows, 96);
    late.assign(kWorld, stream);
    at_once.assign(kWorld, stream);
    std::vector<Matrix> wholes(kWorld, Matrix(rows, kWorld * 96));
    gpus.RunWell([&](int32_t r, Ops& ops) {
      const auto rank = static_cast<size_t>(r);
      const auto sum = [&](int32_t i, Matrix& to) {
        AllReduceArgs args{.residual = to.tensor()};
        const bool has_part = r != i % kWorld;
        if (has_part) args.partial = parts[static_cast<size_t>(i) * kWorld + rank].tensor();
        return args;
      };
      auto& sums = dynamic_cast<LateSums&>(ops);
      for (int32_t i = 0; i < kSums; ++i) {
        sums.BeginAllReduce(sum(i, late[rank]));
        ops.GatherColumns({.part = parts[rank].tensor(),
                           .borders = std::vector<int32_t>{0, 96, 192, 288},
                           .whole = wholes[rank].tensor()});
        if (i > 0) sums.EndAllReduce(sum(i - 1, late[rank]));
      }
      sums.EndAllReduce(sum(kSums - 1, late[rank]));
      for (int32_t i = 0; i < kSums; ++i) ops.AllReduce(sum(i, at_once[rank]));
    });
    for (size_t r = 0; r < kWorld; ++r) {
      CHECK(test::SameBits(late[r], at_once[r]));
      CHECK(test::SameBits(late[r], late[0]));
    }
  }
}

TEST_CASE("Columns of unequal parts come through the host, and a rank may have none", "[kernel]") {
  Gpus gpus(3, {.through_host = true});
  Random random(7);
  const bool has_empty_part = GENERATE(false, true);  // of rank 1, or none
  for (const int64_t rows : {int64_t{1}, int64_t{5}, int64_t{0}, int64_t{40}}) {
    for (const int32_t root : {-1, 2}) {
      test::CheckColumns(gpus, random,
                         {.borders = {0, 3, 3, 1030},
                          .rows = rows,
                          .root = root,
                          .times = 3,
                          .has_empty_part = has_empty_part});
    }
  }
}

TEST_CASE("Ops without rows meet nobody", "[kernel]") {
  const bool are_stages = GENERATE(false, true);
  Gpus gpus(2, {.through_host = true, .are_stages = are_stages});
  std::vector<Matrix> rows(2, Matrix(2, 64));
  gpus.RunWell([&](int32_t r, Ops& ops) {
    const Tensor some = rows[static_cast<size_t>(r)].tensor();
    Tensor none = some;
    none.rows = 0;
    for (const Tensor& x : {none, some}) {
      if (!are_stages) {
        ops.AllReduce({.partial = x, .residual = x});
      } else if (r == 0) {
        ops.SendRows(x, 1);
      } else {
        ops.RecvRows(x, 0);
      }
    }
  });
}

TEST_CASE("Ranks of several processes that do different ops are told so", "[kernel]") {
  for (const bool other_op : {false, true}) {
    const std::vector<absl::Status> statuses =
        test::RunDifferentOps({.through_host = true}, other_op);
    INFO(statuses[0].ToString() << "; " << statuses[1].ToString());
    CHECK(statuses[0].message().find("do different ops at the same time") != std::string::npos);
    CHECK(!statuses[1].ok());
  }
}

TEST_CASE("A part of another length than the op has is refused by name", "[kernel]") {
  Gpus gpus(2, {.through_host = true});
  std::vector<Matrix> parts, wholes(2, Matrix(2, 128));
  parts.emplace_back(2, 64);
  parts.emplace_back(2, 60);
  const std::vector<absl::Status> statuses = gpus.Run([&](int32_t r, Ops& ops) {
    const auto rank = static_cast<size_t>(r);
    const std::vector<int32_t> borders = {0, r == 0 ? 64 : 68, 128};
    ops.GatherColumns(
        {.part = parts[rank].tensor(), .borders = borders, .whole = wholes[rank].tensor()});
  });
  const auto says = [&](size_t r) {
    return statuses[r].message().find("bytes to an op in which") != std::string::npos;
  };
  INFO(statuses[0].ToString() << "; " << statuses[1].ToString());
  CHECK((says(0) || says(1)));
  CHECK(!statuses[0].ok());
  CHECK(!statuses[1].ok());
}

TEST_CASE("Ranks take all page-locked memory when they join", "[kernel]") {
  const bool are_stages = GENERATE(false, true);
  constexpr int32_t kWorld = 3;
  constexpr int64_t kBytes = 3 * 64 * sizeof(float);
  Gpus gpus(kWorld, {.through_host = true, .are_stages = are_stages, .part_bytes = kBytes});
  const int64_t before = cuda::emulate::PinnedBytes();
  std::vector<Matrix> rows(kWorld, Matrix(4, 64));
  const auto meet = [&](int64_t n) {
    return gpus.Run([&, n](int32_t r, Ops& ops) {
      Tensor x = rows[static_cast<size_t>(r)].tensor();
      x.rows = n;
      if (!are_stages) return ops.AllReduce({.partial = x, .residual = x});
      ops.SendRows(x, (r + 1) % kWorld);
      ops.RecvRows(x, (r + kWorld - 1) % kWorld);
    });
  };
  for (const absl::Status& status : meet(3)) CHECK(status.ok());
  CHECK(cuda::emulate::PinnedBytes() == before);
  for (const absl::Status& status : meet(4)) {
    INFO(status.ToString());
    CHECK(absl::IsResourceExhausted(status));
    CHECK(status.message().find("bytes with others in an op, and has room for 7") !=
          std::string::npos);
  }
  CHECK(cuda::emulate::PinnedBytes() == before);
}

TEST_CASE("The room for what passes between ranks is what a plan counts", "[kernel]") {
  for (const bool are_stages : {false, true}) {
    Gpus gpus(2, {.through_host = true, .are_stages = are_stages, .part_bytes = 0});
    const int64_t without = cuda::emulate::PinnedBytes();
    constexpr int64_t kBytes = 1000;
    const std::vector<int64_t> all(2, kBytes);
    const MeetingSizes ranks = {.parts = all, .late_part = kBytes},
                       stages = {.sent = all, .received = all};
    for (int32_t r = 0; r < 2; ++r) {
      auto& device = dynamic_cast<HostMeetings&>(gpus.device(r));
      device.SetRoom({.ranks = ranks, .stages = stages, .free_bytes = {}});
    }
    gpus.Join();
    const int64_t headers = are_stages ? 0 : 2 * 2 * kPartHeaderBytes;  // of no parts, above
    const MeetingSizes& sizes = are_stages ? stages : ranks;
    CHECK(cuda::emulate::PinnedBytes() + headers ==
          without + PlaceBytes(sizes, 0) + PlaceBytes(sizes, 1));
    CHECK(PlaceBytes(sizes, 0) ==
          (are_stages ? 8 * kBytes : 4 * kBytes + 2 * 16 + 6 * kBytes + 4 * 16));
  }
}

TEST_CASE("A host without the page-locked memory is named when ranks join", "[kernel]") {
  SECTION("it has less than they need") {
    Gpus gpus(2, {.through_host = true, .host_free_bytes = int64_t{9} << 20, .joins = false});
    for (const absl::Status& status : gpus.TryToJoin()) {
      INFO(status.ToString());
      CHECK(absl::IsResourceExhausted(status));
      CHECK(status.message().find("needs 80 MiB of page-locked memory of the host") !=
            std::string::npos);
      CHECK(status.message().find(" MiB are free") != std::string::npos);
    }
  }
  SECTION("it has enough for one of them") {
    Gpus gpus(2, {.through_host = true, .host_free_bytes = int64_t{130} << 20, .joins = false});
    for (const absl::Status& status : gpus.TryToJoin()) {
      INFO(status.ToString());
      CHECK(status.message().find("needs 80 MiB of page-locked memory of the host") !=
            std::string::npos);
    }
  }
  SECTION("it locks less than it has") {
    Gpus gpus(2, {.through_host = true, .joins = false});
    cuda::emulate::SetMachine(
        {.device_count = 2, .pinned_bytes = cuda::emulate::PinnedBytes() + (int64_t{9} << 20)});
    for (const absl::Status& status : gpus.TryToJoin()) {
      INFO(status.ToString());
      CHECK(absl::IsResourceExhausted(status));
      CHECK(status.message().find("needs 80 MiB of page-locked memory of the host") !=
            std::string::npos);
      CHECK(status.message().find("the host locks no more") != std::string::npos);
    }
    cuda::emulate::SetMachine({.device_count = 2});
    gpus.Join();  // with the memory
    Matrix x(2, 64), y(2, 64);
    gpus.RunWell([&](int32_t r, Ops& ops) {
      const Tensor rows = (r == 0 ? x : y).tensor();
      ops.AllReduce({.partial = rows, .residual = rows});
    });
  }
}

TEST_CASE("A GPU that hangs is named by its own process", "[kernel]") {
  test::CheckThatHungGpuIsNamed({.rank_wait_ms = 20, .through_host = true, .are_late = true});
}

TEST_CASE("Rows pass through the host from stage to stage, however many are under way",
          "[kernel]") {
  constexpr int32_t kStages = 3;
  Gpus gpus(kStages, {.through_host = true, .are_stages = true});
  Random random(5);
  for (const int64_t rows : {int64_t{1}, int64_t{70}, int64_t{3}}) {
    Matrix first = Matrix::RandomOf(random, rows, 520);
    std::vector<Matrix> received(5 * kStages, Matrix(rows, 520));
    gpus.RunWell([&](int32_t r, Ops& ops) {
      // Stage 0 sends all before it receives any.
      const int32_t next = (r + 1) % kStages, before = (r + kStages - 1) % kStages;
      const auto at = [&](int message) {
        return received[static_cast<size_t>(message) * kStages + static_cast<size_t>(r)].tensor();
      };
      for (int m = 0; r == 0 && m < 5; ++m) ops.SendRows(first.tensor(), next);
      for (int m = 0; m < 5; ++m) {
        ops.RecvRows(at(m), before);
        if (r > 0) ops.SendRows(at(m), next);
      }
    });
    for (const Matrix& rows_of : received) CHECK(test::SameBits(rows_of, first));
  }
}

TEST_CASE("GPUs that wait for a rank elsewhere end when it is lost, and meet again", "[kernel]") {
  test::CheckThatLostGroupsMeetAgain({.through_host = true, .are_stages = GENERATE(false, true)});
}

}  // namespace
}  // namespace heddle::kernels
