// The head's book of ranks: how a group that has lost a rank gathers again.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/parallel/roster_group.h"

namespace heddle::server {
namespace {

using test::Beat;
using test::CallId;
using test::Done;
using test::FromRank;
using test::Group;
using test::Has;
using test::Hello;
using test::HelloOf;
using test::HelloOfProcess;
using test::kSession;
using test::Offer;
using test::OwnOffer;
using test::Phase;
using test::Ready;

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
