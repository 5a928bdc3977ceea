// Bounds the cost of compiling one constraint, and stops it when no client waits any more. Every
// loop of the compiler whose length depends on a request counts its steps here.
//
// There are two limits. The number of units of work is the same for the same text on every machine,
// so that a refused constraint is refused always. An Ask, called every kAskUnits, says whether to
// continue; clocks, clients and turns are its business alone.
// Once over, a budget stays over: code that cannot return an error stops early, and its caller
// finds the error in status().
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace heddle::engine::grammar {

class Budget {
 public:
  // OK means continue. Any other status ends the work and becomes its result.
  using Ask = std::function<absl::Status()>;

  // A unit is one edge, member of a set or item looked at, which takes 10 to 40 ns. The limit is
  // half a second to two seconds in all; ordinary schemas take a hundredth of it.
  static constexpr int64_t kMaxUnits = 40'000'000;
  // Further units and states for each byte of the text, so that who sends much may use more. The
  // largest schema of the test corpus (Vega-Lite, 1.9 MB) takes 55 units a byte, and a third of a
  // state.
  static constexpr int64_t kUnitsPerByte = 80;
  static constexpr int64_t kMaxTextStates = int64_t{1} << 19;
  // Units between two calls of Ask: some tenths of a millisecond.
  static constexpr int64_t kAskUnits = 1 << 14;

  explicit Budget(int64_t max_units = kMaxUnits, Ask ask = nullptr)
      : max_units_(max_units), ask_(std::move(ask)) {
    next_look_ = std::min(max_units_, kAskUnits);
  }

  // For compiling a text of so many bytes.
  static Budget ForText(size_t bytes, Ask ask = nullptr) {
    const auto size = static_cast<int64_t>(bytes);
    Budget budget(kMaxUnits + kUnitsPerByte * size, std::move(ask));
    budget.more_states_ = static_cast<int32_t>(std::min(size / 2, kMaxTextStates));
    return budget;
  }

  // States that the whole grammar may have beyond kMaxStates.
  int32_t more_states() const { return more_states_; }

  // Counts `units`. RESOURCE_EXHAUSTED if none are left, or the status that Ask returned.
  absl::Status Spend(int64_t units) {
    spent_ += units;
    return spent_ <= next_look_ ? absl::OkStatus() : Look();
  }
  // Whether Ask allows to continue, for work that may be left out.
  bool MayGoOn() const { return status_.ok() && (ask_ == nullptr || ask_().ok()); }
  const absl::Status& status() const { return status_; }
  // Whether Ask, and not the number of units, has ended the work.
  bool stopped() const { return stopped_; }
  int64_t spent() const { return spent_; }

 private:
  absl::Status Look();

  const int64_t max_units_;
  const Ask ask_;
  int32_t more_states_ = 0;
  int64_t spent_ = 0;
  int64_t next_look_ = 0;
  bool stopped_ = false;
  absl::Status status_;
};

// The same for an optional budget: nullptr bounds nothing.
inline absl::Status Spend(Budget* budget, int64_t units) {
  return budget == nullptr ? absl::OkStatus() : budget->Spend(units);
}
inline absl::Status StatusOf(const Budget* budget) {
  return budget == nullptr ? absl::OkStatus() : budget->status();
}

}  // namespace heddle::engine::grammar
