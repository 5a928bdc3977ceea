#include "server/http/peer_resets.h"

#include <algorithm>
#include <chrono>

namespace heddle::server {

double PeerResets::Left(const Debt& debt, Clock::time_point now) const {
  return std::max(0.0, debt.resets - limits_.per_second * SecondsBetween(debt.at, now));
}

Clock::duration PeerResets::Spend(uint64_t peer, int resets, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  if (debts_.size() >= kMaxPeers && !debts_.contains(peer)) {
    absl::erase_if(debts_, [&](const auto& entry) { return Left(entry.second, now) == 0; });
    if (debts_.size() >= kMaxPeers) debts_.clear();
  }
  Debt& debt = debts_[peer];
  debt = {Left(debt, now) + resets, now};
  const double seconds = std::max(0.0, debt.resets - limits_.burst) / limits_.per_second;
  const std::chrono::duration<double> pause(seconds);
  return std::min(kMaxPause, std::chrono::duration_cast<Clock::duration>(pause));
}

bool PeerResets::Owes(uint64_t peer, Clock::time_point now) const {
  std::lock_guard lock(mutex_);
  const auto found = debts_.find(peer);
  return found != debts_.end() && Left(found->second, now) > limits_.burst;
}

size_t PeerResets::num_peers() const {
  std::lock_guard lock(mutex_);
  return debts_.size();
}

}  // namespace heddle::server
