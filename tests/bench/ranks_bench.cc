// Times how ranks in one process, or in several, add up their parts, with the norm, op by op: the
// median and the 90th percentile over many sums, as rank 0 sees them.
//
//   ranks_bench [ranks] [threads of each] [processes [network namespace of each]]
//
// Two processes also time what TinyLlama's ranks send each other for a token (link_bench.py).
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
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
  const absl::Status joined =
      device.ok() ? (*device)->JoinGroup(std::move(communicator)) : device.status();
  if (!joined.ok()) {
    std::fprintf(stderr, "%s\n", std::string(joined.message()).c_str());
    std::exit(1);
  }
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

void PrintToken(const char* layout, int hops, std::vector<double> took) {
  std::sort(took.begin(), took.end());
  std::printf("token %s: %d hops of %lld bytes, p50 %.1f us, p90 %.1f us\n", layout, hops,
              static_cast<long long>(kHidden * 4), took[took.size() / 2],
              took[took.size() * 9 / 10]);
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

constexpr int kTokens = 500;
constexpr int kSumsOfToken = 45;  // of the embedding, and two in each of 22 layers

// The time of a token where two ranks share each layer, or have one half of the layers each: the
// row goes to the second stage and comes back.
void TimeTokens(Rank& rank, heddle::kernels::Communicator& group) {
  std::vector<double> sums = RunSums(rank, 1, kSumsOfToken * kTokens);
  std::vector<double> took;
  for (auto sum = sums.begin(); sum < sums.end(); sum += kSumsOfToken) {
    took.push_back(std::accumulate(sum, sum + kSumsOfToken, 0.0));
  }
  if (group.rank() == 0) PrintToken("tp", kSumsOfToken, std::move(took));
  took.clear();
  std::vector<float> row(kHidden, 1.0f);
  constexpr int64_t kBytes = kHidden * sizeof(float);
  const int32_t other = 1 - group.rank();
  for (int i = 0; i < kTokens + kWarmUp; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (group.rank() == 1 && !group.Recv(row.data(), kBytes, other)) std::exit(1);
    if (!group.Post(row.data(), kBytes, other)) std::exit(1);
    if (group.rank() == 0 && !group.Recv(row.data(), kBytes, other)) std::exit(1);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmUp) took.push_back(time.count());
  }
  if (group.rank() == 0) PrintToken("pp", 2, std::move(took));
}

// UCX lists devices by /sys, which shows those of the namespace it was mounted in.
void EnterNamespace(const std::string& name) {
  const int file = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 || setns(file, CLONE_NEWNET) != 0 || unshare(CLONE_NEWNS) != 0 ||
      mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) != 0 ||
      mount(name.c_str(), "/sys", "sysfs", 0, nullptr) != 0) {
    std::perror(name.c_str());
    std::_Exit(1);
  }
}

// `namespaces`: [world], or empty.
int RunProcesses(int32_t world, int32_t threads, const std::vector<std::string>& namespaces) {
  namespace test = heddle::server::test;
  const auto enter = [&](int32_t rank) {
    if (!namespaces.empty()) EnterNamespace(namespaces.at(static_cast<size_t>(rank)));
  };
  const std::vector<bool> ran = test::OnProcesses(
      world, {.loopback_only = namespaces.empty(), .timeout = std::chrono::seconds(60)},
      [&](heddle::server::RankMesh& mesh, int32_t rank) {
        const auto group = mesh.Join(test::AllRanks(world));
        Rank own = MakeRank(threads, group);
        if (rank == 0) PrintHead(world, "processes of their own", *own.device);
        for (const int64_t rows : kRows) {
          std::vector<double> took = RunSums(own, rows, CountOf(rows));
          if (rank == 0) PrintLine(rows, std::move(took));
        }
        if (world == 2) TimeTokens(own, *group);
        return group->Barrier();
      },
      enter);
  return !ran.empty() && std::find(ran.begin(), ran.end(), false) == ran.end() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int32_t world = argc > 1 ? std::atoi(argv[1]) : 2;
  const int32_t threads = argc > 2 ? std::atoi(argv[2]) : 1;
  if (argc <= 3) return RunThreads(world, threads);
  return RunProcesses(world, threads, std::vector<std::string>(argv + 4, argv + argc));
}
