// The head's book of ranks: who gets on with a step, and who is silent.
#include <chrono>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/parallel/roster_group.h"

namespace heddle::server {
namespace {

using test::Beat;
using test::CallId;
using test::FromRank;
using test::Group;
using test::Has;
using test::Hello;
using test::Phase;

FromRank BeatOf(int64_t op, bool waits, int64_t busy_ms) {
  FromRank message = Beat(3, op);
  message.mutable_beat()->set_waits(waits);
  message.mutable_beat()->set_busy_ms(busy_ms);
  return message;
}

// Lets 3 s pass, three times the timeout, in which all ranks beat; `say` makes their messages.
template <typename Say>
void BeatOn(Group& group, const std::vector<CallId>& calls, const Say& say) {
  for (int64_t ms = 0; ms < 3000 && group.roster.failure().ok(); ms += 100) {
    for (size_t i = 0; i < calls.size(); ++i) {
      static_cast<void>(group.Say(calls[i], say(i, ms)));
    }
    group.Pass(100);
  }
}

TEST_CASE("A rank that beats and computes nothing is lost, and those that wait for it are not",
          "[unit]") {
  Group group(3);
  const std::vector<CallId> calls = group.Run();
  group.roster.set_step(3);
  group.roster.CountHalf();
  BeatOn(group, calls, [&](size_t i, int64_t ms) {
    group.roster.SetOwn(8, /*waits=*/true, group.now);
    // The second one has begun one collective less, and uses the processor for its beats alone.
    return i == 0 ? BeatOf(8, true, ms) : BeatOf(7, false, ms / 500);
  });
  CHECK(group.roster.phase() == Phase::kLost);
  CHECK(group.roster.culprit() == 2);
  const std::string failure(group.roster.failure().message());
  CHECK(Has(failure, "rank 2 (10.0.0.7) is lost in step 3 (it last reported step 3, op 7)"));
  CHECK(Has(failure, "it has computed nothing for 1000 ms"));
}

TEST_CASE("A rank that computes for long, or has nothing to do, is not lost", "[unit]") {
  const auto ends_well = [](bool has_work, auto&& say) {
    Group group(2);
    const std::vector<CallId> calls = group.Run();
    if (has_work) group.roster.CountHalf();
    BeatOn(group, calls, [&](size_t, int64_t ms) {
      group.roster.SetOwn(8, /*waits=*/true, group.now);
      return say(ms);
    });
    return group.roster.phase() == Phase::kRunning;
  };
  CHECK(ends_well(true, [](int64_t ms) { return BeatOf(7, false, ms / 2); }));
  CHECK(ends_well(true, [](int64_t ms) { return BeatOf(ms, true, 0); }));
  CHECK(ends_well(false, [](int64_t) { return BeatOf(7, false, 0); }));
  CHECK_FALSE(ends_well(true, [](int64_t) { return BeatOf(7, false, 0); }));
  // Numbers that go back, as no process's do.
  CHECK_FALSE(ends_well(true, [](int64_t ms) { return BeatOf(7, false, -ms); }));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  CHECK_FALSE(ends_well(true, [](int64_t) { return BeatOf(kMost, false, kMost); }));
}

TEST_CASE("Ranks that all wait for each other have a link that carries nothing", "[unit]") {
  Group group(3);
  const std::vector<CallId> calls = group.Run();
  group.roster.CountHalf();
  bool head_waits = false;
  const auto all_wait = [&](size_t i, int64_t) {
    group.roster.SetOwn(9, head_waits, group.now);
    return BeatOf(i == 0 ? 9 : 8, true, 0);
  };
  BeatOn(group, calls, all_wait);  // the head computes
  CHECK(group.roster.phase() == Phase::kRunning);
  head_waits = true;
  BeatOn(group, calls, all_wait);
  CHECK(group.roster.phase() == Phase::kLost);
  CHECK(group.roster.culprit() == 2);
  CHECK(Has(std::string(group.roster.failure().message()), "its link carries no rows"));
}

TEST_CASE("Silence ends a call, and loses a rank that has begun", "[unit]") {
  Group group(2);
  const CallId silent = group.Call();
  CHECK(group.Pass(3000).empty());
  CHECK(group.Pass(100) == std::vector<CallId>{silent});
  group.roster.End(silent);
  // A rank that has said Hello and nothing more.
  const CallId mute = group.Call();
  REQUIRE(group.Say(mute, Hello()).ok());
  CHECK(group.Pass(1000).empty());
  CHECK(group.Pass(100) == std::vector<CallId>{mute});
  CHECK(group.roster.phase() == Phase::kGathering);
  group.roster.End(mute);

  const CallId call = group.Run()[0];
  for (int beat = 0; beat < 5; ++beat) {
    CHECK(group.Pass(900).empty());
    REQUIRE(group.Say(call, Beat(1, 1)).ok());
  }
  CHECK(group.Pass(1000).empty());
  CHECK(group.Pass(100) == std::vector<CallId>{call});
  CHECK(Has(group.roster.failure().ToString(), "nothing was heard of it for 1000 ms"));
}

TEST_CASE("Time in which the head stood still does not count as silence", "[unit]") {
  Group group(2);
  group.Run();
  CHECK(group.Pass(900).empty());
  group.now += std::chrono::seconds(60);
  CHECK(group.roster.Tick(group.now).empty());
  CHECK(group.Pass(1000).empty());
  CHECK(group.roster.phase() == Phase::kRunning);
}

}  // namespace
}  // namespace heddle::server
