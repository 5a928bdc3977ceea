// Clients that do not read their streams: what is computed for them waits.
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "server/http/connection.h"
#include "server/http/reading_pace.h"
#include "tests/server/http/shared_requests.h"
#include "tests/server/raw_client.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using server::Clock;
using server::FinishReason;
using server::ReadingPace;
using std::chrono::milliseconds;

Clock::time_point At(int ms) {
  return Clock::time_point() + std::chrono::hours(1) + milliseconds(ms);
}

TEST_CASE("A client is behind when much is unread for some time, until little is left",
          "[server][unit]") {
  ReadingPace pace;
  CHECK_FALSE(pace.Count(20'000, At(0)));  // a burst
  CHECK_FALSE(pace.is_behind());
  CHECK_FALSE(pace.Count(0, At(1)));
  CHECK_FALSE(pace.Count(17'000, At(100)));
  CHECK_FALSE(pace.Count(17'500, At(119)));
  CHECK_FALSE(pace.is_behind());
  CHECK_FALSE(pace.Count(18'000, At(120)));
  CHECK(pace.is_behind());
  CHECK(pace.since() == At(100));
  CHECK_FALSE(pace.Count(5'000, At(200)));
  CHECK(pace.is_behind());
  CHECK(pace.Count(4'096, At(201)));
  CHECK_FALSE(pace.is_behind());
  CHECK_FALSE(pace.Count(0, At(202)));  // told once
}

TEST_CASE("Every limit that ends a stream is above what pauses it", "[server][unit]") {
  CHECK(static_cast<int64_t>(ReadingPace::kMuchBytes) < server::UnsentBytes::kLeast);
}

TEST_CASE("A stream that is not read is paused, and goes on where it stopped", "[server]") {
  ServerUnderTest server;
  RawClient slow(server.port(), /*receive_buffer_bytes=*/4096);
  slow.Send(PostText("/v1/chat/completions", kWordyStream));
  server.generation->WaitForRequest(0);
  int num_tokens = 0;
  // It is paused long before the limit that ends it: 2 KB a token, and little in the kernel.
  while (!server.generation->IsPaused(0)) {
    server.generation->EmitText(0, "a");
    std::this_thread::sleep_for(milliseconds(2));
    REQUIRE(++num_tokens < 1000);
  }
  CHECK(num_tokens < 200);
  server.generation->EmitText(0, "b");  // of a step that was in flight
  std::string got;
  while (server.generation->IsPaused(0)) got += slow.ReadBytes(4096);
  server.generation->EmitEnd(0, FinishReason::kStop);
  got += slow.ReadUntil("data: [DONE]\n\n");
  size_t num_a = 0;
  for (size_t at = got.find(R"("content":"a")"); at != std::string::npos;
       at = got.find(R"("content":"a")", at + 1)) {
    ++num_a;
  }
  CHECK(num_a == static_cast<size_t>(num_tokens));
  CHECK(got.find(R"("content":"b")") != std::string::npos);
}

TEST_CASE("A paused stream whose client takes nothing ends by the write timeout", "[server]") {
  server::HttpServerOptions options;
  options.write_timeout = milliseconds(300);
  ServerUnderTest server(options);
  RawClient stuck(server.port(), /*receive_buffer_bytes=*/4096);
  stuck.Send(PostText("/v1/chat/completions", kWordyStream));
  server.generation->WaitForRequest(0);
  while (!server.generation->IsPaused(0)) {
    server.generation->EmitText(0, "a");
    std::this_thread::sleep_for(milliseconds(2));
  }
  CHECK(server.generation->WaitForCancel(0));
}

TEST_CASE("A client that reads is never paused, however large one step's tokens are", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  client.Send(PostText("/v1/completions",
                       R"({"stream":true,"prompt":"x","n":16,"max_tokens":1000,"logprobs":20})"));
  server.generation->WaitForRequest(0);
  for (int step = 0; step < 20; ++step) {
    for (int32_t branch = 0; branch < 16; ++branch) server.generation->EmitText(0, "a", branch);
    server.generation->EmitText(0, "z");
    client.ReadUntil(R"("text":"z")");
  }
  for (int32_t branch = 0; branch < 16; ++branch) {
    server.generation->EmitEnd(0, FinishReason::kLength, branch);
  }
  client.ReadUntil("data: [DONE]\n\n");
  CHECK(server.generation->num_pauses() == 0);
}

}  // namespace
}  // namespace heddle::test
