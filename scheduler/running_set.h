// The sequences that hold pages, in the order of service: the last one is preempted first.
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/sequence.h"

namespace heddle::scheduler {

class RunningSet {
 public:
  explicit RunningSet(int32_t max_running) { sequences_.reserve(static_cast<size_t>(max_running)); }

  auto begin() const { return sequences_.begin(); }
  auto end() const { return sequences_.end(); }
  bool empty() const { return sequences_.empty(); }
  size_t size() const { return sequences_.size(); }
  Sequence* operator[](size_t index) const { return sequences_[index]; }
  Sequence* back() const { return sequences_.back(); }

  // Inserts in the order of service. O(size).
  void Insert(Sequence* sequence) {
    sequences_.insert(
        std::upper_bound(sequences_.begin(), sequences_.end(), sequence, MoreUrgent()), sequence);
  }
  // Puts another branch of the same request in its place. REQUIRES: `sequence` is in the set.
  void Replace(const Sequence* sequence, Sequence* heir) {
    *std::find(sequences_.begin(), sequences_.end(), sequence) = heir;
  }
  void Erase(const Sequence* sequence) { std::erase(sequences_, sequence); }
  template <typename Predicate>
  void EraseIf(Predicate&& predicate) {
    std::erase_if(sequences_, predicate);
  }

  // The number of sequences whose requests are paused. O(size).
  int32_t NumPaused() const {
    return static_cast<int32_t>(
        std::count_if(sequences_.begin(), sequences_.end(),
                      [](const Sequence* sequence) { return sequence->request->paused; }));
  }

  // The number of sequences of a flow of the waiting queue; workers count as one. O(size).
  int32_t NumOfFlow(int32_t flow) const {
    return static_cast<int32_t>(
        std::count_if(sequences_.begin(), sequences_.end(), [flow](const Sequence* sequence) {
          return sequence->request->flow == flow && CountsAsOne(*sequence);
        }));
  }
  bool IsInOrder() const {
    return std::is_sorted(sequences_.begin(), sequences_.end(), MoreUrgent());
  }

 private:
  std::vector<Sequence*> sequences_;
};

}  // namespace heddle::scheduler
