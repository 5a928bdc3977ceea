// Exceptions in a request's path, as libraries throw them and as memory ends: they fail that
// request alone, wherever it is.
#include <new>
#include <stdexcept>
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/http/preparing_exchange.h"
#include "tests/server/server_under_test.h"
#include "tests/server/throwing_codec.h"

namespace heddle::test {
namespace {

using nlohmann::json;

struct ThrowingServer {
  explicit ThrowingServer(std::string reply = "hi")
      : server(std::make_unique<FakeGeneration>(
                   [reply](const server::GenerationRequest&) { return reply; }),
               {}, nullptr, &codec) {}

  std::string Exceptions() const {
    const std::string metrics = RawClient(server.port()).Get("/metrics").body;
    constexpr std::string_view kName = "\nheddle_request_exceptions_total ";
    const size_t begin = metrics.find(kName) + kName.size();
    return metrics.substr(begin, metrics.find('\n', begin) - begin);
  }
  RawResponse Complete(const std::string& prompt, const std::string& more = "") const {
    return RawClient(server.port())
        .Post("/v1/completions", R"({"prompt":")" + prompt + "\"" + more + "}");
  }
  // Another request on the same server is answered as ever.
  bool StillServes() const {
    return RawClient(server.port()).Post("/tokenize", R"({"prompt":"fine"})").status == 200;
  }

  ThrowingCodec codec;
  ServerUnderTest server;
};

// Beyond what is prepared on the I/O thread.
std::string Long(const std::string& text) {
  return text + std::string(server::PreparingExchange::kMaxInlineBytes, 'x');
}

void CheckError(const RawResponse& response, int status) {
  INFO(response.body);
  CHECK(response.status == status);
  const json error = json::parse(response.body).at("error");
  CHECK(error.at("type") == (status == 503 ? "service_unavailable_error" : "server_error"));
  CHECK(error.at("message").get<std::string>().find("secret") == std::string::npos);
}

TEST_CASE("An exception while a request is read is that request's 500", "[server]") {
  ThrowingServer server;
  CheckError(server.Complete("THROW"), 500);        // on the I/O thread
  CheckError(server.Complete(Long("THROW")), 500);  // on a prepare thread
  CHECK(server.Exceptions() == "2");
  CHECK(server.StillServes());
}

TEST_CASE("Where memory ends for a request, it is told to come again", "[server]") {
  ThrowingServer server;
  for (const std::string& prompt : {std::string("MEMORY"), Long("MEMORY")}) {
    const RawResponse response = server.Complete(prompt);
    CheckError(response, 503);
    CHECK(response.headers.count("retry-after") == 1);
  }
  CHECK(server.Exceptions() == "2");
  CHECK(server.StillServes());
}

TEST_CASE("An exception in an answer is an error in its place, and cancels the request",
          "[server]") {
  ThrowingServer server(std::string(1, ThrowingCodec::kThrowingByte));
  CheckError(server.Complete("fine"), 500);
  CHECK(server.server.generation->WaitForCancel(0));
  CHECK(server.Exceptions() == "1");
  CHECK(server.StillServes());
}

TEST_CASE("An exception in a stream is its last event", "[server]") {
  ThrowingServer server("ab" + std::string(1, ThrowingCodec::kThrowingByte));
  const RawResponse response = server.Complete("fine", R"(,"stream":true)");
  CHECK(response.status == 200);
  const std::vector<std::string> events = SseData(response.body);
  REQUIRE(events.size() >= 2);
  CHECK(json::parse(events.front()).at("choices").at(0).at("text") == "a");
  bool failed = false;
  for (const std::string& event : events) failed |= event.find("\"error\"") != std::string::npos;
  CHECK(failed);
  CHECK(server.server.generation->WaitForCancel(0));
  CHECK(server.StillServes());
}

}  // namespace
}  // namespace heddle::test
