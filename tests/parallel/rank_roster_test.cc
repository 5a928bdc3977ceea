// The head's book of ranks: who is let in, what each may say when, and who is lost.
#include "server/ranks/rank_roster.h"

#include <chrono>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/parallel/head_identity.h"

namespace heddle::server {
namespace {

using std::chrono::milliseconds;
using Phase = RankRoster::Phase;
using CallId = RankRoster::CallId;
using ranks::v1::FromRank;

constexpr uint64_t kSession = 4711;
constexpr uint64_t kHeadFamily = 815;

FromRank Hello(const RankIdentity& identity = kHead) {
  FromRank message;
  message.mutable_hello()->set_token(identity.token);
  message.mutable_hello()->set_build(identity.build);
  message.mutable_hello()->set_model_digest(identity.model_digest);
  message.mutable_hello()->set_isa(identity.isa);
  message.mutable_hello()->set_mesh_address("an address");
  return message;
}

FromRank HelloOf(int32_t held_rank, uint64_t session = kSession) {
  FromRank message = Hello();
  message.mutable_hello()->set_held_session(session);
  message.mutable_hello()->set_held_rank(held_rank);
  return message;
}

FromRank HelloOfProcess(uint64_t process, FromRank hello) {
  hello.mutable_hello()->set_process(process);
  return hello;
}

FromRank Offer(int32_t pages = 100) {
  FromRank message;
  ranks::v1::Offer& offer = *message.mutable_offer();
  offer.set_num_pages(pages);
  offer.set_max_context(640);
  offer.set_logit_rows(64);
  offer.set_kv_type("f16");
  offer.set_page_tokens(16);
  return message;
}

FromRank Ready() {
  FromRank message;
  message.mutable_ready();
  return message;
}

FromRank Done(uint64_t halves) {
  FromRank message;
  message.mutable_done()->set_halves(halves);
  return message;
}

FromRank Beat(uint64_t step, int64_t op) {
  FromRank message;
  message.mutable_beat()->set_step(step);
  message.mutable_beat()->set_op(op);
  return message;
}

engine::RankOffer OwnOffer() {
  engine::RankOffer own;
  own.limits.num_pages = 80;
  own.limits.num_host_pages = 0;
  own.limits.max_context = 1000;
  own.limits.page_tokens = 16;
  own.logit_rows = 64;
  own.kv_type = "f16";
  return own;
}

// A roster of `tp` x `pp` ranks on a clock of its own.
struct Group {
  explicit Group(int32_t tp, int32_t pp = 1, int32_t head_ranks = 1)
      : roster(kHead, {.layout = {.tp = tp, .pp = pp},
                       .timeout = milliseconds(1000),
                       .session = kSession,
                       .head_ranks = head_ranks,
                       .head_family = kHeadFamily}) {
    roster.Tick(now);
  }
  CallId Call(const std::string& host = "10.0.0.7") { return *roster.Begin(host, now); }
  absl::Status Say(CallId call, const FromRank& message) { return roster.Take(call, message, now); }
  std::string Refusal(const FromRank& hello) {
    const CallId call = Call();
    const absl::Status status = Say(call, hello);
    roster.End(call);
    return status.ToString();
  }
  // Lets time pass as the head does, which looks ten times a second.
  std::vector<CallId> Pass(int64_t ms) {
    std::vector<CallId> ended;
    for (int64_t at = 0; at < ms; at += 100) {
      now += milliseconds(100);
      for (const CallId call : roster.Tick(now)) ended.push_back(call);
    }
    return ended;
  }
  // All ranks beside the head, up to the phase of steps.
  std::vector<CallId> Run() {
    std::vector<CallId> calls;
    for (int32_t rank = 1; rank < roster.world(); ++rank) {
      calls.push_back(Call());
      REQUIRE(Say(calls.back(), Hello()).ok());
      REQUIRE(Say(calls.back(), Offer()).ok());
    }
    REQUIRE(roster.has_all_offers());
    REQUIRE(roster.Start(OwnOffer()).ok());
    for (const CallId call : calls) REQUIRE(Say(call, Ready()).ok());
    REQUIRE(roster.phase() == Phase::kRunning);
    return calls;
  }

  RankRoster roster;
  RankRoster::Time now{std::chrono::hours(5)};
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("The hidden states that a drafter reads take room of the ranks that send them",
          "[unit]") {
  engine::RankOffer own = OwnOffer();  // 80 pages
  own.limits.drafter_features = {2, 11, 20};
  FromRank offer = Offer(70);
  const auto pages_with = [&](int32_t feature_pages) {
    offer.mutable_offer()->set_feature_pages(feature_pages);
    Group group(2);
    const CallId call = group.Call();
    REQUIRE(group.Say(call, Hello()).ok());
    REQUIRE(group.Say(call, offer).ok());
    return group.roster.Start(own);
  };
  CHECK(pages_with(0)->num_pages == 70);
  CHECK(pages_with(5)->num_pages == 55);
  const absl::Status none = pages_with(24).status();
  CHECK(absl::IsFailedPrecondition(none));
  CHECK(Has(std::string(none.message()), "has room for 0 pages"));
  Group group(2);
  const CallId call = group.Call();
  REQUIRE(group.Say(call, Hello()).ok());
  offer.mutable_offer()->set_feature_pages(-1);
  CHECK_FALSE(group.Say(call, offer).ok());
}

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

TEST_CASE("A process gets the rank that it wants, or is told who has it", "[unit]") {
  Group group(3);
  const auto wanting = [](int32_t rank) {
    FromRank hello = Hello();
    hello.mutable_hello()->set_wanted_rank(rank);
    return hello;
  };
  CHECK(Has(group.Refusal(wanting(3)), "--rank is 3; the ranks beside the head are 1 to 2"));
  CHECK(Has(group.Refusal(wanting(-1)), "--rank is -1"));
  const CallId first = group.Call(), second = group.Call();
  REQUIRE(group.Say(first, wanting(2)).ok());
  CHECK(group.roster.Find(first)->rank == 2);
  CHECK(Has(group.Refusal(wanting(2)), "another process is rank 2"));
  REQUIRE(group.Say(second, Hello()).ok());
  CHECK(group.roster.Find(second)->rank == 1);
}

FromRank HelloOfFamily(uint64_t family, int32_t rank, int32_t ranks = 2) {
  FromRank hello = HelloOfProcess(100 * family + static_cast<uint64_t>(rank) + 1, Hello());
  hello.mutable_hello()->set_family(family);
  hello.mutable_hello()->set_family_rank(rank);
  hello.mutable_hello()->set_family_ranks(ranks);
  return hello;
}

TEST_CASE("Ranks of one process get places one behind the other, of one stage", "[unit]") {
  Group group(/*tp=*/2, /*pp=*/3, /*head_ranks=*/2);
  const auto place = [&](const FromRank& hello) {
    const CallId call = group.Call();
    const absl::Status status = group.Say(call, hello);
    INFO(status.ToString());
    REQUIRE(status.ok());
    return group.roster.Find(call)->rank;
  };
  // The second one of a process may call first, and others in between.
  CHECK(place(HelloOfFamily(5, 1)) == 3);
  CHECK(place(HelloOfFamily(6, 0)) == 4);
  CHECK(place(HelloOfFamily(5, 0)) == 2);
  CHECK(Has(group.Refusal(HelloOfFamily(7, 0)), "no 2 places of one stage"));
  CHECK(Has(group.Refusal(Hello()), "are there"));                       // rank 5 is claimed
  CHECK(Has(group.Refusal(HelloOfFamily(kSession, 1)), "no 2 places"));  // all know the session
  CHECK(place(HelloOfFamily(kHeadFamily, 1)) == 1);                      // of the head's process
  CHECK(place(HelloOfFamily(6, 1)) == 5);
}

TEST_CASE("What a process says of its ranks has to fit", "[unit]") {
  Group group(/*tp=*/2, /*pp=*/2);
  CHECK(
      Has(group.Refusal(HelloOfFamily(5, 0, 3)), "has 3 ranks (--rank-cpus), and 2 share layers"));
  CHECK(Has(group.Refusal(HelloOfFamily(5, 2)), "rank 2 of 2"));
  CHECK(Has(group.Refusal(HelloOfFamily(5, -1)), "rank -1 of 2"));
  CHECK(Has(group.Refusal(HelloOfFamily(5, 0, 1)), "rank 0 of 1"));
  CHECK(Has(group.Refusal(HelloOfFamily(0, 0)), "rank 0 of 2"));
  CHECK(Has(group.Refusal(HelloOfFamily(kHeadFamily, 1)), "there is no place of rank 1"));
  const CallId one = group.Call();
  REQUIRE(group.Say(one, HelloOfFamily(5, 0)).ok());
  CHECK(group.roster.Find(one)->rank == 2);  // rank 1's stage has no room for two
  FromRank twice = HelloOfFamily(5, 0);
  twice.mutable_hello()->set_process(9);
  CHECK(Has(group.Refusal(twice), "there is no place of rank 2"));
  Group other(/*tp=*/3);
  const CallId first = other.Call();
  REQUIRE(other.Say(first, HelloOfFamily(5, 0)).ok());
  CHECK(Has(other.Refusal(HelloOfFamily(5, 2, 3)), "for another rank of the same process"));
}

TEST_CASE("A process that is lost takes all of its ranks, and another one takes their places",
          "[unit]") {
  Group group(/*tp=*/2, /*pp=*/2, /*head_ranks=*/2);
  std::vector<CallId> calls;
  for (const FromRank& hello :
       {HelloOfFamily(kHeadFamily, 1), HelloOfFamily(5, 0), HelloOfFamily(5, 1)}) {
    calls.push_back(group.Call());
    REQUIRE(group.Say(calls.back(), hello).ok());
    REQUIRE(group.Say(calls.back(), Offer()).ok());
  }
  REQUIRE(group.roster.Start(OwnOffer()).ok());
  for (const CallId call : calls) REQUIRE(group.Say(call, Ready()).ok());
  group.roster.End(calls[2]);
  const std::string failure(group.roster.failure().message());
  CHECK(Has(failure, "rank 3 (10.0.0.7) is lost"));
  CHECK(Has(failure, "; its process has rank 2"));
  CHECK(group.roster.culprit() == 2);
  group.roster.End(calls[1]);
  group.roster.End(calls[0]);
  group.roster.Regather(group.now);
  const CallId second = group.Call(), first = group.Call();
  REQUIRE(group.Say(second, HelloOfFamily(8, 1)).ok());
  CHECK(group.roster.Find(second)->rank == 3);
  REQUIRE(group.Say(first, HelloOfFamily(8, 0)).ok());
  CHECK(group.roster.Find(first)->rank == 2);
}

TEST_CASE("Ranks are numbered as they come, and the group has the least of all room", "[unit]") {
  Group group(3);
  const CallId first = group.Call(), second = group.Call();
  REQUIRE(group.Say(second, Hello()).ok());
  REQUIRE(group.Say(first, Hello()).ok());
  CHECK(group.roster.Find(second)->rank == 1);
  CHECK(group.roster.Find(first)->rank == 2);
  REQUIRE(group.Say(first, Offer(70)).ok());
  CHECK(!group.roster.has_all_offers());
  REQUIRE(group.Say(second, Offer(90)).ok());
  REQUIRE(group.roster.has_all_offers());
  const auto limits = group.roster.Start(OwnOffer());
  REQUIRE(limits.ok());
  CHECK(limits->num_pages == 70);
  CHECK(limits->max_context == 640);
  CHECK(group.roster.phase() == Phase::kLoading);
  REQUIRE(group.Say(first, Ready()).ok());
  CHECK(group.roster.phase() == Phase::kLoading);
  REQUIRE(group.Say(second, Ready()).ok());
  CHECK(group.roster.phase() == Phase::kRunning);
}

TEST_CASE("What does not belong is refused by name and takes no place", "[unit]") {
  Group group(2);
  RankIdentity other = kHead;
  other.token = "sixteen letters,";
  CHECK(Has(group.Refusal(Hello(other)), "the token differs"));
  CHECK(Has(group.Refusal(Hello({})), "the token differs"));
  other = kHead;
  other.build = "1.3";
  CHECK(Has(group.Refusal(Hello(other)), "the build differs"));
  other = kHead;
  other.model_digest = 78;
  CHECK(Has(group.Refusal(Hello(other)), "the model differs"));
  other = kHead;
  other.isa = "portable";
  CHECK(Has(group.Refusal(Hello(other)), "--isa"));
  for (const size_t bytes : {size_t{0}, RankRoster::kMaxAddressBytes + 1, size_t{1} << 20}) {
    FromRank hello = Hello();
    hello.mutable_hello()->set_mesh_address(std::string(bytes, 'x'));
    CHECK(Has(group.Refusal(hello), "an address of " + std::to_string(bytes)));
  }
  for (const FromRank& message : {FromRank(), Offer(), Ready(), Done(1), Beat(1, 1)}) {
    CHECK(Has(group.Refusal(message), "Hello first"));
  }
  CHECK(group.roster.ranks().empty());
  CHECK(group.roster.num_calls() == 0);
  CHECK(group.roster.phase() == Phase::kGathering);
  group.Run();
}

TEST_CASE("A rank too many is refused, and so is one behind the start", "[unit]") {
  Group group(2);
  const CallId first = group.Call();
  REQUIRE(group.Say(first, Hello()).ok());
  CHECK(Has(group.Refusal(Hello()), "all 1 ranks beside the head are there"));
  // Its place is free again when it leaves.
  group.roster.End(first);
  group.Run();
  CHECK(Has(group.Refusal(Hello()), "are there"));
  CHECK(group.roster.phase() == Phase::kRunning);
}

TEST_CASE("While the group gathers, what is said wrong ends that call alone", "[unit]") {
  Group group(3);
  const CallId stays = group.Call();
  REQUIRE(group.Say(stays, Hello()).ok());
  const std::vector<std::vector<FromRank>> wrong = {
      {Hello()},          {Ready()},          {Done(1)}, {FromRank()},
      {Offer(), Offer()}, {Offer(), Hello()}, {Offer(0)}};
  for (const auto& messages : wrong) {
    const CallId call = group.Call();
    REQUIRE(group.Say(call, Hello()).ok());
    for (size_t i = 0; i + 1 < messages.size(); ++i) REQUIRE(group.Say(call, messages[i]).ok());
    CHECK(absl::IsInvalidArgument(group.Say(call, messages.back())));
    group.roster.End(call);
  }
  CHECK(group.roster.phase() == Phase::kGathering);
  CHECK(group.roster.ranks().size() == 1);
}

TEST_CASE("An offer that does not fit is named at the start", "[unit]") {
  FromRank kv = Offer(), pages = Offer(), rows = Offer();
  kv.mutable_offer()->set_kv_type("int8");
  pages.mutable_offer()->set_page_tokens(32);
  rows.mutable_offer()->set_logit_rows(63);
  const std::vector<std::pair<FromRank, std::string>> cases = {
      {kv, "\"int8\""}, {pages, "pages of 32 positions, the head of 16"}, {rows, "63 rows"}};
  for (const auto& [offer, why] : cases) {
    Group group(2);
    const CallId call = group.Call();
    REQUIRE(group.Say(call, Hello()).ok());
    REQUIRE(group.Say(call, offer).ok());
    const absl::Status status = group.roster.Start(OwnOffer()).status();
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(Has(status.ToString(), "rank 1 (10.0.0.7)"));
    CHECK(Has(status.ToString(), why));
    CHECK(group.roster.phase() == Phase::kGathering);
  }
}

TEST_CASE("Halves count in stage 0, and layers alone behind it", "[unit]") {
  Group group(1, 2);
  const CallId call = group.Run()[0];
  group.roster.CountHalf();
  group.roster.CountHalf();
  CHECK(!group.roster.AreDone(1, 2));
  REQUIRE(group.Say(call, Done(1)).ok());
  CHECK(group.roster.AreDone(1, 2));
  Group wide(2);
  const CallId same_stage = wide.Run()[0];
  wide.roster.CountHalf();
  wide.roster.CountHalf();
  REQUIRE(wide.Say(same_stage, Done(1)).ok());
  CHECK(!wide.roster.AreDone(1, 2));
  REQUIRE(wide.Say(same_stage, Done(2)).ok());
  CHECK(wide.roster.AreDone(1, 2));
}

TEST_CASE("Repeated, skipped and invented reports lose the rank", "[unit]") {
  const std::vector<std::vector<FromRank>> wrong = {
      {Done(1), Done(1)}, {Done(2)}, {Done(0)}, {Done(1), Done(2), Done(3)},
      {Ready()},          {Offer()}, {Hello()}, {FromRank()}};
  for (const auto& messages : wrong) {
    Group group(2);
    const CallId call = group.Run()[0];
    group.roster.CountHalf();
    group.roster.CountHalf();
    for (size_t i = 0; i + 1 < messages.size(); ++i) REQUIRE(group.Say(call, messages[i]).ok());
    CHECK(absl::IsInvalidArgument(group.Say(call, messages.back())));
    CHECK(group.roster.phase() == Phase::kLost);
    CHECK(Has(group.roster.failure().ToString(), "rank 1 (10.0.0.7) is lost"));
    CHECK(Has(group.roster.failure().ToString(), "no place"));
  }
}

TEST_CASE("A lost rank is named with its address, step and op", "[unit]") {
  Group group(3);
  const std::vector<CallId> calls = group.Run();
  group.roster.set_step(12);
  REQUIRE(group.Say(calls[1], Beat(11, 345)).ok());
  group.roster.End(calls[1]);
  const std::string why = group.roster.failure().ToString();
  CHECK(Has(why, "rank 2 (10.0.0.7) is lost in step 12 (it last reported step 11, op 345)"));
  CHECK(absl::IsUnavailable(group.roster.failure()));
  // The first reason stays, and what comes later changes nothing.
  CHECK(absl::IsUnavailable(group.Say(calls[0], Done(1))));
  group.roster.End(calls[0]);
  group.roster.Fail(absl::InternalError("later"));
  CHECK(group.roster.failure().ToString() == why);
  CHECK(Has(group.Refusal(Hello()), "has ended"));
}

TEST_CASE("What a rank says of its failure is cut", "[unit]") {
  Group group(2);
  const CallId call = group.Run()[0];
  FromRank failed;
  failed.mutable_failed()->set_why(std::string(1 << 20, 'x'));
  CHECK(!group.Say(call, failed).ok());
  CHECK(group.roster.failure().message().size() < 600);
}

TEST_CASE("A rank that is loading can be lost as well", "[unit]") {
  Group group(2);
  const CallId call = group.Call();
  REQUIRE(group.Say(call, Hello()).ok());
  REQUIRE(group.Say(call, Offer()).ok());
  REQUIRE(group.roster.Start(OwnOffer()).ok());
  group.roster.End(call);
  CHECK(group.roster.phase() == Phase::kLost);
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

TEST_CASE("Callers that say nothing are few, and do not stand in the way of ranks", "[unit]") {
  Group group(3);
  const CallId member = group.Call();
  REQUIRE(group.Say(member, Hello()).ok());
  std::vector<CallId> strangers;
  for (int i = 0; i < RankRoster::kMaxStrangers; ++i) strangers.push_back(group.Call());
  CHECK(absl::IsResourceExhausted(group.roster.Begin("10.0.0.8", group.now).status()));
  CHECK(group.roster.num_calls() == strangers.size() + 1);
  REQUIRE(group.Say(strangers.back(), Hello()).ok());
  CHECK(group.roster.Begin("10.0.0.8", group.now).ok());
}

TEST_CASE("A call that has ended says nothing any more", "[unit]") {
  Group group(2);
  const CallId call = group.Call();
  group.roster.End(call);
  group.roster.End(call);
  CHECK(absl::IsCancelled(group.Say(call, Hello())));
  CHECK(absl::IsCancelled(group.Say(999, Hello())));
  CHECK(group.roster.Find(call) == nullptr);
}

// A group that has lost its rank `lost`, and gathers again.
void LoseAndGather(Group* group, const std::vector<CallId>& calls, int32_t lost) {
  group->roster.End(calls[static_cast<size_t>(lost) - 1]);
  REQUIRE(group->roster.phase() == Phase::kLost);
  CHECK(group->roster.culprit() == lost);
  for (const CallId call : calls) group->roster.End(call);
  group->roster.Regather(group->now);
  REQUIRE(group->roster.phase() == Phase::kGathering);
  CHECK(group->roster.failure().ok());
  CHECK(group->roster.ranks().empty());
}

TEST_CASE("Ranks that have their weights get their places back, and another the lost one's",
          "[unit]") {
  Group group(4);
  LoseAndGather(&group, group.Run(), 2);
  // The new one comes first, and gets no place that another will come back to.
  const CallId fresh = group.Call(), first = group.Call(), third = group.Call();
  REQUIRE(group.Say(fresh, Hello()).ok());
  CHECK(group.roster.Find(fresh)->rank == 2);
  REQUIRE(group.Say(third, HelloOf(3)).ok());
  REQUIRE(group.Say(first, HelloOf(1)).ok());
  CHECK(group.roster.Find(third)->rank == 3);
  CHECK(group.roster.Find(first)->rank == 1);
  for (const CallId call : {fresh, first, third}) REQUIRE(group.Say(call, Offer()).ok());
  const auto limits = group.roster.Start(OwnOffer());
  REQUIRE(limits.ok());
  CHECK(limits->num_pages == 80);
  for (const CallId call : {fresh, first, third}) REQUIRE(group.Say(call, Ready()).ok());
  CHECK(group.roster.phase() == Phase::kRunning);
  CHECK(group.roster.epoch() == 2);
  // Halves count from the beginning.
  CHECK(absl::IsInvalidArgument(group.Say(first, Done(1))));
}

TEST_CASE("The other places wait for their ranks, but not for ever", "[unit]") {
  Group group(3);
  LoseAndGather(&group, group.Run(), 1);
  const CallId fresh = group.Call();
  REQUIRE(group.Say(fresh, Hello()).ok());
  CHECK(Has(group.Refusal(Hello()), "UNAVAILABLE: ranks that have their weights come first"));
  for (int i = 0; i < 11; ++i) {
    group.Pass(100);
    REQUIRE(group.Say(fresh, Beat(0, 0)).ok());
  }
  const CallId other = group.Call();
  REQUIRE(group.Say(other, Hello()).ok());
  CHECK(group.roster.Find(other)->rank == 2);
  CHECK(Has(group.Refusal(HelloOf(2)), "RESOURCE_EXHAUSTED: there is no place of rank 2"));
}

TEST_CASE("A place of another head, or one that there is not, counts as none", "[unit]") {
  Group group(2);
  CHECK(Has(group.Refusal(HelloOf(2)), "there is no place of rank 2"));
  CHECK(Has(group.Refusal(HelloOf(1 << 30)), "there is no place"));
  const CallId call = group.Call();
  REQUIRE(group.Say(call, HelloOf(1, kSession + 1)).ok());
  CHECK(group.roster.Find(call)->rank == 1);
  group.roster.End(call);
  const CallId negative = group.Call();
  REQUIRE(group.Say(negative, HelloOf(-1)).ok());
  CHECK(group.roster.Find(negative)->rank == 1);
}

TEST_CASE("Who joins again must have room for what the group has", "[unit]") {
  Group group(2);
  LoseAndGather(&group, group.Run(), 1);
  FromRank rows = Offer(), kv = Offer(), context = Offer();
  rows.mutable_offer()->set_logit_rows(1);
  kv.mutable_offer()->set_kv_type("bf16");
  context.mutable_offer()->set_max_context(639);
  for (const FromRank& offer : {Offer(79), rows, kv, context}) {
    const CallId call = group.Call();
    REQUIRE(group.Say(call, Hello()).ok());
    CHECK(absl::IsFailedPrecondition(group.Say(call, offer)));
    group.roster.End(call);
    CHECK(group.roster.phase() == Phase::kGathering);
  }
  const CallId call = group.Call();
  REQUIRE(group.Say(call, Hello()).ok());
  REQUIRE(group.Say(call, Offer(1000)).ok());
  CHECK(group.roster.Start(OwnOffer())->num_pages == 80);
}

TEST_CASE("A rank whose last call the head still believes in is told to try again", "[unit]") {
  Group group(3);
  const std::string later = "UNAVAILABLE: an earlier call of the same process has not ended yet";
  const CallId first = group.Call(), other = group.Call();
  REQUIRE(group.Say(first, HelloOfProcess(11, Hello())).ok());
  CHECK(Has(group.Refusal(HelloOfProcess(11, Hello())), later));
  REQUIRE(group.Say(other, HelloOfProcess(12, Hello())).ok());
  REQUIRE(group.Say(first, Offer()).ok());
  REQUIRE(group.Say(other, Offer()).ok());
  REQUIRE(group.roster.Start(OwnOffer()).ok());
  CHECK(Has(group.Refusal(HelloOfProcess(11, HelloOf(1))), later));
  for (const CallId call : {first, other}) REQUIRE(group.Say(call, Ready()).ok());
  CHECK(Has(group.Refusal(HelloOfProcess(12, HelloOf(2))), later));
  CHECK(group.roster.phase() == Phase::kRunning);
  // Others are refused for good.
  CHECK(Has(group.Refusal(HelloOfProcess(13, Hello())), "RESOURCE_EXHAUSTED"));
  // The head notices, and the rank gets its place.
  LoseAndGather(&group, {first, other}, 2);
  const CallId again = group.Call();
  REQUIRE(group.Say(again, HelloOfProcess(12, HelloOf(2))).ok());
  CHECK(group.roster.Find(again)->rank == 2);
  CHECK(Has(group.Refusal(HelloOfProcess(12, HelloOf(2))), later));
  CHECK(Has(group.Refusal(HelloOfProcess(13, HelloOf(2))), "there is no place of rank 2"));
}

TEST_CASE("A link that breaks is blamed on nobody, and all places are kept", "[unit]") {
  Group group(2);
  const CallId call = group.Run()[0];
  group.roster.Fail(absl::UnavailableError("a link broke"));
  CHECK(group.roster.culprit() == 0);
  group.roster.End(call);
  group.roster.Regather(group.now);
  CHECK(Has(group.Refusal(Hello()), "come first"));
  const CallId again = group.Call();
  CHECK(group.Say(again, HelloOf(1)).ok());
}

TEST_CASE("An epoch can be lost like the first one", "[unit]") {
  Group group(2);
  for (int epoch = 1; epoch < 5; ++epoch) {
    CHECK(group.roster.epoch() == epoch);
    LoseAndGather(&group, group.Run(), 1);
  }
}

}  // namespace
}  // namespace heddle::server
