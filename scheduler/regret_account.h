// An account in time that bounds what an optimisation may lose: what it gains goes in, what it
// loses comes out, and when the account is empty it pauses for a number of steps, which doubles
// each time. Then a probe gets a small allowance. Time lost so is at most about 1 % of the time,
// and less the longer it does not pay.
//
// Unit: microseconds. Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstdint>

namespace heddle::scheduler {

class RegretAccount {
 public:
  // In plain steps: what the account begins with, the most it holds (so that an hour of gains does
  // not pay for minutes of losses), and from where on pauses begin short again. What is gained by
  // chance needs room: a gain of 0.1 of a step in each of many steps, give or take 1.5, empties an
  // account of 8 steps now and then.
  struct Options {
    double first_steps = 2;
    double most_steps = 8;
    double recovered_steps = 4;
  };
  RegretAccount() : RegretAccount(Options()) {}
  explicit RegretAccount(const Options& options) : options_(options) {}

  bool is_paused() const { return pause_ > 0; }
  int64_t times_off() const { return times_off_; }
  // Whether it pays now: the next pause would be the shortest.
  bool has_recovered() const { return next_pause_ == kFirstPause; }

  // A step is done; a plain one takes `plain_us`.
  void CountStep(double plain_us) {
    if (pause_ == 0 || --pause_ > 0) return;
    const double steps =
        std::min(kProbeShare * static_cast<double>(next_pause_) / 2, options_.first_steps);
    balance_us_ = steps * plain_us;
  }

  // The step has gained (or lost) so much against a plain one.
  void Settle(double gained_us, double plain_us) {
    if (!has_balance_) {
      has_balance_ = true;
      balance_us_ = options_.first_steps * plain_us;
    }
    balance_us_ = std::min(balance_us_ + gained_us, options_.most_steps * plain_us);
    if (balance_us_ > options_.recovered_steps * plain_us) next_pause_ = kFirstPause;
    // Steps in flight when it turned off have their results later.
    if (balance_us_ >= 0 || pause_ > 0) return;
    pause_ = next_pause_;
    next_pause_ = std::min(next_pause_ * 2, kLastPause);
    ++times_off_;
  }

 private:
  // The allowance of a probe: this share of the steps of its pause, at most first_steps.
  static constexpr double kProbeShare = 0.005;
  // Steps of the first pause; each later one is twice as long, up to the last. At 50 steps a second
  // these are 1 second and 3 minutes.
  static constexpr int64_t kFirstPause = 64;
  static constexpr int64_t kLastPause = 8192;

  Options options_;
  double balance_us_ = 0;
  bool has_balance_ = false;  // false: no step was measured yet
  int64_t pause_ = 0;         // steps until the next probe; 0: on
  int64_t next_pause_ = kFirstPause;
  int64_t times_off_ = 0;
};

}  // namespace heddle::scheduler
