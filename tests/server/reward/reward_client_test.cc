// A reward model beside the server: what its answers may be, and what becomes of questions that
// get none.
#include "server/reward/reward_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <future>

#include "catch2/catch.hpp"

namespace heddle::server {
namespace {

using Scores = absl::StatusOr<std::vector<double>>;
using Tcp = boost::asio::ip::tcp;

TEST_CASE("Scores are taken by their index", "[reward][unit]") {
  const Scores scores = ParseScores(
      R"({"data": [{"index": 1, "score": -2.5, "object": "score"}, {"index": 0, "score": 3}]})", 2);
  REQUIRE(scores.ok());
  CHECK(*scores == std::vector<double>{3, -2.5});
}

TEST_CASE("What is not one score for each text is refused", "[reward][unit]") {
  const char* bodies[] = {
      "",
      "[]",
      R"({"data": 1})",
      R"({"data": [{"index": 0, "score": 1}]})",
      R"({"data": [{"index": 0, "score": 1}, {"index": 0, "score": 1}]})",
      R"({"data": [{"index": 0, "score": 1}, {"index": 2, "score": 1}]})",
      R"({"data": [{"index": 0, "score": 1}, {"index": -1, "score": 1}]})",
      R"({"data": [{"index": 0, "score": 1}, {"index": 1, "score": "1"}]})",
      R"({"data": [{"index": 0, "score": 1}, {"index": 1, "score": 1e999}]})",
      R"({"data": [{"index": 0, "score": 1}, {"score": 1}]})",
      R"({"data": [{"index": 0, "score": 1}, 1]})",
  };
  for (const char* body : bodies) {
    INFO(body);
    CHECK_FALSE(ParseScores(body, 2).ok());
  }
}

// A listening socket that takes connections and says nothing.
struct SilentServer {
  boost::asio::io_context context;
  Tcp::acceptor acceptor{context, {boost::asio::ip::address_v4::loopback(), 0}};

  RewardClient::Options Options() {
    RewardClient::Options options;
    options.host = "127.0.0.1";
    options.port = std::to_string(acceptor.local_endpoint().port());
    return options;
  }
};

Scores Ask(RewardClient* client) {
  std::promise<Scores> promise;
  const std::string answers[] = {"a", "b"};
  client->Score("question", answers, [&promise](Scores scores) { promise.set_value(scores); });
  return promise.get_future().get();
}

TEST_CASE("A reward model that says nothing is waited for no longer than allowed",
          "[reward][unit]") {
  const Logger log(LogFormat::kText, LogLevel::kOff);
  SilentServer server;
  RewardClient::Options options = server.Options();
  options.timeout = std::chrono::milliseconds(50);
  RewardClient client(options, &log);
  for (int i = 0; i < 3; ++i) CHECK(absl::IsUnavailable(Ask(&client).status()));
}

TEST_CASE("Where nobody listens there are no scores", "[reward][unit]") {
  const Logger log(LogFormat::kText, LogLevel::kOff);
  SilentServer server;
  const RewardClient::Options options = server.Options();
  server.acceptor.close();
  RewardClient client(options, &log);
  CHECK(absl::IsUnavailable(Ask(&client).status()));
}

TEST_CASE("Questions beyond the limit are turned away, and none outlives the client",
          "[reward][unit]") {
  const Logger log(LogFormat::kText, LogLevel::kOff);
  SilentServer server;
  RewardClient::Options options = server.Options();
  options.max_open = 1;
  const auto client = std::make_unique<RewardClient>(options, &log);
  const std::string answers[] = {"a"};
  bool called = false;
  client->Score("waits", answers, [&called](const Scores&) { called = true; });
  CHECK(absl::IsUnavailable(Ask(client.get()).status()));
  CHECK_FALSE(called);
}

}  // namespace
}  // namespace heddle::server
