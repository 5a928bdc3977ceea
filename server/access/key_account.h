// The use of one API key's limits: requests and tokens per minute as token buckets, and requests in
// progress.
//
// A bucket holds one minute's amount and fills evenly. A request is admitted while both buckets are
// not empty; its tokens are charged when it ends, when their number is known, and may leave a debt.
// So rates hold over time whatever a request asks for, and no request is too large to be admitted.
// Thread-safety: all members; a lock is held for moments. Time is an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/access/api_keys.h"

namespace heddle::server {

class TokenBucket {
 public:
  using Clock = std::chrono::steady_clock;

  // The bucket is full at first. `per_minute` 0: no limit.
  explicit TokenBucket(int64_t per_minute) : per_minute_(per_minute), level_(double(per_minute)) {}

  void FillUntil(Clock::time_point now);
  void Take(double amount) { level_ -= per_minute_ > 0 ? amount : 0; }

  int64_t per_minute() const { return per_minute_; }
  bool limited() const { return per_minute_ > 0; }
  double level() const { return level_; }
  // The time until `amount` is there, and until it is full; 0: now.
  double SecondsUntil(double amount) const;
  double SecondsUntilFull() const { return SecondsUntil(double(per_minute_)); }

 private:
  int64_t per_minute_;
  double level_;
  Clock::time_point filled_{};  // the epoch means not yet
};

class KeyAccount {
 public:
  using Clock = TokenBucket::Clock;
  using Headers = std::vector<std::pair<std::string, std::string>>;

  explicit KeyAccount(const KeyLimits& limits)
      : concurrency_limit_(limits.concurrency),
        requests_(limits.requests_per_minute),
        tokens_(limits.tokens_per_minute) {}

  // Admits a request: charges the buckets and counts it as in progress until Finish.
  // RESOURCE_EXHAUSTED, with the time after which to retry (retry_after.h), charges nothing.
  absl::Status Admit(Clock::time_point now);

  // `tokens`: those of prompt and answer.
  void Finish(int64_t tokens, Clock::time_point now);

  // Appends x-ratelimit-{limit,remaining,reset}-{requests,tokens}, as in OpenAI's API; kinds
  // without limit are left out.
  void AppendHeaders(Clock::time_point now, Headers* headers);

  int64_t in_progress() const;

 private:
  mutable std::mutex mutex_;
  const int64_t concurrency_limit_;
  // All of the following are GUARDED_BY(mutex_).
  int64_t in_progress_ = 0;
  TokenBucket requests_;
  TokenBucket tokens_;
};

}  // namespace heddle::server
