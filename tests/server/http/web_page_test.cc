// The page at "/" as a browser gets it, and the figures behind its live view.
#include <openssl/evp.h>

#include <memory>
#include <regex>
#include <string>
#include <tuple>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;

RawResponse GetIndex(RawClient* client, const std::string& accept) {
  client->Send("GET / HTTP/1.1\r\nHost: t\r\n" + accept + "\r\n");
  return client->Read();
}

const char* const kBrowser = "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

TEST_CASE("A browser gets the web page, and everyone else a line of text", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  RawResponse page = GetIndex(&client, kBrowser);
  CHECK(page.status == 200);
  CHECK(page.headers["content-type"] == "text/html; charset=utf-8");
  CHECK(page.body.starts_with("<!doctype html>"));
  CHECK(page.headers["vary"] == "Accept");
  for (const char* accept : {"", "Accept: */*\r\n", "Accept: text/plain\r\n"}) {
    RawResponse text = GetIndex(&client, accept);
    CHECK(text.headers["content-type"] == "text/plain; charset=utf-8");
    CHECK(text.body.starts_with("Heddle "));
  }
}

TEST_CASE("Of a model without a chat template, the page goes on with texts", "[server]") {
  ServerUnderTest chats(SayHi);
  ByteCodec codec;
  codec.has_template = false;
  ServerUnderTest texts(std::make_unique<FakeGeneration>(SayHi), {}, nullptr, &codec);
  for (const auto& [server, mode, other] :
       {std::tuple(&chats, "chat", "completion"), std::tuple(&texts, "completion", "chat")}) {
    RawClient client(server->port());
    const RawResponse page = GetIndex(&client, kBrowser);
    CHECK(page.body.find(std::string("<body data-mode=\"") + mode + "\">") != std::string::npos);
    CHECK(page.body.find(std::string("<body data-mode=\"") + other + "\">") == std::string::npos);
    const RawResponse line = GetIndex(&client, "");
    CHECK((line.body.find("/v1/chat/completions") != std::string::npos) == (server == &chats));
    CHECK(line.body.find("POST /v1/completions") != std::string::npos);
  }
}

// CSP level 2, section 4.2.5: the digest of the text between the tags, in base64.
std::string HashSource(const std::string& text) {
  unsigned char digest[32];
  REQUIRE(EVP_Digest(text.data(), text.size(), digest, nullptr, EVP_sha256(), nullptr) == 1);
  unsigned char base64[64];
  int length = EVP_EncodeBlock(base64, digest, sizeof(digest));
  return "'sha256-" + std::string(reinterpret_cast<char*>(base64), length) + "'";
}

TEST_CASE("The page's security policy names its own style and script and nothing else",
          "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  RawResponse page = GetIndex(&client, kBrowser);
  std::string policy = page.headers["content-security-policy"];
  CHECK(policy.starts_with("default-src 'none'; "));
  CHECK(policy.find("unsafe") == std::string::npos);
  auto between = [&page](const std::string& open, const std::string& close) {
    size_t begin = page.body.find(open) + open.size();
    return page.body.substr(begin, page.body.find(close) - begin);
  };
  CHECK(policy.find("script-src " + HashSource(between("<script>", "</script>"))) !=
        std::string::npos);
  CHECK(policy.find("style-src " + HashSource(between("<style>", "</style>"))) !=
        std::string::npos);
  // Nothing is loaded, and no text becomes markup.
  CHECK_FALSE(std::regex_search(page.body, std::regex("(src|href)=\"(https?:|//)")));
  for (const char* way :
       {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("}) {
    CHECK(page.body.find(way) == std::string::npos);
  }
}

TEST_CASE("/debug/stats has the engine's figures and what was measured of requests", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  REQUIRE(client
              .Post("/v1/chat/completions",
                    R"({"model":"test-model","messages":[{"role":"user","content":"x"}]})")
              .status == 200);
  json stats = json::parse(client.Get("/debug/stats").body);
  CHECK(stats["model"] == "test-model");
  CHECK(stats["state"] == "serving");
  CHECK(stats["open_connections"] == 1);
  CHECK(stats["open_streams"] == 0);
  CHECK(stats["uptime_seconds"] > 0.0);
  CHECK(stats["resident_bytes"] > 1 << 20);
  CHECK(stats["pages"]["total"].is_number_integer());
  const json& first = stats["time_to_first_token"];
  CHECK(first["count"] == 1);
  CHECK(first["buckets"].back() == json::array({nullptr, 1}));
  CHECK(first["sum_seconds"] > 0.0);
}

}  // namespace
}  // namespace heddle::test
