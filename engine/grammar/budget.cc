#include "engine/grammar/budget.h"

#include "base/message.h"

namespace heddle::engine::grammar {

absl::Status Budget::Look() {
  if (!status_.ok()) return status_;
  if (spent_ > max_units_) {
    status_ = absl::ResourceExhaustedError(
        base::StrCat("it takes more than ", max_units_,
                     " units of work to compile; make counted repeats smaller, or nest fewer "
                     "alternatives and references"));
  } else if (ask_ != nullptr) {
    status_ = ask_();
    stopped_ = !status_.ok();
  }
  // Once over, every further call looks at the status again.
  next_look_ = status_.ok() ? std::min(max_units_, spent_ + kAskUnits) : -1;
  return status_;
}

}  // namespace heddle::engine::grammar
