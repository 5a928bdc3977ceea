// Logprobs, echoes and the choice among answers by them, as clients read them.
#include <string>

#include "base/message.h"
#include "tests/server/answer/conversation.h"

namespace heddle::test {
namespace {

TEST_CASE("Chat logprobs have bytes and alternatives", "[openai]") {
  Conversation chat(Endpoint::kChat, ChatBody(R"("logprobs":true,"top_logprobs":2)"));
  GenerationEvent event;
  event.tokens.push_back(Token('a', -0.5f, {{'a', -0.5f}, {'b', -1.5f}}));
  event.tokens.push_back(Token(0xC3, -0.25f, {{0xC3, -0.25f}}));
  event.tokens.push_back(Token(0xA9, -std::numeric_limits<float>::infinity()));
  chat.Take(std::move(event));
  chat.Take(EndEvent(FinishReason::kStop));
  json logprobs = chat.Body()["choices"][0]["logprobs"];
  REQUIRE(logprobs["content"].size() == 3);
  CHECK(logprobs["refusal"].is_null());
  CHECK(logprobs["content"][0] == json{{"token", "a"},
                                       {"logprob", -0.5},
                                       {"bytes", {97}},
                                       {"top_logprobs",
                                        {{{"token", "a"}, {"logprob", -0.5}, {"bytes", {97}}},
                                         {{"token", "b"}, {"logprob", -1.5}, {"bytes", {98}}}}}});
  CHECK(logprobs["content"][1]["bytes"] == json::array({0xC3}));
  CHECK(logprobs["content"][2]["logprob"] == -9999.0);
}

TEST_CASE("Streamed logprobs are those of the chunk's tokens", "[openai]") {
  Conversation chat(Endpoint::kChat, ChatBody(R"("stream":true,"logprobs":true,"stop":"##")"));
  chat.Take(TextEvent("ab#"));
  chat.Take(TextEvent("c"));
  chat.Take(EndEvent(FinishReason::kStop));
  std::vector<json> chunks = chat.Chunks();
  REQUIRE(chunks.size() == 4);
  CHECK(chunks[0]["choices"][0]["logprobs"].is_null());
  CHECK(chunks[1]["choices"][0]["logprobs"]["content"].size() == 2);
  CHECK(chunks[2]["choices"][0]["delta"]["content"] == "#c");
  CHECK(chunks[2]["choices"][0]["logprobs"]["content"].size() == 2);
}

TEST_CASE("Legacy logprobs: parallel arrays, the token among its alternatives", "[openai]") {
  Conversation completion(Endpoint::kCompletion, R"({"prompt":"x","logprobs":1})");
  GenerationEvent event;
  event.tokens.push_back(Token(0xC3, -1.0f, {{'z', -0.5f}}));
  event.tokens.push_back(Token(0xA9, -0.25f, {{0xA9, -0.25f}}));
  event.tokens.push_back(Token('b', -0.125f, {{'b', -0.125f}}));
  completion.Take(std::move(event));
  completion.Take(EndEvent(FinishReason::kLength));
  CHECK(completion.Body()["choices"][0]["logprobs"] ==
        json{{"tokens", {"bytes:\\xc3", "bytes:\\xa9", "b"}},
             {"token_logprobs", {-1.0, -0.25, -0.125}},
             {"top_logprobs",
              {{{"z", -0.5}, {"bytes:\\xc3", -1.0}}, {{"bytes:\\xa9", -0.25}}, {{"b", -0.125}}}},
             {"text_offset", {0, 0, 1}}});
}

TEST_CASE("Echo with logprobs and no new tokens scores the prompt", "[openai]") {
  Conversation completion(Endpoint::kCompletion,
                          R"({"prompt":"ab","echo":true,"logprobs":1,"max_tokens":0})");
  GenerationEvent scores;
  scores.prompt_scores.push_back(Token('a', -0.5f, {{'q', -0.25f}}));
  GenerationEvent last;
  last.prompt_scores.push_back(Token('b', -0.75f, {{'b', -0.75f}}));
  last.finished = true;
  last.reason = FinishReason::kLength;
  completion.Take(std::move(scores));
  completion.Take(std::move(last));
  json choice = completion.Body()["choices"][0];
  CHECK(choice["text"] == "ab");
  CHECK(choice["finish_reason"] == "length");
  CHECK(choice["logprobs"] ==
        json{{"tokens", {"<s>", "a", "b"}},
             {"token_logprobs", {nullptr, -0.5, -0.75}},
             {"top_logprobs", {nullptr, {{"q", -0.25}, {"a", -0.5}}, {{"b", -0.75}}}},
             {"text_offset", {0, 0, 1}}});
  CHECK(completion.Body()["usage"]["completion_tokens"] == 0);
}

TEST_CASE("With an echo the token that ends the answer has logprobs as well, whole and streamed",
          "[openai]") {
  for (const char* stream : {"false", "true"}) {
    INFO("stream " << stream);
    Conversation completion(
        Endpoint::kCompletion,
        base::StrCat(R"({"prompt":"ab","echo":true,"logprobs":1,"max_tokens":1,"stream":)", stream,
                     R"(,"stop_token_ids":[33]})"));
    GenerationEvent event;
    event.prompt_scores.push_back(Token('a', -0.5f, {{'q', -0.25f}}));
    event.prompt_scores.push_back(Token('b', -0.75f, {{'b', -0.75f}}));
    event.tokens.push_back(Token('!', -0.125f, {{'!', -0.125f}}));
    event.finished = true;
    event.reason = FinishReason::kStop;
    completion.Take(std::move(event));
    const std::vector<json> bodies = stream == std::string_view("true")
                                         ? completion.Chunks()
                                         : std::vector<json>{completion.Body()};
    std::string text;
    json tokens = json::array();
    for (const json& body : bodies) {
      const json& choice = body["choices"][0];
      text += choice["text"].get<std::string>();
      if (!choice["logprobs"].is_object()) continue;
      for (const json& token : choice["logprobs"]["tokens"]) tokens.push_back(token);
    }
    CHECK(text == "ab");
    CHECK(tokens == json{"<s>", "a", "b", "!"});
  }
}

TEST_CASE("Echo comes first in the text, and generated offsets go on from it", "[openai]") {
  Conversation completion(Endpoint::kCompletion,
                          R"({"prompt":"x\u00e9","echo":true,"logprobs":0,"stream":true})");
  completion.Take(TextEvent("yz"));
  completion.Take(EndEvent(FinishReason::kLength));
  std::vector<json> chunks = completion.Chunks();
  REQUIRE(chunks.size() == 3);
  CHECK(chunks[0]["object"] == "text_completion");
  CHECK(chunks[0]["choices"][0]["text"] == "x\xC3\xA9");
  CHECK(chunks[1]["choices"][0]["text"] == "yz");
  CHECK(chunks[1]["choices"][0]["logprobs"]["text_offset"] == json::array({2, 3}));
  CHECK(chunks[2]["choices"][0]["text"] == "");
  CHECK(chunks[2]["choices"][0]["finish_reason"] == "length");
}

TEST_CASE("best_of returns the answers of the highest mean logprob, best first", "[openai]") {
  Conversation completion(Endpoint::kCompletion, R"({"prompt":"x","n":2,"best_of":3})");
  const float logprobs[] = {-2.0f, -0.5f, -1.0f};
  for (int32_t branch = 0; branch < 3; ++branch) {
    for (int i = 0; i <= branch; ++i) {
      GenerationEvent event;
      event.branch = branch;
      event.tokens.push_back(Token('a' + branch, logprobs[branch]));
      completion.Take(std::move(event));
    }
    completion.Take(EndEvent(FinishReason::kLength, branch));
  }
  json body = completion.Body();
  REQUIRE(body["choices"].size() == 2);
  CHECK(body["choices"][0]["text"] == "bb");
  CHECK(body["choices"][1]["text"] == "ccc");
  CHECK(body["choices"][1]["index"] == 1);
  CHECK(body["usage"]["completion_tokens"] == 6);  // what was drawn counts
}

TEST_CASE("Prompt logprobs name each token's own and the likeliest", "[openai]") {
  Conversation completion(Endpoint::kCompletion, R"({"prompt":"ab","prompt_logprobs":1})");
  GenerationEvent scores;
  scores.prompt_scores.push_back(Token('a', -0.5f, {{'q', -0.25f}}));
  scores.prompt_scores.push_back(Token('b', -0.75f, {{'b', -0.75f}}));
  completion.Take(std::move(scores));
  completion.Take(TextEvent("c"));
  completion.Take(EndEvent(FinishReason::kLength));
  CHECK(completion.Body()["choices"][0]["prompt_logprobs"] ==
        json{nullptr,
             {{"113", {{"logprob", -0.25}, {"rank", 1}, {"decoded_token", "q"}}},
              {"97", {{"logprob", -0.5}, {"decoded_token", "a"}}}},
             {{"98", {{"logprob", -0.75}, {"rank", 1}, {"decoded_token", "b"}}}}});
}

}  // namespace
}  // namespace heddle::test
