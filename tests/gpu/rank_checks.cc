#include "tests/gpu/rank_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "kernels/communicator.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/kv_element.h"

namespace heddle::gpu {
namespace {

using kernels::Tensor;

constexpr int kRanks = 2;
constexpr int kSums = 64;  // of a step, as a model of 32 layers has them
constexpr int kSteps = 20;

// A rank's device and its buffers of `rows` rows of `dim` BF16.
struct Rank {
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<kernels::Buffer> parts[2], stream;
};

// Calls body(rank) on a thread for each rank; the first failure.
absl::Status OnBoth(const std::function<absl::Status(int)>& body) {
  absl::Status statuses[kRanks];
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) threads.emplace_back([&, r] { statuses[r] = body(r); });
  for (std::thread& thread : threads) thread.join();
  return statuses[0].ok() ? statuses[1] : statuses[0];
}

// Element i of a rank's part: few bits, so that sums are exact.
float PartOf(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 13) % 31 - 15); }

absl::Status Fill(Rank& rank, int index, int64_t elements) {
  std::vector<uint16_t> values(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) {
    values[static_cast<size_t>(i)] = kernels::F32ToBF16(PartOf(index, i));
  }
  const int64_t bytes = elements * 2;
  for (auto& part : rank.parts) {
    HEDDLE_ASSIGN_OR_RETURN(part, rank.device->Allocate(bytes));
    HEDDLE_RETURN_IF_ERROR(rank.device->Upload(part->data(), values.data(), bytes));
  }
  HEDDLE_ASSIGN_OR_RETURN(rank.stream, rank.device->Allocate(bytes));
  return absl::OkStatus();
}

// Elements of the stream that are not the sum of both parts.
absl::StatusOr<int64_t> CountWrong(Rank& rank, int64_t elements) {
  std::vector<uint16_t> found(static_cast<size_t>(elements));
  HEDDLE_RETURN_IF_ERROR(rank.device->Download(found.data(), rank.stream->data(), elements * 2));
  int64_t wrong = 0;
  for (int64_t i = 0; i < elements; ++i) {
    const float sum = PartOf(0, i) + PartOf(1, i);
    wrong += kernels::BF16ToF32(found[static_cast<size_t>(i)]) != sum ? 1 : 0;
  }
  return wrong;
}

struct Measured {
  double us = 0;  // of one sum
  int64_t wrong = 0;
};

// One rank's side of the sums of `rows` rows of `dim`.
absl::Status SumOnRank(Rank& rank, int index, int64_t rows, int64_t dim, Measured* measured) {
  HEDDLE_RETURN_IF_ERROR(Fill(rank, index, rows * dim));
  std::vector<double> times;
  times.reserve(kSteps);
  for (int step = 0; step < kSteps; ++step) {
    HEDDLE_RETURN_IF_ERROR(rank.device->Launch([&](kernels::Ops& ops) {
      for (int i = 0; i < kSums; ++i) {
        ops.AllReduce({.partial = Tensor{rank.parts[i % 2]->data(), rows, dim, dim},
                       .out = Tensor{rank.stream->data(), rows, dim, dim}});
      }
    }));
    HEDDLE_ASSIGN_OR_RETURN(const kernels::RunTiming timing, rank.device->Finish());
    times.push_back(static_cast<double>(timing.run_ns) / 1e3 / kSums);
  }
  std::sort(times.begin(), times.end());
  measured->us = times[times.size() / 2];
  HEDDLE_ASSIGN_OR_RETURN(measured->wrong, CountWrong(rank, rows * dim));
  return absl::OkStatus();
}

// Sums rows of `dim` and prints the time of one sum. Returns whether all are right.
absl::StatusOr<bool> CheckShape(Rank (&ranks)[kRanks], int64_t rows, int64_t dim) {
  Measured measured[kRanks];
  HEDDLE_RETURN_IF_ERROR(
      OnBoth([&](int r) { return SumOnRank(ranks[r], r, rows, dim, &measured[r]); }));
  const int64_t wrong = measured[0].wrong + measured[1].wrong;
  std::printf(
      "{\"name\": \"sum of 2 ranks, %lld x %lld\", \"us\": %.2f, \"us_other\": %.2f, \"wrong\": "
      "%lld}\n",
      static_cast<long long>(rows), static_cast<long long>(dim), measured[0].us, measured[1].us,
      static_cast<long long>(wrong));
  return wrong == 0;
}

absl::StatusOr<bool> CheckAll(Rank (&ranks)[kRanks]) {
  bool good = true;
  for (const int64_t rows : {1, 8, 64, 1024}) {
    HEDDLE_ASSIGN_OR_RETURN(const bool right, CheckShape(ranks, rows, 4096));
    good = good && right;
  }
  return good;
}

}  // namespace

int CheckRanks(int32_t first, int32_t second) {
  auto made = kernels::MakeLocalCommunicators(kRanks);
  Rank ranks[kRanks];
  const int32_t ordinals[kRanks] = {first, second};
  const absl::Status opened = OnBoth([&](int r) -> absl::Status {
    const std::shared_ptr<kernels::Communicator> own = std::move(made[static_cast<size_t>(r)]);
    auto device = kernels::CreateCudaDevice({.ordinal = ordinals[r]});
    absl::Status status = device.status();
    if (device.ok()) {
      ranks[r].device = *std::move(device);
      status = ranks[r].device->JoinGroup(own);
    }
    if (!status.ok()) own->Abort(status);
    return status;
  });
  if (!opened.ok()) {
    std::fprintf(stderr, "gpu_check: %s\n", std::string(opened.message()).c_str());
    return 77;
  }
  const absl::StatusOr<bool> good = CheckAll(ranks);
  if (good.ok()) return *good ? 0 : 1;
  std::fprintf(stderr, "gpu_check: %s\n", std::string(good.status().message()).c_str());
  return 1;
}

}  // namespace heddle::gpu
