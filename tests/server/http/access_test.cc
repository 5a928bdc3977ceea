// API keys by their digests, and what each may use.
#include <chrono>
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/access/api_keys.h"
#include "server/access/key_account.h"
#include "server/http/peer.h"
#include "server/retry_after.h"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::ApiKey;
using server::HttpServerOptions;
using server::KeyAccount;
using server::KeyLimits;
using server::KeyRing;
using std::chrono::milliseconds;
using std::chrono::seconds;

// printf %s sk-one | sha256sum; printf %s sk-two | sha256sum
const char* const kOne = "456f1612bd25c6c8455039437bf441f43aa3b7d1c0b0047c712d5036dfebef0d";
const char* const kTwo = "5e31278545505db1d65bf1dd696e8eaa1edfb00ba455e21c83200c04ef643c91";

const char* const kCompletion = R"({"model":"test-model","prompt":"abc"})";

std::string Bearer(const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; }

HttpServerOptions WithKeys(const std::string& file) {
  HttpServerOptions options;
  auto keys = server::ParseKeyFile(file, {});
  REQUIRE(keys.ok());
  options.hashed_keys = *keys;
  return options;
}

TEST_CASE("A key file gives names, digests and limits, and defaults where it names none",
          "[server]") {
  auto keys = server::ParseKeyFile(std::string("# who may ask\n\nalice ") + kOne +
                                       " requests_per_minute=60 concurrency=0\r\n  ops " + kTwo +
                                       " admin weight=1000\n",
                                   {.tokens_per_minute = 7, .concurrency = 3});
  REQUIRE(keys.ok());
  REQUIRE(keys->size() == 2);
  CHECK((*keys)[0].name == "alice");
  CHECK((*keys)[0].limits.requests_per_minute == 60);
  CHECK((*keys)[0].limits.tokens_per_minute == 7);
  CHECK((*keys)[0].limits.concurrency == 0);
  CHECK((*keys)[0].weight == 1);
  CHECK((*keys)[1].weight == 1000);
  CHECK((*keys)[1].admin);
  CHECK((*keys)[1].limits.concurrency == 3);
  KeyRing ring(*keys);
  CHECK(ring.Find("sk-one") == 0);
  CHECK(ring.Find("sk-two") == 1);
  CHECK(ring.Find("sk-three") == -1);
  CHECK(ring.Find("") == -1);
}

TEST_CASE("A broken key file is refused by line, without quoting what might be a key", "[server]") {
  const std::string good = std::string("a ") + kOne;
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"alice sk-plain-text", "line 1: expected a name and the key's SHA-256"},
           {"alice", "line 1: expected a name"},
           {good + "\n\nb " + std::string(64, 'z'), "line 3: expected"},
           {good + "\n" + good, "line 2: this name stands on an earlier line"},
           {good + " speed=3", "\"speed=3\" is none of"},
           {good + " weight=0", "weight must be a whole number from 1 to 1000, not \"0\""},
           {good + " weight=1001", "weight must be a whole number from 1 to 1000"},
           {good + " concurrency=-1", "must be a whole number"},
           {good + " concurrency=", "must be a whole number"},
           {good + " concurrency=9999999999999999999", "must be a whole number"}}) {
    auto keys = server::ParseKeyFile(text, {});
    INFO(text);
    REQUIRE_FALSE(keys.ok());
    CHECK(std::string(keys.status().message()).find(part) != std::string::npos);
    CHECK(std::string(keys.status().message()).find("sk-plain-text") == std::string::npos);
  }
}

TEST_CASE("A minute's requests may come at once, and then one every sixtieth of it", "[server]") {
  auto account = std::make_shared<KeyAccount>(KeyLimits{.requests_per_minute = 60});
  KeyAccount::Clock::time_point now{seconds(1000)};
  for (int i = 0; i < 60; ++i) REQUIRE(account->Admit(now).ok());
  absl::Status refused = account->Admit(now);
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(server::RetryAfterSeconds(refused) == 1);
  CHECK_FALSE(account->Admit(now + milliseconds(900)).ok());
  CHECK(account->Admit(now + milliseconds(1100)).ok());
  KeyAccount::Headers headers;
  account->AppendHeaders(now + milliseconds(1100), &headers);
  CHECK(headers == KeyAccount::Headers{{"x-ratelimit-limit-requests", "60"},
                                       {"x-ratelimit-remaining-requests", "0"},
                                       {"x-ratelimit-reset-requests", "1m0s"}});
}

TEST_CASE("Tokens are paid for afterwards, and a debt is waited for", "[server]") {
  auto account = std::make_shared<KeyAccount>(KeyLimits{.tokens_per_minute = 600});
  KeyAccount::Clock::time_point now{seconds(1000)};
  REQUIRE(account->Admit(now).ok());
  account->Finish(/*tokens=*/800, now);  // 200 beyond: 20 s at 10 a second
  absl::Status refused = account->Admit(now);
  CHECK(server::RetryAfterSeconds(refused) == 21);
  CHECK_FALSE(account->Admit(now + seconds(19)).ok());
  CHECK(account->Admit(now + seconds(21)).ok());
}

TEST_CASE("Requests in progress are counted until they finish", "[server]") {
  auto account = std::make_shared<KeyAccount>(KeyLimits{.concurrency = 2});
  KeyAccount::Clock::time_point now{seconds(1)};
  REQUIRE(account->Admit(now).ok());
  REQUIRE(account->Admit(now).ok());
  CHECK_FALSE(account->Admit(now).ok());
  account->Finish(1000, now);
  CHECK(account->Admit(now).ok());
  CHECK(account->in_progress() == 2);
}

TEST_CASE("Each key has its own rate; 429 says when to come again", "[server]") {
  ServerUnderTest server(
      SayHi, WithKeys(std::string("one ") + kOne + " requests_per_minute=2\ntwo " + kTwo));
  RawClient client(server.port());
  RawResponse first = client.Post("/v1/completions", kCompletion, Bearer("sk-one"));
  CHECK(first.status == 200);
  CHECK(first.headers["x-ratelimit-limit-requests"] == "2");
  CHECK(first.headers["x-ratelimit-remaining-requests"] == "1");
  CHECK(first.headers["x-ratelimit-reset-requests"] == "30s");
  CHECK(client.Post("/v1/completions", kCompletion, Bearer("sk-one")).status == 200);
  RawResponse refused = client.Post("/v1/completions", kCompletion, Bearer("sk-one"));
  CHECK(refused.status == 429);
  CHECK(json::parse(refused.body)["error"]["type"] == "rate_limit_error");
  CHECK(std::stoi(refused.headers["retry-after"]) >= 1);
  CHECK(refused.headers["x-ratelimit-remaining-requests"] == "0");
  RawResponse other = client.Post("/v1/completions", kCompletion, Bearer("sk-two"));
  CHECK(other.status == 200);
  CHECK_FALSE(other.headers.contains("x-ratelimit-limit-requests"));
  CHECK(client.Post("/v1/completions", kCompletion, Bearer("sk-three")).status == 401);
}

TEST_CASE("What a request used is taken from its key's tokens, cancelled or not", "[server]") {
  ServerUnderTest server(SayHi, WithKeys(std::string("one ") + kOne + " tokens_per_minute=60"));
  RawClient client(server.port());
  client.Post("/v1/completions", kCompletion, Bearer("sk-one"));
  RawResponse second = client.Post("/v1/completions", kCompletion, Bearer("sk-one"));
  json usage = json::parse(second.body)["usage"];
  const int remaining = std::stoi(second.headers["x-ratelimit-remaining-tokens"]);
  CHECK(remaining >= 60 - usage["total_tokens"].get<int>());
  CHECK(remaining < 60);
}

TEST_CASE("The server's own bound on open requests holds for all keys and for none", "[server]") {
  HttpServerOptions options;
  options.max_open_requests = 1;
  ServerUnderTest server(std::make_unique<FakeGeneration>(), options);
  RawClient held(server.port());
  held.Send(PostText("/v1/completions", kCompletion));
  server.generation->WaitForRequest(0);
  RawClient client(server.port());
  CHECK(client.Post("/v1/completions", kCompletion).status == 429);
  held.Close();
  REQUIRE(server.generation->WaitForCancel(0));
  client.Send(PostText("/v1/completions", kCompletion));
  server.generation->WaitForRequest(1);
  CHECK(server.generation->num_submitted() == 2);
}

TEST_CASE("Keys are replaced while the server runs; those that stay keep their accounts",
          "[server]") {
  const std::string line_one = std::string("one ") + kOne + " requests_per_minute=2\n";
  HttpServerOptions options = WithKeys(line_one);
  options.keys_may_change = true;
  ServerUnderTest server(SayHi, options);
  RawClient client(server.port());
  CHECK(client.Post("/v1/completions", kCompletion, Bearer("sk-one")).status == 200);
  CHECK(client.Post("/v1/completions", kCompletion, Bearer("sk-two")).status == 401);

  server.http->ReplaceKeys(*server::ParseKeyFile("two " + std::string(kTwo) + "\n" + line_one, {}));
  CHECK(client.Post("/v1/completions", kCompletion, Bearer("sk-two")).status == 200);
  RawResponse second = client.Post("/v1/completions", kCompletion, Bearer("sk-one"));
  CHECK(second.headers["x-ratelimit-remaining-requests"] == "0");  // not those of a new account
  // The tenant is the key's, wherever its line stands.
  CHECK(server.generation->WaitForRequest(0).tenant == server.generation->WaitForRequest(2).tenant);
  CHECK(server.generation->WaitForRequest(1).tenant != server.generation->WaitForRequest(2).tenant);

  server.http->ReplaceKeys(*server::ParseKeyFile("two " + std::string(kTwo), {}));
  CHECK(client.Post("/v1/completions", kCompletion, Bearer("sk-one")).status == 401);
}

TEST_CASE("Addresses are told apart by what a host cannot choose by itself", "[server]") {
  const auto number = [](const char* text) {
    return server::PeerNumber(boost::asio::ip::make_address(text));
  };
  CHECK(number("10.0.0.1") != number("10.0.0.2"));
  CHECK(number("10.0.0.1") == number("::ffff:10.0.0.1"));
  CHECK(number("2001:db8:1:2::1") == number("2001:db8:1:2:ffff::9"));
  CHECK(number("2001:db8:1:2::1") != number("2001:db8:1:3::1"));
  CHECK(number("::1") != number("0.0.0.1"));
  CHECK(number("0.0.0.0") != 0);
}

TEST_CASE("The engine hears of each request's address and of its key's weight", "[server]") {
  const std::string keys = std::string("one ") + kOne + " weight=7\nops " + kTwo + " admin";
  ServerUnderTest server(SayHi, WithKeys(keys));
  RawClient first(server.port()), again(server.port()), other(server.port(), 0, 2);
  for (RawClient* client : {&first, &again, &other}) {
    CHECK(client->Post("/v1/completions", kCompletion, Bearer("sk-one")).status == 200);
  }
  CHECK(other.Post("/v1/completions", kCompletion, Bearer("sk-two")).status == 200);
  const auto peer = [&server](size_t i) { return server.generation->WaitForRequest(i).peer; };
  CHECK(peer(0) != 0);
  CHECK(peer(0) == peer(1));
  CHECK(peer(0) != peer(2));
  CHECK(peer(2) == peer(3));
  CHECK(server.generation->WaitForRequest(0).weight == 7);
  CHECK(server.generation->WaitForRequest(3).weight == 1);
}

TEST_CASE("The prompts of a request are one call, and requests are calls of their own",
          "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  for (int i = 0; i < 2; ++i) {
    CHECK(client.Post("/v1/completions", R"({"model":"test-model","prompt":["a","b"]})").status ==
          200);
  }
  const auto call = [&server](size_t i) {
    return scheduler::CallOf(server.generation->WaitForRequest(i));
  };
  CHECK(call(0) == call(1));
  CHECK(call(0) != call(2));
  CHECK(call(2) == call(3));
}

// The cache spaces that a server gives to requests.
class Spaces {
 public:
  explicit Spaces(const HttpServerOptions& options) : server_(SayHi, options) {}

  uint64_t Of(const std::string& key, const std::string& salt = "") {
    const json body = salt.empty()
                          ? json{{"model", "test-model"}, {"prompt", "abc"}}
                          : json{{"model", "test-model"}, {"prompt", "abc"}, {"cache_salt", salt}};
    RawClient client(server_.port());
    REQUIRE(client.Post("/v1/completions", body.dump(), Bearer(key)).status == 200);
    return server_.generation->WaitForRequest(num_requests_++).cache_space;
  }

 private:
  ServerUnderTest server_;
  size_t num_requests_ = 0;
};

TEST_CASE("Requests of several keys share no prompts, unless the operator says so", "[server]") {
  HttpServerOptions options = WithKeys(std::string("one ") + kOne + "\ntwo " + kTwo);
  Spaces apart(options);
  const uint64_t one = apart.Of("sk-one");
  CHECK(one != 0);
  CHECK(apart.Of("sk-one") == one);
  CHECK(apart.Of("sk-two") != one);
  CHECK(apart.Of("sk-two") != 0);
  // A salt divides a key's own space.
  const uint64_t salted = apart.Of("sk-one", "s");
  CHECK(salted != one);
  CHECK(apart.Of("sk-one", "s") == salted);
  CHECK(apart.Of("sk-two", "s") != salted);
  CHECK(Spaces(options).Of("sk-one") != one);  // a secret of each process decides the number

  options.prefix_cache_scope = server::PrefixCacheScope::kAll;
  Spaces shared(options);
  CHECK(shared.Of("sk-one") == 0);
  CHECK(shared.Of("sk-two") == 0);
  CHECK(shared.Of("sk-one", "s") == shared.Of("sk-two", "s"));

  CHECK(Spaces(WithKeys(std::string("one ") + kOne)).Of("sk-one") == 0);
}

TEST_CASE("Embeddings share prompts with nobody else either", "[server]") {
  ServerUnderTest server(std::make_unique<FakeGeneration>(),
                         WithKeys(std::string("one ") + kOne + "\ntwo " + kTwo));
  RawClient one(server.port()), two(server.port());
  const char* const body = R"({"model":"test-model","input":"abc"})";
  one.Send(PostText("/v1/embeddings", body, Bearer("sk-one")));
  const uint64_t space = server.generation->WaitForRequest(0).cache_space;
  two.Send(PostText("/v1/embeddings", body, Bearer("sk-two")));
  CHECK(space != 0);
  CHECK(server.generation->WaitForRequest(1).cache_space != space);
}

TEST_CASE("/debug needs an admin key where there are keys", "[server]") {
  HttpServerOptions options = WithKeys(std::string("one ") + kOne + "\nops " + kTwo + " admin");
  ServerUnderTest server(SayHi, options);
  RawClient client(server.port());
  auto get = [&client](const std::string& headers) {
    client.Send("GET /debug/stats HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n");
    return client.Read().status;
  };
  CHECK(get("") == 401);
  CHECK(get(Bearer("sk-one")) == 403);
  CHECK(get(Bearer("sk-two")) == 200);

  HttpServerOptions admin_only;
  admin_only.admin_keys = {"sk-two"};
  ServerUnderTest open(SayHi, admin_only);
  RawClient anyone(open.port());
  CHECK(anyone.Post("/v1/completions", kCompletion).status == 200);
  CHECK(anyone.Get("/debug/stats").status == 401);
}

}  // namespace
}  // namespace heddle::test
