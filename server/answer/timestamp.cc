#include "server/answer/timestamp.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/strings/str_format.h"

namespace heddle::server {

std::string Rfc3339(int64_t created, double seconds_later) {
  using std::chrono::days;
  const auto later = std::chrono::nanoseconds(std::llround(std::max(0.0, seconds_later) * 1e9));
  const auto whole = std::chrono::floor<std::chrono::seconds>(later);
  const std::chrono::sys_seconds time =
      std::chrono::sys_seconds(std::chrono::seconds(created)) + whole;
  const auto day = std::chrono::floor<days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  std::string text =
      absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d", static_cast<int>(date.year()),
                      static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                      clock.hours().count(), clock.minutes().count(), clock.seconds().count());
  if (later != whole) absl::StrAppendFormat(&text, ".%09d", (later - whole).count());
  return text + "Z";
}

}  // namespace heddle::server
