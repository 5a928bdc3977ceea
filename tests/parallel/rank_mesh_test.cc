// Ranks that are processes: the same bits as ranks that are threads, and nobody waits for ever.
#include "server/ranks/rank_mesh.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/communicator.h"
#include "kernels/device.h"
#include "kernels/late_sums.h"
#include "kernels/ops.h"
#include "tests/parallel/processes.h"

namespace heddle::server {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kHidden = 96;
constexpr int64_t kRowsOfSums[] = {1, 3, 700, 1024};

// What a rank has behind some sums of its parts, of few rows and of many.
std::vector<float> Sums(const std::shared_ptr<kernels::Communicator>& group) {
  const int32_t rank = group->rank();
  auto device = kernels::CreateCpuDevice({.num_threads = 1});
  if (!device.ok() || !(*device)->JoinGroup(group).ok()) return {};
  std::vector<float> all;
  for (const int64_t rows : kRowsOfSums) {
    std::vector<float> part(static_cast<size_t>(rows * kHidden));
    std::vector<float> stream(part.size(), 0.25f);
    for (size_t i = 0; i < part.size(); ++i) {
      part[i] = std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(rank) * 1.3f);
    }
    const absl::Status ran = (*device)->Run([&](kernels::Ops& ops) {
      ops.AllReduce({.partial = {part.data(), rows, kHidden, kHidden},
                     .residual = {stream.data(), rows, kHidden, kHidden}});
    });
    // Others may still read this rank's part.
    if (!ran.ok() || !group->Barrier()) return {};
    all.insert(all.end(), stream.begin(), stream.end());
  }
  return all;
}

// The same in ranks that are threads of this process.
std::vector<float> SumsOfThreads(int32_t world) {
  std::vector<std::vector<float>> all(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (auto& one : kernels::MakeLocalCommunicators(world)) {
    threads.emplace_back([&all, own = std::shared_ptr<kernels::Communicator>(std::move(one))] {
      all[static_cast<size_t>(own->rank())] = Sums(own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all[0];
}

// What a rank has behind sums that begin before the last one ends, of few rows and of many.
std::vector<float> LateSums(const std::shared_ptr<kernels::Communicator>& group, bool is_late) {
  const int32_t rank = group->rank();
  auto device = kernels::CreateCpuDevice({.num_threads = 1});
  if (!device.ok() || !(*device)->JoinGroup(group).ok()) return {};
  std::vector<float> all;
  for (const int64_t rows : {int64_t{1}, int64_t{64}, int64_t{700}}) {
    constexpr size_t kSums = 6;
    std::vector<std::vector<float>> parts(kSums);
    for (size_t n = 0; n < kSums; ++n) {
      for (int64_t i = 0; i < rows * kHidden; ++i) {
        const auto at = static_cast<float>(i) + 1000.0f * static_cast<float>(n);
        parts[n].push_back(std::sin(at * 0.37f + static_cast<float>(rank) * 1.3f));
      }
    }
    std::vector<float> stream(parts[0].size(), 0.25f);
    const auto sum_of = [&](size_t n) {
      return kernels::AllReduceArgs{.partial = {parts[n].data(), rows, kHidden, kHidden},
                                    .residual = {stream.data(), rows, kHidden, kHidden}};
    };
    const absl::Status ran = (*device)->Run([&](kernels::Ops& ops) {
      auto* late = is_late ? dynamic_cast<kernels::LateSums*>(&ops) : nullptr;
      for (size_t n = 0; n < kSums; ++n) {
        if (late) late->BeginAllReduce(sum_of(n));
        if (late && n > 0) late->EndAllReduce(sum_of(n - 1));
        if (!late) ops.AllReduce(sum_of(n));
      }
      if (late) late->EndAllReduce(sum_of(kSums - 1));
    });
    if (!ran.ok() || !group->Barrier()) return {};
    all.insert(all.end(), stream.begin(), stream.end());
  }
  return all;
}

bool All(const std::vector<bool>& results) {
  return !results.empty() && std::find(results.begin(), results.end(), false) == results.end();
}

TEST_CASE("Sums over processes have the bits of sums over threads", "[unit]") {
  const int32_t world = GENERATE(2, 3, 4);
  CHECK(
      All(test::OnProcesses(world, {.timeout = milliseconds(20000)}, [&](RankMesh& mesh, int32_t) {
        const auto group = mesh.Join(test::AllRanks(world));
        const std::vector<float> far = Sums(group);
        if (!mesh.status().ok() || !group->Barrier()) return false;
        const std::vector<float> near = SumsOfThreads(world);
        return !far.empty() && far.size() == near.size() &&
               std::memcmp(far.data(), near.data(), far.size() * sizeof(float)) == 0;
      })));
}

TEST_CASE("Sums over processes may begin before the last one ends", "[unit]") {
  const int32_t world = GENERATE(2, 3);
  const auto wire = GENERATE(kernels::DType::kF32, kernels::DType::kBF16);
  CHECK(
      All(test::OnProcesses(world, {.timeout = milliseconds(20000)}, [&](RankMesh& mesh, int32_t) {
        const auto group = mesh.Join(test::AllRanks(world), wire);
        const std::vector<float> expected = LateSums(group, /*is_late=*/false);
        return !expected.empty() && LateSums(group, /*is_late=*/true) == expected;
      })));
}

TEST_CASE("Parts differ in size, and a rank may have none", "[unit]") {
  CHECK(
      All(test::OnProcesses(3, {.timeout = milliseconds(20000)}, [](RankMesh& mesh, int32_t rank) {
        const auto group = mesh.Join(test::AllRanks(3));
        for (int32_t round = 0; round < 200; ++round) {
          const std::vector<int32_t> part(static_cast<size_t>(rank) * 1000 + 1, 7 * rank + round);
          const void* parts[kernels::kMaxRanks];
          const bool has_part = rank != 1;
          const auto bytes = static_cast<int64_t>(part.size() * sizeof(int32_t));
          constexpr int64_t kMost = 2001 * sizeof(int32_t);
          if (!group->Exchange(has_part ? part.data() : nullptr, bytes, kMost, parts)) return false;
          if (parts[1] != nullptr) return false;
          if (static_cast<const int32_t*>(parts[2])[2000] != 14 + round) return false;
          if (static_cast<const int32_t*>(parts[0])[0] != round) return false;
        }
        return group->Barrier();
      })));
}

TEST_CASE("One rank gathers the parts of all, and the others go on", "[unit]") {
  CHECK(
      All(test::OnProcesses(3, {.timeout = milliseconds(20000)}, [](RankMesh& mesh, int32_t rank) {
        const auto group = mesh.Join(test::AllRanks(3));
        for (int32_t round = 0; round < 200; ++round) {
          const std::vector<int32_t> part(static_cast<size_t>(rank) * 1000 + 1, 7 * rank + round);
          const void* parts[kernels::kMaxRanks] = {};
          const auto bytes = static_cast<int64_t>(part.size() * sizeof(int32_t));
          constexpr int64_t kMost = 2001 * sizeof(int32_t);
          const bool has_part = rank != 2 || round % 2 == 0;
          if (!group->Gather(has_part ? part.data() : nullptr, bytes, kMost, 1, parts))
            return false;
          if (rank != 1) continue;
          if (parts[1] != part.data() || *static_cast<const int32_t*>(parts[0]) != round)
            return false;
          if ((parts[2] == nullptr) != (round % 2 == 1)) return false;
          if (parts[2] != nullptr && static_cast<const int32_t*>(parts[2])[2000] != 14 + round) {
            return false;
          }
        }
        return group->Barrier();
      })));
}

TEST_CASE("Parts that come before they are asked for have the length that they have", "[unit]") {
  CHECK(
      All(test::OnProcesses(3, {.timeout = milliseconds(20000)}, [](RankMesh& mesh, int32_t rank) {
        const auto group = mesh.Join(test::AllRanks(3));
        const std::vector<int32_t> part(1000, 5);
        constexpr int64_t kBytes = 1000 * sizeof(int32_t);
        for (int32_t round = 0; round < 50; ++round) {
          // Rank 2 gives its first part when both of rank 1 are on their way to rank 0.
          char sent = 1;
          if (rank == 2 && !group->Recv(&sent, 1, 1)) return false;
          const bool has_second = round % 2 == 1;
          for (const bool has_part : {!has_second, has_second}) {
            const void* parts[kernels::kMaxRanks] = {};
            const void* own = has_part ? part.data() : nullptr;
            if (!group->Gather(own, kBytes, kBytes, 0, parts)) return false;
            if (rank != 0) continue;
            for (int32_t r = 0; r < 3; ++r) {
              if ((parts[r] != nullptr) != has_part) return false;
              if (has_part && std::memcmp(parts[r], part.data(), kBytes) != 0) return false;
            }
          }
          if (rank == 1 && !group->Post(&sent, 1, 2)) return false;
        }
        return group->Barrier();
      })));
}

TEST_CASE("Rows go round a ring of stages, however long they are", "[unit]") {
  // More than the sockets hold, in both directions at a time.
  constexpr size_t kRows = size_t{6} << 20;
  CHECK(
      All(test::OnProcesses(2, {.timeout = milliseconds(20000)}, [](RankMesh& mesh, int32_t rank) {
        const auto stages = mesh.Join({0, 1});
        std::vector<char> sent(kRows, static_cast<char>(rank + 1)), received(kRows);
        for (int round = 0; round < 3; ++round) {
          if (!stages->Post(sent.data(), kRows, 1 - rank)) return false;
          if (!stages->Recv(received.data(), kRows, 1 - rank)) return false;
          if (received != std::vector<char>(kRows, static_cast<char>(2 - rank))) return false;
        }
        return stages->Barrier();
      })));
}

// Sums of parts that were rounded to BF16, and of many rows and ranks rounded again.
TEST_CASE("Sums and rows that are rounded for the wire are the same on all ranks", "[unit]") {
  const int32_t world = GENERATE(2, 3, 4);
  const auto rounded = [](float value) { return kernels::BF16ToF32(kernels::F32ToBF16(value)); };
  CHECK(
      All(test::OnProcesses(world, {.timeout = milliseconds(20000)}, [&](RankMesh& mesh, int32_t) {
        const auto group = mesh.Join(test::AllRanks(world), kernels::DType::kBF16);
        const std::vector<float> sums = Sums(group);
        size_t at = 0;
        for (const int64_t rows : kRowsOfSums) {
          const bool in_two = world > 2 && rows * kHidden * 2 > 64 * 1024;
          for (int64_t i = 0; i < rows * kHidden; ++i, ++at) {
            float parts[4] = {};
            for (int32_t r = 0; r < world; ++r) {
              parts[r] =
                  rounded(std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(r) * 1.3f));
            }
            const float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
            const float expected = 0.25f + (in_two ? rounded(sum) : sum);
            if (at >= sums.size() || sums[at] != expected) return false;
          }
        }
        return at == sums.size();
      })));
  CHECK(
      All(test::OnProcesses(2, {.timeout = milliseconds(20000)}, [&](RankMesh& mesh, int32_t rank) {
        auto device = kernels::CreateCpuDevice({.num_threads = 1});
        const auto stages = mesh.Join({0, 1}, kernels::DType::kBF16);
        if (!device.ok() || !(*device)->JoinStages(stages).ok()) return false;
        constexpr int64_t kRows = 300;
        std::vector<float> rows(kRows * kHidden), received(rows.size());
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = std::sin(static_cast<float>(i));
        rows[0] = std::numeric_limits<float>::infinity();
        rows[1] = std::numeric_limits<float>::quiet_NaN();
        rows[2] = std::numeric_limits<float>::max();
        const absl::Status ran = (*device)->Run([&](kernels::Ops& ops) {
          if (rank == 0) ops.SendRows({rows.data(), kRows, kHidden, kHidden}, 1);
          if (rank == 1) ops.RecvRows({received.data(), kRows, kHidden, kHidden}, 0);
        });
        if (!ran.ok() || !stages->Barrier()) return false;
        if (rank == 0) return true;
        for (size_t i = 0; i < rows.size(); ++i) {
          const float expected = rounded(rows[i]);
          if (std::memcmp(&received[i], &expected, sizeof(float)) != 0) return false;
        }
        return true;
      })));
}

TEST_CASE("A rank that does not come is named after the timeout", "[unit]") {
  CHECK(All(test::OnProcesses(2, {.timeout = milliseconds(300)}, [](RankMesh& mesh, int32_t rank) {
    const auto group = mesh.Join({0, 1});
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(1500));
      return true;
    }
    if (group->Barrier()) return false;
    const std::string why(mesh.status().message());
    return why.find("rank 1") != std::string::npos && why.find("op 1") != std::string::npos &&
           why.find("300 ms") != std::string::npos && !group->Barrier();
  })));
}

TEST_CASE("A message that is longer than its step's breaks the mesh, and names its sender",
          "[unit]") {
  CHECK(All(test::OnProcesses(2, {.timeout = milliseconds(5000)}, [](RankMesh& mesh, int32_t rank) {
    const auto group = mesh.Join({0, 1});
    const std::vector<char> part(rank == 1 ? 2000 : 10);
    const auto bytes = static_cast<int64_t>(part.size());
    const void* parts[kernels::kMaxRanks];
    const bool met = group->Exchange(part.data(), bytes, bytes, parts);
    if (rank == 1) return true;
    return !met && mesh.status().message().find("rank 1") != std::string_view::npos;
  })));
}

TEST_CASE("Rows that are fewer or more than a step's are refused, and their sender named",
          "[unit]") {
  for (const int64_t sent : {100, 4000}) {
    CHECK(All(
        test::OnProcesses(2, {.timeout = milliseconds(5000)}, [&](RankMesh& mesh, int32_t rank) {
          const auto stages = mesh.Join({0, 1});
          std::vector<char> rows(4000);
          if (rank == 1) return stages->Post(rows.data(), sent, 0);
          const bool came = stages->Recv(rows.data(), 2000, 1);
          return !came && mesh.status().message().find("rank 1") != std::string_view::npos;
        })));
  }
}

TEST_CASE("Abort from another thread wakes a rank that waits", "[unit]") {
  CHECK(All(test::OnProcesses(2, {}, [](RankMesh& mesh, int32_t rank) {
    const auto group = mesh.Join({0, 1});
    const bool both_are_there = group->Barrier();
    if (rank == 1) return !group->Recv(nullptr, 0, 0);  // ends when the other one has ended
    if (!both_are_there) return false;
    std::thread breaker([&] { mesh.Abort(absl::UnavailableError("enough")); });
    const bool met = group->Recv(nullptr, 0, 1);
    breaker.join();
    return !met && mesh.status().message() == "enough";
  })));
}

TEST_CASE("A rank that dies breaks the links to it", "[unit]") {
  const std::vector<bool> results =
      test::OnProcesses(2, {.timeout = milliseconds(20000)}, [&](RankMesh& mesh, int32_t rank) {
        const auto group = mesh.Join({0, 1});
        if (!group->Barrier()) return false;
        // It dies when the other one is past the barrier: its last message may die with it.
        char met_once = 0;
        if (rank == 1) return group->Recv(&met_once, 1, 0) && kill(getpid(), SIGKILL) == 0;
        if (!group->Send(&met_once, 1, 1)) return false;
        const auto begin = std::chrono::steady_clock::now();
        const bool met = group->Barrier() && group->Barrier();
        return !met && mesh.status().message().find("rank 1") != std::string_view::npos &&
               std::chrono::steady_clock::now() - begin < milliseconds(1000);
      });
  REQUIRE(results.size() == 2);
  CHECK(results[0]);
  CHECK_FALSE(results[1]);
}

}  // namespace
}  // namespace heddle::server
