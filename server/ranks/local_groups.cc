#include "server/ranks/local_groups.h"

#include <algorithm>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "base/check.h"

namespace heddle::server {
namespace {

// Counts the calls of a communicator.
class CountedCommunicator final : public kernels::Communicator {
 public:
  CountedCommunicator(std::unique_ptr<kernels::Communicator> group, LocalProgress* progress)
      : group_(std::move(group)), progress_(*progress) {}

  int32_t rank() const override { return group_->rank(); }
  int32_t world() const override { return group_->world(); }
  bool Exchange(const void* part, int64_t bytes, int64_t most_bytes,
                std::span<const void*> parts) override {
    return Counted([&] { return group_->Exchange(part, bytes, most_bytes, parts); });
  }
  bool BeginExchange(const void* part, int64_t bytes, int64_t most_bytes) override {
    return group_->BeginExchange(part, bytes, most_bytes);
  }
  bool EndExchange(std::span<const void*> parts) override {
    return Counted([&] { return group_->EndExchange(parts); });
  }
  bool Barrier() override {
    return Counted([&] { return group_->Barrier(); });
  }
  bool Send(const void* data, int64_t bytes, int32_t to) override {
    return Counted([&] { return group_->Send(data, bytes, to); });
  }
  bool Recv(void* data, int64_t bytes, int32_t from) override {
    return Counted([&] { return group_->Recv(data, bytes, from); });
  }
  bool Post(const void* data, int64_t bytes, int32_t to) override {
    return Counted([&] { return group_->Post(data, bytes, to); });
  }
  void Abort(const absl::Status& why) override { group_->Abort(why); }
  absl::Status status() const override { return group_->status(); }
  void Report(int64_t begun, bool waits) override {
    progress_.ops.fetch_add(begun, std::memory_order_relaxed);
    progress_.reported_waits.store(waits, std::memory_order_relaxed);
  }
  void AtAbort(std::function<void()> call) override { group_->AtAbort(std::move(call)); }

 private:
  bool Counted(const auto& call) {
    progress_.ops.fetch_add(1, std::memory_order_relaxed);
    progress_.waits.store(true, std::memory_order_relaxed);
    const bool is_met = call();
    progress_.waits.store(false, std::memory_order_relaxed);
    return is_met;
  }

  const std::unique_ptr<kernels::Communicator> group_;
  LocalProgress& progress_;
};

}  // namespace

std::shared_ptr<kernels::Communicator> LocalGroups::Join(uint64_t key, int32_t first, int32_t world,
                                                         int32_t rank, LocalProgress* progress) {
  const std::lock_guard lock(mutex_);
  // Ranks of an earlier epoch that have not asked yet have been aborted with it.
  std::erase_if(groups_, [&](const auto& one) { return one.first.first != key; });
  Group& group = groups_[{key, first}];
  if (group.empty()) group = kernels::MakeLocalCommunicators(world);
  std::unique_ptr<kernels::Communicator>& own = group[static_cast<size_t>(rank)];
  HEDDLE_CHECK(own != nullptr, "a rank joins a group once");
  auto joined = std::make_shared<CountedCommunicator>(std::move(own), progress);
  const bool are_all_there =
      std::all_of(group.begin(), group.end(), [](const auto& one) { return one == nullptr; });
  if (are_all_there) groups_.erase({key, first});
  return joined;
}

}  // namespace heddle::server
