// Answers whose model thinks in branches, over real sockets.
#include <functional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

using nlohmann::json;

constexpr const char* kGoal =
    "<Parallel><Goal><Outline>1: a</Outline><Outline>2: b</Outline></Goal>";

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string PromptOf(const server::GenerationRequest& request) {
  std::string text;
  for (const TokenId token : request.prompt) {
    if (token < 256) text.push_back(static_cast<char>(token));
  }
  return text;
}

// Writes as Multiverse does, and goes on without asking behind each mark.
std::string Multiverse(const server::GenerationRequest& request) {
  const std::string prompt = PromptOf(request);
  if (EndsWith(prompt, "<Path>\n1:")) return " one</Path> ignored";
  if (EndsWith(prompt, "<Path>\n2:")) return " two and more</Path> ignored";
  if (EndsWith(prompt, "<Conclusion>\n")) return "both.</Conclusion></Parallel> end";
  return std::string(kGoal) + " ignored";
}

struct Parallel {
  explicit Parallel(FakeGeneration::Reply reply, const server::HttpServerOptions& options = {})
      : server(std::move(reply), options), client(server.port()) {
    server.model.max_context = 4096;
    server::EngineStats stats;
    stats.page_tokens = 16;
    server.generation->SetStats(stats);
  }
  json Ask(json body, const std::string& path = "/v1/completions") {
    body.update({{"max_tokens", 1000}}, false);
    if (!body.contains("max_tokens")) body["max_tokens"] = 1000;
    if (path == "/v1/completions") body["prompt"] = "Q";
    const RawResponse response = client.Post(path, body.dump());
    INFO(body.dump() << ": " << response.body);
    REQUIRE(response.status == 200);
    return json::parse(response.body);
  }
  json Refused(const json& parallel, json body = json::object()) {
    body["parallel"] = parallel;
    body["prompt"] = "Q";
    const RawResponse response = client.Post("/v1/completions", body.dump());
    INFO(body.dump() << ": " << response.body);
    REQUIRE(response.status == 400);
    return json::parse(response.body)["error"];
  }

  ServerUnderTest server;
  RawClient client;
};

std::vector<json> Chunks(const std::string& stream) {
  std::vector<json> chunks;
  for (size_t at = stream.find("data: {"); at != std::string::npos;
       at = stream.find("data: {", at + 1)) {
    chunks.push_back(json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6)));
  }
  return chunks;
}

const std::string kJoined = std::string(kGoal) +
                            "\n<Path>\n1: one</Path>\n<Path>\n2: two and more</Path>\n"
                            "<Conclusion>\nboth.</Conclusion></Parallel> end";

TEST_CASE("A model's branches run side by side and are joined", "[server]") {
  Parallel test(Multiverse);
  const json answer = test.Ask({{"parallel", {{"format", "multiverse"}}}});
  CHECK(answer["choices"][0]["text"] == kJoined);
  CHECK(answer["choices"][0]["finish_reason"] == "stop");
  const json usage = answer["usage"];
  // The model's own end is the one token without text.
  CHECK(usage["completion_tokens"] == kJoined.size() + 1);
  CHECK(usage["completion_tokens_details"]["branches"] == 2);
  const size_t shorter = std::string("<Path>\n1: one</Path>\n").size();
  CHECK(usage["completion_tokens_details"]["critical_path_tokens"] == kJoined.size() + 1 - shorter);
  // Both branches begin behind the goal, on pages of their own, and the end sees both.
  const server::GenerationRequest one = test.server.generation->WaitForRequest(1);
  const server::GenerationRequest two = test.server.generation->WaitForRequest(2);
  CHECK(PromptOf(one) == "Q" + std::string(kGoal) + "\n<Path>\n1:");
  CHECK(one.parts == two.parts);
  CHECK(one.parts.size() == 2);
  CHECK(one.sampling.seed != two.sampling.seed);
  const server::GenerationRequest last = test.server.generation->WaitForRequest(3);
  CHECK(last.parts.size() == 4);
  CHECK(last.parts[1].position == last.parts[2].position);
  CHECK(last.parts[2].hidden == std::vector<scheduler::PartRange>{{1, 2}});
  CHECK(last.parts[3].hidden.empty());
  CHECK(test.server.generation->num_submitted() == 4);
}

TEST_CASE("Contexts of branches are dropped at the end, whatever it is", "[server]") {
  Parallel test(Multiverse);
  test.Ask({{"parallel", {{"format", "multiverse"}}}});
  CHECK(test.server.generation->num_dropped_contexts() == 5);  // four runs and a join
  RawClient other(test.server.port());
  test.server.generation->SetStepTime(std::chrono::milliseconds(5));
  other.Send(PostText("/v1/completions",
                      R"({"prompt":"Q","max_tokens":1000,"parallel":{"format":"multiverse"}})"));
  test.server.generation->WaitForRequest(6);  // both branches run
  other.Close();
  CHECK(test.server.generation->WaitForCancel(5));
  CHECK(test.server.generation->WaitForCancel(6));
}

TEST_CASE("Streams name the branch of each text, or bring one behind the other", "[server]") {
  Parallel test(Multiverse);
  for (const char* order : {"tagged", "sequential"}) {
    const json body = {{"prompt", "Q"},
                       {"max_tokens", 1000},
                       {"stream", true},
                       {"stream_options", {{"include_usage", true}}},
                       {"parallel", {{"format", "multiverse"}, {"stream_order", order}}}};
    test.client.Send(PostText("/v1/completions", body.dump()));
    const RawResponse response = test.client.Read();
    REQUIRE(response.status == 200);
    std::map<std::string, std::string> texts;
    std::string all;
    for (const json& chunk : Chunks(response.body)) {
      if (chunk["choices"].empty()) {
        CHECK(chunk["usage"]["completion_tokens_details"]["branches"] == 2);
        continue;
      }
      const json& choice = chunk["choices"][0];
      all += choice["text"].get<std::string>();
      texts[choice.value("branch", "")] += choice["text"].get<std::string>();
    }
    INFO(order);
    if (std::string(order) == "sequential") {
      CHECK(all == kJoined);
      CHECK(texts.size() == 1);
    } else {
      CHECK(texts["0.0"] == "<Path>\n1: one</Path>\n");
      CHECK(texts["0.1"] == "<Path>\n2: two and more</Path>\n");
      CHECK(texts["0"] == std::string(kGoal) + "\n<Conclusion>\nboth.</Conclusion></Parallel> end");
    }
  }
}

TEST_CASE("ThreadWeaver's branches are read one behind the other, and closed where they are cut",
          "[server]") {
  Parallel test([](const server::GenerationRequest& request) -> std::string {
    const std::string prompt = PromptOf(request);
    if (EndsWith(prompt, "<Thread>\n1.1:")) return " short</Thread>";
    if (EndsWith(prompt, "<Thread>\n1.2:")) return std::string(500, 'x');
    if (EndsWith(prompt, "</Parallel>")) return "\nSo.";
    return "<Outlines><Outline> 1.1: a</Outline><Outline>1.2 : b</Outline></Outlines>";
  });
  const json answer = test.Ask(
      {{"parallel",
        {{"format", "threadweaver"}, {"max_branch_tokens", 40}, {"max_total_tokens", 1000}}}});
  const std::string cut = "<Thread>\n1.2:";
  CHECK(answer["choices"][0]["text"] ==
        "<Outlines><Outline> 1.1: a</Outline><Outline>1.2 : b</Outline></Outlines>\n"
        "<Thread>\n1.1: short</Thread>" +
            cut + std::string(40 - cut.size(), 'x') + "\n</Thread>\n</Parallel>\nSo.");
  CHECK(test.server.generation->WaitForRequest(3).parts.empty());
  // A branch whose client does not wait for it is closed, too.
  test.server.generation->SetStepTime(std::chrono::milliseconds(2));
  const json late = test.Ask({{"parallel",
                               {{"format", "threadweaver"},
                                {"on_slow", {{"cut_after_s", 0.2}}},
                                {"max_total_tokens", 2000}}}});
  const auto text = late["choices"][0]["text"].get<std::string>();
  CHECK(text.find("x\n</Thread>\n</Parallel>\nSo.") != std::string::npos);
}

TEST_CASE("A client's own format, nested branches, and limits that make them plain text",
          "[server]") {
  // Asks for branches to any depth: each level's items have one more digit.
  Parallel test([](const server::GenerationRequest& request) -> std::string {
    const std::string prompt = PromptOf(request);
    if (prompt.ends_with("}")) return "!";
    if (prompt.ends_with(";")) return ".";  // behind a mark that is plain text
    const size_t at = prompt.rfind('[');
    if (prompt.ends_with(":")) {
      const std::string id = prompt.substr(at + 1, prompt.size() - at - 2);
      return "?" + id + "1," + id + "2;|";
    }
    return "?1,2;.";
  });
  const json custom = {{"fork_at", ";"},     {"items_from", "?"}, {"items", "[0-9]+"},
                       {"header", "[{id}:"}, {"branch_end", "|"}, {"tail", "}"}};
  const auto ask = [&](json more) {
    json parallel = {{"format", "custom"}, {"custom", custom}};
    parallel.update(more);
    return test.Ask({{"parallel", parallel}});
  };
  // "!" behind a join is no end of a branch, so that it is cut by the model's end and closed.
  CHECK(ask({{"max_depth", 0}})["choices"][0]["text"] == "?1,2;.");
  CHECK(ask({{"max_depth", 1}})["choices"][0]["text"] == "?1,2;[1:?11,12;|[2:?21,22;|}!");
  CHECK(
      ask({{"max_depth", 2}})["choices"][0]["text"] ==
      "?1,2;[1:?11,12;[11:?111,112;|[12:?121,122;|}!|[2:?21,22;[21:?211,212;|[22:?221,222;|}!|}!");
  CHECK(ask({{"max_branches", 1}})["choices"][0]["text"] == "?1,2;.");
  const json spent = ask({{"max_total_tokens", 24}});
  CHECK(spent["choices"][0]["finish_reason"] == "length");
  CHECK(spent["usage"]["completion_tokens"] <= 24);
  const json nested = ask({{"max_depth", 2}});
  CHECK(nested["usage"]["completion_tokens_details"]["branches"] == 6);
}

constexpr const char* kMoved = "Moving to Node #0\nCurrent State: 9:[4, 5], Operations: []";
constexpr const char* kSearch = "Moving to Node #0,0\nCurrent State: 9:[9], Operations: ['4+5=9']";
constexpr const char* kGenerated = "\nGenerated Node #0,0: 9:[9] Operation: 4+5=9\n";
constexpr const char* kCall =
    "\n<Start Sub Search 0 at level 1> Moving to Node #0,0\n<End Calling Sub Searches>";

// Searches as APR's models do. It begins a list of calls with the mark of results, as they do.
std::string Apr(const server::GenerationRequest& request) {
  const std::string prompt = PromptOf(request);
  if (prompt == kMoved) return std::string(kGenerated) + "<Sub Searches> ignored";
  if (EndsWith(prompt, "<Calling Sub Searches>")) return std::string(kCall) + " ignored";
  if (prompt == kSearch) return "\n9,9 equal: Goal Reached\nthe way: Goal Reached\n";
  if (EndsWith(prompt, "<End Sub Searches>\n")) return "9 it is.";
  return "?";
}

TEST_CASE("APR's searches begin with prompts of their own, and their results follow the calls",
          "[server]") {
  Parallel test(Apr);
  const json body = {{"prompt", kMoved}, {"max_tokens", 1000}, {"parallel", {{"format", "apr"}}}};
  const RawResponse response = test.client.Post("/v1/completions", body.dump());
  REQUIRE(response.status == 200);
  const json answer = json::parse(response.body);
  const std::string results =
      "<Sub Searches>\n<Goal Reached in Sub Search 0 at level 1 at Node #0,0>\n"
      "the way: Goal Reached\n<End Sub Searches>\n";
  CHECK(answer["choices"][0]["text"] ==
        std::string(kGenerated) + "<Calling Sub Searches>" + kCall + results + "9 it is.");
  CHECK(answer["usage"]["completion_tokens_details"]["branches"] == 1);
  CHECK(PromptOf(test.server.generation->WaitForRequest(1)) ==
        std::string(kMoved) + kGenerated + "<Calling Sub Searches>");
  const server::GenerationRequest search = test.server.generation->WaitForRequest(2);
  CHECK(PromptOf(search) == kSearch);
  CHECK(search.from == scheduler::ContextId{});
  CHECK(search.branch == "0.0");
  const server::GenerationRequest last = test.server.generation->WaitForRequest(3);
  CHECK(PromptOf(last) == std::string(kMoved) + kGenerated + results);
  CHECK(last.from != scheduler::ContextId{});
  CHECK(last.call == search.call);
  CHECK(test.server.generation->num_submitted() == 4);
  CHECK(test.server.generation->num_dropped_contexts() == 4);
}

TEST_CASE("APR's calls are plain text where a limit forbids them, and limits end an answer",
          "[server]") {
  Parallel test(Apr);
  const auto ask = [&](json limits) {
    limits["format"] = "apr";
    const json body = {{"prompt", kMoved}, {"max_tokens", 1000}, {"parallel", limits}};
    const RawResponse response = test.client.Post("/v1/completions", body.dump());
    REQUIRE(response.status == 200);
    return json::parse(response.body);
  };
  const json plain = ask({{"max_depth", 0}});
  CHECK(plain["usage"]["completion_tokens_details"]["branches"] == 0);
  CHECK(plain["choices"][0]["text"].get<std::string>().find(" ignored") != std::string::npos);
  for (int total = 1; total < 420; total += 7) {
    const json cut = ask({{"max_total_tokens", total}});
    INFO(total << ": " << cut.dump());
    CHECK(cut["usage"]["completion_tokens"].get<int>() <= total);
  }
}

TEST_CASE("What does not go with branches is refused by name", "[server]") {
  Parallel test(Multiverse);
  const json multiverse = {{"format", "multiverse"}};
  CHECK(test.Refused({{"format", "auto"}})["code"] == "parallel_format_unknown");
  CHECK(test.Refused(json::object())["param"] == "parallel.format");
  CHECK(test.Refused({{"format", "parathinker"}})["code"] == "parallel_format_unknown");
  CHECK(test.Refused({{"format", "other"}})["code"] == "parallel_format_unknown");
  CHECK(test.Refused({{"format", "custom"}})["param"] == "parallel.custom");
  CHECK(test.Refused({{"format", "multiverse"}, {"custom", json::object()}})["param"] ==
        "parallel.custom.fork_at");
  CHECK(test.Refused({{"format", "multiverse"}, {"max_branches", 65}})["param"] ==
        "parallel.max_branches");
  CHECK(test.Refused({{"format", "multiverse"}, {"on_slow", "never"}})["param"] ==
        "parallel.on_slow");
  CHECK(test.Refused({{"format", "multiverse"}, {"on_slow", {{"cut_after_s", 0}}}})["param"] ==
        "parallel.on_slow.cut_after_s");
  CHECK(test.Refused({{"format", "multiverse"}, {"stream_order", "x"}})["param"] ==
        "parallel.stream_order");
  json custom = {{"fork_at", ";"}, {"items", "("}, {"header", "{id}"}, {"branch_end", "|"}};
  CHECK(test.Refused({{"format", "custom"}, {"custom", custom}})["param"] == "parallel.custom");
  custom["items"] = "x";
  custom["join"] = "concurrent";
  CHECK(test.Refused({{"format", "custom"}, {"custom", custom}})["param"] ==
        "parallel.custom.tail");
  CHECK(test.Refused(multiverse, {{"n", 2}})["param"] == "n");
  CHECK(test.Refused(multiverse, {{"echo", true}})["param"] == "echo");
  CHECK(test.Refused(multiverse, {{"logprobs", 1}})["param"] == "logprobs");
  CHECK(test.Refused(multiverse, {{"keep", true}})["param"] == "keep");
  CHECK(test.Refused(multiverse, {{"guided_regex", "a"}})["param"] == "response_format");
}

TEST_CASE("Thoughts are refused where the model has no tokens of them", "[server]") {
  Parallel test(Multiverse);
  test.server.model.segments = 5;
  const json error = test.Refused({{"format", "parathinker"}});
  CHECK(error["code"] == "parallel_format_unknown");
  CHECK(error["message"].get<std::string>().find("<think1>") != std::string::npos);
}

TEST_CASE("A model whose states do not merge refuses branches side by side", "[server]") {
  server::HttpServerOptions options;
  options.branches.no_concurrent = "its states do not merge";
  Parallel test(Multiverse, options);
  CHECK(test.Refused({{"format", "multiverse"}})["code"] == "concurrent_join_unsupported");
}

}  // namespace
}  // namespace heddle::test
