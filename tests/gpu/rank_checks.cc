#include "tests/gpu/rank_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/communicator.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/ranks/apart_communicator.h"
#include "kernels/cuda/ranks/nccl_library.h"
#include "kernels/host_meetings.h"
#include "kernels/kv_element.h"
#include "tests/gpu/sizes.h"

namespace heddle::gpu {
namespace {

using kernels::Tensor;

constexpr int kMostRanks = 2;
// A step's sums, as a model of 32 layers has them.
int Sums() { return Sized(64, 3); }
int Steps() { return Sized(20, 2); }

// A rank's device and its buffers of `rows` rows of `dim` BF16.
struct Rank {
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<kernels::Buffer> parts[2], stream;
};

// How the ranks meet.
struct Way {
  const char* name;
  bool are_apart = false;  // as if they did not reach each other's memory
  kernels::RankNetwork network = kernels::RankNetwork::kHost;
};

using Ranks = std::vector<Rank>;

// Calls body(rank) on a thread for each rank; the first failure.
absl::Status OnEach(size_t ranks, const std::function<absl::Status(size_t)>& body) {
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  for (size_t r = 0; r < ranks; ++r) threads.emplace_back([&, r] { statuses[r] = body(r); });
  for (std::thread& thread : threads) thread.join();
  absl::Status status;
  for (const absl::Status& one : statuses) status.Update(one);
  return status;
}

// Element i of a rank's part: few bits, so that sums are exact.
float PartOf(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 13) % 31 - 15); }

absl::Status Fill(Rank& rank, size_t index, int64_t elements) {
  std::vector<uint16_t> values(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) {
    values[static_cast<size_t>(i)] = kernels::F32ToBF16(PartOf(static_cast<int>(index), i));
  }
  const int64_t bytes = elements * 2;
  for (auto& part : rank.parts) {
    HEDDLE_ASSIGN_OR_RETURN(part, rank.device->Allocate(bytes));
    HEDDLE_RETURN_IF_ERROR(rank.device->Upload(part->data(), values.data(), bytes));
  }
  HEDDLE_ASSIGN_OR_RETURN(rank.stream, rank.device->Allocate(bytes));
  return absl::OkStatus();
}

// Elements of the stream that are not the sum of all parts.
absl::StatusOr<int64_t> CountWrong(Rank& rank, size_t ranks, int64_t elements) {
  std::vector<uint16_t> found(static_cast<size_t>(elements));
  HEDDLE_RETURN_IF_ERROR(rank.device->Download(found.data(), rank.stream->data(), elements * 2));
  int64_t wrong = 0;
  for (int64_t i = 0; i < elements; ++i) {
    const float sum = PartOf(0, i) + (ranks > 1 ? PartOf(1, i) : 0);
    wrong += kernels::BF16ToF32(found[static_cast<size_t>(i)]) != sum ? 1 : 0;
  }
  return wrong;
}

struct Measured {
  double us = 0;  // of one sum
  int64_t wrong = 0;
};

// One rank's side of the sums of `rows` rows of `dim`.
absl::Status SumOnRank(Ranks& ranks, size_t index, int64_t rows, int64_t dim, Measured* measured) {
  Rank& rank = ranks[index];
  HEDDLE_RETURN_IF_ERROR(Fill(rank, index, rows * dim));
  std::vector<double> times;
  times.reserve(static_cast<size_t>(Steps()));
  for (int step = 0; step < Steps(); ++step) {
    HEDDLE_RETURN_IF_ERROR(rank.device->Launch([&](kernels::Ops& ops) {
      for (int i = 0; i < Sums(); ++i) {
        ops.AllReduce({.partial = Tensor{rank.parts[i % 2]->data(), rows, dim, dim},
                       .out = Tensor{rank.stream->data(), rows, dim, dim}});
      }
    }));
    HEDDLE_ASSIGN_OR_RETURN(const kernels::RunTiming timing, rank.device->Finish());
    times.push_back(static_cast<double>(timing.run_ns) / 1e3 / Sums());
  }
  std::sort(times.begin(), times.end());
  measured->us = times[times.size() / 2];
  HEDDLE_ASSIGN_OR_RETURN(measured->wrong, CountWrong(rank, ranks.size(), rows * dim));
  return absl::OkStatus();
}

// Sums rows of `dim` and prints the time of one sum. Returns whether all are right.
absl::StatusOr<bool> CheckShape(Ranks& ranks, const Way& way, int64_t rows, int64_t dim) {
  Measured measured[kMostRanks];
  HEDDLE_RETURN_IF_ERROR(
      OnEach(ranks.size(), [&](size_t r) { return SumOnRank(ranks, r, rows, dim, &measured[r]); }));
  const int64_t wrong = measured[0].wrong + measured[1].wrong;
  std::printf(
      "{\"name\": \"sum of %zu ranks %s, %lld x %lld\", \"us\": %.2f, \"us_other\": %.2f, "
      "\"wrong\": %lld}\n",
      ranks.size(), way.name, static_cast<long long>(rows), static_cast<long long>(dim),
      measured[0].us, measured[1].us, static_cast<long long>(wrong));
  return wrong == 0;
}

constexpr int64_t kRows[] = {1, 8, 64, 1024};
int64_t Dim() { return Sized(int64_t{4096}, 256); }

absl::StatusOr<bool> CheckAll(Ranks& ranks, const Way& way) {
  bool good = true;
  for (const int64_t rows : kRows) {
    HEDDLE_ASSIGN_OR_RETURN(const bool right, CheckShape(ranks, way, rows, Dim()));
    good = good && right;
  }
  return good;
}

absl::Status Open(const Way& way, int32_t ordinal,
                  const std::shared_ptr<kernels::Communicator>& group, Rank* rank) {
  // These steps have no rows of a batch: all go over NCCL.
  auto device = kernels::CreateCudaDevice(
      {.ordinal = ordinal, .rank_network = way.network, .rows_through_host = -1});
  absl::Status status = device.status();
  if (device.ok()) {
    rank->device = *std::move(device);
    const std::vector<int64_t> parts(static_cast<size_t>(group->world()),
                                     kRows[std::size(kRows) - 1] * Dim() * 2);
    auto& meetings = dynamic_cast<kernels::HostMeetings&>(*rank->device);
    meetings.SetRoom({.ranks = {.parts = parts}, .stages = {}, .free_bytes = {}});
    status = rank->device->JoinGroup(group);
  }
  if (!status.ok()) group->Abort(status);
  return status;
}

// Prints the times of sums of ranks on these devices. An error: they could not meet.
absl::StatusOr<bool> CheckWay(const Way& way, const std::vector<int32_t>& ordinals) {
  Ranks ranks(ordinals.size());
  std::vector<std::shared_ptr<kernels::Communicator>> groups;
  const auto letters = std::make_shared<kernels::cuda::ApartCommunicator::Letters>();
  for (auto& made : kernels::MakeLocalCommunicators(static_cast<int32_t>(ordinals.size()))) {
    std::shared_ptr<kernels::Communicator> group = std::move(made);
    if (way.are_apart) {
      group = std::make_shared<kernels::cuda::ApartCommunicator>(std::move(group), letters);
    }
    groups.push_back(std::move(group));
  }
  HEDDLE_RETURN_IF_ERROR(
      OnEach(ranks.size(), [&](size_t r) { return Open(way, ordinals[r], groups[r], &ranks[r]); }));
  return CheckAll(ranks, way);
}

}  // namespace

int CheckRanks(int32_t first, int32_t second) {
  using kernels::RankNetwork;
  const std::vector<int32_t> both = {first, second};
  struct Check {
    Way way;
    std::vector<int32_t> ordinals;
    bool needs_nccl = false;
  };
  std::vector<Check> checks = {
      {{"by each other's memory"}, both},
      {{"through the host", true}, both},
      {{"over NCCL", true, RankNetwork::kNccl}, {first}, true},
  };
  if (first != second) checks.push_back({{"over NCCL", true, RankNetwork::kNccl}, both, true});
  const absl::Status nccl = kernels::cuda::NcclApi::Load().status();
  if (!nccl.ok()) std::fprintf(stderr, "gpu_check: %s\n", std::string(nccl.message()).c_str());
  bool good = true;
  for (const Check& check : checks) {
    if (check.needs_nccl && !nccl.ok()) continue;
    const absl::StatusOr<bool> right = CheckWay(check.way, check.ordinals);
    good = good && right.ok() && *right;
    if (right.ok()) continue;
    std::fprintf(stderr, "gpu_check: ranks %s: %s\n", check.way.name,
                 std::string(right.status().message()).c_str());
    // A machine without a GPU, or with one alone, is no failure.
    if (&check == checks.data()) return 77;
  }
  return good ? 0 : 1;
}

}  // namespace heddle::gpu
