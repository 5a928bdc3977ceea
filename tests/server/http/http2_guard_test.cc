// The guard's accounts of frames, without sockets; time is an argument.
#include "server/http/http2_guard.h"
#include "server/http/peer_resets.h"

#include <string>

#include "catch2/catch.hpp"
#include "tests/server/grpc/http2_frames.h"

namespace heddle::test {
namespace {

using server::BodyBudget;
using server::Clock;
using server::Http2Guard;
using server::Refusal;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Guarded {
  explicit Guarded(int64_t budget_bytes = 1 << 20) : bodies(budget_bytes) {
    CHECK(Send(std::string(kHttp2Preface)));
    to_server.clear();
  }

  // Returns false if the connection is to be cut.
  bool Send(const std::string& bytes) {
    fault = guard.FromClient(bytes, now, &to_server);
    guard.TakeFrames(&to_client, &to_server);
    return !fault.has_value();
  }
  void Answer(const std::string& bytes) { guard.FromServer(bytes, now, &to_client); }

  BodyBudget bodies;
  Clock::time_point now{seconds(1000)};
  std::optional<Http2Guard::Fault> fault;
  std::string to_server;
  std::string to_client;
  Http2Guard guard{{}, &bodies};
};

std::string Open(uint32_t stream) {
  return Frame(kHeaders, kEndHeaders, stream, CallHeaders("/a"));
}
std::string Reset(uint32_t stream) { return Frame(kRstStream, 0, stream, Number(8, 4)); }

TEST_CASE("What a client sends passes as it is, however it is cut", "[grpc]") {
  const std::string padded = Number(3, 1) + GrpcMessage("abc") + std::string(3, '\0');
  const std::string bytes = Frame(kSettings, 0, 0) + Open(1) + Frame(kData, kPadded, 1, padded) +
                            Frame(kData, kEndStream, 1, GrpcMessage(std::string(20'000, 'x'))) +
                            Frame(kHeaders, 0, 3, "a") + Frame(kContinuation, kEndHeaders, 3, "b") +
                            Reset(3) + Frame(kPing, 0, 0, std::string(8, 'p'));
  for (size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}, bytes.size()}) {
    Guarded guarded;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      REQUIRE(guarded.Send(bytes.substr(at, piece)));
    }
    CHECK(guarded.to_server == bytes);
    CHECK(guarded.to_client.empty());
    CHECK(guarded.bodies.held_bytes() == 0);
    CHECK(guarded.guard.num_streams() == 1);
  }
}

TEST_CASE("What is no HTTP/2 is cut at its first wrong byte", "[grpc]") {
  BodyBudget bodies(0);
  Http2Guard guard({}, &bodies);
  std::string passed;
  const auto fault = guard.FromClient("GET / HTTP/1.1\r\n", {}, &passed);
  REQUIRE(fault.has_value());
  CHECK(fault->refusal == Refusal::kGrpcFrame);
  CHECK(passed.empty());
}

TEST_CASE("Calls that are taken back are cut off when there are too many", "[grpc]") {
  Guarded guarded;
  uint32_t stream = 1;
  auto resets = [&](int count) {
    int passed = 0;
    for (; passed < count && guarded.Send(Open(stream) + Reset(stream)); ++passed) stream += 2;
    return passed;
  };
  CHECK(resets(512) == 512);
  guarded.now += seconds(4);
  CHECK(resets(1000) == 200);  // 50 a second
  REQUIRE(guarded.fault.has_value());
  CHECK(guarded.fault->refusal == Refusal::kGrpcResets);
  CHECK(guarded.guard.GoAway().substr(0, 4) == std::string("\0\0\x8\x7", 4));
}

TEST_CASE("Calls that the server is made to reset count as well", "[grpc]") {
  Guarded guarded;
  for (uint32_t stream = 1; stream < 2 * 512; stream += 2) {
    REQUIRE(guarded.Send(Open(stream)));
    guarded.Answer(Reset(stream));
  }
  // After the server itself has ended a stream, a reset is only the end of a call.
  for (uint32_t stream = 1025; stream < 1100; stream += 2) {
    REQUIRE(guarded.Send(Open(stream)));
    guarded.Answer(Frame(kHeaders, kEndHeaders | kEndStream, stream, "x") + Reset(stream));
  }
  REQUIRE(guarded.Send(Open(2001)));
  guarded.Answer(Reset(2001));
  CHECK_FALSE(guarded.Send(Frame(kPing, 0, 0, "12345678")));
}

TEST_CASE("Streams without number are cut off whatever the client has acknowledged", "[grpc]") {
  Guarded guarded;
  int opened = 0;
  for (uint32_t stream = 1; guarded.Send(Open(stream)) && opened < 10'000; stream += 2) ++opened;
  CHECK(opened == 512);
}

TEST_CASE("Frames that carry nothing are counted against what the server sends", "[grpc]") {
  const std::string kinds[] = {Frame(kPing, 0, 0, "12345678"),
                               Frame(kSettings, 0, 0),
                               Frame(kPriority, 0, 1, "12345"),
                               Frame(kWindowUpdate, 0, 0, Number(1, 4)),
                               Frame(kData, 0, 1),
                               Frame(200, 0, 0)};
  for (const std::string& frame : kinds) {
    Guarded guarded;
    REQUIRE(guarded.Send(Open(1)));
    int sent = 0;
    while (sent < 10'000 && guarded.Send(frame)) ++sent;
    CHECK(sent >= 1980);
    CHECK(sent <= 2000);
    CHECK(guarded.fault->refusal == Refusal::kGrpcFlood);
  }
  // A client of a fast stream acknowledges each of its frames.
  Guarded guarded;
  REQUIRE(guarded.Send(Open(1)));
  for (int i = 0; i < 20'000; ++i) {
    guarded.Answer(Frame(kData, 0, 1, "token"));
    REQUIRE(guarded.Send(Frame(kWindowUpdate, 0, 1, Number(5, 4)) +
                         Frame(kWindowUpdate, 0, 0, Number(5, 4))));
  }
}

TEST_CASE("Header blocks have an end", "[grpc]") {
  Guarded pieces;
  REQUIRE(pieces.Send(Frame(kHeaders, 0, 1, "x")));
  int sent = 0;
  while (sent < 1000 && pieces.Send(Frame(kContinuation, 0, 1, "x"))) ++sent;
  CHECK(sent == 15);
  CHECK_FALSE(Guarded().Send(Frame(kHeaders, 0, 1, std::string(40'000, 'x'))));
  Guarded sum;
  REQUIRE(sum.Send(Frame(kHeaders, 0, 1, std::string(16'000, 'x'))));
  REQUIRE(sum.Send(Frame(kContinuation, 0, 1, std::string(16'000, 'x'))));
  CHECK_FALSE(sum.Send(Frame(kContinuation, 0, 1, std::string(16'000, 'x'))));
  Guarded broken;
  REQUIRE(broken.Send(Frame(kHeaders, 0, 1, "x")));
  CHECK_FALSE(broken.Send(Frame(kPing, 0, 0, "12345678")));
  CHECK_FALSE(Guarded().Send(Frame(kContinuation, kEndHeaders, 1, "x")));
}

TEST_CASE("A message that finds no memory ends its call alone", "[grpc]") {
  Guarded guarded(100'000);
  REQUIRE(guarded.Send(Open(1) + Open(3)));
  const std::string message = GrpcMessage(std::string(60'000, 'm'));
  REQUIRE(guarded.Send(Frame(kData, 0, 1, message.substr(0, 16'000))));
  CHECK(guarded.bodies.held_bytes() == 60'000);
  guarded.to_server.clear();
  const std::string first = Frame(kData, 0, 3, message.substr(0, 16'000));
  REQUIRE(guarded.Send(first + Frame(kData, 0, 3, message.substr(16'000, 16'000))));
  // gRPC is told behind the frame that it has seen the head of; the client gets its window back.
  CHECK(guarded.to_server == first + Reset(3));
  CHECK(guarded.to_client ==
        Frame(kRstStream, 0, 3, Number(11, 4)) + Frame(kWindowUpdate, 0, 0, Number(16'000, 4)));
  CHECK(guarded.guard.TakeRefusedMessages() == 1);
  // The other goes on, and its place is free at its end.
  guarded.to_server.clear();
  for (size_t at = 16'000; at < message.size(); at += 16'000) {
    REQUIRE(guarded.Send(Frame(kData, 0, 1, message.substr(at, 16'000))));
  }
  CHECK(guarded.to_server.size() > message.size() - 16'000);
  CHECK(guarded.bodies.held_bytes() == 0);
  REQUIRE(guarded.Send(Open(5) + Frame(kData, 0, 5, message.substr(0, 16'000))));
  CHECK(guarded.bodies.held_bytes() == 60'000);
  guarded.Answer(Frame(kHeaders, kEndHeaders | kEndStream, 5, "x"));
  CHECK(guarded.bodies.held_bytes() == 0);
}

TEST_CASE("A message larger than any may be is refused by its length", "[grpc]") {
  Guarded guarded(int64_t{1} << 40);
  REQUIRE(guarded.Send(Open(1) + Frame(kData, 0, 1, std::string("\0\xff\xff\xff\xff", 5) + "abc")));
  CHECK(guarded.to_client == Frame(kRstStream, 0, 1, Number(11, 4)));
  CHECK(guarded.bodies.held_bytes() == 0);
}

TEST_CASE("A message that stops arriving loses its place to one that waits", "[grpc]") {
  Guarded guarded(100'000);
  const std::string message = GrpcMessage(std::string(60'000, 'm'));
  REQUIRE(guarded.Send(Open(1) + Frame(kData, 0, 1, message.substr(0, 16'000))));
  guarded.now += seconds(20);
  guarded.guard.OnTick(guarded.now);
  CHECK(guarded.bodies.held_bytes() == 60'000);  // nobody waits
  const BodyBudget::Place waiting = guarded.bodies.Ask(60'000, [] {});
  CHECK_FALSE(waiting.is_granted());
  guarded.guard.OnTick(guarded.now);
  CHECK(waiting.is_granted());
  CHECK(guarded.Send(""));
  CHECK(guarded.to_client == Frame(kRstStream, 0, 1, Number(11, 4)));
}

TEST_CASE("The guard's frames go between the server's, never into one", "[grpc]") {
  Guarded guarded(10);
  REQUIRE(guarded.Send(Open(1) + Open(3)));
  const std::string answer = Frame(kData, 0, 1, "token");
  guarded.Answer(answer.substr(0, 11));
  REQUIRE(guarded.Send(Frame(kData, 0, 3, GrpcMessage(std::string(20'000, 'x')).substr(0, 100))));
  // 20,000 bytes do not fit into a budget of 10, but a first one is always taken.
  REQUIRE(guarded.Send(Open(5)));
  REQUIRE(guarded.Send(Frame(kData, 0, 5, GrpcMessage(std::string(20'000, 'x')).substr(0, 100))));
  CHECK(guarded.to_client == answer.substr(0, 11));
  CHECK(guarded.guard.GoAway().empty());
  guarded.Answer(answer.substr(11) + answer);
  CHECK(guarded.to_client == answer + Frame(kRstStream, 0, 5, Number(11, 4)) + answer);
}

TEST_CASE("A connection of a client that owes resets may reset a few calls", "[grpc][unit]") {
  BodyBudget bodies(1 << 20);
  Http2Guard guard({}, &bodies, /*owes_resets=*/true);
  const Clock::time_point now{seconds(1000)};
  std::string to_server;
  REQUIRE_FALSE(guard.FromClient(std::string(kHttp2Preface), now, &to_server).has_value());
  for (uint32_t i = 0; i < 16; ++i) {
    const std::string call = Open(2 * i + 1) + Frame(kRstStream, 0, 2 * i + 1, Number(8, 4));
    REQUIRE_FALSE(guard.FromClient(call, now, &to_server).has_value());
  }
  const std::string call = Open(101) + Frame(kRstStream, 0, 101, Number(8, 4));
  const auto fault = guard.FromClient(call, now, &to_server);
  REQUIRE(fault.has_value());
  CHECK(fault->refusal == Refusal::kGrpcResets);
}

// Python's h2 resets a stream that it has reset again for each frame of it that was on its way.
TEST_CASE("Resets of a stream that is over take no call back", "[grpc][unit]") {
  BodyBudget bodies(1 << 20);
  Http2Guard guard({}, &bodies, /*owes_resets=*/true);
  const Clock::time_point now{seconds(1000)};
  std::string to_server;
  std::string to_client;
  REQUIRE_FALSE(guard.FromClient(std::string(kHttp2Preface), now, &to_server).has_value());
  REQUIRE_FALSE(guard.FromClient(Open(1) + Reset(1), now, &to_server).has_value());
  for (int i = 0; i < 10'000; ++i) {
    guard.FromServer(Frame(kData, 0, 1, "token"), now, &to_client);
    REQUIRE_FALSE(guard.FromClient(Reset(1), now, &to_server).has_value());
  }
  CHECK(guard.TakeResets() == 1);
  // Without frames that they answer they are a flood.
  std::optional<Http2Guard::Fault> fault;
  for (int i = 0; i < 10'000 && !fault.has_value(); ++i) {
    fault = guard.FromClient(Reset(1), now, &to_server);
  }
  REQUIRE(fault.has_value());
  CHECK(fault->refusal == Refusal::kGrpcFlood);
}

TEST_CASE("A client that takes calls back over many connections is read more slowly",
          "[grpc][unit]") {
  using server::Clock;
  using server::PeerResets;
  using std::chrono::milliseconds;
  PeerResets resets({.burst = 100, .per_second = 50});
  const Clock::time_point begin{std::chrono::seconds(1000)};
  CHECK(resets.Spend(1, 60, begin) == Clock::duration::zero());
  CHECK(resets.Spend(1, 40, begin) == Clock::duration::zero());
  CHECK_FALSE(resets.Owes(1, begin));
  CHECK(resets.Spend(1, 10, begin) == milliseconds(200));
  CHECK(resets.Owes(1, begin));
  CHECK_FALSE(resets.Owes(1, begin + milliseconds(200)));
  CHECK_FALSE(resets.Owes(2, begin));
  CHECK(resets.Spend(2, 100, begin) == Clock::duration::zero());  // somebody else
  CHECK(resets.Spend(1, 10, begin + milliseconds(400)) == Clock::duration::zero());
  CHECK(resets.Spend(1, 100'000, begin + milliseconds(400)) == PeerResets::kMaxPause);
  CHECK(resets.Spend(1, 1, begin + std::chrono::hours(1)) == Clock::duration::zero());
  // However many clients there are, the table is small.
  for (uint64_t peer = 10; peer < 20'000; ++peer) {
    resets.Spend(peer, peer % 2 == 0 ? 1 : 100'000, begin + milliseconds(peer));
  }
  CHECK(resets.num_peers() <= PeerResets::kMaxPeers);
}

}  // namespace
}  // namespace heddle::test
