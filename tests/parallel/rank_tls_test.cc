// Calls between a head and a rank over mutual TLS, by the ends that `serve` has.
#include "server/ranks/rank_tls.h"

#include <chrono>
#include <fstream>
#include <memory>
#include <string>

#include "catch2/catch.hpp"
#include "server/log.h"
#include "server/ranks/rank_client.h"
#include "server/ranks/rank_head.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pki.h"

namespace heddle::server {
namespace {

using test::Certified;
using test::MakeAuthority;
using test::TempDir;

const RankIdentity kIdentity{
    .token = "sixteen letters.", .build = "1.2", .model_digest = 77, .isa = "avx2", .ucx = "1.13"};

// Files of certificates, and a head that waits for one rank.
struct Site {
  RankTls Files(const std::string& name, const Certified& own, const Certified& trusted) const {
    return {Put(name + ".pem", own.CertPem()), Put(name + ".key", own.KeyPem()),
            Put(name + ".ca", trusted.CertPem())};
  }

  std::string Put(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  }

  std::shared_ptr<RankHead> Listen(const RankTls& tls) const {
    auto started = RankHead::Start({.host = "127.0.0.1",
                                    .tls = tls,
                                    .identity = kIdentity,
                                    .settings = {.layout = {.tp = 2},
                                                 .weights = "auto",
                                                 .kv_type = "f16",
                                                 .page_tokens = 16,
                                                 .max_batch_tokens = 64,
                                                 .max_batch_seqs = 4,
                                                 .timeout = std::chrono::seconds(10),
                                                 .session = 4711}},
                                   &log);
    REQUIRE(started.ok());
    return *started;
  }

  static absl::Status Join(const RankHead& head, const RankTls& tls,
                           const std::string& host = "127.0.0.1") {
    return RankClient::Join(host, head.port(), tls, {kIdentity}, {}).status();
  }

  TempDir folder;
  Logger log{LogFormat::kText, LogLevel::kOff};
  Certified authority = MakeAuthority("Ranks");
  Certified others = MakeAuthority("Others");
  Certified head{{}, &authority};
  Certified rank{{.name = "rank"}, &authority};
  Certified stranger{{.name = "stranger"}, &others};
};

TEST_CASE("A head with a certificate takes in ranks with one of the same authority", "[unit]") {
  const Site site;
  const auto head = site.Listen(site.Files("head", site.head, site.authority));
  const auto client = RankClient::Join(
      "127.0.0.1", head->port(), site.Files("rank", site.rank, site.authority), {kIdentity}, {});
  REQUIRE(client.ok());
  CHECK((*client)->rank() == 1);
  CHECK((*client)->settings().layout.tp == 2);
}

TEST_CASE("A head with a certificate refuses ranks without TLS, and strangers", "[unit]") {
  const Site site;
  const auto head = site.Listen(site.Files("head", site.head, site.authority));
  CHECK(absl::IsUnavailable(Site::Join(*head, {})));
  CHECK(absl::IsUnavailable(
      Site::Join(*head, site.Files("stranger", site.stranger, site.authority))));
}

TEST_CASE("A rank with a certificate refuses heads without one, and strangers", "[unit]") {
  const Site site;
  const RankTls rank = site.Files("rank", site.rank, site.authority);
  CHECK(absl::IsUnavailable(Site::Join(*site.Listen({}), rank)));
  const auto stranger = site.Listen(site.Files("stranger", site.stranger, site.authority));
  CHECK(absl::IsUnavailable(Site::Join(*stranger, rank)));
  // It is made out to 127.0.0.1 and another name.
  const auto elsewhere = site.Listen(site.Files("elsewhere", site.rank, site.authority));
  CHECK(absl::IsUnavailable(Site::Join(*elsewhere, rank, "localhost")));
  CHECK(Site::Join(*elsewhere, rank).ok());
}

TEST_CASE("Files that are no certificates are named with their option", "[unit]") {
  const Site site;
  const auto ignore = [](const std::string&) {};
  RankTls tls = site.Files("head", site.head, site.authority);
  CHECK(CheckRankTls({}, ignore).ok());
  CHECK(CheckRankTls(tls, ignore).ok());
  RankTls other = tls;
  other.key_file = site.Put("other.key", site.rank.KeyPem());
  const absl::Status status = CheckRankTls(other, ignore);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message().find("--rank-tls-key") != std::string::npos);
  other = tls;
  other.ca_file = site.Put("empty.ca", "");
  CHECK(CheckRankTls(other, ignore).message().find("--rank-tls-ca") != std::string::npos);
}

}  // namespace
}  // namespace heddle::server
