// The head's book of ranks: who is let in, what each may say when, and who is lost.
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
using test::Offer;
using test::OwnOffer;
using test::Phase;
using test::Ready;

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

TEST_CASE("Callers that say nothing are few, and do not stand in the way of ranks", "[unit]") {
  Group group(3);
  const CallId member = group.Call();
  REQUIRE(group.Say(member, Hello()).ok());
  std::vector<CallId> strangers;
  strangers.reserve(RankRoster::kMaxStrangers);
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

}  // namespace
}  // namespace heddle::server
