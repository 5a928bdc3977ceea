#include "server/access/key_account.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

constexpr double kSecondsPerMinute = 60;
// It is unknown when a request of the key will end; clients' own back-off begins at one second.
constexpr double kConcurrencyRetrySeconds = 1;

absl::Status Exhausted(std::string_view message, double seconds) {
  return WithRetryAfter(absl::ResourceExhaustedError(base::AbslView(message)), seconds);
}

// Durations in the form of OpenAI's headers: "1s", "6m0s", "120ms".
std::string DurationText(double seconds) {
  if (seconds <= 0) return "0s";
  if (seconds < 1) return absl::StrFormat("%dms", static_cast<int64_t>(std::ceil(seconds * 1e3)));
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return absl::StrFormat("%ds", whole);
  return absl::StrFormat("%dm%ds", whole / 60, whole % 60);
}

void AppendBucket(std::string_view kind, const TokenBucket& bucket, KeyAccount::Headers* headers) {
  if (!bucket.limited()) return;
  const auto remaining = static_cast<int64_t>(std::max(0.0, std::floor(bucket.level())));
  auto add = [&](std::string_view name, std::string value) {
    headers->emplace_back(base::StrCat("x-ratelimit-", name, "-", kind), std::move(value));
  };
  add("limit", std::to_string(bucket.per_minute()));
  add("remaining", std::to_string(remaining));
  add("reset", DurationText(bucket.SecondsUntilFull()));
}

}  // namespace

void TokenBucket::FillUntil(Clock::time_point now) {
  if (filled_ != Clock::time_point() && now > filled_) {
    const double seconds = std::chrono::duration<double>(now - filled_).count();
    const auto full = static_cast<double>(per_minute_);
    level_ = std::min(full, level_ + seconds * full / kSecondsPerMinute);
  }
  filled_ = std::max(filled_, now);
}

double TokenBucket::SecondsUntil(double amount) const {
  if (per_minute_ == 0 || level_ >= amount) return 0;
  return (amount - level_) * kSecondsPerMinute / static_cast<double>(per_minute_);
}

absl::Status KeyAccount::Admit(Clock::time_point now) {
  std::lock_guard lock(mutex_);
  requests_.FillUntil(now);
  tokens_.FillUntil(now);
  if (concurrency_limit_ > 0 && in_progress_ >= concurrency_limit_) {
    return Exhausted(base::StrCat("too many requests in progress: the limit is ",
                                  concurrency_limit_, "; wait for one to end"),
                     kConcurrencyRetrySeconds);
  }
  if (requests_.limited() && requests_.level() < 1) {
    return Exhausted(base::StrCat("rate limit: ", requests_.per_minute(), " requests a minute"),
                     requests_.SecondsUntil(1));
  }
  if (tokens_.limited() && tokens_.level() < 1) {
    return Exhausted(base::StrCat("rate limit: ", tokens_.per_minute(), " tokens a minute"),
                     tokens_.SecondsUntil(1));
  }
  requests_.Take(1);
  ++in_progress_;
  return absl::OkStatus();
}

void KeyAccount::Finish(int64_t tokens, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  tokens_.FillUntil(now);
  tokens_.Take(static_cast<double>(tokens));
  --in_progress_;
}

void KeyAccount::AppendHeaders(Clock::time_point now, Headers* headers) {
  std::lock_guard lock(mutex_);
  requests_.FillUntil(now);
  tokens_.FillUntil(now);
  AppendBucket("requests", requests_, headers);
  AppendBucket("tokens", tokens_, headers);
}

int64_t KeyAccount::in_progress() const {
  std::lock_guard lock(mutex_);
  return in_progress_;
}

}  // namespace heddle::server
