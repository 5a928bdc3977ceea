// The lines of answers in Ollama's form.
#include "server/ollama/ollama_format.h"

#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/answer/answer.h"
#include "server/ollama/ollama_request.h"
#include "tests/server/openai/api_parser.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::Answer;
using server::ApiRequest;
using server::OllamaFormat;
using server::OllamaShape;

// An answer of which the model writes `text`, byte by byte.
struct Conversation {
  Conversation(OllamaShape shape, const std::string& body, std::string_view text) {
    parser.model.max_context = 1000;
    const auto parsed = shape == OllamaShape::kChat
                            ? server::ParseOllamaChat(body, {&parser.model, &parser.codec, 1})
                            : server::ParseOllamaGenerate(body, {&parser.model, &parser.codec, 1});
    INFO(parsed.status());
    REQUIRE(parsed.ok());
    request = *parsed->api;
    answer = std::make_unique<Answer>(
        &request, &parser.codec,
        std::make_unique<OllamaFormat>(&request, &parser.codec, shape, 1'700'000'000, "u"));
    answer->format().SetTimes({.queued = 0.5, .first_token = 1.5, .now = 4.0});
    for (TokenId id : Bytes(text)) {
      server::GenerationEvent event;
      event.tokens.push_back(engine::SampledToken{.token = id});
      Take(std::move(event));
    }
    server::GenerationEvent end;
    end.tokens.push_back(engine::SampledToken{.token = kEos});
    end.finished = true;
    Take(std::move(end));
  }
  void Take(server::GenerationEvent event) {
    Answer::Output output;
    answer->Take(0, std::move(event), &output);
    frames += output.frames;
  }
  std::vector<json> Lines() const {
    std::vector<json> lines;
    for (size_t at = 0; at < frames.size();) {
      const size_t end = frames.find('\n', at);
      REQUIRE(end != std::string::npos);
      lines.push_back(json::parse(frames.substr(at, end - at)));
      at = end + 1;
    }
    return lines;
  }

  ApiParser parser;
  ApiRequest request;
  std::unique_ptr<Answer> answer;
  std::string frames;
};

std::string ChatBody(const std::string& members) {
  return R"({"model":"test-model","messages":[{"role":"user","content":"x"}])" + members + "}";
}

constexpr std::string_view kText =
    "<think>\nhm\n</think>\n\nWell.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
    "</tool_call><tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
const std::string kTools =
    R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},
             {"type":"function","function":{"name":"g","parameters":{"type":"object"}}}])";

TEST_CASE("Lines and the whole answer say the same", "[ollama]") {
  const Conversation streamed(OllamaShape::kChat, ChatBody(kTools), kText);
  const Conversation whole(OllamaShape::kChat, ChatBody(kTools + R"(,"stream":false)"), kText);
  std::string content;
  std::string thinking;
  json calls = json::array();
  const std::vector<json> lines = streamed.Lines();
  for (const json& line : lines) {
    CHECK(line["model"] == "test-model");
    CHECK(line["created_at"] == "2023-11-14T22:13:24Z");
    CHECK(line["message"]["role"] == "assistant");
    CHECK(line["done"] == (&line == &lines.back()));
    content += line["message"]["content"].get<std::string>();
    thinking += line["message"].value("thinking", std::string());
    for (const json& call : line["message"].value("tool_calls", json::array()))
      calls.push_back(call);
  }
  const json body = json::parse(whole.answer->Body());
  CHECK(content == "Well.");
  CHECK(thinking == "hm");
  REQUIRE(calls.size() == 2);
  CHECK(calls[0]["id"] == "call_u_0_0");
  CHECK(calls[1]["id"] == "call_u_0_1");
  CHECK(calls[1]["function"]["index"] == 1);
  CHECK(calls[0]["function"]["name"] == "f");
  CHECK(calls[0]["function"]["arguments"] == json{{"a", 1}});
  CHECK(body["message"]["content"] == content);
  CHECK(body["message"]["thinking"] == thinking);
  CHECK(body["message"]["tool_calls"] == calls);
  for (const char* member :
       {"done", "done_reason", "total_duration", "load_duration", "prompt_eval_count",
        "prompt_eval_duration", "eval_count", "eval_duration"}) {
    CHECK(body.at(member) == lines.back().at(member));
  }
}

TEST_CASE("The last line has the durations in nanoseconds and the counts", "[ollama]") {
  const Conversation one(OllamaShape::kGenerate, R"({"prompt":"hi","raw":true})", "abc");
  const std::vector<json> lines = one.Lines();
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["response"] == "a");
  CHECK_FALSE(lines[0].contains("message"));
  const json& last = lines.back();
  CHECK(last["response"] == "");
  CHECK(last["done_reason"] == "stop");
  CHECK(last["total_duration"] == 4'000'000'000);
  CHECK(last["load_duration"] == 500'000'000);
  CHECK(last["prompt_eval_duration"] == 1'000'000'000);
  CHECK(last["eval_duration"] == 2'500'000'000);
  CHECK(last["prompt_eval_count"] == 3);  // <s>hi
  CHECK(last["eval_count"] == 4);         // with the end
}

TEST_CASE("Log-probabilities stand beside their text", "[ollama]") {
  const Conversation one(OllamaShape::kChat, ChatBody(R"(,"logprobs":true)"), "ab");
  const std::vector<json> lines = one.Lines();
  CHECK(lines[0]["message"]["content"] == "a");
  CHECK(lines[0]["logprobs"][0]["token"] == "a");
  CHECK_FALSE(lines.back().contains("logprobs"));
}

TEST_CASE("Errors have one member, before the first line and after it", "[ollama]") {
  Conversation one(OllamaShape::kChat, ChatBody(""), "a");
  server::ApiError error;
  error.message = "it \"broke\"";
  CHECK(json::parse(one.answer->format().ErrorBody(error)) == json{{"error", error.message}});
  const std::string line = one.answer->format().ErrorFrames(error);
  CHECK(line.back() == '\n');
  CHECK(json::parse(line) == json{{"error", error.message}});
  CHECK(one.answer->format().keep_alive().empty());
  CHECK(one.answer->format().content_type() == "application/x-ndjson");
}

}  // namespace
}  // namespace heddle::test
