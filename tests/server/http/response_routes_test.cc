// The routes below /v1/responses, over real sockets.
#include <string>
#include <tuple>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/access/api_keys.h"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::HttpServerOptions;

// printf %s sk-one | sha256sum; printf %s sk-two | sha256sum
const char* const kLimitedKeys =
    "alice 456f1612bd25c6c8455039437bf441f43aa3b7d1c0b0047c712d5036dfebef0d\n"
    "bob 5e31278545505db1d65bf1dd696e8eaa1edfb00ba455e21c83200c04ef643c91 requests_per_minute=1\n";

// The id of a response to `input` that is kept.
std::string Respond(RawClient* client, const json& body) {
  const RawResponse response = client->Post("/v1/responses", body.dump());
  INFO(response.body);
  REQUIRE(response.status == 200);
  return json::parse(response.body)["id"];
}

TEST_CASE("The items of a response are listed, with those of the one that it goes on from",
          "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string first = Respond(&client, {{"input", "one"}, {"instructions", "Be brief."}});
  const std::string second = Respond(&client, {{"input", "two"}, {"previous_response_id", first}});
  const std::string path = "/v1/responses/" + second + "/input_items";
  const json page = json::parse(client.Get(path + "?order=asc&limit=2").body);
  CHECK(page["data"][0]["content"][0]["text"] == "one");
  const json answer = json::parse(client.Get("/v1/responses/" + first).body);
  CHECK(page["data"][1] == answer["output"][0]);
  CHECK(page["has_more"] == true);
  const std::string last = page["last_id"];
  const json rest = json::parse(client.Get(path + "?%6Frder=asc&after=" + last).body);
  CHECK(rest["data"].size() == 1);
  CHECK(rest["data"][0]["content"][0]["text"] == "two");
  CHECK(rest["has_more"] == false);
  CHECK(json::parse(client.Get(path).body)["data"].size() == 3);
  CHECK(json::parse(client.Get("/v1/responses/" + first + "/input_items").body)["data"].size() ==
        1);
  // They stay when the one before is forgotten.
  CHECK(SendEmpty(&client, "DELETE", "/v1/responses/" + first).status == 200);
  CHECK(client.Get("/v1/responses/" + first + "/input_items").status == 404);
  CHECK(json::parse(client.Get(path).body)["data"].size() == 3);
}

TEST_CASE("Wrong queries and unknown responses are errors in OpenAI's shape", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string path = "/v1/responses/" + Respond(&client, {{"input", "x"}}) + "/input_items";
  for (const char* query : {"limit=0", "limit=1&limit=2", "limit", "order=up", "after=none",
                            "after=%00", "after=%ff", "limit=%zz", "limit=1%", "before=x"}) {
    INFO(query);
    const RawResponse response = client.Get(path + "?" + query);
    CHECK(response.status == 400);
    CHECK(ErrorOf(response)["type"] == "invalid_request_error");
  }
  for (const char* query : {"", "&", "&&=&", "api-version=1", "limit=100&order=desc"}) {
    CHECK(client.Get(path + "?" + query).status == 200);
  }
  for (const std::string& id :
       {std::string("resp_none"), std::string(3000, 'a'), std::string("%00"),
        std::string("input_tokens"), std::string("{id}")}) {
    const RawResponse items = client.Get("/v1/responses/" + id + "/input_items?limit=0");
    CHECK(items.status == 404);
    CHECK(ErrorOf(items)["code"] == "response_not_found");
    const RawResponse cancel = client.Post("/v1/responses/" + id + "/cancel", "{}");
    CHECK(cancel.status == 404);
    CHECK(ErrorOf(cancel)["message"] == ErrorOf(items)["message"]);
    CHECK(items.body.size() < 300);
  }
  for (const char* missing : {"/v1/responses//input_items", "/v1/responses/a/b/input_items",
                              "/v1/responses/a/input_items/", "/v1/responses/a/input_items/b",
                              "/v1/responses/a/input_item", "/v1/responses/a/cancels"}) {
    const RawResponse nothing = client.Get(missing);
    CHECK(nothing.status == 404);
    CHECK(ErrorOf(nothing)["message"].get<std::string>().find("there is nothing at") == 0);
  }
}

TEST_CASE("A response that is kept has ended, and cannot be cancelled", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string id = Respond(&client, {{"input", "x"}});
  for (const char* body : {"", "{}", "not JSON"}) {
    const RawResponse response = client.Post("/v1/responses/" + id + "/cancel", body);
    CHECK(response.status == 400);
    CHECK(ErrorOf(response)["type"] == "invalid_request_error");
    CHECK(ErrorOf(response)["message"].get<std::string>().find("'background'") !=
          std::string::npos);
  }
  CHECK(client.Get("/v1/responses/" + id).status == 200);
}

TEST_CASE("What a request makes the model read is counted as its answer's usage has it",
          "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string previous = Respond(&client, {{"input", "some words"}});
  const json tool = {{"type", "function"}, {"name", "f"}, {"parameters", json::object()}};
  json turns = json::array();
  for (int i = 0; i < 20; ++i) {
    turns.push_back({{"role", "user"}, {"content", std::string(20, 'x')}});
    turns.push_back({{"role", "assistant"}, {"content", "yes"}});
  }
  turns.push_back({{"role", "user"}, {"content", "last"}});
  const json bodies[] = {
      {{"input", "x"}},
      {{"input", "x"}, {"instructions", "Be brief."}, {"max_output_tokens", 7}},
      {{"input", "x"}, {"previous_response_id", previous}},
      {{"input", "x"}, {"tools", {tool}}},
      {{"input", "x"}, {"tools", {tool}}, {"tool_choice", "none"}},
      {{"input", {{{"role", "user"}, {"content", "a"}}, {{"role", "user"}, {"content", "b"}}}}},
      {{"input", turns}, {"truncation", "auto"}},
      {{"input", "x"}, {"text", {{"format", {{"type", "json_object"}}}}}},
  };
  for (const json& body : bodies) {
    INFO(body.dump());
    const RawResponse counted = client.Post("/v1/responses/input_tokens", body.dump());
    CHECK(counted.status == 200);
    const json answer = json::parse(client.Post("/v1/responses", body.dump()).body);
    const json expected = {{"object", "response.input_tokens"},
                           {"input_tokens", answer["usage"]["input_tokens"]}};
    CHECK(json::parse(counted.body) == expected);
  }
  // More than the context holds can be counted, though not answered.
  const json too_long = {{"input", std::string(1000, 'x')}};
  CHECK(client.Post("/v1/responses", too_long.dump()).status == 400);
  CHECK(
      json::parse(client.Post("/v1/responses/input_tokens", too_long.dump()).body)["input_tokens"] >
      1000);
}

TEST_CASE("Requests that cannot be counted are refused as they would be", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  for (const char* body :
       {"", "{", "[]", "{}", R"({"input":7})", R"({"input":"x","background":true,"store":false})",
        R"({"input":"x","model":"none"})", R"({"input":"x","previous_response_id":"none"})",
        R"({"input":[{"type":"image"}]})", R"({"input":"x","truncation":"some"})",
        R"({"input":"x","tools":[{"type":"wat"}]})",
        R"({"input":[{"role":"nobody","content":"x"}]})"}) {
    INFO(body);
    const RawResponse counted = client.Post("/v1/responses/input_tokens", body);
    const RawResponse answered = client.Post("/v1/responses", body);
    CHECK(counted.status >= 400);
    CHECK(counted.status == answered.status);
    CHECK(counted.body == answered.body);
  }
}

TEST_CASE("Other methods are told which there are; HEAD answers where GET does", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string id = "/v1/responses/" + Respond(&client, {{"input", "x"}});
  const std::tuple<const char*, std::string, const char*> wrong[] = {
      {"GET", id + "/cancel", "POST, OPTIONS"},
      {"HEAD", id + "/cancel", "POST, OPTIONS"},
      {"POST", id + "/input_items", "GET, HEAD, OPTIONS"},
      {"DELETE", id + "/input_items", "GET, HEAD, OPTIONS"},
      {"GET", "/v1/responses/input_tokens", "POST, OPTIONS"},
      {"DELETE", "/v1/responses/input_tokens", "POST, OPTIONS"},
      {"PUT", id, "GET, HEAD, DELETE, OPTIONS"},
  };
  for (const auto& [method, path, allow] : wrong) {
    INFO(method << " " << path);
    RawResponse response = SendEmpty(&client, method, path);
    CHECK(response.status == 405);
    CHECK(response.headers["allow"] == allow);
  }
  const RawResponse head = SendEmpty(&client, "HEAD", id + "/input_items");
  CHECK(head.status == 200);
  CHECK(head.body.empty());
  CHECK(client.Get(id).status == 200);  // nothing of a body was left in between
}

TEST_CASE("What stands below another key's response is as unknown as the response", "[server]") {
  HttpServerOptions options;
  auto keys = server::ParseKeyFile(kLimitedKeys, {});
  REQUIRE(keys.ok());
  options.hashed_keys = *keys;
  ServerUnderTest server(SayHi, options);
  RawClient client(server.port());
  const std::string alice = "Authorization: Bearer sk-one\r\n";
  const std::string bob = "Authorization: Bearer sk-two\r\n";
  const json made = json::parse(client.Post("/v1/responses", R"({"input":"x"})", alice).body);
  const std::string id = made["id"];
  const std::string path = "/v1/responses/" + id;
  CHECK(SendEmpty(&client, "GET", path + "/input_items").status == 401);
  CHECK(SendEmpty(&client, "GET", path + "/input_items", alice).status == 200);
  CHECK(SendEmpty(&client, "POST", path + "/cancel").status == 401);
  CHECK(SendEmpty(&client, "POST", path + "/cancel", alice).status == 400);
  CHECK(client.Post("/v1/responses/input_tokens", R"({"input":"x"})").status == 401);
  const RawResponse items = SendEmpty(&client, "GET", path + "/input_items", bob);
  CHECK(items.status == 404);
  CHECK(items.body == SendEmpty(&client, "GET", path, bob).body);
  const RawResponse cancel = SendEmpty(&client, "POST", path + "/cancel", bob);
  CHECK(cancel.status == 404);
  CHECK(cancel.body == items.body);
  // Bob has used his one request of this minute.
  const json next = {{"input", "x"}, {"previous_response_id", id}};
  CHECK(client.Post("/v1/responses/input_tokens", next.dump(), bob).status == 429);
  CHECK(client.Post("/v1/responses/input_tokens", next.dump(), alice).status == 200);
}

TEST_CASE("Metrics name routes by pattern, whatever the ids", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.Get("/v1/responses/resp_" + std::to_string(i) + "/input_items");
    client.Post("/v1/responses/resp_" + std::to_string(i) + "/cancel", "");
  }
  const std::string metrics = client.Get("/metrics").body;
  CHECK(metrics.find("resp_") == std::string::npos);
  CHECK(metrics.find("/v1/responses/{id}/input_items") != std::string::npos);
  CHECK(metrics.find("/v1/responses/{id}/cancel") != std::string::npos);
}

}  // namespace
}  // namespace heddle::test
