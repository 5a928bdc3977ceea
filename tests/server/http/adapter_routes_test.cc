// The routes that load and unload adapters at run time, over real sockets. The shapes of requests
// and answers are those of vLLM, SGLang and llama.cpp, read in their sources.
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/access/api_keys.h"
#include "server/adapters/adapter_sets.h"
#include "tests/server/adapters/registry_rig.h"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::AdapterRegistry;
using server::HttpServerOptions;

HttpServerOptions Allowed() {
  HttpServerOptions options;
  options.allow_adapter_updates = true;
  return options;
}

// A server with the adapter "style" from the command line, and a folder with others.
struct AdapterServer {
  explicit AdapterServer(HttpServerOptions options = Allowed()) {
    for (const char* name : {"sql", "law", "broken"}) {
      files.files["/adapters/" + std::string(name)] = {name, 1, ""};
    }
    files.files["/adapters/broken"].broken = "lora_B is missing";
    files.files["/far/style"] = {"style", 1, ""};
    AdapterRegistry::Options own;
    own.root = "/adapters";
    registry = std::make_unique<AdapterRegistry>(
        std::move(own), std::make_unique<server::test::FakeSource>(&files));
    HEDDLE_CHECK(registry->AddFixed("style", "/far/style").ok(), "style is not loaded");
    sets = std::make_unique<server::AdapterSets>(
        registry.get(),
        [](const std::vector<server::ScaledImage>& members)
            -> absl::StatusOr<std::shared_ptr<engine::AdapterImage>> {
          return server::test::ImageOf("set of " + std::to_string(members.size()));
        });
    options.port = 0;
    auto started = server::HttpServer::Start(options, {.generation = &generation,
                                                       .codec = &codec,
                                                       .model = &model,
                                                       .metrics = &metrics,
                                                       .log = &log,
                                                       .adapters = registry.get(),
                                                       .adapter_sets = sets.get()});
    HEDDLE_CHECK(started.ok(), std::string(started.status().message()));
    http = *std::move(started);
    http->SetReady(true);
  }
  ~AdapterServer() { http->Stop(); }

  RawResponse Post(std::string_view path, const json& body, std::string_view headers = "") const {
    return RawClient(http->port()).Post(path, body.dump(), headers);
  }
  // The adapter that a request gets; 0: the base model. Fails the test if it is refused.
  uint64_t AdapterOf(const json& body) {
    const size_t number = generation.num_submitted();
    json request = {{"prompt", "x"}, {"max_tokens", 1}};
    if (!body.is_null()) request.update(body);
    const RawResponse response = Post("/v1/completions", request);
    INFO(response.body);
    REQUIRE(response.status == 200);
    return static_cast<uint64_t>(generation.WaitForRequest(number).adapter.id);
  }
  int StatusOf(std::string_view adapter) const {
    return Post("/v1/completions", {{"model", adapter}, {"prompt", "x"}, {"max_tokens", 1}}).status;
  }

  server::test::FakeFiles files;
  server::ServedModel model = TestModel();
  ByteCodec codec;
  server::ServerMetrics metrics{"test-model", "test"};
  server::Logger log{server::LogFormat::kText, server::LogLevel::kOff};
  FakeGeneration generation{[](const server::GenerationRequest&) { return std::string("hi"); }};
  std::unique_ptr<AdapterRegistry> registry;
  std::unique_ptr<server::AdapterSets> sets;
  std::unique_ptr<server::HttpServer> http;
};

TEST_CASE("vLLM's routes load an adapter under a name, replace it and unload it", "[server]") {
  AdapterServer server;
  const RawResponse loaded =
      server.Post("/v1/load_lora_adapter", {{"lora_name", "new"}, {"lora_path", "sql"}});
  CHECK(loaded.status == 200);
  CHECK(loaded.body == "Success: LoRA adapter 'new' added successfully.");
  CHECK(loaded.headers.at("content-type").find("text/plain") == 0);
  const uint64_t first = server.AdapterOf({{"model", "new"}});
  CHECK(first != 0);
  const RawResponse again =
      server.Post("/v1/load_lora_adapter", {{"lora_name", "new"}, {"lora_path", "law"}});
  CHECK(again.status == 400);
  CHECK(ErrorOf(again)["code"] == "adapter_exists");
  CHECK(server
            .Post("/v1/load_lora_adapter",
                  {{"lora_name", "new"}, {"lora_path", "/adapters/law"}, {"load_inplace", true}})
            .status == 200);
  CHECK(server.AdapterOf({{"model", "new"}}) != first);
  const RawResponse removed = server.Post("/v1/unload_lora_adapter", {{"lora_name", "new"}});
  CHECK(removed.status == 200);
  CHECK(removed.body == "Success: LoRA adapter 'new' removed successfully.");
  CHECK(server.StatusOf("new") == 404);
  const RawResponse unknown = server.Post("/v1/unload_lora_adapter", {{"lora_name", "new"}});
  CHECK(unknown.status == 404);
  CHECK(ErrorOf(unknown)["code"] == "model_not_found");
}

TEST_CASE("SGLang's routes answer with the adapters that are loaded", "[server]") {
  AdapterServer server;
  const RawResponse loaded = server.Post(
      "/load_lora_adapter", {{"lora_name", "new"}, {"lora_path", "sql"}, {"pinned", true}});
  CHECK(loaded.status == 200);
  const json answer = json::parse(loaded.body);
  CHECK(answer["success"] == true);
  CHECK(answer["error_message"] == "");
  CHECK(answer["loaded_adapters"] == json({{"new", "/adapters/sql"}, {"style", "/far/style"}}));
  CHECK(server.registry->Info("new")->pinned);
  const RawResponse failed =
      server.Post("/load_lora_adapter", {{"lora_name", "b"}, {"lora_path", "broken"}});
  CHECK(failed.status == 400);
  const json failure = json::parse(failed.body);
  CHECK(failure["success"] == false);
  CHECK(failure["error_message"] == "lora_B is missing");
  CHECK(failure["loaded_adapters"].size() == 2);
  const json unloaded =
      json::parse(server.Post("/unload_lora_adapter", {{"lora_name", "new"}}).body);
  CHECK(unloaded["success"] == true);
  CHECK(unloaded["loaded_adapters"] == json({{"style", "/far/style"}}));
  const RawResponse unknown = server.Post("/unload_lora_adapter", {{"lora_name", "new"}});
  CHECK(unknown.status == 404);
  CHECK(json::parse(unknown.body)["success"] == false);
}

TEST_CASE("llama.cpp's list sets the base model's adapters", "[server]") {
  AdapterServer server;
  const auto list = [&server] {
    return json::parse(RawClient(server.http->port()).Get("/lora-adapters").body);
  };
  REQUIRE(list().size() == 1);
  CHECK(list()[0]["id"] == 0);
  CHECK(list()[0]["path"] == "/far/style");
  CHECK(list()[0]["scale"] == 0);
  CHECK(server.AdapterOf({}) == 0);
  const RawResponse set = server.Post("/lora-adapters", json::parse(R"([{"id":0,"scale":0.5}])"));
  CHECK(set.status == 200);
  CHECK(json::parse(set.body) == json({{"success", true}}));
  CHECK(list()[0]["scale"] == 0.5);
  const uint64_t style = server.AdapterOf({});
  CHECK(style != 0);
  CHECK(server.AdapterOf({{"model", "test-model"}}) == style);
  CHECK(server.generation.WaitForRequest(server.generation.num_submitted() - 1).adapter.scale ==
        0.5f);
  CHECK(server.AdapterOf({{"lora", json::array()}}) == 0);
  CHECK(server.AdapterOf({{"model", "sql"}}) != style);
  const RawResponse kept = server.Post("/v1/unload_lora_adapter", {{"lora_name", "style"}});
  CHECK(kept.status == 400);
  CHECK(server.Post("/lora-adapters", json::array()).status == 200);
  CHECK(server.AdapterOf({}) == 0);
  for (const char* wrong : {"{}", "[1]", R"([{"id":1,"scale":1}])", R"([{"id":0,"scale":1e9}])",
                            R"([{"id":"style","scale":1}])", "[[]]", "", "[{}]"}) {
    INFO(wrong);
    CHECK(RawClient(server.http->port()).Post("/lora-adapters", wrong).status == 400);
  }
}

TEST_CASE("Several adapters of a request are one, on every route", "[server]") {
  AdapterServer server;
  const json both = json::parse(R"([{"id":"sql"},{"id":"law","scale":0.5}])");
  const uint64_t set = server.AdapterOf({{"lora", both}});
  CHECK(set != 0);
  CHECK(set != server.AdapterOf({{"model", "sql"}}));
  const json turns = json::parse(R"([{"role":"user","content":"x"}])");
  const std::pair<const char*, json> requests[] = {
      {"/v1/chat/completions", {{"messages", turns}}},
      {"/v1/messages", {{"messages", turns}, {"max_tokens", 1}}},
      {"/v1/responses", {{"input", "x"}}},
      {"/v1/embeddings", {{"input", "x"}}},
      {"/v1/score", {{"text_1", "x"}, {"text_2", "y"}}},
      {"/v1/rerank", {{"query", "x"}, {"documents", {"y"}}}},
  };
  for (const auto& [path, fields] : requests) {
    INFO(path);
    const size_t number = server.generation.num_submitted();
    json body = fields;
    body["lora"] = both;
    static_cast<void>(server.Post(path, body));
    const server::GenerationRequest request = server.generation.WaitForRequest(number);
    CHECK(static_cast<uint64_t>(request.adapter.id) == set);
    CHECK(request.adapter.scale == 1);
    body["lora"] = json::parse(R"([{"id":"nobody"}])");
    CHECK(server.Post(path, body).status == 404);
  }
}

TEST_CASE("What cannot be loaded is refused in one message, and the server serves on", "[server]") {
  AdapterServer server;
  const std::tuple<json, int, const char*> cases[] = {
      {{{"lora_name", "n"}, {"lora_path", "../secret"}}, 403, "not within --lora-dir"},
      {{{"lora_name", "n"}, {"lora_path", "/etc"}}, 403, "not within --lora-dir"},
      {{{"lora_name", "n"}, {"lora_path", "."}}, 403, "not within --lora-dir"},
      {{{"lora_name", "n"}, {"lora_path", "gone"}}, 404, "no file"},
      {{{"lora_name", "n"}, {"lora_path", "broken"}}, 400, "lora_B is missing"},
      {{{"lora_name", "a b"}, {"lora_path", "sql"}}, 400, "printable ASCII"},
      {{{"lora_name", "test-model"}, {"lora_path", "sql"}}, 400, "name of the base model"},
      {{{"lora_name", "gpt-test"}, {"lora_path", "sql"}}, 400, "name of the base model"},
      {{{"lora_name", "style"}, {"lora_path", "sql"}}, 400, "already been loaded"},
      {{{"lora_name", "n"}, {"lora_path", std::string("sql\0x", 5)}}, 400, "zero bytes"},
      {{{"lora_name", "n"}}, 400, "lora_path"},
      {{{"lora_path", "sql"}}, 400, "lora_name"},
      {{{"lora_name", 1}, {"lora_path", "sql"}}, 400, "lora_name"},
      {{{"lora_name", ""}, {"lora_path", "sql"}}, 400, "lora_name"},
      {{{"lora_name", "n"}, {"lora_path", "sql"}, {"load_inplace", 1}}, 400, "load_inplace"},
  };
  for (const auto& [body, status, text] : cases) {
    INFO(body.dump(-1, ' ', true));
    const RawResponse response = server.Post("/v1/load_lora_adapter", body);
    CHECK(response.status == status);
    CHECK(std::string(ErrorOf(response)["message"]).find(text) != std::string::npos);
  }
  CHECK(RawClient(server.http->port()).Post("/v1/load_lora_adapter", "{").status == 400);
  CHECK(server.StatusOf("n") == 404);
  CHECK(server.StatusOf("sql") == 200);
  CHECK(server.StatusOf("test-model") == 200);
}

TEST_CASE("A thousand loads at once are each answered", "[server]") {
  AdapterServer server;
  std::vector<std::unique_ptr<RawClient>> clients;
  constexpr int kClients = 50;
  constexpr int kEach = 20;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.http->port()));
  }
  for (int round = 0; round < kEach; ++round) {
    for (int i = 0; i < kClients; ++i) {
      const std::string name = "n" + std::to_string(round * kClients + i);
      clients[static_cast<size_t>(i)]->Send(PostText(
          "/v1/load_lora_adapter", json({{"lora_name", name}, {"lora_path", "sql"}}).dump()));
    }
    for (const auto& client : clients) REQUIRE(client->Read().status == 200);
  }
  CHECK(server.StatusOf("n0") == 200);
  CHECK(server.StatusOf("n999") == 200);
  CHECK(server.registry->figures().loads >= 1000);
}

TEST_CASE("Updates are off unless allowed, and need an admin key where there are keys",
          "[server]") {
  const json load = {{"lora_name", "n"}, {"lora_path", "sql"}};
  {
    AdapterServer server(HttpServerOptions{});
    const RawResponse refused = server.Post("/v1/load_lora_adapter", load);
    CHECK(refused.status == 403);
    CHECK(std::string(ErrorOf(refused)["message"]).find("--allow-lora-updates") !=
          std::string::npos);
    CHECK(server.Post("/load_lora_adapter", load).status == 403);
    CHECK(server.Post("/v1/unload_lora_adapter", {{"lora_name", "sql"}}).status == 403);
    CHECK(server.Post("/lora-adapters", json::array()).status == 403);
    CHECK(server.StatusOf("sql") == 200);
  }
  HttpServerOptions options = Allowed();
  options.api_keys = {"sk-user"};
  options.admin_keys = {"sk-admin"};
  AdapterServer server(options);
  for (const char* path : {"/v1/load_lora_adapter", "/load_lora_adapter"}) {
    CHECK(server.Post(path, load).status == 401);
    CHECK(server.Post(path, load, "Authorization: Bearer sk-user\r\n").status == 403);
  }
  CHECK(server.Post("/v1/load_lora_adapter", load, "Authorization: Bearer sk-admin\r\n").status ==
        200);
  CHECK(server.Post("/lora-adapters", json::array(), "Authorization: Bearer sk-user\r\n").status ==
        403);
}

TEST_CASE("No list names an adapter that a key may not use", "[server]") {
  HttpServerOptions options = Allowed();
  options.hashed_keys.push_back(
      {.name = "sql alone",
       .sha256 = server::HashKey("sk-sql"),
       .adapters = std::make_shared<std::vector<std::string>>(std::vector<std::string>{"sql"})});
  options.hashed_keys.push_back({.name = "all", .sha256 = server::HashKey("sk-all")});
  AdapterServer server(options);
  for (const char* name : {"sql", "law"}) REQUIRE(server.registry->Look(name).ok());
  for (const char* path : {"/v1/models", "/api/tags"}) {
    INFO(path);
    const auto names_of = [&](const std::string& key) {
      RawClient client(server.http->port());
      client.Send("GET " + std::string(path) + " HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer " +
                  key + "\r\n\r\n");
      return client.Read().body;
    };
    const std::string some = names_of("sk-sql");
    INFO(some);
    CHECK(some.find("sql") != std::string::npos);
    CHECK(some.find("law") == std::string::npos);
    CHECK(some.find("style") == std::string::npos);
    const std::string all = names_of("sk-all");
    for (const char* name : {"sql", "law", "style"}) CHECK(all.find(name) != std::string::npos);
  }
}

TEST_CASE("Without adapters the routes say so", "[server]") {
  ServerUnderTest server(Allowed());
  RawClient client(server.port());
  const RawResponse refused =
      client.Post("/v1/load_lora_adapter", R"({"lora_name":"n","lora_path":"p"})");
  CHECK(refused.status == 403);
  CHECK(std::string(ErrorOf(refused)["message"]).find("--lora-dir") != std::string::npos);
  CHECK(client.Get("/lora-adapters").body == "[]");
}

}  // namespace
}  // namespace heddle::test
