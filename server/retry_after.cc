#include "server/retry_after.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "absl/strings/cord.h"

namespace heddle::server {
namespace {

constexpr char kPayload[] = "heddle/retry-after-seconds";

}  // namespace

absl::Status WithRetryAfter(absl::Status status, double seconds) {
  const double whole = std::ceil(std::clamp(seconds, 1.0, double{kMaxRetryAfterSeconds}));
  status.SetPayload(kPayload, absl::Cord(std::to_string(static_cast<int>(whole))));
  return status;
}

std::optional<int> RetryAfterSeconds(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  int seconds = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc()) return std::nullopt;
  return seconds;
}

}  // namespace heddle::server
