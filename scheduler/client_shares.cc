#include "scheduler/client_shares.h"

#include <algorithm>
#include <utility>

namespace heddle::scheduler {

int32_t ClientShares::Enter(uint64_t client, int32_t weight, bool* is_new) {
  const auto known = number_of_client_.find(client);
  *is_new = known == number_of_client_.end();
  int32_t number = *is_new ? -1 : known->second;
  if (*is_new) {
    const auto num_idle = static_cast<int32_t>(number_of_client_.size()) - num_live_;
    if (num_idle >= kMaxIdleClients) Forget(/*with_debts=*/false);
    if (num_idle >= 2 * kMaxIdleClients) Forget(/*with_debts=*/true);
    if (free_.empty()) {
      number = static_cast<int32_t>(accounts_.size());
      accounts_.emplace_back();
    } else {
      number = free_.back();
      free_.pop_back();
    }
    accounts_[number] = {.client = client, .time = clock_ - lead_};
    number_of_client_.emplace(client, number);
  }
  Account& account = accounts_[number];
  account.weight = std::max(1, weight);
  if (account.live_requests++ == 0) ++num_live_;
  Resume(number);
  return number;
}

void ClientShares::Leave(int32_t number) {
  Pause(number);
  if (--accounts_[number].live_requests == 0) --num_live_;
}

void ClientShares::Pause(int32_t number) {
  Account& account = accounts_[number];
  if (--account.active_requests == 0) {
    account.lag = std::clamp(clock_ - account.time, 0.0, 2 * lead_);
  }
}

void ClientShares::Resume(int32_t number) {
  Account& account = accounts_[number];
  if (account.active_requests++ == 0) account.time = std::max(account.time, clock_ - account.lag);
}

void ClientShares::Forget(bool with_debts) {
  absl::erase_if(number_of_client_, [this, with_debts](const auto& entry) {
    const Account& account = accounts_[entry.second];
    if (account.live_requests > 0 || (!with_debts && account.time > clock_)) return false;
    free_.push_back(entry.second);
    accounts_[entry.second].is_debtor = false;
    return true;
  });
  std::erase_if(debtors_, [this](int32_t number) { return !accounts_[number].is_debtor; });
}

// Forgets debts that the clock has passed.
ClientShares::Debts ClientShares::CheckDebts() {
  Debts debts;
  std::erase_if(debtors_, [this, &debts](int32_t number) {
    Account& account = accounts_[number];
    account.is_debtor = account.time > clock_;
    if (account.is_debtor && !account.wants) {
      debts.weights += account.weight;
      debts.least = std::min(debts.least, account.time);
    }
    return !account.is_debtor;
  });
  return debts;
}

void ClientShares::BeginStep() {
  for (const int32_t number : wanting_) {
    Account& account = accounts_[number];
    if (account.time > clock_ && !std::exchange(account.is_debtor, true)) {
      debtors_.push_back(number);
    }
    account.wants = account.is_offered = false;
    account.wanted = account.planned = {};
  }
  wanting_.clear();
  awaiting_.clear();
  even_ = kNobody;
}

void ClientShares::List(int32_t number) {
  if (std::exchange(accounts_[number].wants, true)) return;
  wanting_.push_back(number);
}

void ClientShares::Want(int32_t number, const StepCost& cost) {
  List(number);
  accounts_[number].wanted += cost;
}

// The weights of those that have no place and no rows, less those that are in debt.
int64_t ClientShares::AwaitingWeights() const {
  int64_t weights = 0;
  for (const int32_t number : awaiting_) {
    const Account& account = accounts_[number];
    if (!account.wants && !account.is_debtor) weights += account.weight;
  }
  return weights;
}

// Who has waited for a place or for pages is owed no more than twice the lead at once, and who has
// asked for less than its share, or is new, the lead. If all that have rows are ahead of the clock,
// those that are ahead of the least one are held, and the clock goes on to it unless a debt is
// less; while others wait for a place, it stays a lead behind, so that they get what they were due
// once they have one. The lead is at least the longest step of one client alone: a client that has
// been held for such a step is not behind the others then, and need not be waited for by them.
void ClientShares::Choose(int64_t now_us) {
  lead_ = static_cast<double>(options_.max_lead_us);
  for (const int32_t number : wanting_) {
    const Account& account = accounts_[number];
    lead_ = std::max(lead_, budget_.PredictUs(account.wanted) / account.weight);
  }
  double least = kNobody;
  for (const int32_t number : wanting_) {
    Account& account = accounts_[number];
    account.time = std::max(account.time, clock_ - (account.is_stuck ? 2 : 1) * lead_);
    if (!account.is_stuck) least = std::min(least, account.time);
  }
  even_ = std::max(least, clock_);
  if (least < kNobody) {
    const double even = AwaitingWeights() > 0 ? least - lead_ : least;
    clock_ = std::max(clock_, std::min(even, CheckDebts().least));
  }
  for (const int32_t number : wanting_) {
    Account& account = accounts_[number];
    account.is_starving = false;
    if (!IsHeld(number)) continue;
    if (account.held_since_us < 0) account.held_since_us = now_us;
    account.is_starving =
        options_.starvation_us > 0 && now_us - account.held_since_us >= options_.starvation_us;
  }
}

void ClientShares::CountRows(int32_t number, const StepCost& cost) {
  List(number);
  accounts_[number].planned += cost;
}

void ClientShares::EndStep() {
  StepCost all;
  double sum_weights = CheckDebts().weights + static_cast<double>(AwaitingWeights());
  for (const int32_t number : wanting_) {
    Account& account = accounts_[number];
    account.is_stuck = account.is_offered && account.planned.rows == 0;
    if (account.planned.rows > 0) account.held_since_us = -1;
    account.time += budget_.AddedUs(account.planned) / account.weight;
    all += account.planned;
    sum_weights += account.weight;
  }
  if (sum_weights > 0) clock_ += budget_.PredictUs(all) / sum_weights;
}

}  // namespace heddle::scheduler
