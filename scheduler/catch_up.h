// Bounds what drafters take up at once. While speculation pauses, they are not shown what sequences
// gain, and what has gathered until they are asked again would cost as much as the pause saved: it
// grows with the pause. So each question takes up a bounded number of these tokens, sequence by
// sequence in turn, and leaves out the sequences that it has not come to; the account of
// draft_budget.h, which counts the time of questions, says how many questions there are.
//
// Unit: tokens. Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstddef>

namespace heddle::scheduler {

class CatchUp {
 public:
  // A question about `count` sequences begins. Returns with which of them: the others follow in
  // turn, the first behind the last.
  size_t Begin(size_t count) {
    room_ = kTokensPerQuestion;
    if (next_ >= count) next_ = 0;
    is_short_ = false;
    return next_;
  }

  // How many of the `unseen` tokens of sequence `i` the drafters are to be shown now. All of them:
  // the sequence is up to date and may be asked about.
  size_t Take(size_t i, size_t unseen) {
    if (unseen <= kFreshTokens) return unseen;
    const size_t taken = std::min(unseen, room_);
    room_ -= taken;
    if (taken < unseen) LeaveOut(i);
    return taken;
  }

  // Whether the drafters are to be told of sequence `i`, which is new to them and has `tokens`: it
  // is told whole or not at all, and the first of a question always.
  bool TakeNew(size_t i, size_t tokens) {
    if (tokens > room_ && room_ < kTokensPerQuestion) {
      LeaveOut(i);
      return false;
    }
    room_ -= std::min(tokens, room_);
    return true;
  }

 private:
  // The tokens of a few steps are not counted.
  static constexpr size_t kFreshTokens = 32;
  static constexpr size_t kTokensPerQuestion = 1024;  // about 100 us for each drafter

  void LeaveOut(size_t i) {
    if (!is_short_) next_ = i;
    is_short_ = true;
  }

  size_t room_ = kTokensPerQuestion;
  size_t next_ = 0;        // the first sequence that was left out
  bool is_short_ = false;  // this question has left out one
};

}  // namespace heddle::scheduler
