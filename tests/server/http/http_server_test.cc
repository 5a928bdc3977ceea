// The HTTP front end over real sockets: what a client sends, what it reads, what the engine hears.
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/retry_after.h"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::FinishReason;
using server::HttpServerOptions;

TEST_CASE("A chat completion comes back whole", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawResponse response = RawClient(server.port()).Post("/v1/chat/completions", kChat);
  CHECK(response.status == 200);
  CHECK(response.headers["content-type"] == "application/json");
  json body = json::parse(response.body);
  CHECK(body["object"] == "chat.completion");
  CHECK(body["choices"][0]["message"]["content"] == "hi there");
  CHECK(body["choices"][0]["finish_reason"] == "stop");
}

TEST_CASE("A chat completion streams as server-sent events and ends with DONE", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawResponse response = RawClient(server.port()).Post("/v1/chat/completions", kChatStream);
  CHECK(response.status == 200);
  CHECK(response.headers["content-type"] == "text/event-stream; charset=utf-8");
  CHECK(response.headers["cache-control"] == "no-cache");
  CHECK(response.headers["x-accel-buffering"] == "no");
  std::vector<std::string> events = SseData(response.body);
  REQUIRE(events.size() >= 4);
  CHECK(events.back() == "[DONE]");
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    text += json::parse(events[i])["choices"][0]["delta"].value("content", "");
  }
  CHECK(text == "hi there");
}

TEST_CASE("One connection serves many requests, pipelined ones in order", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  client.Send(PostText("/v1/chat/completions", kChat) + PostText("/tokenize", R"({"prompt":"a"})") +
              "GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
  CHECK(json::parse(client.Read().body)["object"] == "chat.completion");
  CHECK(json::parse(client.Read().body)["tokens"] == json::array({256, 97}));
  CHECK(json::parse(client.Read().body)["object"] == "list");
  CHECK(client.Get("/health").status == 200);
}

TEST_CASE("A request that comes byte by byte is answered like any other", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  for (char c : PostText("/tokenize", R"({"prompt":"ab"})")) client.Send(std::string(1, c));
  CHECK(json::parse(client.Read().body)["count"] == 3);
}

TEST_CASE("A chunked body is accepted", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  client.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.Send("8\r\n{\"prompt\r\n7\r\n\":\"ab\"}\r\n0\r\n\r\n");
  CHECK(json::parse(client.Read().body)["count"] == 3);
}

TEST_CASE("A client that expects 100-continue gets it before its body", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  client.Send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 15\r\nExpect: 100-continue\r\n\r\n");
  CHECK(client.ReadHead().status == 100);
  client.Send(R"({"prompt":"ab"})");
  CHECK(client.Read().status == 200);
}

TEST_CASE("Unknown paths and methods get errors in OpenAI's shape", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  RawResponse missing = client.Get("/v2/nothing");
  CHECK(missing.status == 404);
  CHECK(ErrorOf(missing)["type"] == "invalid_request_error");
  RawResponse wrong_method = client.Get("/v1/chat/completions");
  CHECK(wrong_method.status == 405);
  CHECK(wrong_method.headers["allow"] == "POST, OPTIONS");
  CHECK(ErrorOf(wrong_method)["message"].get<std::string>().find("POST") != std::string::npos);
}

TEST_CASE("A path that misses a route by its base URL names the route", "[server]") {
  ServerUnderTest server(SayHiThere);
  const auto message = [&server](const std::string& path) {
    RawResponse response = RawClient(server.port()).Post(path, kChat);
    CHECK(response.status == 404);
    return ErrorOf(response)["message"].get<std::string>();
  };
  const std::string hint = "did you mean \"/v1/chat/completions\"?";
  CHECK(message("/chat/completions").ends_with(hint));
  CHECK(message("/v1/v1/chat/completions").ends_with(hint));
  CHECK(message("/v1/chat/completions/").ends_with(hint));
  CHECK(message("//v1/chat/completions").ends_with(hint));
  CHECK(message("/v1//chat//completions").ends_with(hint));
  CHECK(message("/v1/tokenize").ends_with("did you mean \"/tokenize\"?"));
  CHECK(message("/v1/moderations") == "there is nothing at \"/v1/moderations\"");
}

TEST_CASE("HEAD answers with the headers of GET and no body", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  client.Send("HEAD /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
  RawResponse response = client.Read(/*head_request=*/true);
  CHECK(response.status == 200);
  CHECK(std::stoi(response.headers["content-length"]) > 0);
  CHECK(client.Get("/health").status == 200);  // nothing of a body was left in between
}

TEST_CASE("CORS headers come where an origin is configured, and only there", "[server]") {
  HttpServerOptions options;
  options.cors_origin = "https://app.example";
  ServerUnderTest with(SayHiThere, options);
  RawClient client(with.port());
  client.Send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nOrigin: https://app.example\r\n"
      "Access-Control-Request-Method: POST\r\n\r\n");
  RawResponse preflight = client.Read();
  CHECK(preflight.status == 204);
  CHECK(preflight.headers["access-control-allow-origin"] == "https://app.example");
  CHECK(preflight.headers["access-control-allow-methods"] == "POST, OPTIONS");
  CHECK(preflight.headers["access-control-allow-headers"].find("Authorization") == 0);
  RawResponse stream = client.Post("/v1/chat/completions", kChatStream);
  CHECK(stream.headers["access-control-allow-origin"] == "https://app.example");
  CHECK(stream.headers["access-control-expose-headers"].find("x-ratelimit-remaining-requests") !=
        std::string::npos);

  ServerUnderTest without(SayHiThere);
  CHECK_FALSE(
      RawClient(without.port()).Get("/health").headers.contains("access-control-allow-origin"));
}

TEST_CASE("A page may send the headers that it asks for, if they are names of headers",
          "[server]") {
  HttpServerOptions options;
  options.cors_origin = "*";
  ServerUnderTest server(SayHiThere, options);
  RawClient client(server.port());
  const auto allowed = [&client](const std::string& asked) {
    client.Send(
        "OPTIONS /v1/messages HTTP/1.1\r\nHost: t\r\nOrigin: https://a.example\r\n"
        "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: " +
        asked + "\r\n\r\n");
    return client.Read().headers["access-control-allow-headers"];
  };
  // The headers that the official clients for browsers send.
  const std::string own = "anthropic-version,authorization,content-type,x-stainless-os";
  CHECK(allowed(own) == own);
  CHECK(allowed("a; b").find("a; b") == std::string::npos);
  CHECK(allowed(std::string(4000, 'a')).size() < 200);
}

TEST_CASE("A client's request id comes back, an unfit one is replaced", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  RawResponse own = client.Post("/tokenize", R"({"prompt":"a"})", "X-Request-Id: abc-123\r\n");
  CHECK(own.headers["x-request-id"] == "abc-123");
  RawResponse replaced = client.Post("/tokenize", R"({"prompt":"a"})", "X-Request-Id: not fit\r\n");
  CHECK(replaced.headers["x-request-id"].starts_with("req-"));
  // The same if the body is refused before it has arrived.
  client.Send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nX-Request-Id: abc-124\r\n"
      "Content-Length: 99999999\r\n\r\n");
  RawResponse large = client.Read();
  CHECK(large.status == 413);
  CHECK(large.headers["x-request-id"] == "abc-124");
}

TEST_CASE("Models are listed and described; another name is not found", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  json list = json::parse(client.Get("/v1/models").body);
  CHECK(list["data"][0]["id"] == "test-model");
  CHECK(list["data"][0]["max_model_len"] == 256);
  // Mistral's client reads no model without these.
  CHECK(list["data"][0]["max_context_length"] == 256);
  CHECK(list["data"][0]["type"] == "base");
  CHECK(list["data"][0]["capabilities"]["vision"] == false);
  CHECK(json::parse(client.Get("/v1/models/gpt-test").body)["object"] == "model");
  RawResponse unknown = client.Get("/v1/models/other");
  CHECK(unknown.status == 404);
  CHECK(ErrorOf(unknown)["code"] == "model_not_found");
}

TEST_CASE("A closed connection cancels its request, streamed or not", "[server]") {
  ServerUnderTest server;
  {
    RawClient streaming(server.port());
    streaming.Send(PostText("/v1/chat/completions", kChatStream));
    server.generation->WaitForRequest(0);
    server.generation->EmitText(0, "he");
    streaming.ReadUntil("he");
  }
  CHECK(server.generation->WaitForCancel(0));
  RawClient waiting(server.port());
  waiting.Send(PostText("/v1/chat/completions", kChat));
  server.generation->WaitForRequest(1);
  waiting.Reset();
  CHECK(server.generation->WaitForCancel(1));
}

TEST_CASE("Events that come after the client has gone are ignored", "[server]") {
  ServerUnderTest server;
  {
    RawClient client(server.port());
    client.Send(PostText("/v1/chat/completions", kChatStream));
    server.generation->WaitForRequest(0);
  }
  REQUIRE(server.generation->WaitForCancel(0));
  server.generation->EmitText(0, "late");
  server.generation->EmitEnd(0, FinishReason::kCancelled);
  CHECK(RawClient(server.port()).Get("/health").status == 200);
}

TEST_CASE("An error before the first token is a real status, for streams too", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  client.Send(PostText("/v1/chat/completions", kChatStream));
  server.generation->WaitForRequest(0);
  server::GenerationEvent failed;
  failed.finished = true;
  failed.reason = FinishReason::kError;
  failed.error = absl::InternalError("the device is gone");
  server.generation->Emit(0, failed);
  RawResponse response = client.Read();
  CHECK(response.status == 500);
  CHECK(ErrorOf(response)["message"] == "the device is gone");
  CHECK(ErrorOf(response)["type"] == "server_error");
}

TEST_CASE("An error in the middle of a stream is an error event, and the stream ends in order",
          "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  client.Send(PostText("/v1/chat/completions", kChatStream));
  server.generation->WaitForRequest(0);
  server.generation->EmitText(0, "he");
  server::GenerationEvent failed;
  failed.finished = true;
  failed.reason = FinishReason::kError;
  failed.error = absl::InternalError("the device is gone");
  server.generation->Emit(0, failed);
  std::vector<std::string> events = SseData(client.Read().body);
  REQUIRE(events.size() >= 3);
  CHECK(events.back() == "[DONE]");
  CHECK(json::parse(events[events.size() - 2])["error"]["message"] == "the device is gone");
  for (const std::string& event : events) CHECK(event.find("\"stop\"") == std::string::npos);
  CHECK(client.Get("/health").status == 200);  // the connection lives on
}

TEST_CASE("The history of an unknown request is 404, the list of none is empty", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  RawResponse list = client.Get("/debug/requests");
  CHECK(list.status == 200);
  CHECK(json::parse(list.body) == json{{"requests", json::array()}});
  RawResponse unknown = client.Get("/debug/requests/abc");
  CHECK(unknown.status == 404);
  CHECK(std::string(ErrorOf(unknown)["message"]).find("abc") != std::string::npos);
}

TEST_CASE("A full queue is 429 with Retry-After, draining is 503", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  server.generation->FailSubmits(absl::ResourceExhaustedError("32 requests wait already"));
  RawResponse full = client.Post("/v1/chat/completions", kChat);
  CHECK(full.status == 429);
  CHECK(full.headers["retry-after"] == "1");
  CHECK(ErrorOf(full)["type"] == "rate_limit_error");
  server.generation->FailSubmits(
      server::WithRetryAfter(absl::ResourceExhaustedError("32 requests wait already"), 6.2));
  CHECK(client.Post("/v1/chat/completions", kChat).headers["retry-after"] == "7");
  server.generation->FailSubmits(absl::UnavailableError("draining"));
  CHECK(client.Post("/v1/chat/completions", kChat).status == 503);
}

TEST_CASE("A failed submit of one prompt of several cancels the others", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  client.Send(PostText("/v1/completions", R"({"prompt":["a","b","c"]})"));
  server.generation->WaitForRequest(2);
  server::GenerationEvent failed;
  failed.finished = true;
  failed.reason = FinishReason::kError;
  failed.error = absl::InternalError("no");
  server.generation->Emit(1, failed);
  CHECK(client.Read().status == 500);
  CHECK(server.generation->WaitForCancel(0));
  CHECK(server.generation->WaitForCancel(2));
}

TEST_CASE("A stop string stops its branch in the engine and not the others", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  client.Send(PostText("/v1/completions", R"({"prompt":"a","n":2,"stop":"END"})"));
  server.generation->WaitForRequest(0);
  server.generation->EmitText(0, "one END more", 0);
  CHECK(server.generation->WaitForCancelBranch(0, 0));
  server.generation->EmitText(0, "two", 1);
  server.generation->EmitEnd(0, FinishReason::kLength, 1);
  json body = json::parse(client.Read().body);
  CHECK(body["choices"][0]["text"] == "one ");
  CHECK(body["choices"][0]["finish_reason"] == "stop");
  CHECK(body["choices"][1]["text"] == "two");
  CHECK(body["choices"][1]["finish_reason"] == "length");
}

TEST_CASE("Many clients at once each get their own answer", "[server]") {
  HttpServerOptions options;
  options.io_threads = 2;
  ServerUnderTest server(
      [](const server::GenerationRequest& request) {
        std::string text;
        for (engine::TokenId id : request.prompt) {
          if (id < 256) text.push_back(static_cast<char>(id));
        }
        return text;
      },
      options);
  std::vector<std::thread> clients;
  std::vector<std::string> answers(16);
  for (size_t i = 0; i < answers.size(); ++i) {
    clients.emplace_back([&, i] {
      RawClient client(server.port());
      std::string prompt = "prompt " + std::to_string(i);
      for (int round = 0; round < 4; ++round) {
        json body = {{"prompt", prompt}, {"max_tokens", 100}, {"stream", round % 2 == 0}};
        RawResponse response = client.Post("/v1/completions", body.dump());
        if (round % 2 != 0) {
          answers[i] = json::parse(response.body)["choices"][0]["text"];
        } else if (SseData(response.body).back() != "[DONE]") {
          return;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < answers.size(); ++i) CHECK(answers[i] == "prompt " + std::to_string(i));
}

}  // namespace
}  // namespace heddle::test
