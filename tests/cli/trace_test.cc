// `heddle trace`: addresses, the question over HTTP, and the answer as text.
#include "catch2/catch.hpp"
#include "server/cli/http_get.h"
#include "server/cli/trace_view.h"
#include "tests/server/server_under_test.h"

namespace heddle::server {
namespace {

using std::chrono_literals::operator""s;

std::string AddressOf(const test::ServerUnderTest& server) {
  return "http://127.0.0.1:" + std::to_string(server.port());
}

TEST_CASE("An address has a host, and may have a port and a prefix", "[cli][unit]") {
  auto plain = ParseHttpAddress("http://localhost");
  REQUIRE(plain.ok());
  CHECK(plain->host == "localhost");
  CHECK(plain->port == "80");
  CHECK(plain->prefix.empty());
  auto whole = ParseHttpAddress("http://10.0.0.7:8000/models/a/");
  REQUIRE(whole.ok());
  CHECK(whole->host == "10.0.0.7");
  CHECK(whole->port == "8000");
  CHECK(whole->prefix == "/models/a");
  auto six = ParseHttpAddress("http://[::1]:8001");
  REQUIRE(six.ok());
  CHECK(six->host == "::1");
  CHECK(six->port == "8001");
}

TEST_CASE("An address that cannot be asked is refused with what is wrong", "[cli][unit]") {
  const std::pair<const char*, const char*> cases[] = {
      {"https://example.org", "needs TLS"},
      {"example.org:8000", "http://"},
      {"http://", "names no host"},
      {"http://:8000", "names no host"},
      {"http://a:", "port"},
      {"http://a:80x", "port"},
      {"http://a:123456", "port"},
      {"http://a:65536", "from 1 to 65535"},
      {"http://a:0", "from 1 to 65535"},
      {"http://[::1", "bracket"},
  };
  for (const auto& [url, why] : cases) {
    INFO(url);
    const auto address = ParseHttpAddress(url);
    REQUIRE_FALSE(address.ok());
    CHECK(address.status().message().find(why) != std::string::npos);
  }
}

TEST_CASE("Any text can be a segment of a path", "[cli][unit]") {
  // RFC 3986, sections 2.1 and 2.3.
  CHECK(PercentEncoded("req-4f.b_9~A") == "req-4f.b_9~A");
  CHECK(PercentEncoded("a/b c?\xc3\xa9") == "a%2Fb%20c%3F%C3%A9");
}

TEST_CASE("A running server is asked, and says what it does not know", "[cli][unit]") {
  test::ServerUnderTest server;
  const auto address = ParseHttpAddress(AddressOf(server));
  REQUIRE(address.ok());
  const auto list = HttpGet(*address, "/debug/requests", "", 10s);
  REQUIRE(list.ok());
  CHECK(list->status == 200);
  const auto text = RequestListText(list->body);
  REQUIRE(text.ok());
  CHECK(text->find(" time ") != std::string::npos);  // that it took: not how long ago it came
  const auto unknown = HttpGet(*address, "/debug/requests/" + PercentEncoded("a/b"), "", 10s);
  REQUIRE(unknown.ok());
  CHECK(unknown->status == 404);
  CHECK(ErrorMessage(unknown->body).find("\"a/b\"") != std::string::npos);
}

TEST_CASE("A port where nobody listens is told with the address", "[cli][unit]") {
  uint16_t port = 0;
  {
    test::ServerUnderTest server;
    port = server.port();
  }
  const HttpAddress address{.host = "127.0.0.1", .port = std::to_string(port), .prefix = ""};
  const auto answer = HttpGet(address, "/debug/requests", "", 10s);
  REQUIRE(absl::IsUnavailable(answer.status()));
  CHECK(answer.status().message().find(std::to_string(port)) != std::string::npos);
}

TEST_CASE("A history becomes a timeline", "[cli][unit]") {
  const auto text = TimelineText(R"({
    "id": "req-1", "number": 7, "state": "stopped", "age_ms": 1250.5, "queued_ms": 3.25,
    "prompt_tokens": 120, "cached_tokens": 64, "generated_tokens": 17, "preemptions": 1,
    "forgotten_events": 0, "events": [
      {"event": "queued", "branch": 0, "tokens": 120, "steps": 0, "begin_ms": 0, "end_ms": 0},
      {"event": "admitted", "branch": 0, "tokens": 64, "steps": 0, "begin_ms": 3.25, "end_ms": 3.25},
      {"event": "prompt", "branch": 0, "tokens": 56, "steps": 2, "begin_ms": 3.25, "end_ms": 90.75},
      {"event": "decode", "branch": 0, "tokens": 16, "steps": 16, "begin_ms": 90.75, "end_ms": 900},
      {"event": "preempted", "branch": 0, "tokens": 136, "steps": 0, "begin_ms": 900, "end_ms": 900},
      {"event": "finished", "branch": 0, "tokens": 17, "steps": 0, "begin_ms": 1250.5,
       "end_ms": 1250.5}]})");
  REQUIRE(text.ok());
  CHECK(*text ==
        "request    req-1 (number 7)\n"
        "state      stopped, 1.25 s after it came\n"
        "queue      3.2 ms until its first step\n"
        "prompt     120 tokens, 64 of them from the prefix cache\n"
        "answer     17 tokens\n"
        "preempted  1 time\n"
        "\n"
        "     at ms      for ms  what\n"
        "       0.0              queued with a prompt of 120 tokens\n"
        "       3.2              admitted; 64 tokens from the prefix cache\n"
        "       3.2        87.5  prompt: 56 tokens in 2 steps\n"
        "      90.8       809.2  decode: 16 steps, a token each\n"
        "     900.0              preempted: gave up the pages of 136 tokens\n"
        "    1250.5              finished after 17 tokens\n");
}

TEST_CASE("Branches are told apart, and forgotten events are counted", "[cli][unit]") {
  const auto text = TimelineText(R"({
    "id": "r", "number": 1, "state": "running", "age_ms": 5, "queued_ms": null,
    "prompt_tokens": 1, "cached_tokens": 0, "generated_tokens": 2, "preemptions": 0,
    "forgotten_events": 3, "events": [
      {"event": "queued", "branch": 0, "tokens": 1, "steps": 0, "begin_ms": 0, "end_ms": 0},
      {"event": "decode", "branch": 1, "tokens": 1, "steps": 1, "begin_ms": 2, "end_ms": 3}]})");
  REQUIRE(text.ok());
  CHECK(text->find("waits still") != std::string::npos);
  CHECK(text->find("(3 events forgotten)") != std::string::npos);
  CHECK(text->find("     1  decode: 1 step, a token each") != std::string::npos);
}

TEST_CASE("Branches are drawn below the run from which they were forked", "[cli][unit]") {
  const auto text = TimelineText(R"({
    "id": "r", "number": 5, "tree": "r", "branch": "0", "state": "stopped", "age_ms": 5,
    "queued_ms": 1, "prompt_tokens": 1, "cached_tokens": 0, "generated_tokens": 2, "preemptions": 0,
    "forgotten_events": 0, "events": [], "runs": [
      {"branch": "0", "begin_ms": 0, "end_ms": 80, "cached_tokens": 0, "generated_tokens": 40},
      {"branch": "0.0", "begin_ms": 80, "end_ms": 160, "cached_tokens": 40, "generated_tokens": 64},
      {"branch": "0.1", "begin_ms": 80, "end_ms": 100, "state": "cancelled"},
      {"branch": "0.0.0", "begin_ms": 110, "end_ms": 120, "state": "stopped"},
      {"branch": "0.0", "begin_ms": 120, "end_ms": 160},
      {"branch": "0", "begin_ms": 160, "end_ms": 320},
      {"branch": "0.2", "begin_ms": 320, "end_ms": 320}]})");
  REQUIRE(text.ok());
  CHECK(text->find("branch     0 of r\n") != std::string::npos);
  const size_t tree = text->find("     at ms      for ms  cached");
  REQUIRE(tree != std::string::npos);
  CHECK(text->substr(tree) ==
        "     at ms      for ms  cached  tokens  branch\n"
        "       0.0        80.0       0      40  0                         ########\n"
        "      80.0        80.0      40      64  |-- 0.0                           ########\n"
        "     110.0        10.0       0       0  |   `-- 0.0.0                        #\n"
        "     120.0        40.0       0       0  |   0.0                               ####\n"
        "      80.0        20.0       0       0  `-- 0.1                           ## cancelled\n"
        "     160.0       160.0       0       0  0                                         "
        "################\n"
        "     320.0         0.0       0       0  `-- 0.2                                           "
        "       #\n");
}

TEST_CASE("Runs that are none, and names that nobody gives, harm no drawing", "[cli][unit]") {
  const auto draw = [](const std::string& runs) {
    return TimelineText("{\"events\": [], \"runs\": " + runs + "}");
  };
  for (const char* runs : {"3", "[]", "{}", "[1, null, {}]", R"([{"branch": 1}, {"branch": []}])",
                           R"([{"branch": "0", "begin_ms": -1e300, "end_ms": 1e300}])"}) {
    INFO(runs);
    REQUIRE(draw(runs).ok());
    CHECK(draw(runs)->find("cached  tokens") == std::string::npos);
  }
  CHECK(draw(R"([{"branch": "0..1."}, {"branch": "."}, {"branch": "0..1", "begin_ms": 9e99},
                 {"branch": "0", "end_ms": -5, "generated_tokens": 1e300}, {"branch": "0.."}])")
            .ok());
  std::string deep = "0", runs = "[";
  for (int i = 0; i < 400; ++i, deep += ".0") runs += "{\"branch\": \"" + deep + "\"},";
  CHECK(draw(runs + "{}]").ok());
}

TEST_CASE("Answers of another server are no histories and harm nothing", "[cli][unit]") {
  for (const char* body : {"", "{}", "[]", "not found", "{\"events\": 3}", "{\"requests\": {}}"}) {
    INFO(body);
    CHECK(absl::IsInvalidArgument(TimelineText(body).status()));
    CHECK(absl::IsInvalidArgument(RequestListText(body).status()));
  }
  CHECK(TimelineText("{\"id\": 3, \"events\": [1, {\"event\": []}, {\"begin_ms\": 1e300}]}").ok());
  CHECK(RequestListText("{\"requests\": [1, {\"id\": []}]}").ok());
  CHECK(ErrorMessage("<html>") == "\"<html>\"");
}

}  // namespace
}  // namespace heddle::server
