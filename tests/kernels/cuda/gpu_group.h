// Emulated GPUs of one group, each of which a thread has opened and uses: they read each other's
// memory, or meet through the host, as those of several machines do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/communicator.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/ranks/apart_communicator.h"
#include "kernels/host_meetings.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"

namespace heddle::kernels::test {

struct GpusOptions {
  int64_t rank_wait_ms = 60'000;
  bool through_host = false;  // or what `networks` say: GPUs of several processes
  std::vector<RankNetwork> networks = {RankNetwork::kHost};  // of the ranks; one: of all
  int32_t rows_through_host = -1;                            // these steps have no rows of a batch
  bool are_stages = false;
  bool are_late = false;  // emulate::Machine::is_late
  bool have_peer_access = true;
  int32_t first_lane = 1;  // emulate::Machine's
  // Bytes of the longest part, late part and message; more than any test here has.
  int64_t part_bytes = int64_t{8} << 20;
  int64_t host_free_bytes = -1;  // before ranks join; negative: not known
  bool joins = true;             // or the test does
};

class Gpus {
 public:
  explicit Gpus(int32_t world, const GpusOptions& options = {})
      : options_(options), devices_(static_cast<size_t>(world)) {
    cuda::emulate::SetMachine({.device_count = world,
                               .has_peer_access = options_.have_peer_access,
                               .is_late = options_.are_late,
                               .first_lane = options_.first_lane});
    Each([&](int32_t r) {
      auto device = CreateCudaDevice({.ordinal = r,
                                      .activations = DType::kF32,
                                      .workspace_bytes = int64_t{1} << 20,
                                      .rank_wait_ms = options_.rank_wait_ms,
                                      .rank_network = NetworkOf(r),
                                      .rows_through_host = options_.rows_through_host});
      if (!device.ok()) return device.status();
      dynamic_cast<HostMeetings&>(**device).SetRoom(RoomOf(world));
      devices_[static_cast<size_t>(r)] = *std::move(device);
      return absl::OkStatus();
    });
    CheckAll();
    if (options_.joins) Join();
  }
  ~Gpus() {
    devices_.clear();
    cuda::emulate::SetMachine({});
  }
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  // Forms a new group.
  void Join() {
    TryToJoin();
    CheckAll();
  }
  std::vector<absl::Status> TryToJoin() {
    pinned_before_ = cuda::emulate::PinnedBytes();
    communicators_ = MakeCommunicators();
    Each([&](int32_t r) {
      Device& device = *devices_[static_cast<size_t>(r)];
      const auto& communicator = communicators_[static_cast<size_t>(r)];
      return options_.are_stages ? device.JoinStages(communicator) : device.JoinGroup(communicator);
    });
    return statuses_;
  }

  // Each rank becomes a stage as well, of a second group. REQUIRES: they are ranks.
  void JoinStagesToo() {
    const Communicators stages = MakeCommunicators();
    Each([&](int32_t r) {
      const auto rank = static_cast<size_t>(r);
      return devices_[rank]->JoinStages(stages[rank]);
    });
    CheckAll();
  }

  // Runs body(rank, ops) on all of them at the same time; returns how each one's step ended.
  std::vector<absl::Status> Run(const std::function<void(int32_t rank, Ops& ops)>& body) {
    Each([&](int32_t r) {
      return devices_[static_cast<size_t>(r)]->Run([&](Ops& ops) { body(r, ops); });
    });
    return statuses_;
  }
  void RunWell(const std::function<void(int32_t rank, Ops& ops)>& body) {
    Run(body);
    CheckAll();
    const std::vector<std::string> findings = cuda::emulate::TakeFindings();
    INFO((findings.empty() ? "" : findings.front()));
    CHECK(findings.empty());
  }
  Device& device(int32_t rank) { return *devices_[static_cast<size_t>(rank)]; }
  Communicator& communicator(int32_t rank) { return *communicators_[static_cast<size_t>(rank)]; }

 private:
  using Communicators = std::vector<std::shared_ptr<Communicator>>;

  Communicators MakeCommunicators() const {
    Communicators made;
    const auto letters = std::make_shared<cuda::ApartCommunicator::Letters>();
    for (auto& local : MakeLocalCommunicators(static_cast<int32_t>(devices_.size()))) {
      std::shared_ptr<Communicator> group = std::move(local);
      if (options_.through_host) {
        group = std::make_shared<cuda::ApartCommunicator>(std::move(group), letters);
      }
      made.push_back(std::move(group));
    }
    return made;
  }
  RankNetwork NetworkOf(int32_t rank) const {
    const auto& networks = options_.networks;
    return networks[networks.size() == 1 ? 0 : static_cast<size_t>(rank)];
  }
  HostMeetings::Room RoomOf(int32_t world) const {
    const std::vector<int64_t> all(static_cast<size_t>(world), options_.part_bytes);
    HostMeetings::Room room = {.ranks = {.parts = all, .late_part = options_.part_bytes},
                               .stages = {.sent = all, .received = all},
                               .free_bytes = {}};
    const int64_t free_bytes = options_.host_free_bytes;
    if (free_bytes >= 0) {
      room.free_bytes = [this, free_bytes] {
        return free_bytes - (cuda::emulate::PinnedBytes() - pinned_before_);
      };
    }
    return room;
  }
  void Each(const std::function<absl::Status(int32_t)>& body) {
    statuses_.assign(devices_.size(), absl::OkStatus());
    std::vector<std::thread> threads;
    threads.reserve(devices_.size());
    for (size_t r = 0; r < devices_.size(); ++r) {
      threads.emplace_back([&, r] { statuses_[r] = body(static_cast<int32_t>(r)); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void CheckAll() const {
    for (const absl::Status& status : statuses_) {
      INFO(status.ToString());
      REQUIRE(status.ok());
    }
  }

  const GpusOptions options_;
  std::vector<std::unique_ptr<Device>> devices_;
  Communicators communicators_;
  std::vector<absl::Status> statuses_;
  int64_t pinned_before_ = 0;  // joining
};

}  // namespace heddle::kernels::test
