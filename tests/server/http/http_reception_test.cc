// How requests are received: who may not ask is refused by the header alone, and what all bodies in
// reception may take is bounded.
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/http/body_budget.h"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::BodyBudget;
using server::HttpServerOptions;
using std::chrono::milliseconds;

constexpr size_t kLargest = size_t{8} << 20;

HttpServerOptions WithKey() {
  HttpServerOptions options;
  options.api_keys = {"secret"};
  return options;
}

std::string Head(const std::string& line, size_t length, const std::string& more = "") {
  return line + " HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(length) + "\r\n" +
         more + "\r\n";
}

// A body for /tokenize of `bytes` bytes.
std::string TokenizeBody(size_t bytes) {
  const std::string begin = R"({"prompt":"a", "x":")";
  return begin + std::string(bytes - begin.size() - 2, 'y') + "\"}";
}

int64_t Refused(const ServerUnderTest& server, const std::string& reason) {
  const std::string name = "heddle_refused_total{reason=\"" + reason + "\"} ";
  const std::string text = server.metrics.Render({}, {});
  const size_t at = text.find(name);
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + name.size());
}

TEST_CASE("Who may not ask is told so before the body comes", "[server]") {
  ServerUnderTest server(SayOk, WithKey());
  const std::string key = "Authorization: Bearer secret\r\n";
  const struct {
    std::string head;
    int status;
  } tries[] = {
      {Head("POST /v1/chat/completions", kLargest - 1), 401},
      {Head("POST /v1/chat/completions", kLargest - 1, "Authorization: Bearer wrong\r\n"), 401},
      {Head("POST /v1/chat/completions", 5), 401},
      {Head("POST /v1/chat/completions", kLargest - 1, "Expect: 100-continue\r\n"), 401},
      {Head("POST /nowhere", kLargest - 1, key), 404},
      {Head("PUT /v1/chat/completions", kLargest - 1, key), 405},
      {Head("POST /health", kLargest - 1), 405},
      {Head("POST /v1/chat/completions", kLargest + 1, key), 413},
      {"POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", 401},
  };
  for (const auto& attempt : tries) {
    INFO(attempt.head);
    RawClient client(server.port());
    client.Send(attempt.head);
    const RawResponse response = client.Read();
    CHECK(response.status == attempt.status);
    CHECK(json::parse(response.body)["error"].contains("message"));
  }
}

TEST_CASE("A page of another site is refused before its body comes", "[server]") {
  ServerUnderTest server(SayOk);
  RawClient client(server.port());
  client.Send(Head("POST /v1/chat/completions", 1000, "Sec-Fetch-Site: cross-site\r\n"));
  CHECK(client.Read().status == 403);
}

TEST_CASE("A connection goes on behind a refused request with a small body", "[server]") {
  ServerUnderTest server(SayOk, WithKey());
  RawClient client(server.port());
  client.Send(Head("POST /tokenize", 5));
  RawResponse refused = client.Read();
  CHECK(refused.status == 401);
  CHECK(refused.headers["connection"] != "close");
  client.Send("he");
  client.Send("lloGET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  CHECK(client.Read().status == 200);
  client.Send(Head("POST /tokenize", 6) + "hello!" + Head("POST /nowhere", 2) + "{}" +
              "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  CHECK(client.Read().status == 401);
  CHECK(client.Read().status == 404);
  CHECK(client.Read().status == 200);
  // A large one is not waited for.
  client.Send(Head("POST /tokenize", 100'000));
  refused = client.Read();
  CHECK(refused.status == 401);
  CHECK(refused.headers["connection"] == "close");
  CHECK(client.ReadsEnd());
}

HttpServerOptions Narrow() {
  HttpServerOptions options;
  options.max_body_bytes = 100'000;
  options.max_pending_body_bytes = 150'000;
  return options;
}

TEST_CASE("Large bodies wait for each other's memory, small ones do not", "[server]") {
  ServerUnderTest server(SayOk, Narrow());
  const std::string body = TokenizeBody(90'000);
  RawClient first(server.port());
  first.Send(Head("POST /tokenize", body.size(), "Expect: 100-continue\r\n"));
  CHECK(first.ReadUntil("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  first.Send(body.substr(0, 50'000));
  RawClient second(server.port());
  second.Send(Head("POST /tokenize", body.size()) + body);
  RawClient third(server.port());
  third.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n15f90\r\n" +
             body + "\r\n0\r\n\r\n");
  RawClient small(server.port());
  CHECK(small.Post("/tokenize", R"({"prompt":"a"})").status == 200);
  std::string metrics;
  for (int i = 0; i < 1000 && metrics.find("heddle_waiting_bodies 2\n") == std::string::npos; ++i) {
    metrics = small.Get("/metrics").body;
  }
  CHECK(metrics.find("heddle_waiting_bodies 2\n") != std::string::npos);
  CHECK(metrics.find("heddle_pending_body_bytes 90000\n") != std::string::npos);
  first.Send(body.substr(50'000));
  CHECK(first.Read().status == 200);
  CHECK(second.Read().status == 200);
  CHECK(third.Read().status == 200);
  CHECK(server.http->bodies()->held_bytes() == 0);
}

TEST_CASE("A body that waits in vain is a 503 that says when to come again", "[server]") {
  HttpServerOptions options = Narrow();
  options.body_timeout = milliseconds(100);
  ServerUnderTest server(SayOk, options);
  BodyBudget::Place another = server.http->bodies()->Ask(100'000, [] {});
  RawClient client(server.port());
  client.Send(Head("POST /tokenize", 90'000) + "{");
  RawResponse refused = client.Read();
  CHECK(refused.status == 503);
  CHECK(refused.headers["retry-after"] == "5");
  CHECK(ErrorMessage(refused).find("try again") != std::string::npos);
  CHECK(Refused(server, "body_memory") == 1);
  CHECK(server.http->bodies()->num_waiting() == 0);
  // A client that gets a place after a wait has the whole time for the body.
  RawClient late(server.port());
  late.Send(Head("POST /tokenize", 90'000) + "{");
  for (int i = 0; i < 1000 && server.http->bodies()->num_waiting() == 0; ++i) {
    RawClient(server.port()).Get("/health");
  }
  another.Release();
  CHECK(late.Read().status == 408);
  CHECK(Refused(server, "slow_body") == 1);
}

TEST_CASE("A body that stops arriving loses its place to one that waits", "[server]") {
  HttpServerOptions options = Narrow();
  options.body_stall_timeout = milliseconds(50);
  ServerUnderTest server(SayOk, options);
  const std::string body = TokenizeBody(90'000);
  RawClient stalled(server.port());
  stalled.Send(Head("POST /tokenize", body.size()) + body.substr(0, 89'999));
  for (int i = 0; i < 1000 && server.http->bodies()->held_bytes() == 0; ++i) {
    RawClient(server.port()).Get("/health");
  }
  RawClient waiting(server.port());
  waiting.Send(Head("POST /tokenize", body.size()) + body);
  CHECK(waiting.Read().status == 200);
  CHECK(stalled.Read().status == 408);
  CHECK(Refused(server, "slow_body") == 1);
}

TEST_CASE("Clients that leave give back what they had of the budget, or waited for", "[server]") {
  ServerUnderTest server(SayOk, Narrow());
  for (int i = 0; i < 20; ++i) {
    RawClient client(server.port());
    client.Send(Head("POST /tokenize", 90'000) + std::string(20'000, ' '));
    if (i % 2 == 0) client.Reset();
  }
  RawClient client(server.port());
  CHECK(client.Post("/tokenize", TokenizeBody(90'000)).status == 200);
  for (int i = 0; i < 1000 && server.http->bodies()->held_bytes() > 0; ++i) client.Get("/health");
  CHECK(server.http->bodies()->held_bytes() == 0);
  CHECK(server.http->bodies()->num_waiting() == 0);
}

TEST_CASE("The budget is granted in the order of asking", "[server]") {
  BodyBudget budget(100);
  std::string granted;
  BodyBudget::Place a = budget.Ask(60, [&] { granted += 'a'; });
  CHECK(a.is_granted());
  BodyBudget::Place b = budget.Ask(50, [&] { granted += 'b'; });
  BodyBudget::Place c = budget.Ask(10, [&] { granted += 'c'; });  // would fit, but came later
  CHECK_FALSE(b.is_granted());
  CHECK_FALSE(c.is_granted());
  CHECK_FALSE(budget.Try(10));
  CHECK(budget.held_bytes() == 60);
  CHECK(budget.num_waiting() == 2);
  a.Release();
  CHECK(granted == "bc");
  CHECK(budget.held_bytes() == 60);
  { const BodyBudget::Place moved = std::move(b); }
  CHECK(budget.held_bytes() == 10);
  BodyBudget::Place large = budget.Ask(500, [&] { granted += 'l'; });
  CHECK_FALSE(large.is_granted());
  c.Release();
  CHECK(large.is_granted());  // alone, since it never fits
  CHECK(granted == "bcl");
  BodyBudget::Place late = budget.Ask(1, [&] { granted += 'x'; });
  late.Release();
  large.Release();
  CHECK(granted == "bcl");
  CHECK(budget.held_bytes() == 0);
}

}  // namespace
}  // namespace heddle::test
