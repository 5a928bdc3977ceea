#include "server/adapters/adapter_sets.h"

#include <algorithm>

#include "base/message.h"
#include "server/adapters/adapter_errors.h"

namespace heddle::server {

uint64_t AdapterSets::Acquire(std::vector<ScaledAdapter> adapters, Callback done) {
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = ++last_number_;
    Wait& wait = waits_[number];
    wait.adapters = std::move(adapters);
    wait.done = std::move(done);
  }
  AcquireNext(number);
  return number;
}

// Asks for the first member without a lease. The registry may call back before it returns.
void AdapterSets::AcquireNext(uint64_t number) {
  std::string name;
  {
    std::lock_guard lock(mutex_);
    const auto found = waits_.find(number);
    if (found == waits_.end()) return;
    const Wait& wait = found->second;
    name = wait.adapters[wait.leases.size()].name;
  }
  const uint64_t member_wait = registry_.Acquire(
      name,
      [this, number](absl::StatusOr<AdapterLease> lease) { TakeMember(number, std::move(lease)); });
  if (member_wait == 0) return;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = waits_.find(number); found != waits_.end()) {
      found->second.member_wait = member_wait;
      return;
    }
  }
  registry_.Cancel(member_wait);  // the wait has ended meanwhile
}

void AdapterSets::TakeMember(uint64_t number, absl::StatusOr<AdapterLease> lease) {
  if (!lease.ok()) return Finish(number, lease.status());
  std::vector<AdapterLease> leases;
  {
    std::lock_guard lock(mutex_);
    const auto found = waits_.find(number);
    if (found == waits_.end()) return;
    Wait& wait = found->second;
    lease->scale = wait.adapters[wait.leases.size()].scale;
    wait.leases.push_back(*std::move(lease));
    if (wait.leases.size() == wait.adapters.size()) leases = std::move(wait.leases);
  }
  if (leases.empty()) return AcquireNext(number);
  if (leases.size() == 1) return Finish(number, std::move(leases.front()));
  Compose(number, std::move(leases));
}

void AdapterSets::Compose(uint64_t number, std::vector<AdapterLease> leases) {
  // The order of members decides in which order products are added. So that equal sets have equal
  // answers, in every process, their contents decide it.
  std::sort(leases.begin(), leases.end(), [](const AdapterLease& a, const AdapterLease& b) {
    return std::pair(a.digest, a.scale) < std::pair(b.digest, b.scale);
  });
  Members members;
  for (const AdapterLease& lease : leases) members.emplace_back(lease.digest, lease.scale);
  engine::AdapterId known{};
  {
    std::lock_guard lock(mutex_);
    if (const auto found = composed_.find(members); found != composed_.end()) known = found->second;
  }
  if (known != engine::AdapterId{}) {
    if (SharedImage image = registry_.FindImage(known); image != nullptr) {
      return Finish(number, AdapterLease{"", known, 1.0f, {}, std::move(image)});
    }
  }
  const absl::Status ordered =
      registry_.RunLater([this, number, leases = std::move(leases), members = std::move(members)] {
        std::vector<ScaledImage> images;
        for (const AdapterLease& lease : leases)
          images.push_back({lease.name, lease.image, lease.scale});
        auto image = compose_(images);
        absl::StatusOr<AdapterLease> result =
            image.ok() ? registry_.Adopt(*std::move(image)) : image.status();
        if (absl::IsInvalidArgument(result.status())) {
          result =
              WithCode(absl::InvalidArgumentError(base::StrCat(
                           "the adapters cannot be used together: ", MessageOf(result.status()))),
                       "adapter_failed");
        }
        if (result.ok()) {
          std::lock_guard lock(mutex_);
          if (composed_.size() >= kMaxKnownSets) composed_.clear();
          composed_[members] = result->id;
        }
        Finish(number, std::move(result));
      });
  if (!ordered.ok()) Finish(number, ordered);
}

void AdapterSets::Finish(uint64_t number, absl::StatusOr<AdapterLease> result) {
  Callback done;
  {
    std::lock_guard lock(mutex_);
    const auto found = waits_.find(number);
    if (found == waits_.end()) return;
    done = std::move(found->second.done);
    waits_.erase(found);
  }
  done(std::move(result));
}

void AdapterSets::Cancel(uint64_t number) {
  uint64_t member_wait = 0;
  Callback cancelled;  // freed after the lock is released
  {
    std::lock_guard lock(mutex_);
    const auto found = waits_.find(number);
    if (found == waits_.end()) return;
    member_wait = found->second.member_wait;
    cancelled = std::move(found->second.done);
    waits_.erase(found);
  }
  if (member_wait != 0) registry_.Cancel(member_wait);
}

}  // namespace heddle::server
