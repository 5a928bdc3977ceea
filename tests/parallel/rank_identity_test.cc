// Who may be a rank: what is compared, in which order, and how it is named.
#include "server/ranks/rank_identity.h"

#include <string>

#include "catch2/catch.hpp"
#include "tests/parallel/head_identity.h"

namespace heddle::server {
namespace {

std::string Refusal(const RankIdentity& other) {
  return std::string(CheckIdentity(kHead, other).message());
}

TEST_CASE("A rank with all in common is let in", "[unit]") {
  CHECK(CheckIdentity(kHead, kHead).ok());
  CHECK(CheckIdentity({}, {}).ok());
}

TEST_CASE("The first field that differs is named, with both values", "[unit]") {
  RankIdentity other = kHead;
  other.isa = "avx512";
  CHECK(Refusal(other).find("--isa") != std::string::npos);
  CHECK(Refusal(other).find("\"avx512\"") != std::string::npos);
  other.model_digest = 78;
  CHECK(Refusal(other).find("the model differs") != std::string::npos);
  other.build = std::string(100000, 'x') + "\n";
  CHECK(Refusal(other).find("the build differs") != std::string::npos);
  CHECK(Refusal(other).size() < 300);
}

TEST_CASE("Another token tells nothing of the rest", "[unit]") {
  for (const char* token :
       {"", "s", "sixteen letters,", "sixteen letters..", "sixteen letters.sixteen letters."}) {
    RankIdentity other{.token = token, .build = "other", .model_digest = 1, .isa = "other"};
    INFO(token);
    CHECK(absl::IsPermissionDenied(CheckIdentity(kHead, other)));
    CHECK(Refusal(other).find("1.2") == std::string::npos);
  }
  CHECK(absl::IsPermissionDenied(CheckIdentity({}, kHead)));
}

TEST_CASE("Addresses are a host and a port", "[unit]") {
  const auto address = ParseRankAddress("--join", "10.0.0.7:7000");
  REQUIRE(address.ok());
  CHECK(address->host == "10.0.0.7");
  CHECK(address->port == 7000);
  CHECK(ParseRankAddress("--join", "[::1]:0")->host == "[::1]");
  for (const char* text :
       {"", ":", ":7000", "host", "host:", "host:65536", "host:-1", "host:7x", "::1:7000"}) {
    INFO(text);
    CHECK(absl::IsInvalidArgument(ParseRankAddress("--join", text).status()));
  }
  CHECK(HostOfPeer("ipv4:10.0.0.7:41234") == "10.0.0.7");
  CHECK(HostOfPeer("nothing") == "nothing");
  CHECK(HostOfPeer("unix:") == "unix:");
}

}  // namespace
}  // namespace heddle::server
