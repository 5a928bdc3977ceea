// The head's book of ranks: places that processes want, and those of several ranks of a process.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/parallel/roster_group.h"

namespace heddle::server {
namespace {

using test::CallId;
using test::FromRank;
using test::Group;
using test::Has;
using test::Hello;
using test::HelloOfProcess;
using test::kHeadFamily;
using test::kSession;
using test::Offer;
using test::OwnOffer;
using test::Ready;

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

}  // namespace
}  // namespace heddle::server
