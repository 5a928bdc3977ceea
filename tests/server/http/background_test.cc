// Responses in the background, conversations and compaction, over real sockets.
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/access/api_keys.h"
#include "server/http/background_responses.h"
#include "server/http/response_log.h"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"
#include "tests/server/two_users.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::HttpServerOptions;

json Parsed(const RawResponse& response, int status = 200) {
  INFO(response.body);
  REQUIRE(response.status == status);
  return json::parse(response.body);
}

std::vector<json> Events(const std::string& body) {
  std::vector<json> events;
  constexpr std::string_view kData = "\ndata: ";
  for (size_t at = body.find(kData); at != std::string::npos; at = body.find(kData, at)) {
    at += kData.size();
    events.push_back(json::parse(body.substr(at, body.find('\n', at) - at)));
  }
  return events;
}

json WaitForEnd(RawClient* client, const std::string& id, const std::string& headers = "") {
  for (int i = 0; i < 1000; ++i) {
    const json body = Parsed(SendEmpty(client, "GET", "/v1/responses/" + id, headers));
    if (body["status"] != "queued" && body["status"] != "in_progress") return body;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL("the response does not end");
  return {};
}

TEST_CASE("A response in the background goes on without its client", "[server]") {
  auto fake = std::make_unique<FakeGeneration>();
  FakeGeneration* engine = fake.get();
  ServerUnderTest server(std::move(fake), HttpServerOptions());
  std::string id;
  {
    RawClient client(server.port());
    const json body = Parsed(client.Post("/v1/responses", R"({"input":"x","background":true})"));
    CHECK(body["status"] == "queued");
    CHECK(body["background"] == true);
    CHECK(body["output"].empty());
    id = body["id"];
  }
  engine->WaitForRequest(0);
  RawClient client(server.port());
  engine->EmitText(0, "some ");
  json body;
  for (int i = 0; i < 1000 && body["status"] != "in_progress"; ++i) {
    body = Parsed(client.Get("/v1/responses/" + id));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(body["status"] == "in_progress");
  engine->EmitText(0, "words");
  engine->EmitEnd(0, server::FinishReason::kStop);
  const json ended = WaitForEnd(&client, id);
  CHECK(ended["status"] == "completed");
  CHECK(ended["output"][0]["content"][0]["text"] == "some words");
  // It is kept as any other.
  const json next = {{"input", "y"}, {"previous_response_id", id}, {"background", true}};
  CHECK(Parsed(client.Post("/v1/responses", next.dump()))["status"] == "queued");
  CHECK(Parsed(client.Get("/v1/responses/" + id + "/input_items"))["data"].size() == 1);
  CHECK(client.Post("/v1/responses/" + id + "/cancel", "").status == 400);
  CHECK(Parsed(SendEmpty(&client, "DELETE", "/v1/responses/" + id))["deleted"] == true);
  CHECK(client.Get("/v1/responses/" + id).status == 404);
}

TEST_CASE("A stream is read again from where it was", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const RawResponse first =
      client.Post("/v1/responses", R"({"input":"x","background":true,"stream":true})");
  REQUIRE(first.status == 200);
  const std::vector<json> events = Events(first.body);
  INFO(first.body);
  REQUIRE(events.size() > 6);
  CHECK(events[0]["type"] == "response.created");
  CHECK(events[1]["type"] == "response.queued");
  CHECK(events[2]["type"] == "response.in_progress");
  CHECK(events.back()["type"] == "response.completed");
  for (size_t i = 0; i < events.size(); ++i) CHECK(events[i]["sequence_number"] == i);
  const std::string path = "/v1/responses/" + events[0]["response"]["id"].get<std::string>();
  for (size_t after = 0; after < events.size() + 2; ++after) {
    const RawResponse again =
        client.Get(path + "?stream=true&starting_after=" + std::to_string(after));
    const std::vector<json> rest = Events(again.body);
    const size_t begin = std::min(after + 1, events.size());
    CHECK(rest == std::vector<json>(events.begin() + static_cast<ptrdiff_t>(begin), events.end()));
  }
  CHECK(Events(client.Get(path + "?stream=true").body) == events);
  CHECK(Parsed(client.Get(path + "?stream=false"))["status"] == "completed");
  for (const char* query : {"stream=yes", "starting_after=-1", "starting_after=x", "stream=%zz"}) {
    CHECK(client.Get(path + "?" + query).status == 400);
  }
  const json plain = Parsed(client.Post("/v1/responses", R"({"input":"x"})"));
  CHECK(client.Get("/v1/responses/" + plain["id"].get<std::string>() + "?stream=true").status ==
        400);
}

TEST_CASE("Two clients read one stream while it comes, and one that leaves does not end it",
          "[server]") {
  auto fake = std::make_unique<FakeGeneration>();
  FakeGeneration* engine = fake.get();
  ServerUnderTest server(std::move(fake), HttpServerOptions());
  RawClient first(server.port()), second(server.port());
  first.Send(PostText("/v1/responses", R"({"input":"x","background":true,"stream":true})"));
  engine->WaitForRequest(0);
  const std::string begin = first.ReadUntil("response.queued");
  const size_t at = begin.find("resp_");
  const std::string id = begin.substr(at, begin.find('"', at) - at);
  second.Send("GET /v1/responses/" + id + "?stream=true HTTP/1.1\r\nHost: t\r\n\r\n");
  engine->EmitText(0, "one");
  first.ReadUntil("\"delta\":\"one\"");
  second.ReadUntil("\"delta\":\"one\"");
  first.Reset();
  engine->EmitText(0, "two");
  engine->EmitEnd(0, server::FinishReason::kStop);
  CHECK(second.ReadUntil("response.completed").find("\"delta\":\"two\"") != std::string::npos);
}

TEST_CASE("A response in the background is cancelled by its owner alone", "[server]") {
  auto fake = std::make_unique<FakeGeneration>();
  FakeGeneration* engine = fake.get();
  HttpServerOptions options;
  options.hashed_keys = *server::ParseKeyFile(kKeys, {});
  ServerUnderTest server(std::move(fake), options);
  RawClient client(server.port());
  const std::string id =
      Parsed(client.Post("/v1/responses", R"({"input":"x","background":true})", kAlice))["id"];
  const std::string path = "/v1/responses/" + id;
  engine->WaitForRequest(0);
  CHECK(SendEmpty(&client, "GET", path, kBob).status == 404);
  CHECK(SendEmpty(&client, "GET", path + "?stream=true", kBob).status == 404);
  CHECK(SendEmpty(&client, "POST", path + "/cancel", kBob).status == 404);
  CHECK(SendEmpty(&client, "DELETE", path, kBob).status == 404);
  CHECK(SendEmpty(&client, "GET", path + "/input_items", kAlice).status == 400);
  CHECK(Parsed(SendEmpty(&client, "POST", path + "/cancel", kAlice))["status"] == "cancelled");
  CHECK(engine->WaitForCancel(0));
  CHECK(Parsed(SendEmpty(&client, "POST", path + "/cancel", kAlice))["status"] == "cancelled");
  CHECK(Parsed(SendEmpty(&client, "GET", path, kAlice))["status"] == "cancelled");

  const std::string other =
      Parsed(client.Post("/v1/responses", R"({"input":"x","background":true})", kAlice))["id"];
  engine->WaitForRequest(1);
  CHECK(SendEmpty(&client, "DELETE", "/v1/responses/" + other, kAlice).status == 200);
  CHECK(engine->WaitForCancel(1));
}

TEST_CASE("What the engine refuses is told at once, and what fails later is in the response",
          "[server]") {
  auto fake = std::make_unique<FakeGeneration>();
  FakeGeneration* engine = fake.get();
  HttpServerOptions options;
  options.key_limits.concurrency = 1;
  options.api_keys = {"sk-one"};
  ServerUnderTest server(std::move(fake), options);
  RawClient client(server.port());
  const char* const body = R"({"input":"x","background":true})";
  engine->FailSubmits(absl::ResourceExhaustedError("full"));
  CHECK(client.Post("/v1/responses", body, kAlice).status == 429);
  CHECK(client.Post("/v1/responses", R"({"input":"x","background":true,"store":false})", kAlice)
            .status == 400);
  engine->FailSubmits(absl::OkStatus());
  const std::string id = Parsed(client.Post("/v1/responses", body, kAlice))["id"];
  engine->WaitForRequest(0);
  // The response is in progress for its key, though no connection is.
  CHECK(client.Post("/v1/responses", body, kAlice).status == 429);
  server::GenerationEvent failure;
  failure.finished = true;
  failure.reason = server::FinishReason::kError;
  failure.error = absl::InternalError("the engine broke");
  engine->Emit(0, failure);
  const json ended = WaitForEnd(&client, id, kAlice);
  CHECK(ended["status"] == "failed");
  CHECK(ended["error"]["message"] == "the engine broke");
  for (int i = 0; i < 500; ++i) {
    if (client.Post("/v1/responses", body, kAlice).status == 200) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL("the key's place was not given back");
}

TEST_CASE("A log forgets its oldest events where there is no room, and says so", "[server]") {
  server::ResponseLog log("resp_1", 0);
  log.Append("event: response.created\ndata: {\"a\":1,\"response\":{\"id\":\"x\"}}\n\n");
  log.Append("event: a.b.c\ndata: {}\n\nevent: a.b.d\ndata: {}\n\n");
  CHECK(log.body() == R"({"id":"x"})");
  CHECK(log.Read(0, 1 << 20)->next == 3);
  CHECK(log.Read(1, 1)->next == 2);
  CHECK_FALSE(log.Read(3, 1)->is_last);
  log.ForgetOldest(1);
  CHECK_FALSE(log.Read(0, 1).has_value());
  CHECK(log.Read(1, 1 << 20)->next == 3);
  log.End();
  CHECK(log.Read(3, 1)->is_last);
  CHECK_FALSE(log.Cancel());
}

TEST_CASE("A conversation gets what requests say and what is answered", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const json made = Parsed(client.Post(
      "/v1/conversations",
      R"({"metadata":{"a":"b"},"items":[{"role":"user","content":"My name is Ada."}]})"));
  CHECK(made["object"] == "conversation");
  const std::string id = made["id"];
  const std::string path = "/v1/conversations/" + id;
  CHECK(Parsed(client.Get(path)) == made);
  json asked = {{"input", "Who am I?"}, {"conversation", id}};
  const json answer = Parsed(client.Post("/v1/responses", asked.dump()));
  CHECK(answer["conversation"]["id"] == id);
  asked["conversation"] = {{"id", id}};
  asked["store"] = false;
  const json second = Parsed(client.Post("/v1/responses", asked.dump()));
  CHECK(second["usage"]["input_tokens"] > answer["usage"]["input_tokens"]);
  const json items = Parsed(client.Get(path + "/items?order=asc"))["data"];
  REQUIRE(items.size() == 5);
  CHECK(items[0]["content"][0]["text"] == "My name is Ada.");
  CHECK(items[1]["content"][0]["text"] == "Who am I?");
  CHECK(items[2] == answer["output"][0]);
  CHECK(items[4]["role"] == "assistant");
  // The model reads all of it.
  const std::string prompt = ByteCodec().Decode(server.generation->WaitForRequest(1).prompt, true);
  for (const char* text : {"My name is Ada.", "Who am I?", "hi"}) {
    CHECK(prompt.find(text) != std::string::npos);
  }
  const std::string item = path + "/items/" + items[0]["id"].get<std::string>();
  CHECK(Parsed(client.Get(item)) == items[0]);
  CHECK(Parsed(SendEmpty(&client, "DELETE", item))["id"] == id);
  CHECK(client.Get(item).status == 404);
  const json added = Parsed(client.Post(path + "/items", R"({"items":[{"role":"user","content":"1"},
      {"type":"function_call_output","call_id":"c","output":"2"}]})"));
  CHECK(added["data"].size() == 2);
  CHECK(added["data"][1]["output"] == "2");
  CHECK(Parsed(client.Get(path + "/items"))["data"].size() == 6);
  CHECK(Parsed(client.Post(path, R"({"metadata":{"c":"d"}})"))["metadata"] == json{{"c", "d"}});
  CHECK(Parsed(SendEmpty(&client, "DELETE", path))["deleted"] == true);
  CHECK(client.Get(path).status == 404);
  CHECK(client.Post("/v1/responses", asked.dump()).status == 404);
}

TEST_CASE("Wrong conversations are errors, and others' are not there", "[server]") {
  HttpServerOptions options;
  options.hashed_keys = *server::ParseKeyFile(kKeys, {});
  ServerUnderTest server(SayHi, options);
  RawClient client(server.port());
  const std::string id = Parsed(client.Post("/v1/conversations", "", kAlice))["id"];
  const std::string path = "/v1/conversations/" + id;
  CHECK(SendEmpty(&client, "GET", path, kBob).status == 404);
  CHECK(SendEmpty(&client, "DELETE", path, kBob).status == 404);
  CHECK(SendEmpty(&client, "GET", path + "/items", kBob).status == 404);
  CHECK(client.Post(path + "/items", R"({"items":[{"role":"user","content":"1"}]})", kBob).status ==
        404);
  CHECK(client.Post(path, R"({"metadata":{}})", kBob).status == 404);
  const json asked = {{"input", "x"}, {"conversation", id}};
  CHECK(client.Post("/v1/responses", asked.dump(), kBob).status == 404);
  json both = asked;
  both["previous_response_id"] = "resp_1";
  CHECK(client.Post("/v1/responses", both.dump(), kAlice).status == 400);
  for (const char* body :
       {R"({"items":[7]})", R"({"items":[{"type":"none"}]})", R"({"items":{}})",
        R"({"metadata":7})", R"({"items":[{"type":"item_reference","id":"x"}]})", "[]"}) {
    INFO(body);
    CHECK(client.Post("/v1/conversations", body, kAlice).status == 400);
  }
  CHECK(client.Post(path + "/items", R"({"items":[]})", kAlice).status == 400);
  for (const char* missing : {"/items/none", "/items/a/b", "/none"}) {
    CHECK(SendEmpty(&client, "GET", path + missing, kAlice).status == 404);
  }
}

TEST_CASE("A conversation that is compacted is the user's words and a summary", "[server]") {
  ServerUnderTest server([](const server::GenerationRequest& request) {
    const std::string prompt = ByteCodec().Decode(request.prompt, true);
    return prompt.find("Write a summary") != std::string::npos ? std::string("We wove.")
                                                               : std::string("a red thread");
  });
  server.model.max_context = 4096;
  RawClient client(server.port());
  const json first = Parsed(client.Post("/v1/responses", R"({"input":"Weave!"})"));
  const json asked = {{"model", "test-model"},
                      {"input", {{{"role", "user"}, {"content", "More."}}}},
                      {"previous_response_id", first["id"]}};
  const json compacted = Parsed(client.Post("/v1/responses/compact", asked.dump()));
  CHECK(compacted["object"] == "response.compaction");
  CHECK(compacted["usage"]["output_tokens"] > 0);
  const json& output = compacted["output"];
  REQUIRE(output.size() == 3);
  CHECK(output[0]["content"][0]["text"] == "Weave!");
  CHECK(output[1]["content"][0]["text"] == "More.");
  CHECK(output[2]["type"] == "compaction");
  json next = {{"input", output}};
  next["input"].push_back({{"role", "user"}, {"content", "And now?"}});
  CHECK(Parsed(client.Post("/v1/responses", next.dump()))["output"].size() == 1);
  const size_t last = server.generation->num_submitted() - 1;
  const std::string prompt =
      ByteCodec().Decode(server.generation->WaitForRequest(last).prompt, true);
  CHECK(prompt.find("We wove.") != std::string::npos);
  CHECK(prompt.find("a red thread") == std::string::npos);
  next["input"][2]["encrypted_content"] = "gAAAAA";
  CHECK(client.Post("/v1/responses", next.dump()).status == 400);
  CHECK(client.Post("/v1/responses/compact", "{}").status == 400);
  CHECK(client.Post("/v1/responses/compact", R"({"input":"Weave."})").status == 200);
}

}  // namespace
}  // namespace heddle::test
