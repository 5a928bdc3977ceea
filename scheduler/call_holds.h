// Counts what each call holds of the machine. A call is all that a client asked for at once
// (CallOf): the branches of all its requests. Among the calls of one client those that hold much
// give places and pages to those that want little, so that who asks for hundreds of answers at once
// does not keep others at the same address (or with the same key) from theirs.
//
// A call has much if it has several branches that run, and more than a sixteenth of all places or
// pages. It gives its last branches, and keeps that sixteenth, so that no call takes back what it
// gave.
// Where clients are not told apart (client_shares.h), no call has or wants much.
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "scheduler/running_set.h"
#include "scheduler/scheduler_limits.h"
#include "scheduler/sequence.h"

namespace heddle::scheduler {

class CallHolds {
 public:
  // `limits` must outlive it.
  explicit CallHolds(const SchedulerLimits& limits);

  // Counts anew. O(running).
  void Count(const RunningSet& running);
  // A sequence begins or ceases to run after the count.
  void Add(const Sequence& sequence) { Change(sequence, 1); }
  void Remove(const Sequence& sequence) { Change(sequence, -1); }

  // Whether the call of `waiting` has anything.
  bool HasSome(const Sequence& waiting) const;
  // Whether it would have many places or, with what it has already, many pages, when `waiting` has
  // a place and its `pages`.
  bool WantsMuch(const Sequence& waiting, int64_t pages) const;

  // The pages that a waiting sequence wants to have, and how much is missing for it.
  struct Want {
    int64_t pages = 0;
    int64_t missing_places = 0;
    int64_t missing_pages = 0;
  };
  // The call of the same client that has most places (or pages, if no places are missing), if all
  // of its calls can together give what is missing, and none has less than the call of `waiting`
  // then. Otherwise 0. O(calls).
  uint64_t LargestThatGives(const Sequence& waiting, const Want& want) const;
  // The call of the client that has most pages, if that is much; otherwise 0.
  uint64_t LargestOf(int32_t flow) const;

 private:
  struct Hold {
    int32_t flow = 0;
    int64_t branches = 0;  // sequences that run; workers count as one
    int64_t places = 0;    // they, and the branches that they will fork
    int64_t pages = 0;     // shared ones count for each branch
  };

  void Change(const Sequence& sequence, int64_t sign);
  Hold HoldWith(const Sequence& waiting, int64_t pages) const;

  const bool is_enabled_;
  const int64_t few_places_;
  const int64_t few_pages_;
  absl::flat_hash_map<uint64_t, Hold> holds_;
};

}  // namespace heddle::scheduler
