// Times how ranks in one process, or in several, add up their parts, with the norm, op by op: the
// median and the 90th percentile over many sums, as rank 0 sees them.
//
//   ranks_bench [ranks] [threads of each] [processes]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/device.h"
#include "tests/parallel/processes.h"

namespace {

using heddle::kernels::Device;
using heddle::kernels::Ops;
using heddle::kernels::Tensor;

constexpr int64_t kHidden = 2048;
constexpr int kWarmUp = 200;

struct Rank {
  std::unique_ptr<Device> device;
  std::vector<float> parts[2], stream, normed, weight;
};

Rank MakeRank(int32_t threads, std::shared_ptr<heddle::kernels::Communicator> communicator) {
  auto device = heddle::kernels::CreateCpuDevice({.num_threads = threads});
  if (!device.ok() || !(*device)->JoinGroup(std::move(communicator)).ok()) std::exit(1);
  return {.device = *std::move(device)};
}

// Runs `count` sums of `rows` rows; the microseconds of each.
std::vector<double> RunSums(Rank& rank, int64_t rows, int count) {
  const auto size = static_cast<size_t>(rows * kHidden);
  for (auto& part : rank.parts) part.assign(size, 0.5f);
  rank.stream.assign(size, 1.0f);
  rank.normed.assign(size, 0.0f);
  rank.weight.assign(kHidden, 1.0f);
  std::vector<double> took;
  const Tensor x{rank.stream.data(), rows, kHidden, kHidden};
  (void)rank.device->Run([&](Ops& ops) {
    for (int i = 0; i < count + kWarmUp; ++i) {
      // As behind a product, the part was just written by this processor.
      auto& part = rank.parts[i % 2];
      std::fill(part.begin(), part.end(), static_cast<float>(i));
      const auto begin = std::chrono::steady_clock::now();
      const heddle::kernels::NormArgs norm{.x = x,
                                           .weight = rank.weight.data(),
                                           .out = {rank.normed.data(), rows, kHidden, kHidden}};
      ops.AllReduce(
          {.partial = {part.data(), rows, kHidden, kHidden}, .residual = x, .norm = norm});
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - begin;
      if (i >= kWarmUp) took.push_back(time.count());
    }
  });
  return took;
}

void PrintHead(int32_t world, const char* where, const Device& device) {
  std::printf("%d ranks in %s, %s\n%10s %8s %12s %12s\n", world, where,
              device.description().c_str(), "KB", "rows", "p50 us", "p90 us");
}

void PrintLine(int64_t rows, std::vector<double> took) {
  std::sort(took.begin(), took.end());
  std::printf("%10lld %8lld %12.2f %12.2f\n", static_cast<long long>(rows * kHidden * 4 / 1024),
              static_cast<long long>(rows), took[took.size() / 2], took[took.size() * 9 / 10]);
}

constexpr int64_t kRows[] = {1, 2, 8, 32, 128, 512};
int CountOf(int64_t rows) { return rows > 64 ? 300 : 5000; }

int RunThreads(int32_t world, int32_t threads) {
  std::vector<Rank> ranks;
  for (auto& communicator : heddle::kernels::MakeLocalCommunicators(world)) {
    ranks.push_back(MakeRank(threads, std::move(communicator)));
  }
  PrintHead(world, "one process", *ranks[0].device);
  for (const int64_t rows : kRows) {
    std::vector<std::thread> others;
    for (size_t r = 1; r < ranks.size(); ++r) {
      others.emplace_back([&, r] { RunSums(ranks[r], rows, CountOf(rows)); });
    }
    std::vector<double> took = RunSums(ranks[0], rows, CountOf(rows));
    for (std::thread& other : others) other.join();
    PrintLine(rows, std::move(took));
  }
  return 0;
}

int RunProcesses(int32_t world, int32_t threads) {
  namespace test = heddle::server::test;
  const std::vector<bool> ran =
      test::OnProcesses(world, {.timeout = std::chrono::seconds(60)},
                        [&](heddle::server::RankMesh& mesh, int32_t rank) {
                          const auto group = mesh.Join(test::AllRanks(world));
                          Rank own = MakeRank(threads, group);
                          if (rank == 0) PrintHead(world, "processes of their own", *own.device);
                          for (const int64_t rows : kRows) {
                            std::vector<double> took = RunSums(own, rows, CountOf(rows));
                            if (rank == 0) PrintLine(rows, std::move(took));
                          }
                          return group->Barrier();
                        });
  return !ran.empty() && std::find(ran.begin(), ran.end(), false) == ran.end() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int32_t world = argc > 1 ? std::atoi(argv[1]) : 2;
  const int32_t threads = argc > 2 ? std::atoi(argv[2]) : 1;
  return argc > 3 ? RunProcesses(world, threads) : RunThreads(world, threads);
}
