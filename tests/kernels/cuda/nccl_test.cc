// Emulated GPUs that share no memory and meet over NCCL, in whose place is
// tests/emulate/fake_nccl.cc.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/ranks/nccl_library.h"
#include "kernels/cuda/ranks/rank_choice.h"
#include "kernels/late_sums.h"
#include "tests/kernels/cuda/gpu_group.h"
#include "tests/kernels/cuda/rank_results.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels {
namespace {

using cuda::NcclApi;
using test::Gpus;
using test::GpusOptions;
using test::Matrix;
using test::Random;

constexpr auto kNccl = RankNetwork::kNccl;

// The library has a fault, until the end of a test.
class Fault {
 public:
  explicit Fault(const std::string& fault) {
    setenv("HEDDLE_FAKE_NCCL", fault.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): no threads
  }
  ~Fault() { unsetenv("HEDDLE_FAKE_NCCL"); }  // NOLINT(concurrency-mt-unsafe)
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
};

bool Says(const absl::Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

TEST_CASE("Ranks over NCCL have the bits of those that share memory", "[kernel]") {
  const int32_t world = GENERATE(2, 3);
  const GpusOptions options = {.through_host = true, .networks = {kNccl}, .are_late = world == 3};
  CHECK(Gpus(world, options).device(0).description().find("ranks meet over NCCL 2.28.9") !=
        std::string::npos);
  test::CheckSameResults(world, options);
}

// Long sums, of which two rounds move less, in pieces that fit the workspace of 1 MiB.
TEST_CASE("Long sums over NCCL have the bits of those that share memory", "[kernel]") {
  constexpr int32_t kWorld = 3;
  const bool is_dense = GENERATE(true, false);
  constexpr int64_t kDim = 1024;
  const int64_t n_rows = is_dense ? 701 : 100;  // what has gaps takes one round
  Random random(3);
  const std::vector<float> weight = random.Normals(kDim);
  std::vector<Matrix> parts;
  parts.reserve(kWorld);
  for (int32_t r = 0; r < kWorld; ++r) parts.push_back(Matrix::RandomOf(random, n_rows, kDim));
  const Matrix stream = Matrix::RandomOf(random, n_rows, kDim);
  const auto sums = [&](const GpusOptions& options) {
    Gpus gpus(kWorld, options);
    std::vector<Matrix> targets, normed;
    for (int32_t r = 0; r < kWorld; ++r) {
      targets.emplace_back(n_rows, kDim, /*pad=*/is_dense ? 0 : 8);
      for (int64_t t = 0; t < n_rows; ++t) {
        for (int64_t c = 0; c < kDim; ++c) *targets.back().at(t, c) = stream(t, c);
      }
      normed.emplace_back(n_rows, kDim);
    }
    for (const int32_t without : {-1, 1}) {  // a rank that has no part
      gpus.RunWell([&](int32_t r, Ops& ops) {
        const auto rank = static_cast<size_t>(r);
        AllReduceArgs sum{.residual = targets[rank].tensor()};
        if (r != without) sum.partial = parts[rank].tensor();
        sum.norm =
            NormArgs{.x = sum.residual, .weight = weight.data(), .out = normed[rank].tensor()};
        ops.AllReduce(sum);
      });
    }
    targets.insert(targets.end(), normed.begin(), normed.end());
    return targets;
  };
  const std::vector<Matrix> expected = sums({});
  const std::vector<Matrix> found = sums({.through_host = true, .networks = {kNccl}});
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("result " << i);
    CHECK(test::SameBits(found[i], expected[i]));
  }
}

TEST_CASE("Columns of unequal parts come over NCCL, and a rank may have none", "[kernel]") {
  Gpus gpus(3, {.through_host = true, .networks = {kNccl}});
  Random random(7);
  for (const int64_t rows : {int64_t{1}, int64_t{0}, int64_t{300}}) {  // the last one in pieces
    for (const int32_t root : {-1, 2}) {
      test::CheckColumns(gpus, random,
                         {.borders = {0, 3, 3, 1030}, .rows = rows, .root = root, .times = 2});
    }
  }
}

TEST_CASE("Sums of ladder models over NCCL are made where they end", "[kernel]") {
  Gpus gpus(2, {.through_host = true, .networks = {kNccl}});
  Random random(2);
  Matrix first = Matrix::RandomOf(random, 3, 96), second = Matrix::RandomOf(random, 3, 96);
  std::vector<Matrix> late(2, Matrix(3, 96)), at_once(2, Matrix(3, 96));
  gpus.RunWell([&](int32_t r, Ops& ops) {
    const auto rank = static_cast<size_t>(r);
    auto& sums = dynamic_cast<LateSums&>(ops);
    const Tensor part = (r == 0 ? first : second).tensor();
    sums.BeginAllReduce({.partial = part, .out = late[rank].tensor()});
    ops.AllReduce({.partial = part, .out = at_once[rank].tensor()});
    sums.EndAllReduce({.partial = part, .out = late[rank].tensor()});
  });
  for (size_t r = 0; r < 2; ++r) CHECK(test::SameBits(late[r], at_once[0]));
}

// Each sends all before it receives any, so that no sender may wait for its receiver.
TEST_CASE("Rows pass over NCCL from stage to stage, however many are under way", "[kernel]") {
  constexpr int32_t kStages = 3, kMessages = 5;
  const bool are_late = GENERATE(false, true);
  Gpus gpus(kStages,
            {.through_host = true, .networks = {kNccl}, .are_stages = true, .are_late = are_late});
  CHECK(gpus.device(2).description().find("stages meet over NCCL") != std::string::npos);
  Random random(5);
  for (const int64_t rows : {int64_t{1}, int64_t{70}}) {
    std::vector<Matrix> sent, received(kMessages * kStages, Matrix(rows, 520));
    for (int i = 0; i < kMessages * kStages; ++i) {
      sent.push_back(Matrix::RandomOf(random, rows, 520));
    }
    const auto at = [&](int message, int32_t r) {
      return static_cast<size_t>(message) * kStages + static_cast<size_t>(r);
    };
    gpus.RunWell([&](int32_t r, Ops& ops) {
      const int32_t next = (r + 1) % kStages, before = (r + kStages - 1) % kStages;
      for (int m = 0; m < kMessages; ++m) ops.SendRows(sent[at(m, r)].tensor(), next);
      for (int m = 0; m < kMessages; ++m) ops.RecvRows(received[at(m, r)].tensor(), before);
    });
    for (int m = 0; m < kMessages; ++m) {
      for (int32_t r = 0; r < kStages; ++r) {
        CHECK(test::SameBits(received[at(m, (r + 1) % kStages)], sent[at(m, r)]));
      }
    }
  }
}

TEST_CASE("GPUs of one process out of each other's reach meet over NCCL if there is one",
          "[kernel]") {
  const GpusOptions options = {.networks = {RankNetwork::kAuto}, .have_peer_access = false};
  CHECK(Gpus(2, options).device(1).description().find("ranks meet over NCCL") != std::string::npos);
  test::CheckSameResults(2, options);
}

// `text` if a rank's status says it. A sender may have ended well, since it does not wait.
std::string Reason(const std::vector<absl::Status>& statuses, const std::string& text) {
  for (const absl::Status& status : statuses) {
    if (Says(status, text)) return text;
  }
  return statuses.front().ToString();
}

TEST_CASE("Ranks that do different ops over NCCL are told so", "[kernel]") {
  for (const bool other_op : {false, true}) {
    const std::vector<absl::Status> statuses =
        test::RunDifferentOps({.through_host = true, .networks = {kNccl}}, other_op);
    const std::string text = other_op ? "the op is " : "the count is ";
    CHECK(Reason(statuses, text) == text);
  }
}

TEST_CASE("GPUs that wait over NCCL end when the group is lost, and meet again", "[kernel]") {
  test::CheckThatLostGroupsMeetAgain(
      {.through_host = true, .networks = {kNccl}, .are_stages = GENERATE(false, true)});
}

TEST_CASE("A GPU that comes to no op of NCCL is named by its own process", "[kernel]") {
  test::CheckThatHungGpuIsNamed(
      {.rank_wait_ms = 200, .through_host = true, .networks = {kNccl}, .are_late = true});
}

TEST_CASE("A GPU that waits in one group does not hang in another", "[kernel]") {
  Gpus gpus(2, {.rank_wait_ms = 200, .through_host = true, .networks = {kNccl}, .are_late = true});
  gpus.JoinStagesToo();
  std::vector<Matrix> rows(2, Matrix(2, 64)), sums(2, Matrix(2, 64));
  const std::vector<absl::Status> statuses = gpus.Run([&](int32_t r, Ops& ops) {
    const auto rank = static_cast<size_t>(r);
    if (r == 0) {
      ops.RecvRows(rows[rank].tensor(), 1);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      ops.SendRows(rows[rank].tensor(), 0);
    }
    ops.AllReduce({.partial = sums[rank].tensor(), .residual = sums[rank].tensor()});
  });
  for (const absl::Status& status : statuses) {
    INFO(status.ToString());
    CHECK(status.ok());
  }
}

TEST_CASE("An op of NCCL that does not end is ended by whoever gives up the group", "[kernel]") {
  Gpus gpus(2, {.through_host = true, .networks = {kNccl}});
  const Fault fault("hang");
  Matrix x(2, 64), y(2, 64);
  std::thread loser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gpus.communicator(0).Abort(absl::UnavailableError("rank 1 is lost"));
  });
  const std::vector<absl::Status> statuses = gpus.Run([&](int32_t r, Ops& ops) {
    const Tensor rows = (r == 0 ? x : y).tensor();
    ops.AllReduce({.partial = rows, .residual = rows});
  });
  loser.join();
  for (const absl::Status& status : statuses) CHECK(status.message() == "rank 1 is lost");
}

TEST_CASE("Errors of NCCL's functions are said by their names", "[kernel]") {
  const auto join = [](const std::string& fault, bool are_stages) {
    const Fault set(fault);
    Gpus gpus(2, {.rank_wait_ms = 100,
                  .through_host = true,
                  .networks = {kNccl},
                  .are_stages = are_stages,
                  .joins = false});
    return gpus.TryToJoin();
  };
  const auto run = [](const std::string& fault, bool are_stages) {
    Gpus gpus(2, {.through_host = true, .networks = {kNccl}, .are_stages = are_stages});
    const Fault set(fault);
    std::vector<Matrix> rows(2, Matrix(2, 64)), wholes(2, Matrix(2, 128));
    return gpus.Run([&](int32_t r, Ops& ops) {
      const auto rank = static_cast<size_t>(r);
      const Tensor x = rows[rank].tensor();
      if (!are_stages) {
        ops.AllReduce({.partial = x, .residual = x});
        ops.GatherColumns({.part = x,
                           .borders = std::vector<int32_t>{0, 64, 128},
                           .whole = wholes[rank].tensor()});
      } else if (r == 0) {
        ops.SendRows(x, 1);
      } else {
        ops.RecvRows(x, 0);
      }
    });
  };
  for (const bool are_stages : {false, true}) {
    for (const auto& [fault, text] :
         {std::pair("ncclGetUniqueId=2", "ncclGetUniqueId: unhandled system"),
          {"ncclCommInitRankConfig=5", "ncclCommInitRankConfig: invalid usage"},
          {"nojoin", "ncclCommInitRankConfig has not ended within 100 ms"},
          {"ncclSend=3", "ncclSend and ncclRecv: internal error"},
          {"hang", "and brings nothing within 100 ms"},
          {"async=3", "ncclCommInitRankConfig: internal error"}}) {
      INFO(fault);
      CHECK(Reason(join(fault, are_stages), text) == text);
    }
  }
  const std::string both = "ncclSend and ncclRecv: ";
  for (const auto& [fault, are_stages, text] :
       {std::tuple("ncclAllGather=1", false,
                   std::string("ncclAllGather: unhandled cuda error (1)")),
        {"ncclGroupStart=3", false, both + "internal error"},
        {"ncclGroupEnd=3", false, both + "internal error"},
        {"ncclSend=4", true, both + "invalid argument"},
        {"ncclRecv=4", true, both + "invalid argument"},
        {"async=3,hang", false, std::string("internal error")}}) {
    INFO(fault);
    CHECK(Reason(run(fault, are_stages), text) == text);
  }
}

// Rank 1's library is not rank 0's.
TEST_CASE("Ranks agree on what carries, whatever libraries they have", "[kernel]") {
  using cuda::RankChoice;
  constexpr auto kAuto = RankNetwork::kAuto, kHost = RankNetwork::kHost;
  const auto agree = [](RankNetwork first, RankNetwork second,
                        const absl::StatusOr<NcclApi>& library, int32_t ordinal) {
    const auto group = MakeLocalCommunicators(2);
    std::vector<absl::StatusOr<RankChoice>> choices(2, absl::UnknownError("not made"));
    const auto join = [&](size_t rank, RankNetwork network, const absl::StatusOr<NcclApi>& nccl,
                          int32_t own) {
      cuda::DeviceInfo device;
      device.ordinal = own;
      choices[rank] = cuda::AgreeOnRanks(*group[rank], device, {.network = network, .nccl = nccl});
    };
    NcclApi newer;
    newer.version = 22809;
    std::thread other([&] { join(1, second, library, ordinal); });
    join(0, first, newer, 0);
    other.join();
    CHECK(choices[0].status() == choices[1].status());
    if (choices[0].ok() && choices[1].ok()) {
      CHECK(choices[0]->uses_nccl == choices[1]->uses_nccl);
      CHECK(choices[0]->why_not == choices[1]->why_not);
    }
    return choices[0];
  };
  NcclApi same, patch, minor;
  same.version = 22809;
  patch.version = 22807;
  minor.version = 22709;
  const absl::StatusOr<NcclApi> none = absl::NotFoundError("libnccl.so.2 cannot be loaded");
  CHECK(agree(kNccl, kAuto, same, 1)->must_use_nccl);
  CHECK(agree(kAuto, kAuto, same, 1)->uses_nccl);
  CHECK(agree(kAuto, kAuto, patch, 1)->uses_nccl);
  CHECK(agree(kAuto, kAuto, minor, 1)->why_not == "rank 1 has NCCL 2.27.9, rank 0 has 2.28.9");
  CHECK(agree(kAuto, kAuto, none, 1)->why_not ==
        "rank 1 of the group: libnccl.so.2 cannot be loaded");
  CHECK(agree(kAuto, kHost, same, 1)->why_not == "rank 1 of the group: --rank-network is host");
  CHECK(agree(kAuto, kAuto, same, 0)->why_not == "ranks 0 and 1 share a GPU, which NCCL refuses");
  CHECK(absl::IsFailedPrecondition(agree(kNccl, kAuto, none, 1).status()));
  CHECK(Says(agree(kNccl, kNccl, minor, 1).status(), "rank 1 has NCCL 2.27.9"));
  CHECK(absl::IsInvalidArgument(agree(kNccl, kHost, same, 1).status()));
}

TEST_CASE("A library that is missing or too old is named", "[kernel]") {
  const absl::Status missing = NcclApi::Load("libno-nccl.so.2").status();
  CHECK(absl::IsNotFound(missing));
  CHECK(Says(missing, "libno-nccl.so.2 cannot be loaded"));
  // The program's own C library has none of the functions.
  CHECK(Says(NcclApi::Load("libm.so.6").status(), "does not say its version"));
  for (const auto& [fault, text] : {std::pair("version=22105", "is 2.21.5; NCCL has to be 2.22.0"),
                                    {"version=2804", "is older than 2.9"},
                                    {"ncclGetVersion=3", "does not say its version"}}) {
    const Fault set(fault);
    const absl::Status status = NcclApi::Load().status();
    INFO(status.ToString());
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(Says(status, text));
  }
}

TEST_CASE("All ranks agree on what carries, and say why", "[kernel]") {
  const auto join = [](std::vector<RankNetwork> networks) {
    Gpus gpus(2, {.through_host = true, .networks = std::move(networks), .joins = false});
    std::vector<absl::Status> statuses = gpus.TryToJoin();
    std::string said = gpus.device(0).description();
    for (const std::string& advice : gpus.device(0).Advice()) said += "; " + advice;
    return std::pair(std::move(statuses), std::move(said));
  };
  using enum RankNetwork;
  CHECK(join({kAuto}).second.find("ranks meet over NCCL 2.28.9") != std::string::npos);
  CHECK(join({kAuto, kNccl}).second.find("ranks meet over NCCL 2.28.9") != std::string::npos);
  const std::string host = join({kAuto, kHost}).second;
  INFO(host);
  CHECK(host.find("ranks meet over the host") != std::string::npos);
  CHECK(host.find("Without NCCL: rank 1 of the group: --rank-network is host") !=
        std::string::npos);
  CHECK(join({kHost}).second.find("NCCL") == std::string::npos);
  for (const absl::Status& status : join({kNccl, kHost}).first) {
    CHECK(absl::IsInvalidArgument(status));
    CHECK(Says(status, "--rank-network is nccl on rank 0 and host on rank 1"));
  }
  {
    const Fault broken("ncclCommInitRankConfig=2");
    const std::string host_even_so = join({kAuto}).second;
    INFO(host_even_so);
    CHECK(host_even_so.find("ranks meet over the host") != std::string::npos);
    CHECK(host_even_so.find("ncclCommInitRankConfig: unhandled system error") != std::string::npos);
  }
  const Fault old("version=22105");
  const std::string older = join({kAuto}).second;
  CHECK(older.find("ranks meet over the host") != std::string::npos);
  CHECK(older.find("Without NCCL: rank 0 of the group: ") != std::string::npos);
  for (const absl::Status& status : join({kNccl}).first) {
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(Says(status, "--rank-network is nccl: rank 0 of the group: "));
    CHECK(Says(status, "is 2.21.5; NCCL has to be 2.22.0 or later; install NCCL"));
  }
}

}  // namespace
}  // namespace heddle::kernels
