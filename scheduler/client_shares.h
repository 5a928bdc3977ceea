// Keeps the time of steps even between clients, under every policy: it says whose sequences get
// rows in the next step.
//
// A client's virtual time is the time that its rows have added to steps, divided by the client's
// weight. What a step costs however many rows it has (reading the weights) is charged to nobody,
// because it would have been spent for the others. The clock is the time of all steps, divided by
// the weights of those that want the machine. So a client that is ahead of the clock has added more
// to the time of others than its share. One that is further ahead than half of the lead is held,
// which means that it gets no rows until the clock has caught up. What one client alone wants, it
// gets. Of n clients with equal weights, each slows the others down by no more than one n-th, and
// goes at least as fast as on a machine of its own with one n-th of the speed. That includes what a
// client cancels: rows are charged when they are planned.
//
// Nobody saves time up: who asks for less than its share is one lead behind the clock at most, and
// so is a new client; that holds nobody else. A client that left ahead of the clock is ahead
// when it comes back, and until the clock has passed it, its share goes to those that have stayed.
//
// Unit: microseconds. Thread-safety: none; owned by the scheduler.
// Sources:
// - Demers, Keshav and Shenker, "Analysis and Simulation of a Fair Queueing Algorithm", 1989
// - Golestani, "A Self-Clocked Fair Queueing Scheme for Broadband Applications", 1994
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/cost_model.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/step_budget.h"

namespace heddle::scheduler {

class ClientShares {
 public:
  // Clients without requests that are remembered, beside those whose virtual time is ahead of the
  // clock; a few KiB.
  static constexpr int32_t kMaxIdleClients = 1024;

  // `options` and `budget` must outlive it.
  ClientShares(const SchedulerOptions& options, const StepBudget& budget)
      : options_(options), budget_(budget) {}

  bool is_enabled() const { return options_.max_lead_us > 0; }

  // A request of the client begins. Returns the client's number, which is small and stays until a
  // while after its last request has ended; *is_new says that the number was somebody else's, or
  // nobody's.
  int32_t Enter(uint64_t client, int32_t weight, bool* is_new);
  // A request ends.
  void Leave(int32_t number);
  // The request is paused, and wants nothing until Resume. A paused request that ends is resumed
  // first.
  void Pause(int32_t number);
  void Resume(int32_t number);

  // The choice of a step: BeginStep, Want for each sequence that has rows to run, Await for each
  // client that has a sequence without a place, Choose. `cost` is that of a token of its answer; of
  // prompts it is zero.
  void BeginStep();
  void Want(int32_t number, const StepCost& cost);
  void Await(int32_t number) { awaiting_.push_back(number); }
  void Choose(int64_t now_us);
  // Holds nobody until the next choice.
  void Release() { even_ = kNobody; }

  // Whether the client's sequences get no rows in this step.
  bool IsHeld(int32_t number) const {
    const Account& account = accounts_[number];
    return account.time - even_ > lead_ / 2 && !account.is_starving;
  }
  // Whether `number` is more than half of the lead ahead of `other`.
  bool IsAhead(int32_t number, int32_t other) const { return IsAheadOf(number, TimeOf(other)); }
  bool IsAheadOf(int32_t number, double time) const { return TimeOf(number) - time > lead_ / 2; }
  double TimeOf(int32_t number) const { return accounts_[number].time; }  // virtual

  // The step would have rows for the client if there were pages for them.
  void Offer(int32_t number) { accounts_[number].is_offered = true; }
  // Counts rows that the step has for the client. EndStep charges all of them.
  void CountRows(int32_t number, const StepCost& cost);
  void EndStep();

  int32_t num_live() const { return num_live_; }

 private:
  static constexpr double kNobody = 1e300;

  struct Account {
    uint64_t client = 0;
    int32_t weight = 1;
    int32_t live_requests = 0;
    int32_t active_requests = 0;  // of these, those that are not paused
    double time = 0;              // virtual
    double lag = 0;               // behind the clock when its last active request ended; at least 0
    bool wants = false;           // has rows to run in this step
    bool is_offered = false;
    bool is_stuck = false;     // had no pages for the rows that the last step offered it
    bool is_debtor = false;    // is among debtors_
    bool is_starving = false;  // has been held for the starvation limit
    int64_t held_since_us = -1;
    StepCost wanted;  // its answers' tokens
    StepCost planned;
  };

  // The debts of those that are ahead of the clock and have no rows to run: they have left, or wait
  // for a place.
  struct Debts {
    double weights = 0;
    double least = kNobody;  // virtual time
  };

  void List(int32_t number);
  int64_t AwaitingWeights() const;
  Debts CheckDebts();
  void Forget(bool with_debts);

  const SchedulerOptions& options_;
  const StepBudget& budget_;
  std::vector<Account> accounts_;
  std::vector<int32_t> free_;  // numbers of forgotten clients
  absl::flat_hash_map<uint64_t, int32_t> number_of_client_;
  std::vector<int32_t> wanting_;   // in this step
  std::vector<int32_t> awaiting_;  // in this step; some of them are among wanting_
  std::vector<int32_t> debtors_;   // all that are ahead of the clock, and some that were
  double clock_ = 0;
  double even_ = kNobody;  // the virtual time beyond which a client is ahead in this step
  double lead_ = 0;
  int32_t num_live_ = 0;
};

}  // namespace heddle::scheduler
