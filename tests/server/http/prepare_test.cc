// Preparing requests off the I/O threads: what other clients see meanwhile, and how it ends.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/http/prepare_pool.h"
#include "server/http/preparing_exchange.h"
#include "server/retry_after.h"
#include "tests/server/gated_codec.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::FinishReason;
using server::HttpServerOptions;
using server::PreparePool;
using server::PrepareTask;
using server::PrepareTurn;
using std::chrono::seconds;

// Blanks that take a body over the size that is prepared on the I/O thread.
std::string Long(const std::string& body) {
  return std::string(server::PreparingExchange::kMaxInlineBytes, ' ') + body;
}

const std::string kStream =
    R"({"stream":true,"messages":[{"role":"user","content":"x"}],"max_tokens":100})";
const std::string kHeld = Long(R"({"prompt":"HOLD"})");
const std::string kSchema =
    R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema",)"
    R"("json_schema":{"name":"n","schema":{"type":"boolean"}}}})";

HttpServerOptions OneOfEach() {
  HttpServerOptions options;
  options.io_threads = 1;
  options.prepare_threads = 1;
  return options;
}

struct GatedServer {
  explicit GatedServer(const HttpServerOptions& options = OneOfEach())
      : GatedServer(std::make_unique<FakeGeneration>(), options) {}
  explicit GatedServer(FakeGeneration::Reply reply, const HttpServerOptions& options = OneOfEach())
      : GatedServer(std::make_unique<FakeGeneration>(std::move(reply)), options) {}
  GatedServer(std::unique_ptr<FakeGeneration> fake, const HttpServerOptions& options)
      : server(std::move(fake), options, nullptr, &codec) {}
  ~GatedServer() { codec.OpenAll(); }

  uint16_t port() const { return server.port(); }
  FakeGeneration& generation() { return *server.generation; }
  bool MetricsHave(std::string_view line) const {
    return RawClient(port()).Get("/metrics").body.find(line) != std::string::npos;
  }
  bool WaitForMetrics(std::string_view line) const {
    const auto deadline = std::chrono::steady_clock::now() + seconds(10);
    while (!MetricsHave(line)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }

  GatedCodec codec;
  ServerUnderTest server;
};

std::string SayHi(const server::GenerationRequest&) { return "hi"; }

json ErrorOf(const RawResponse& response) { return json::parse(response.body).at("error"); }

TEST_CASE("A stream goes on while another request is prepared", "[server][prepare]") {
  GatedServer server;
  RawClient stream(server.port());
  stream.Send(PostText("/v1/chat/completions", kStream));
  server.generation().WaitForRequest(0);
  server.generation().EmitText(0, "one");
  stream.ReadUntil("one");

  RawClient held(server.port());
  held.Send(PostText("/v1/completions", kHeld));
  REQUIRE(server.codec.text_gate.WaitForReached(1));
  server.generation().EmitText(0, "T");
  CHECK(stream.ReadUntil("\"T\"").ends_with("\"T\""));
  CHECK(server.generation().num_submitted() == 1);

  server.codec.OpenAll();
  server.generation().WaitForRequest(1);
  server.generation().EmitEnd(1, FinishReason::kStop);
  CHECK(held.Read().status == 200);
  server.generation().EmitEnd(0, FinishReason::kStop);
  CHECK(stream.ReadUntil("[DONE]").ends_with("[DONE]"));
}

TEST_CASE(
    "A stream goes on, and small requests are answered, while a small request's grammar is "
    "compiled",
    "[server][prepare]") {
  GatedServer server;
  RawClient stream(server.port());
  stream.Send(PostText("/v1/chat/completions", kStream));
  server.generation().WaitForRequest(0);

  RawClient held(server.port());
  held.Send(PostText("/v1/chat/completions", kSchema));
  REQUIRE(server.codec.grammar_gate.WaitForReached(1));
  server.generation().EmitText(0, "T");
  CHECK(stream.ReadUntil("\"T\"").ends_with("\"T\""));
  RawClient other(server.port());
  CHECK(other.Post("/tokenize", R"({"prompt":"a"})").status == 200);
  // The long lane's only thread is taken, too.
  CHECK(other.Post("/tokenize", Long(R"({"prompt":"a"})")).status == 200);

  server.codec.OpenAll();
  CHECK(server.generation().WaitForRequest(1).grammar != nullptr);
  server.generation().EmitEnd(1, FinishReason::kStop);
  CHECK(held.Read().status == 200);
}

TEST_CASE("A grammar that is known needs no thread of the pool", "[server][prepare]") {
  GatedServer server(SayHi);
  server.codec.grammar_gate.Open();
  RawClient client(server.port());
  CHECK(client.Post("/v1/chat/completions", kSchema).status == 200);
  CHECK(server.MetricsHave("heddle_prepare_wait_seconds_count 1\n"));
  RawClient held(server.port());
  held.Send(PostText("/v1/completions", kHeld));
  REQUIRE(server.codec.text_gate.WaitForReached(1));
  CHECK(client.Post("/v1/chat/completions", kSchema).status == 200);
  CHECK(server.MetricsHave("heddle_prepare_wait_seconds_count 1\n"));
  CHECK(server.MetricsHave("heddle_prepare_time_seconds_count 2\n"));
}

TEST_CASE("Every route that reads texts leaves the I/O thread free", "[server][prepare]") {
  json tokens = Bytes("HOLD");
  const std::string held_messages = R"("messages":[{"role":"user","content":"HOLD"}])";
  const std::pair<const char*, std::string> requests[] = {
      {"/v1/completions", R"({"prompt":"HOLD"})"},
      {"/v1/chat/completions", "{" + held_messages + "}"},
      {"/v1/responses", R"({"input":"HOLD"})"},
      {"/v1/messages", R"({"max_tokens":5,)" + held_messages + "}"},
      {"/v1/messages/count_tokens", "{" + held_messages + "}"},
      {"/v1/embeddings", R"({"input":"HOLD"})"},
      {"/v1/score", R"({"text_1":"HOLD","text_2":"b"})"},
      {"/v1/rerank", R"({"query":"HOLD","documents":["b"]})"},
      {"/tokenize", R"({"prompt":"HOLD"})"},
      {"/detokenize", json({{"tokens", tokens}}).dump()},
  };
  for (const auto& [path, body] : requests) {
    INFO(path);
    GatedServer server(SayHi);
    RawClient held(server.port());
    held.Send(PostText(path, Long(body)));
    REQUIRE(server.codec.text_gate.WaitForReached(1));
    CHECK(RawClient(server.port()).Get("/health").status == 200);
    server.codec.OpenAll();
    CHECK(held.Read().status == 200);
  }
}

TEST_CASE("A response's history is read off the I/O thread, however short the request",
          "[server][prepare]") {
  GatedServer server(SayHi);
  RawClient client(server.port());
  const json first = json::parse(client.Post("/v1/responses", R"({"input":"a"})").body);
  CHECK(server.MetricsHave("heddle_prepare_wait_seconds_count 0\n"));
  const json next = {{"input", "b"}, {"previous_response_id", first["id"]}};
  CHECK(client.Post("/v1/responses", next.dump()).status == 200);
  CHECK(server.MetricsHave("heddle_prepare_wait_seconds_count 1\n"));
}

TEST_CASE("Pipelined requests are answered in order, those that are prepared elsewhere, too",
          "[server][prepare]") {
  GatedServer server(SayHi);
  RawClient client(server.port());
  client.Send(PostText("/tokenize", Long(R"({"prompt":"HOLD"})")) +
              PostText("/tokenize", R"({"prompt":"a"})") +
              PostText("/tokenize", Long(R"({"prompt":"ab"})")));
  REQUIRE(server.codec.text_gate.WaitForReached(1));
  server.codec.OpenAll();
  CHECK(json::parse(client.Read().body)["count"] == 5);
  CHECK(json::parse(client.Read().body)["count"] == 2);
  CHECK(json::parse(client.Read().body)["count"] == 3);
}

TEST_CASE("Errors are the same wherever a request is prepared", "[server][prepare]") {
  GatedServer server(SayHi);
  RawClient client(server.port());
  const std::pair<const char*, std::string> wrong[] = {
      {"/v1/completions", R"({"prompt":3})"},
      {"/v1/completions", "{"},
      {"/v1/completions", R"({"prompt":"a","model":"none"})"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"refuse me"}]})"},
      {"/v1/messages", R"({"messages":[{"role":"user","content":"x"}]})"},
      {"/v1/responses", R"({"previous_response_id":"none","input":"a"})"},
      {"/v1/embeddings", R"({"input":[]})"},
      {"/tokenize", "{}"},
      {"/detokenize", R"({"tokens":[-1]})"},
  };
  for (const auto& [path, body] : wrong) {
    INFO(path << " " << body);
    const RawResponse here = client.Post(path, body);
    const RawResponse there = client.Post(path, body + Long(""));
    CHECK(here.status >= 400);
    CHECK(there.status == here.status);
    // A message about JSON says where its text ends.
    if (body != "{") CHECK(there.body == here.body);
    CHECK(json::parse(there.body)["error"]["type"] == json::parse(here.body)["error"]["type"]);
  }
}

TEST_CASE("A client that leaves during the preparation leaves nothing behind",
          "[server][prepare]") {
  GatedServer server(SayHi);
  RawClient running(server.port());
  running.Send(PostText("/v1/completions", kHeld));
  REQUIRE(server.codec.text_gate.WaitForReached(1));
  RawClient waiting(server.port());
  waiting.Send(PostText("/v1/completions", kHeld));
  waiting.Close();
  running.Close();
  CHECK(server.WaitForMetrics(
      R"(heddle_generation_requests_total{outcome="cancelled",route="/v1/completions"} 2)"));
  server.codec.OpenAll();
  // Behind the two in the same lane, and the first that reaches the engine.
  CHECK(RawClient(server.port()).Post("/v1/completions", Long(R"({"prompt":"a"})")).status == 200);
  CHECK(server.generation().num_submitted() == 1);
  CHECK(server.codec.text_gate.reached() == 1);
}

TEST_CASE("The time of a request goes on while it is prepared", "[server][prepare]") {
  HttpServerOptions options = OneOfEach();
  options.request_timeout = std::chrono::milliseconds(60);
  GatedServer server(SayHi, options);
  RawClient client(server.port());
  const RawResponse response = client.Post("/v1/completions", kHeld);
  CHECK(response.status == 504);
  CHECK(ErrorOf(response)["code"] == "request_timeout");
  // The connection serves on: what comes of the preparation is no answer to the next request.
  server.codec.OpenAll();
  const RawResponse next = client.Post("/tokenize", Long(R"({"prompt":"a"})"));
  CHECK(json::parse(next.body)["count"] == 2);
  CHECK(server.generation().num_submitted() == 0);
}

TEST_CASE("Requests beyond the bound are refused as those beyond the engine's queue are",
          "[server][prepare]") {
  HttpServerOptions options = OneOfEach();
  options.max_preparing = 1;
  GatedServer server(SayHi, options);
  RawClient running(server.port());
  running.Send(PostText("/v1/completions", kHeld));
  REQUIRE(server.codec.text_gate.WaitForReached(1));
  RawClient other(server.port());
  RawClient waiting(server.port());
  CHECK(waiting.Get("/health").status == 200);
  waiting.Send(PostText("/v1/completions", kHeld));
  CHECK(other.Get("/health").status == 200);  // the one I/O thread has read what came before it
  const RawResponse refused = other.Post("/v1/completions", kHeld);
  CHECK(refused.status == 429);
  CHECK(ErrorOf(refused)["type"] == "rate_limit_error");
  CHECK(ErrorOf(refused)["message"] ==
        "The queue is full: 1 requests wait to be read and the limit is 1.");
  CHECK(std::stoi(refused.headers.at("retry-after")) >= 1);
  const RawResponse anthropic = other.Post(
      "/v1/messages", Long(R"({"max_tokens":1,"messages":[{"role":"user","content":"x"}]})"));
  CHECK(anthropic.status == 429);
  CHECK(json::parse(anthropic.body)["type"] == "error");
  CHECK(other.Post("/tokenize", R"({"prompt":"a"})").status == 200);  // small ones wait for nobody
  server.codec.OpenAll();
  CHECK(running.Read().status == 200);
  CHECK(waiting.Read().status == 200);
  CHECK(server.WaitForMetrics(
      R"(heddle_generation_requests_total{outcome="rejected",route="/v1/completions"} 1)"));
}

TEST_CASE("A drain waits for what is prepared, and refuses what comes then", "[server][prepare]") {
  GatedServer server(SayHi);
  RawClient held(server.port());
  held.Send(PostText("/v1/completions", kHeld));
  REQUIRE(server.codec.text_gate.WaitForReached(1));
  CHECK_FALSE(server.server.http->Drain(std::chrono::steady_clock::now()));
  server.codec.OpenAll();
  CHECK(server.server.http->Drain(std::chrono::steady_clock::now() + seconds(10)));
  CHECK(held.Read().status == 200);
}

TEST_CASE("Requests that come while the server drains are refused before they are prepared",
          "[server][prepare]") {
  GatedServer server(SayHi);
  RawClient client(server.port());
  server.server.http->SetReady(false);
  const RawResponse refused = client.Post("/v1/completions", kHeld);
  CHECK(refused.status == 503);
  CHECK(ErrorOf(refused)["type"] == "service_unavailable_error");
  CHECK(server.codec.text_gate.reached() == 0);
}

TEST_CASE("A server that stops drops what waits and waits for what is being prepared",
          "[server][prepare]") {
  GatedServer server(SayHi);
  RawClient running(server.port());
  running.Send(PostText("/v1/completions", kHeld));
  REQUIRE(server.codec.text_gate.WaitForReached(1));
  RawClient waiting(server.port());
  waiting.Send(PostText("/v1/completions", kHeld));
  std::future<void> stopped =
      std::async(std::launch::async, [&server] { server.server.http->Stop(); });
  CHECK(running.ReadsEnd());
  CHECK(waiting.ReadsEnd());
  server.codec.OpenAll();
  stopped.get();
  CHECK(server.codec.text_gate.reached() == 1);
  CHECK(server.generation().num_submitted() == 0);
}

TEST_CASE("Many clients with long and short requests at once are all answered",
          "[server][prepare]") {
  HttpServerOptions options;
  options.io_threads = 2;
  ServerUnderTest server(SayHi, options);
  std::vector<std::future<int>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::async(std::launch::async, [&server, i] {
      int answered = 0;
      RawClient client(server.port());
      for (int round = 0; round < 20; ++round) {
        json body = json::parse(kSchema);
        if ((i + round) % 3 == 0) body.erase("response_format");
        // Eight schemas in all: some are compiled by two threads at once.
        if ((i + round) % 3 == 1) {
          body["response_format"]["json_schema"]["schema"] = {
              {"type", "array"}, {"maxItems", round % 8}, {"items", {{"type", "integer"}}}};
        }
        const std::string text = (i + round) % 2 == 0 ? Long(body.dump()) : body.dump();
        const RawResponse response = client.Post("/v1/chat/completions", text);
        if (response.status == 200) ++answered;
        if (round % 7 == 3) {
          RawClient leaves(server.port());
          leaves.Send(PostText("/v1/chat/completions", text));
        }
      }
      return answered;
    }));
  }
  for (std::future<int>& client : clients) CHECK(client.get() == 20);
}

class GateTask final : public PrepareTask {
 public:
  explicit GateTask(Gate* gate, bool is_long = false) : gate_(gate), is_long_(is_long) {}

  Next Run(const PrepareTurn& turn) override {
    if (is_long_ && turn.lane() == Lane::kShort) return Next::kAgainInLongLane;
    gate_->Pass();
    waited = turn.waited_seconds();
    done.Pass();
    if (throws) throw std::bad_alloc();
    return Next::kDone;
  }
  void Lose() noexcept override { lost.Pass(); }

  double waited = -1;
  std::atomic<bool> throws = false;
  Gate done;  // stands open: it only counts
  Gate lost;  // the same

 private:
  Gate* gate_;
  bool is_long_;
};

struct Pool {
  explicit Pool(PreparePool::Options options = {.short_threads = 1, .long_threads = 1})
      : pool(options) {}
  std::shared_ptr<GateTask> Put(PrepareTask::Lane lane, Gate* gate, bool is_long = false,
                                size_t bytes = 1) {
    auto task = std::make_shared<GateTask>(gate, is_long);
    task->done.Open();
    task->lost.Open();
    status = pool.Submit(lane, task, bytes);
    return task;
  }

  absl::Status status;
  PreparePool pool;
};

constexpr auto kShortLane = PrepareTask::Lane::kShort;
constexpr auto kLongLane = PrepareTask::Lane::kLong;

TEST_CASE("A short task that is long moves to the other lane, and short ones pass it",
          "[prepare][unit]") {
  Gate gate;
  Gate open;
  open.Open();
  Pool pool;
  auto slow = pool.Put(kShortLane, &gate, /*is_long=*/true);
  REQUIRE(gate.WaitForReached(1));
  auto quick = pool.Put(kShortLane, &open);
  CHECK(quick->done.WaitForReached(1));
  CHECK(slow->done.reached() == 0);
  gate.Open();
  CHECK(slow->done.WaitForReached(1));
  pool.pool.Stop();
  CHECK(slow->waited >= 0);
}

TEST_CASE("What waits is bounded by number and by bytes; a body alone may be longer",
          "[prepare][unit]") {
  Gate gate;
  Pool pool({.short_threads = 1, .long_threads = 1, .max_waiting = 2, .max_waiting_bytes = 10});
  auto running = pool.Put(kLongLane, &gate, false, 100);
  REQUIRE(gate.WaitForReached(1));
  auto huge = pool.Put(kLongLane, &gate, false, 100);
  CHECK(pool.status.ok());
  pool.Put(kLongLane, &gate, false, 1);
  CHECK(absl::IsResourceExhausted(pool.status));
  CHECK(server::RetryAfterSeconds(pool.status).has_value());
  CHECK(pool.pool.waiting() == 1);
  pool.pool.Cancel(huge.get());
  CHECK(pool.pool.waiting() == 0);
  pool.Put(kLongLane, &gate, false, 5);
  pool.Put(kLongLane, &gate, false, 5);
  CHECK(pool.status.ok());
  pool.Put(kLongLane, &gate, false, 0);
  CHECK(absl::IsResourceExhausted(pool.status));
  gate.Open();
  CHECK(running->done.WaitForReached(1));
  pool.pool.Stop();
  CHECK(huge->done.reached() == 0);
  pool.Put(kLongLane, &gate);
  CHECK(absl::IsUnavailable(pool.status));
}

TEST_CASE("A task for which memory ends is told so, and its thread goes on", "[prepare][unit]") {
  for (const PrepareTask::Lane lane : {kShortLane, kLongLane}) {
    Gate gate;
    Pool pool;
    auto unlucky = pool.Put(lane, &gate);
    unlucky->throws = true;  // it waits at the gate, or has not come there
    gate.Open();
    CHECK(unlucky->lost.WaitForReached(1));
    auto next = pool.Put(lane, &gate);
    CHECK(next->done.WaitForReached(1));
    CHECK(next->lost.reached() == 0);
  }
}

TEST_CASE("What runs cannot be cancelled, and what has ended is not known any more",
          "[prepare][unit]") {
  Gate gate;
  Pool pool;
  auto task = pool.Put(kShortLane, &gate);
  REQUIRE(gate.WaitForReached(1));
  pool.pool.Cancel(task.get());
  gate.Open();
  CHECK(task->done.WaitForReached(1));
  pool.pool.Stop();
  pool.pool.Cancel(task.get());
  CHECK(task->done.reached() == 1);
}

}  // namespace
}  // namespace heddle::test
