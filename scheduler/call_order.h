// Places in the order of arrival for calls that submit requests one after the other: the branches
// of an answer, the waves of a search, the steps of a beam search. A later request has the place of
// the call's first one. Without it a join would wait for its slowest branch behind everybody who
// came since the call began, and once more at each fork.
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_map.h"

namespace heddle::scheduler {

class CallOrder {
 public:
  // Calls that are remembered, the last that came: some MiB, and more than run at a time. The
  // requests of a call that is forgotten begin a new one.
  static constexpr size_t kMaxCalls = 65536;

  // The number of the first request of `call`, which is `number` if it is this one. 0 is no call.
  uint64_t FirstOf(uint64_t call, uint64_t number) {
    if (call == 0) return number;
    const auto [found, is_new] = first_of_.try_emplace(call, number);
    if (!is_new) return found->second;
    calls_.push_back(call);
    if (calls_.size() > kMaxCalls) {
      first_of_.erase(calls_.front());
      calls_.pop_front();
    }
    return number;
  }

 private:
  absl::flat_hash_map<uint64_t, uint64_t> first_of_;
  std::deque<uint64_t> calls_;  // by age
};

}  // namespace heddle::scheduler
