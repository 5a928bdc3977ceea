// What one API key has used of its limits: requests and tokens a minute as token buckets, and
// requests in progress.
//
// A bucket holds one minute's worth and fills evenly. A request is let in while there is something
// in both; its tokens are taken when it ends, when they are known, and may leave a debt: so rates
// hold over time whatever a request asks for, and none is too large ever to be let in.
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

  // Full at first. `per_minute` 0: without limit.
  explicit TokenBucket(int64_t per_minute) : per_minute_(per_minute), level_(double(per_minute)) {}

  void FillUntil(Clock::time_point now);
  void Take(double amount) { level_ -= per_minute_ > 0 ? amount : 0; }

  int64_t per_minute() const { return per_minute_; }
  bool limited() const { return per_minute_ > 0; }
  double level() const { return level_; }
  // Until there is `amount`, and until it is full; 0: now.
  double SecondsUntil(double amount) const;
  double SecondsUntilFull() const { return SecondsUntil(double(per_minute_)); }

 private:
  int64_t per_minute_;
  double level_;
  Clock::time_point filled_{};  // epoch: not yet
};

class KeyAccount {
 public:
  using Clock = TokenBucket::Clock;
  using Headers = std::vector<std::pair<std::string, std::string>>;

  explicit KeyAccount(const KeyLimits& limits)
      : concurrency_limit_(limits.concurrency),
        requests_(limits.requests_per_minute),
        tokens_(limits.tokens_per_minute) {}

  // Lets a request in: takes it from the buckets and counts it as in progress until Finish.
  // RESOURCE_EXHAUSTED, with the time after which to come again (retry_after.h): nothing was taken.
  absl::Status Admit(Clock::time_point now);

  // `tokens`: of prompt and answer.
  void Finish(int64_t tokens, Clock::time_point now);

  // x-ratelimit-{limit,remaining,reset}-{requests,tokens}, as OpenAI's API has them; those of a
  // kind without limit are left out.
  void AppendHeaders(Clock::time_point now, Headers* headers);

  int64_t in_progress() const;

 private:
  mutable std::mutex mutex_;
  const int64_t concurrency_limit_;
  // GUARDED_BY(mutex_), all of the following.
  int64_t in_progress_ = 0;
  TokenBucket requests_;
  TokenBucket tokens_;
};

}  // namespace heddle::server
