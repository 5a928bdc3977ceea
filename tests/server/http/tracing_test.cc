// Spans from a request to a collector over real sockets; the collector is a few lines of this test.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/tracing/span_exporter.h"
#include "server/tracing/trace_context.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::FinishReason;
using server::OtlpEndpoint;
using server::ParseOtlpEndpoint;
using server::ParseTraceparent;
using server::Span;
using server::SpanExporter;
using std::chrono::milliseconds;

// Takes one request after the other and answers with the status that the test sets.
class Collector {
 public:
  Collector() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    HEDDLE_CHECK(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0, "bind");
    ::listen(fd_, 16);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Collector() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }

  OtlpEndpoint endpoint() const { return {"127.0.0.1", std::to_string(port_), "/v1/traces"}; }
  void Answer(int status) { status_ = status; }

  // The i-th request, head and body apart; waits for it up to ten seconds.
  std::pair<std::string, json> Request(size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return requests_.size() > i; });
    HEDDLE_CHECK(requests_.size() > i, "the collector was sent nothing within ten seconds");
    const size_t end = requests_[i].find("\r\n\r\n") + 4;
    return {requests_[i].substr(0, end), json::parse(requests_[i].substr(end))};
  }
  size_t num_requests() const {
    std::lock_guard lock(mutex_);
    return requests_.size();
  }

 private:
  void Serve() {
    for (int client = 0; (client = ::accept(fd_, nullptr, nullptr)) >= 0; ::close(client)) {
      std::string request = ReadRequest(client);
      const std::string answer = "HTTP/1.1 " + std::to_string(status_) +
                                 " X\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
      {
        std::lock_guard lock(mutex_);
        requests_.push_back(std::move(request));
      }
      ::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
      changed_.notify_all();
    }
  }

  static std::string ReadRequest(int client) {
    std::string bytes;
    size_t expected = std::string::npos;
    while (bytes.size() < expected) {
      char piece[4096];
      const ssize_t got = ::recv(client, piece, sizeof(piece), 0);
      if (got <= 0) break;
      bytes.append(piece, static_cast<size_t>(got));
      const size_t end = bytes.find("\r\n\r\n");
      const size_t length = bytes.find("Content-Length: ");
      if (end != std::string::npos && length < end) {
        expected = end + 4 + std::stoul(bytes.substr(length + 16));
      }
    }
    return bytes;
  }

  int fd_;
  uint16_t port_ = 0;
  std::atomic<int> status_ = 200;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

SpanExporter::Options Fast(const OtlpEndpoint& endpoint) {
  SpanExporter::Options options;
  options.endpoint = endpoint;
  options.resource = {{"service.name", "heddle"}};
  options.interval = options.first_pause = milliseconds(5);
  return options;
}

// An exporter that counts.
struct Counted {
  explicit Counted(SpanExporter::Options options)
      : exporter(std::move(options), &log, [this](int64_t taken, int64_t lost) {
          exported += taken;
          dropped += lost;
        }) {}

  server::Logger log{server::LogFormat::kText, server::LogLevel::kOff};
  std::atomic<int64_t> exported = 0, dropped = 0;
  SpanExporter exporter;
};

// A whole server that makes spans.
struct Traced {
  explicit Traced(Collector* collector, double ratio = 1) : counted(Fast(collector->endpoint())) {
    server::HttpServerOptions options;
    options.port = 0;
    options.trace_sample_ratio = ratio;
    auto started = server::HttpServer::Start(options, {.generation = &generation,
                                                       .codec = &codec,
                                                       .model = &model,
                                                       .metrics = &metrics,
                                                       .log = &counted.log,
                                                       .spans = &counted.exporter});
    HEDDLE_CHECK(started.ok(), "start");
    http = *std::move(started);
    http->SetReady(true);
  }
  ~Traced() { http->Stop(); }

  Counted counted;
  server::ServedModel model = TestModel();
  ByteCodec codec;
  server::ServerMetrics metrics{"test-model", "test"};
  FakeGeneration generation;
  std::unique_ptr<server::HttpServer> http;
};

const json& SpansOf(const json& body) { return body["resourceSpans"][0]["scopeSpans"][0]["spans"]; }

json AttributesOf(const json& span) {
  json attributes;
  for (const json& attribute : span["attributes"]) {
    attributes[attribute["key"].get<std::string>()] = *attribute["value"].begin();
  }
  return attributes;
}

int64_t Time(const json& span, const char* which) {
  return std::stoll(span[which].get<std::string>());
}

// Examples of https://www.w3.org/TR/trace-context/ and what it forbids.
TEST_CASE("A traceparent is read as W3C's Trace Context says", "[server][trace]") {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const std::string span = "00f067aa0ba902b7";
  auto sampled = ParseTraceparent("00-" + trace + "-" + span + "-01");
  REQUIRE(sampled.has_value());
  CHECK(sampled->trace_id == trace);
  CHECK(sampled->parent_span_id == span);
  CHECK(sampled->sampled);
  CHECK_FALSE(ParseTraceparent("00-" + trace + "-" + span + "-00")->sampled);
  CHECK(ParseTraceparent("cc-" + trace + "-" + span + "-01-what-will-come").has_value());
  const std::string wrong[] = {
      "",
      "00",
      "ff-" + trace + "-" + span + "-01",
      "00-" + trace + "-" + span + "-01-more",
      "cc-" + trace + "-" + span + "-01more",
      "00-" + std::string(32, '0') + "-" + span + "-01",
      "00-" + trace + "-" + std::string(16, '0') + "-01",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + span + "-01",
      "00-" + trace + "-" + span + "-0x",
      "00_" + trace + "-" + span + "-01",
  };
  for (const std::string& header : wrong) {
    INFO(header);
    CHECK_FALSE(ParseTraceparent(header).has_value());
  }
}

TEST_CASE("A ratio samples its share of traces, by their ids", "[server][trace]") {
  CHECK_FALSE(server::IsSampled(0, 0));
  CHECK(server::IsSampled(~uint64_t{0}, 1));
  CHECK(server::IsSampled(uint64_t{1} << 62, 0.5));
  CHECK_FALSE(server::IsSampled(uint64_t{1} << 63, 0.5));
}

TEST_CASE("An endpoint is a plain URL; its path gets /v1/traces, its port is 4318 by default",
          "[server][trace]") {
  const auto text = [](std::string_view url) {
    auto parsed = ParseOtlpEndpoint(url);
    return parsed.ok() ? parsed->host + " " + parsed->port + " " + parsed->target : "";
  };
  CHECK(text("http://localhost:4318") == "localhost 4318 /v1/traces");
  CHECK(text("http://otel") == "otel 4318 /v1/traces");
  CHECK(text("http://otel:80/in/") == "otel 80 /in/v1/traces");
  CHECK(text("http://otel/v1/traces") == "otel 4318 /v1/traces");
  CHECK(text("http://[::1]:9/") == "::1 9 /v1/traces");
  for (const char* wrong :
       {"", "localhost:4318", "http://", "http://:80", "http://a:", "http://a:x", "http://a:123456",
        "http://a b", "http://u@a", "http://a?b"}) {
    INFO(wrong);
    CHECK(text(wrong).empty());
  }
  CHECK(std::string(ParseOtlpEndpoint("https://otel").status().message()).find("without TLS") !=
        std::string::npos);
}

TEST_CASE("A streamed chat is a span in the caller's trace, with its phases inside",
          "[server][trace]") {
  Collector collector;
  Traced server(&collector);
  RawClient client(server.http->port());
  client.Send(PostText(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"x"}],"max_tokens":9,"temperature":0.5,"stream":true})",
      "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
      "X-Request-Id: mine\r\n"));
  server.generation.WaitForRequest(0);
  server::GenerationEvent first;
  first.queued_seconds = 0;
  first.cached_tokens = 1;
  first.tokens.push_back({.token = 'h'});
  server.generation.Emit(0, std::move(first));
  server.generation.EmitText(0, "i");
  server.generation.EmitEnd(0, FinishReason::kStop);
  CHECK(client.Read().status == 200);

  const auto [head, body] = collector.Request(0);
  CHECK(head.starts_with("POST /v1/traces HTTP/1.1\r\n"));
  CHECK(head.find("Content-Type: application/json\r\n") != std::string::npos);
  CHECK(AttributesOf(body["resourceSpans"][0]["resource"])["service.name"] == "heddle");
  const json& spans = SpansOf(body);
  REQUIRE(spans.size() == 5);
  const json& request = spans[0];
  CHECK(request["name"] == "chat test-model");
  CHECK(request["kind"] == 2);
  CHECK(request["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736");
  CHECK(request["parentSpanId"] == "00f067aa0ba902b7");
  const json facts = AttributesOf(request);
  CHECK(facts["gen_ai.operation.name"] == "chat");
  CHECK(facts["gen_ai.request.max_tokens"] == "9");
  CHECK(facts["gen_ai.request.temperature"] == 0.5);
  CHECK(facts["gen_ai.usage.output_tokens"] == "3");
  CHECK(facts["gen_ai.usage.cache_read.input_tokens"] == "1");
  CHECK(facts["gen_ai.response.finish_reasons"]["values"][0]["stringValue"] == "stop");
  CHECK(facts["http.response.status_code"] == "200");
  CHECK(facts["heddle.request_id"] == "mine");
  CHECK_FALSE(facts.contains("error.type"));
  const char* const names[] = {"prepare", "queued", "prefill", "decode"};
  for (size_t i = 0; i < 4; ++i) {
    const json& part = spans[i + 1];
    INFO(part.dump());
    CHECK(part["name"] == names[i]);
    CHECK(part["kind"] == 1);
    CHECK(part["traceId"] == request["traceId"]);
    CHECK(part["parentSpanId"] == request["spanId"]);
    CHECK(Time(part, "startTimeUnixNano") >= Time(request, "startTimeUnixNano"));
    CHECK(Time(part, "startTimeUnixNano") <= Time(part, "endTimeUnixNano"));
    CHECK(Time(part, "endTimeUnixNano") <= Time(request, "endTimeUnixNano"));
  }
  CHECK(spans[2]["startTimeUnixNano"] == spans[1]["endTimeUnixNano"]);
  CHECK(spans[3]["startTimeUnixNano"] == spans[2]["endTimeUnixNano"]);
  CHECK(spans[4]["startTimeUnixNano"] == spans[3]["endTimeUnixNano"]);
}

TEST_CASE("A refused request is one span without phases; our own failure is an error",
          "[server][trace]") {
  Collector collector;
  Traced server(&collector);
  RawClient(server.http->port()).Post("/v1/completions", "{");
  const json refused = SpansOf(collector.Request(0).second);
  REQUIRE(refused.size() == 1);
  CHECK(AttributesOf(refused[0])["error.type"] == "400");
  CHECK(refused[0]["status"].empty());
  CHECK_FALSE(refused[0].contains("parentSpanId"));
  server.generation.FailSubmits(absl::InternalError("broken"));
  RawClient(server.http->port()).Post("/v1/completions", R"({"prompt":"a"})");
  const json failed = SpansOf(collector.Request(1).second);
  CHECK(failed[0]["status"]["code"] == 2);
  CHECK(failed[0]["traceId"] != refused[0]["traceId"]);
}

TEST_CASE("What the caller does not sample, and what is no work, makes no spans",
          "[server][trace]") {
  Collector collector;
  Traced server(&collector, /*ratio=*/0);
  RawClient client(server.http->port());
  const std::string trace = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-";
  client.Post("/v1/completions", "{", trace + "00\r\n");
  client.Post("/v1/completions", "{");
  client.Get("/health");
  client.Post("/tokenize", R"({"prompt":"a"})", trace + "01\r\n");
  client.Post("/v1/completions", "{", trace + "01\r\n");
  CHECK(SpansOf(collector.Request(0).second).size() == 1);
  server.counted.exporter.Stop();
  CHECK(collector.num_requests() == 1);
  CHECK(server.counted.exported == 1);
}

TEST_CASE("Spans go out in batches", "[server][trace]") {
  Collector collector;
  SpanExporter::Options options = Fast(collector.endpoint());
  options.max_batch = 3;
  options.interval = std::chrono::minutes(1);
  Counted counted(options);
  counted.exporter.Export(std::vector<Span>(4));
  CHECK(SpansOf(collector.Request(0).second).size() == 3);
  counted.exporter.Stop();
  CHECK(SpansOf(collector.Request(1).second).size() == 1);
  CHECK(counted.exported == 4);
  CHECK(counted.dropped == 0);
}

TEST_CASE("A busy collector is asked again; one that refuses is not", "[server][trace]") {
  Collector collector;
  Counted counted(Fast(collector.endpoint()));
  collector.Answer(503);
  counted.exporter.Export(std::vector<Span>(2));
  collector.Request(0);
  collector.Answer(200);
  CHECK(SpansOf(collector.Request(1).second).size() == 2);
  collector.Answer(400);
  counted.exporter.Export(std::vector<Span>(5));
  while (counted.dropped != 5) std::this_thread::yield();
  counted.exporter.Stop();
  CHECK(counted.exported == 2);
}

TEST_CASE("With the collector away, what does not fit is dropped, and nobody waits",
          "[server][trace]") {
  OtlpEndpoint nobody;
  nobody = Collector().endpoint();  // gone again
  SpanExporter::Options options = Fast(nobody);
  options.max_buffered = 10;
  options.max_batch = 4;
  options.first_pause = std::chrono::minutes(1);
  Counted counted(options);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) counted.exporter.Export(std::vector<Span>(1));
  counted.exporter.Stop();
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
  CHECK(counted.exported == 0);
  CHECK(counted.dropped == 100);
}

}  // namespace
}  // namespace heddle::test
