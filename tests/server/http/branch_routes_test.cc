// The routes below /v1/branches, over real sockets.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/access/api_keys.h"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"
#include "tests/server/two_users.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::FinishReason;
using server::HttpServerOptions;

RawResponse Send(RawClient* client, const std::string& method, const std::string& path,
                 const std::string& headers = "", const std::string& body = "") {
  client->Send(method + " " + path + " HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n" +
               "Content-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body);
  return client->Read(/*head_request=*/false);
}

json Ask(RawClient* client, const std::string& path, const json& body) {
  const RawResponse response = client->Post(path, body.dump());
  INFO(path << " " << body.dump() << ": " << response.body);
  REQUIRE(response.status == 200);
  return json::parse(response.body);
}

json Describe(RawClient* client, const std::string& id) {
  const RawResponse response = client->Get("/v1/branches/" + id);
  INFO(response.body);
  REQUIRE(response.status == 200);
  return json::parse(response.body);
}

int StatusOf(RawClient* client, const std::string& path, const json& body,
             const std::string& param = "") {
  const RawResponse response = client->Post(path, body.dump());
  INFO(path << " " << body.dump() << ": " << response.body);
  if (!param.empty()) CHECK(json::parse(response.body)["error"]["param"] == param);
  return response.status;
}

// The id of the one branch of a new tree.
std::string Root(RawClient* client, const json& more = json::object()) {
  json body = {{"prompt", "ab"}, {"add_special_tokens", false}};
  body.update(more);
  return Ask(client, "/v1/branches", body)["data"][0]["id"];
}

TEST_CASE("A tree is begun, forked, continued, joined, and deleted", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string root = Root(&client);
  const json forks = Ask(&client, "/v1/branches", {{"from", root}, {"n", 2}, {"append", "c"}});
  const std::string one = forks["data"][0]["id"], two = forks["data"][1]["id"];
  CHECK(forks["root"] == root);
  const json answer = Ask(&client, "/v1/branches/" + one + "/continue", {{"append", "d"}});
  CHECK(answer["id"] == one);
  CHECK(answer["choices"][0]["text"] == "hi");
  CHECK(answer["choices"][0]["finish_reason"] == "stop");
  CHECK(answer["usage"]["prompt_tokens"] == 4);
  const json branch = Describe(&client, one);
  CHECK(branch["text"] == "abcdhi");  // without the end of text
  CHECK(branch["finish_reason"] == "stop");
  CHECK(branch["drawn_tokens"] == 3);
  CHECK(branch["parts"] == 1);
  CHECK(branch["tree"]["bytes"]["limit"].is_null());  // there is none
  CHECK(branch["mean_logprob"] < 0);
  CHECK(branch["forked_at"] == 2);
  // It goes on from there, as a stream, up to a limit.
  client.Send(PostText("/v1/branches/" + one + "/continue", R"({"stream":true,"max_tokens":1})"));
  const RawResponse stream = client.Read();
  CHECK(stream.status == 200);
  CHECK(stream.body.find("[DONE]") != std::string::npos);
  CHECK(Describe(&client, one)["text"] == "abcdhih");
  CHECK(Describe(&client, one)["finish_reason"] == "length");
  const json joined = Ask(&client, "/v1/branches/" + root + "/join",
                          {{"children", {one, two}}, {"separator", "|"}, {"tail", ";"}});
  CHECK(Describe(&client, joined["data"][0]["id"])["text"] == "abcdhih|c;");
  const json picked =
      Ask(&client, "/v1/branches/" + root + "/join", {{"children", {two}}, {"kind", "pick"}});
  CHECK(picked["data"][0]["id"] == two);
  CHECK(Describe(&client, root)["children"] == json::array({two}));
  CHECK(client.Get("/v1/branches/" + one).status == 404);
  CHECK(json::parse(Send(&client, "DELETE", "/v1/branches/" + root).body)["deleted"] == true);
  CHECK(client.Get("/v1/branches/" + two).status == 404);
}

TEST_CASE("What a branch has computed is taken over, and left again", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string root = Root(&client);
  Ask(&client, "/v1/branches/" + root + "/continue", json::object());
  const server::GenerationRequest first = server.generation->WaitForRequest(0);
  CHECK(first.keep != scheduler::ContextId{});
  CHECK(first.from == first.keep);
  CHECK(first.sampling.num_logprobs == 0);
  const json fork = Ask(&client, "/v1/branches", {{"from", root}, {"at", 1}});
  const std::string child = fork["data"][0]["id"];
  Ask(&client, "/v1/branches/" + child + "/continue", json::object());
  const server::GenerationRequest second = server.generation->WaitForRequest(1);
  CHECK(second.prompt == Bytes("a"));
  CHECK(second.keep != first.keep);
}

TEST_CASE("A completion and a chat that are kept are branches under their ids", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const json one = Ask(&client, "/v1/completions",
                       {{"prompt", "x"}, {"keep", true}, {"add_special_tokens", false}});
  CHECK(Describe(&client, one["id"])["text"] == "xhi");
  const json fork = Ask(&client, "/v1/branches", {{"from", one["id"]}, {"append", "!"}});
  CHECK(Describe(&client, fork["data"][0]["id"])["text"] == "xhi!");
  const json many = Ask(&client, "/v1/completions",
                        {{"prompt", "x"}, {"n", 2}, {"keep", true}, {"add_special_tokens", false}});
  const std::string id = many["id"];
  CHECK(Describe(&client, id)["text"] == "x");
  CHECK(Describe(&client, id + ".1")["text"] == "xhi");
  const server::GenerationRequest kept = server.generation->WaitForRequest(1);
  CHECK(kept.keep != scheduler::ContextId{});
  CHECK(kept.num_branches == 2);
  const json chat = Ask(&client, "/v1/chat/completions",
                        {{"messages", {{{"role", "user"}, {"content", "q"}}}}, {"keep", true}});
  CHECK(Describe(&client, chat["id"])["text"].get<std::string>().ends_with("hi"));
  CHECK(StatusOf(&client, "/v1/completions", {{"prompt", {"x", "y"}}, {"keep", true}}, "keep") ==
        400);
  CHECK(StatusOf(&client, "/v1/completions", {{"prompt", "x"}, {"best_of", 2}, {"keep", true}},
                 "keep") == 400);
  CHECK(client.Get("/v1/branches/cmpl-none").status == 404);
}

TEST_CASE("A branch that runs is forked at what it has, and not continued twice", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port()), busy(server.port());
  const std::string root = Root(&client);
  const std::string path = "/v1/branches/" + root + "/continue";
  busy.Send(PostText(path, R"({"stream":true,"max_tokens":9})"));
  server.generation->WaitForRequest(0);
  server.generation->EmitText(0, "cd");
  while (Describe(&client, root)["num_tokens"] != 4) {
  }
  CHECK(Describe(&client, root)["status"] == "running");
  const json fork = Ask(&client, "/v1/branches", {{"from", root}});
  CHECK(Describe(&client, fork["data"][0]["id"])["text"] == "abcd");
  CHECK(StatusOf(&client, path, json::object()) == 409);
  // Deleted, it ends, and its client learns why.
  CHECK(Send(&client, "DELETE", "/v1/branches/" + root).status == 200);
  CHECK(server.generation->WaitForCancel(0));
  server.generation->EmitEnd(0, FinishReason::kCancelled);
  CHECK(busy.Read().body.find("branch_expired") != std::string::npos);
}

TEST_CASE("A client that leaves leaves what its branch has", "[server]") {
  ServerUnderTest server;
  RawClient client(server.port());
  const std::string root = Root(&client);
  {
    RawClient busy(server.port());
    busy.Send(PostText("/v1/branches/" + root + "/continue", R"({"stream":true})"));
    server.generation->WaitForRequest(0);
    server.generation->EmitText(0, "c");
    busy.ReadUntil("data:");
    busy.Close();
  }
  CHECK(server.generation->WaitForCancel(0));
  while (Describe(&client, root)["status"] != "kept") {
  }
  const json branch = Describe(&client, root);
  CHECK(branch["text"] == "abc");
  CHECK(branch["finish_reason"] == "cancelled");
}

TEST_CASE("A stop string or token stays behind a branch that it ended", "[server]") {
  ServerUnderTest server([](const server::GenerationRequest&) { return "one.two"; });
  RawClient client(server.port());
  const std::string root = Root(&client);
  Ask(&client, "/v1/branches/" + root + "/continue", {{"stop", "."}});
  CHECK(Describe(&client, root)["text"] == "abone.");
  const std::string other = Root(&client);
  Ask(&client, "/v1/branches/" + other + "/continue", {{"stop_token_ids", {int{'e'}}}});
  CHECK(Describe(&client, other)["text"] == "abone");
}

TEST_CASE("Each branch may have its own sampling, and the request's own wins", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string root = Root(&client);
  const json forks = Ask(&client, "/v1/branches",
                         {{"from", root},
                          {"n", 2},
                          {"sampling", {{{"temperature", 0.25}, {"seed", 7}}, {{"top_k", 3}}}}});
  for (const json& fork : forks["data"]) {
    Ask(&client, "/v1/branches/" + fork["id"].get<std::string>() + "/continue", {{"top_p", 0.5}});
  }
  CHECK(server.generation->WaitForRequest(0).sampling.temperature == 0.25f);
  CHECK(server.generation->WaitForRequest(0).sampling.seed == 7);
  CHECK(server.generation->WaitForRequest(1).sampling.top_k == 3);
  CHECK(server.generation->WaitForRequest(1).sampling.top_p == 0.5f);
  const json same =
      Ask(&client, "/v1/branches", {{"from", root}, {"n", 2}, {"sampling", {{"seed", 40}}}});
  Ask(&client, "/v1/branches/" + same["data"][1]["id"].get<std::string>() + "/continue",
      json::object());
  CHECK(server.generation->WaitForRequest(2).sampling.seed == 41);
  Ask(&client, "/v1/branches/" + same["data"][1]["id"].get<std::string>() + "/continue",
      {{"seed", 5}});
  CHECK(server.generation->WaitForRequest(3).sampling.seed == 5);
}

TEST_CASE("Candidates are scored behind a branch, which stays as it is", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string root = Root(&client);
  const json scores = Ask(&client, "/v1/branches/" + root + "/score",
                          {{"continuations", {"yes", json::array({110, 111})}}});
  CHECK(scores["data"].size() == 2);
  CHECK(scores["data"][0]["token_ids"] == json::array({'y', 'e', 's'}));
  CHECK(scores["data"][1]["token_logprobs"].size() == 2);
  CHECK(scores["usage"]["scored_tokens"] == 5);
  const server::GenerationRequest request = server.generation->WaitForRequest(0);
  CHECK(request.max_tokens == 0);
  CHECK(request.first_score == 1);
  CHECK(request.keep == scheduler::ContextId{});
  CHECK(Describe(&client, root)["text"] == "ab");
  CHECK(Describe(&client, root)["tree"]["tokens"]["used"] == 5);
  CHECK(StatusOf(&client, "/v1/branches/" + root + "/score", {{"continuations", {"a", ""}}},
                 "continuations[1]") == 400);
}

TEST_CASE("Branches belong to the key that made them", "[server]") {
  HttpServerOptions options;
  options.hashed_keys = *server::ParseKeyFile(kKeys, {});
  ServerUnderTest server(SayHi, options);
  RawClient client(server.port());
  const RawResponse made = Send(&client, "POST", "/v1/branches", kAlice, R"({"prompt":"ab"})");
  REQUIRE(made.status == 200);
  const std::string id = json::parse(made.body)["root"];
  const std::string path = "/v1/branches/" + id;
  CHECK(Send(&client, "GET", path, kAlice).status == 200);
  CHECK(Send(&client, "GET", path).status == 401);
  CHECK(Send(&client, "GET", path, kBob).status == 404);
  // Streams that run for it count as its client's.
  CHECK(Send(&client, "POST", path + "/continue", kAlice, "{}").status == 200);
  CHECK(Send(&client, "POST", path + "/score", kAlice, R"({"continuations":["x"]})").status == 200);
  CHECK(Send(&client, "POST", "/v1/completions", kAlice,
             R"({"prompt":"x","use_beam_search":true,"max_tokens":1})")
            .status == 200);
  const uint64_t alice = server.generation->WaitForRequest(0).tenant;
  CHECK(alice != 0);
  CHECK(server.generation->WaitForRequest(1).tenant == alice);
  CHECK(server.generation->WaitForRequest(2).tenant == alice);
  CHECK(Send(&client, "DELETE", path, kBob).status == 404);
  CHECK(Send(&client, "POST", path + "/continue", kBob, "{}").status == 404);
  CHECK(Send(&client, "POST", path + "/score", kBob, R"({"continuations":["x"]})").status == 404);
  CHECK(Send(&client, "POST", path + "/join", kBob, R"({"children":["x"]})").status == 404);
  CHECK(Send(&client, "POST", "/v1/branches", kBob, "{\"from\":\"" + id + "\"}").status == 404);
  CHECK(Send(&client, "GET", path, kAlice).status == 200);
}

TEST_CASE("Budgets hold, and what is beyond them is refused by name", "[server]") {
  ServerUnderTest server([](const server::GenerationRequest&) { return "0123456789"; });
  RawClient client(server.port());
  const std::string root = Root(&client, {{"budget", {{"tokens", 8}, {"branches", 2}}}});
  const std::string path = "/v1/branches/" + root;
  const json answer = Ask(&client, path + "/continue", {{"max_tokens", 100}});
  CHECK(answer["choices"][0]["text"] == "01234567");
  CHECK(answer["choices"][0]["finish_reason"] == "length");
  const RawResponse spent = client.Post(path + "/continue", "{}");
  CHECK(spent.status == 400);
  CHECK(json::parse(spent.body)["error"]["code"] == "branch_budget_exceeded");
  CHECK(StatusOf(&client, path + "/score", {{"continuations", {"x"}}}) == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", root}, {"n", 2}}) == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", root}, {"n", 1}}) == 200);
  CHECK(StatusOf(&client, "/v1/branches", {{"prompt", "x"}, {"budget", {{"seconds", 1000000}}}},
                 "budget.seconds") == 400);
}

TEST_CASE("A tree whose time is over is gone", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string root = Root(&client, {{"ttl", 1}});
  RawResponse late = client.Get("/v1/branches/" + root);
  while (late.status == 200) late = client.Get("/v1/branches/" + root);
  CHECK(late.status == 410);
  CHECK(json::parse(late.body)["error"]["code"] == "branch_expired");
}

TEST_CASE("Orders that make no sense are errors that name the field", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string root = Root(&client);
  const std::string path = "/v1/branches/" + root;
  CHECK(StatusOf(&client, "/v1/branches", json::object(), "from") == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", "br_none"}}) == 404);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", root}, {"prompt", "x"}}, "prompt") == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", root}, {"at", 3}}, "at") == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", root}, {"n", 0}}, "n") == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", root}, {"append", {1 << 30}}}) == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", root}, {"sampling", {1, 2}}, {"n", 2}},
                 "sampling[0]") == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", root}, {"sampling", {{"top_p", "x"}}}},
                 "sampling.top_p") == 400);
  CHECK(StatusOf(&client, "/v1/branches",
                 {{"from", root}, {"sampling", json::array({json::object()})}, {"n", 2}},
                 "sampling") == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"prompt", std::string(300, 'x')}}, "prompt") == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"prompt", "x"}, {"model", "none"}}) == 404);
  CHECK(StatusOf(&client, path + "/continue", {{"n", 2}}, "n") == 400);
  CHECK(StatusOf(&client, path + "/continue", {{"append", std::string(300, 'x')}}, "append") ==
        400);
  CHECK(StatusOf(&client, path + "/continue", {{"truncate_prompt_tokens", 1}}) == 400);
  CHECK(StatusOf(&client, path + "/join", {{"children", {root}}}, "children") == 400);
  CHECK(StatusOf(&client, path + "/join", {{"children", {1}}}, "children") == 400);
  const std::string child = Ask(&client, "/v1/branches", {{"from", root}})["data"][0]["id"];
  CHECK(StatusOf(&client, path + "/join", {{"children", {child}}, {"kind", "concurrent"}},
                 "tail") == 400);
  CHECK(StatusOf(&client, "/v1/branches", {{"from", root}, {"concurrent", true}}, "append") == 400);
  CHECK(StatusOf(&client, path + "/join", {{"children", {child}}, {"kind", "other"}}, "kind") ==
        400);
  CHECK(StatusOf(&client, path + "/join", {{"children", {child, child}}, {"kind", "pick"}},
                 "children") == 400);
  CHECK(Describe(&client, root)["status"] == "kept");  // nothing of it stays reserved
  CHECK(Describe(&client, root)["tree"]["branches"]["used"] == 2);
}

TEST_CASE("A request that the engine refuses leaves its branch as it was", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string root = Root(&client);
  server.generation->FailSubmits(absl::ResourceExhaustedError("full"));
  CHECK(StatusOf(&client, "/v1/branches/" + root + "/continue", {{"append", "xyz"}}) == 429);
  const json branch = Describe(&client, root);
  CHECK(branch["text"] == "ab");
  CHECK(branch["status"] == "kept");
  CHECK(branch["tree"]["tokens"]["used"] == 0);
}

TEST_CASE("A beam search leaves no context behind, however it ends", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const json order = {
      {"prompt", "x"}, {"use_beam_search", true}, {"beam_width", 3}, {"max_tokens", 2}};
  const json answer = Ask(&client, "/v1/completions", order);
  CHECK(answer["choices"].size() == 1);
  CHECK(answer["choices"][0]["finish_reason"] == "length");
  CHECK(server.generation->num_dropped_contexts() == 6);
  server.generation->FailSubmits(absl::ResourceExhaustedError("full"));
  CHECK(StatusOf(&client, "/v1/completions", order) == 429);
  CHECK(server.generation->num_dropped_contexts() == 12);
}

TEST_CASE("A beam search ends with its client", "[server]") {
  ServerUnderTest server;
  {
    RawClient client(server.port());
    client.Send(
        PostText("/v1/completions", R"({"prompt":"x","use_beam_search":true,"beam_width":2})"));
    server.generation->WaitForRequest(0);
    client.Close();
  }
  CHECK(server.generation->WaitForCancel(0));
  while (server.generation->num_dropped_contexts() < 4) {
  }
}

TEST_CASE("Without branches their routes say so", "[server]") {
  HttpServerOptions options;
  options.branches.max_branches = 0;
  ServerUnderTest server(SayHi, options);
  RawClient client(server.port());
  CHECK(StatusOf(&client, "/v1/branches", {{"prompt", "x"}}) == 501);
  CHECK(client.Get("/v1/branches/x").status == 501);
  CHECK(StatusOf(&client, "/v1/completions", {{"prompt", "x"}, {"keep", true}}) == 501);
}

TEST_CASE("Metrics count branches", "[server]") {
  ServerUnderTest server(SayHi);
  RawClient client(server.port());
  const std::string root = Root(&client);
  Ask(&client, "/v1/branches", {{"from", root}, {"n", 3}});
  const std::string metrics = client.Get("/metrics").body;
  CHECK(metrics.find("heddle_branches 4") != std::string::npos);
  CHECK(metrics.find("heddle_branch_trees 1") != std::string::npos);
  CHECK(metrics.find("heddle_branches_forked_total 3") != std::string::npos);
}

}  // namespace
}  // namespace heddle::test
