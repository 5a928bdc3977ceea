// Clients that try to harm the server, over real sockets: half-sent, oversized, slow
// and dishonest requests. After each of them the server still answers.
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/http/connection.h"
#include "tests/server/grpc/http2_frames.h"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::FinishReason;
using server::HttpServerOptions;
using std::chrono::milliseconds;

const char* const kLongChatStream =
    R"({"stream":true,"messages":[{"role":"user","content":"x"}],"max_tokens":200})";

void CheckAlive(const ServerUnderTest& server) {
  CHECK(RawClient(server.port()).Get("/health").status == 200);
}

TEST_CASE("Garbage is a 400 with an error object, and the connection closes", "[server]") {
  ServerUnderTest server(SayOk);
  RawClient client(server.port());
  client.Send("\x16\x03\x01 this is not HTTP\r\n\r\n");
  RawResponse response = client.Read();
  CHECK(response.status == 400);
  CHECK(response.headers["connection"] == "close");
  CHECK(ErrorMessage(response).find("not valid HTTP") != std::string::npos);
  CHECK(client.ReadsEnd());
  CheckAlive(server);
}

TEST_CASE("A header over its limit is 431", "[server]") {
  HttpServerOptions options;
  options.max_header_bytes = 1024;
  ServerUnderTest server(SayOk, options);
  RawClient client(server.port());
  client.Send("GET /health HTTP/1.1\r\nHost: t\r\nX-Long: " + std::string(4096, 'a') + "\r\n\r\n");
  CHECK(client.Read().status == 431);
  CheckAlive(server);
}

TEST_CASE("A body over its limit is 413 before it is sent, and also when it comes in chunks",
          "[server]") {
  HttpServerOptions options;
  options.max_body_bytes = 1000;
  ServerUnderTest server(SayOk, options);
  RawClient declared(server.port());
  declared.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n");
  RawResponse response = declared.Read();
  CHECK(response.status == 413);
  CHECK(ErrorMessage(response).find("1000 bytes") != std::string::npos);
  RawClient chunked(server.port());
  chunked.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string chunk = "1f4\r\n" + std::string(500, ' ') + "\r\n";
  chunked.Send(chunk + chunk + chunk);
  CHECK(chunked.Read().status == 413);
  CheckAlive(server);
}

TEST_CASE("Errors of the transport have the shape of their route, too", "[server]") {
  ServerUnderTest server(SayOk);
  for (const auto& [path, outermost] :
       {std::pair{"/v1/messages", "type"}, std::pair{"/v1/chat/completions", "error"}}) {
    RawClient client(server.port());
    client.Send(std::string("POST ") + path +
                " HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999\r\n\r\n");
    RawResponse large = client.Read();
    CHECK(large.status == 413);
    CHECK(json::parse(large.body).contains(outermost));
    CHECK(json::parse(large.body).at("error").contains("message"));
  }
}

TEST_CASE("Embeddings of a list longer than the queue are worked off in turn", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  json body = {{"input", json::array()}};
  for (int i = 0; i < 300; ++i) body["input"].push_back("a");
  client.Send(PostText("/v1/embeddings", body.dump()));
  server::GenerationEvent done;
  done.finished = true;
  done.reason = FinishReason::kStop;
  done.embedding = {3.0f, 4.0f, 0.0f, 0.0f};
  server.generation->WaitForRequest(127);
  CHECK(server.generation->num_submitted() == 128);
  for (size_t i = 0; i < 300; ++i) {
    server.generation->WaitForRequest(i);
    server.generation->Emit(i, done);
  }
  json answer = json::parse(client.Read().body);
  CHECK(answer["data"].size() == 300);
  CHECK(answer["data"][299]["embedding"][1] == Approx(0.8));
  json many = {{"input", std::vector<std::string>(2049, "a")}};
  RawResponse refused = client.Post("/v1/embeddings", many.dump());
  CHECK(refused.status == 400);
  CHECK(ErrorMessage(refused) == "'input' must have at most 2048 entries, found 2049");
}

TEST_CASE("A half-sent request is 408 after its time, an idle connection is closed", "[server]") {
  HttpServerOptions options;
  options.header_timeout = options.body_timeout = options.idle_timeout = milliseconds(60);
  ServerUnderTest server(SayOk, options);
  RawClient half_header(server.port());
  half_header.Send("GET /health HT");
  CHECK(half_header.Read().status == 408);
  RawClient half_body(server.port());
  half_body.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{");
  RawResponse response = half_body.Read();
  CHECK(response.status == 408);
  CHECK(ErrorMessage(response).find("too long") != std::string::npos);
  RawClient idle(server.port());
  CHECK(idle.Get("/health").status == 200);
  CHECK(idle.ReadsEnd());
  RawClient silent(server.port());
  CHECK(silent.ReadsEnd());
}

TEST_CASE("Requests that two servers could read differently are refused", "[server]") {
  ServerUnderTest server(SayOk);
  const char* const smuggled[] = {
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n"
      "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: +5\r\n\r\nhello",
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
      "GET /health HTTP/1.1\r\n\r\n",
      "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
      "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /health HTTP/1.1\r\nHost : a\r\n\r\n",
  };
  for (const char* bytes : smuggled) {
    INFO(bytes);
    RawClient client(server.port());
    client.Send(bytes);
    CHECK(client.Read().status == 400);
    CHECK(client.ReadsEnd());
  }
  RawClient coding(server.port());
  coding.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n");
  CHECK(coding.Read().status == 501);
  RawClient encoded(server.port());
  encoded.Send(PostText("/tokenize", "x", "Content-Encoding: br\r\n"));
  CHECK(encoded.Read().status == 415);
  CheckAlive(server);
}

TEST_CASE("A client that stops reading is cancelled once its buffer is full", "[server]") {
  HttpServerOptions options;
  options.max_buffered_bytes = 64 << 10;
  ServerUnderTest server(options);
  RawClient slow(server.port(), /*receive_buffer_bytes=*/4096);
  slow.Send(PostText("/v1/chat/completions", kWordyStream));
  server.generation->WaitForRequest(0);
  // Kernel buffers hold some megabytes at most; the loop ends by the cancellation.
  for (int i = 0; i < 1000; ++i) server.generation->EmitText(0, std::string(20, 'a'));
  CHECK(server.generation->WaitForCancel(0));
  CheckAlive(server);
}

TEST_CASE("The more clients leave unread, the less each may", "[server]") {
  server::UnsentBytes unsent;
  const size_t most = size_t{1} << 20;
  CHECK(unsent.Limit(most) == most);
  // 500 that have what they may: 128 MiB / (500 + 8).
  for (int i = 0; i < 500; ++i) unsent.Add(264'208);
  CHECK(unsent.Limit(most) == (134'217'728 - 500 * 264'208) / 8);
  CHECK(unsent.Limit(most) >= 260'000);
  unsent.Add(int64_t{1} << 30);  // whole answers, which have no such limit
  CHECK(unsent.Limit(most) == 32'768);
}

TEST_CASE("A client that takes nothing within the write timeout is closed", "[server]") {
  HttpServerOptions options;
  options.write_timeout = milliseconds(60);
  options.max_buffered_bytes = size_t{1} << 30;
  ServerUnderTest server(options);
  RawClient stuck(server.port(), /*receive_buffer_bytes=*/4096);
  stuck.Send(PostText("/v1/chat/completions", kWordyStream));
  server.generation->WaitForRequest(0);
  server.generation->EmitText(0, std::string(10000, 'a'));
  CHECK(server.generation->WaitForCancel(0));
  CheckAlive(server);
}

TEST_CASE("A silent stream is kept alive by comments", "[server]") {
  HttpServerOptions options;
  options.sse_keep_alive = milliseconds(20);
  ServerUnderTest server(options);
  RawClient client(server.port());
  client.Send(PostText("/v1/chat/completions", kLongChatStream));
  server.generation->WaitForRequest(0);
  server.generation->EmitText(0, "a");
  CHECK(client.ReadUntil(": ping\n\n").ends_with(": ping\n\n"));
  CHECK(client.ReadUntil(": ping\n\n").ends_with(": ping\n\n"));
  server.generation->EmitEnd(0, FinishReason::kStop);
  CHECK(client.ReadUntil("data: [DONE]\n\n").ends_with("data: [DONE]\n\n"));
}

TEST_CASE("A request that outlives its time ends in an error and is cancelled", "[server]") {
  HttpServerOptions options;
  options.request_timeout = milliseconds(60);
  ServerUnderTest server(options);
  RawClient whole(server.port());
  whole.Send(PostText("/v1/completions", R"({"prompt":"a"})"));
  RawResponse response = whole.Read();
  CHECK(response.status == 504);
  CHECK(json::parse(response.body)["error"]["code"] == "request_timeout");
  CHECK(server.generation->WaitForCancel(0));
  RawClient stream(server.port());
  stream.Send(PostText("/v1/chat/completions", kLongChatStream));
  server.generation->WaitForRequest(1);
  server.generation->EmitText(1, "a");
  CHECK(stream.Read().body.find("request_timeout") != std::string::npos);
  CHECK(server.generation->WaitForCancel(1));
}

TEST_CASE("An address in use, and a host that is none, are errors that say so", "[server]") {
  ServerUnderTest server(SayOk);
  HttpServerOptions options;
  options.port = server.port();
  server::HttpDependencies dependencies{server.generation.get(), &server.codec, &server.model,
                                        &server.metrics, &server.log};
  absl::Status in_use = server::HttpServer::Start(options, dependencies).status();
  CHECK(absl::IsUnavailable(in_use));
  CHECK(std::string(in_use.message()).find(std::to_string(server.port())) != std::string::npos);
  options.host = "no host";
  CHECK(absl::IsInvalidArgument(server::HttpServer::Start(options, dependencies).status()));
}

TEST_CASE("Connections over the limit are told so where each has a request", "[server]") {
  HttpServerOptions options;
  options.max_connections = 1;
  ServerUnderTest server(options);
  RawClient first(server.port());
  first.Send(PostText("/v1/chat/completions", kLongChatStream));
  server.generation->WaitForRequest(0);
  RawClient second(server.port());
  RawResponse response = second.Read();
  CHECK(response.status == 503);
  CHECK(response.headers["retry-after"] == "5");
  CHECK(ErrorMessage(response).find("connections") != std::string::npos);
  server.generation->EmitEnd(0, FinishReason::kStop);
  CHECK(first.Read().status == 200);
}

TEST_CASE("An idle connection makes room for a new one", "[server]") {
  HttpServerOptions options;
  options.max_connections = 2;
  ServerUnderTest server(options);
  RawClient busy(server.port());
  busy.Send(PostText("/v1/chat/completions", kLongChatStream));
  server.generation->WaitForRequest(0);
  RawClient idle(server.port());
  CHECK(idle.Get("/health").status == 200);
  RawClient fresh(server.port());
  CHECK(fresh.Get("/health").status == 200);
  CHECK(idle.ReadsEnd());
  const std::string metrics = server.metrics.Render({}, {});
  CHECK(metrics.find("heddle_refused_total{reason=\"idle\"} 1\n") != std::string::npos);
  server.generation->EmitEnd(0, FinishReason::kStop);
  CHECK(busy.Read().status == 200);
}

TEST_CASE("A body that arrives slowly makes room for a new connection, but behind idle ones",
          "[server]") {
  HttpServerOptions options;
  options.max_connections = 2;
  options.body_stall_timeout = std::chrono::milliseconds(50);
  ServerUnderTest server(options);
  RawClient slow(server.port());
  slow.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{");
  RawClient idle(server.port());
  CHECK(idle.Get("/health").status == 200);
  RawClient fresh(server.port());
  CHECK(fresh.Get("/health").status == 200);
  CHECK(idle.ReadsEnd());
  fresh.Send(PostText("/v1/chat/completions", kLongChatStream));
  server.generation->WaitForRequest(0);
  // New connections are refused until the body has been arriving for the time that it may take.
  while (RawClient(server.port()).Get("/health").status != 200) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(slow.ReadsEnd());
  const std::string metrics = server.metrics.Render({}, {});
  CHECK(metrics.find("heddle_refused_total{reason=\"idle\"} 1\n") != std::string::npos);
  CHECK(metrics.find("heddle_refused_total{reason=\"slow_body\"} 1\n") != std::string::npos);
  server.generation->EmitEnd(0, FinishReason::kStop);
  CHECK(fresh.Read().status == 200);
}

TEST_CASE("Of bodies that arrive slowly the one that has stopped makes room", "[server]") {
  HttpServerOptions options;
  options.max_connections = 2;
  options.body_stall_timeout = milliseconds(50);
  ServerUnderTest server(SayOk, options);
  constexpr std::string_view kHead =
      "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{";
  RawClient slow(server.port()), stopped(server.port());
  slow.Send(std::string(kHead));
  stopped.Send(std::string(kHead));
  std::this_thread::sleep_for(milliseconds(100));
  slow.Send(" ");
  while (RawClient(server.port()).Get("/health").status != 200) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  CHECK(stopped.ReadsEnd());
  slow.Send("}");
  CHECK(slow.Read().status == 400);  // not closed: an answer, that something is missing
}

TEST_CASE("A body that arrives slowly over HTTP/2 makes room for a new connection", "[server]") {
  HttpServerOptions options;
  options.max_connections = 1;
  options.body_stall_timeout = milliseconds(50);
  options.body_timeout = std::chrono::minutes(10);  // its end is not what makes room
  ServerUnderTest server(SayOk, options);
  RawClient slow(server.port());
  // :method POST, :scheme http, :path /tokenize, :authority t, content-length 100
  const std::string head(
      "\x83\x86\x04\x09/tokenize\x01\x01t\x0f\x0d\x03"
      "100",
      22);
  slow.Send(std::string(kHttp2Preface) + Frame(kSettings, 0, 0) +
            Frame(kHeaders, kEndHeaders, 1, head) + Frame(kData, 0, 1, "{") +
            Frame(kPing, 0, 0, "received"));
  REQUIRE(slow.ReadUntil("received").ends_with("received"));  // it is idle no more
  while (RawClient(server.port()).Get("/health").status != 200) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  const std::string metrics = server.metrics.Render({}, {});
  CHECK(metrics.find("heddle_refused_total{reason=\"slow_body\"} 1\n") != std::string::npos);
}

TEST_CASE("Pipelined requests behind a long answer wait their turn, however many", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  client.Send(PostText("/v1/chat/completions", kLongChatStream));
  server.generation->WaitForRequest(0);
  server.generation->EmitText(0, "a");
  client.ReadUntil("\"a\"");
  std::string request = PostText("/detokenize", R"({"tokens":[104,105]})",
                                 "X-Padding: " + std::string(1000, 'p') + "\r\n");
  constexpr int kRequests = 200;  // more bytes than the server buffers for one connection
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) client.Send(request);
  });
  server.generation->EmitEnd(0, FinishReason::kStop);
  client.ReadUntil("0\r\n\r\n");
  int answered = 0;
  for (int i = 0; i < kRequests; ++i)
    answered += client.Read().body == R"({"prompt":"hi","content":"hi"})";
  sender.join();
  CHECK(answered == kRequests);
}

TEST_CASE("HTTP/1.0 clients get a stream that ends with the connection", "[server]") {
  ServerUnderTest server(SayOk);
  RawClient client(server.port());
  std::string body = kLongChatStream;
  client.Send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  RawResponse response = client.Read();
  CHECK(response.status == 200);
  CHECK_FALSE(response.headers.contains("transfer-encoding"));
  CHECK(SseData(response.body).back() == "[DONE]");
}

TEST_CASE("Connections that break at every byte of a request leave nothing behind", "[server]") {
  ServerUnderTest server(SayOk);
  std::string request = PostText("/v1/chat/completions", kLongChatStream);
  for (size_t bytes = 0; bytes <= request.size(); ++bytes) {
    RawClient client(server.port());
    client.Send(std::string_view(request).substr(0, bytes));
    if (bytes % 2 == 0) client.Reset();
  }
  RawClient client(server.port());
  std::string metrics;
  // Closing is seen asynchronously: ask until it has been.
  for (int i = 0; i < 1000 && metrics.find("heddle_open_connections 1\n") == std::string::npos;
       ++i) {
    metrics = client.Get("/metrics").body;
  }
  CHECK(metrics.find("heddle_open_connections 1\n") != std::string::npos);
  CHECK(metrics.find("heddle_open_streams 0\n") != std::string::npos);
}

}  // namespace
}  // namespace heddle::test
