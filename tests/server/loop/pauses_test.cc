#include "server/loop/pauses.h"

#include "catch2/catch.hpp"

namespace heddle::server {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kHour = 3600 * kSecond;

// Beats five times a second, as the serving thread does.
int64_t BeatFor(int64_t seconds, int64_t now_us, Pauses* pauses) {
  for (const int64_t end = now_us + seconds * kSecond; now_us < end; now_us += kSecond / 5) {
    pauses->Beat(now_us);
  }
  return now_us;
}

TEST_CASE("Time that passes while someone beats is no pause", "[unit]") {
  Pauses pauses;
  const int64_t now = BeatFor(100, kHour, &pauses);
  CHECK(pauses.Us(now) == 0);
  CHECK(pauses.Us(now + kSecond / 2) == 0);
}

TEST_CASE("An hour in which nobody beats is a pause, before and after the next beat", "[unit]") {
  Pauses pauses;
  int64_t now = BeatFor(1, kHour, &pauses) + kHour;
  // The first to look may be a thread that answers /health.
  CHECK(pauses.Us(now) >= kHour - 2 * kSecond);
  CHECK(pauses.Us(now) <= kHour);
  pauses.Beat(now);
  const int64_t once = pauses.Us(now);
  CHECK(once >= kHour - 2 * kSecond);
  now = BeatFor(10, now, &pauses);
  CHECK(pauses.Us(now) == once);
  now = BeatFor(1, now + kHour, &pauses);
  CHECK(pauses.Us(now) >= 2 * kHour - 4 * kSecond);
}

TEST_CASE("Without beats nothing is known of pauses", "[unit]") { CHECK(Pauses().Us(kHour) == 0); }

}  // namespace
}  // namespace heddle::server
