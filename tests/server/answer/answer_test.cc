// Answers as clients read them, chunk by chunk. The rules are those of OpenAI's streaming reference
// and of the clients that break on anything else.
#include "server/answer/answer.h"

#include <string>

#include "tests/server/answer/conversation.h"

namespace heddle::test {
namespace {

TEST_CASE("A chat stream: role alone, text, finish reason alone, DONE", "[openai]") {
  Conversation chat(Endpoint::kChat, ChatBody(R"("stream":true)"));
  chat.Take(TextEvent("Hel"));
  chat.Take(TextEvent("lo"));
  chat.Take(EndEvent(FinishReason::kStop));
  std::vector<json> chunks = chat.Chunks();
  REQUIRE(chunks.size() == 4);
  CHECK(chunks[0]["choices"][0]["delta"] == json{{"role", "assistant"}, {"content", ""}});
  CHECK(chunks[1]["choices"][0]["delta"] == json{{"content", "Hel"}});
  CHECK(chunks[2]["choices"][0]["delta"] == json{{"content", "lo"}});
  CHECK(chunks[3]["choices"][0]["delta"] == json::object());
  CHECK(chunks[3]["choices"][0]["finish_reason"] == "stop");
  for (const json& chunk : chunks) {
    CHECK(chunk["id"] == "id-1");
    CHECK(chunk["object"] == "chat.completion.chunk");
    CHECK(chunk["created"] == 1700);
    CHECK(chunk["model"] == "test-model");
    CHECK(chunk["system_fingerprint"] == "fp_1");
    CHECK_FALSE(chunk.contains("usage"));
    REQUIRE(chunk["choices"][0].contains("finish_reason"));
    if (&chunk != &chunks.back()) CHECK(chunk["choices"][0]["finish_reason"].is_null());
  }
}

TEST_CASE("The usage chunk comes once, last, with no choices, and only when asked for",
          "[openai]") {
  Conversation chat(Endpoint::kChat,
                    ChatBody(R"("stream":true,"stream_options":{"include_usage":true})"));
  GenerationEvent first = TextEvent("ab");
  first.cached_tokens = 16;
  chat.Take(std::move(first));
  chat.Take(EndEvent(FinishReason::kStop));
  std::vector<json> chunks = chat.Chunks();
  const json usage = chunks.back();
  CHECK(usage["choices"] == json::array());
  CHECK(usage["usage"] == json{{"prompt_tokens", 20},
                               {"completion_tokens", 3},
                               {"total_tokens", 23},
                               {"prompt_tokens_details", {{"cached_tokens", 16}}},
                               {"completion_tokens_details", {{"reasoning_tokens", 0}}}});
  chunks.pop_back();
  for (const json& chunk : chunks) CHECK(chunk["usage"].is_null());
}

TEST_CASE("A whole chat answer has its text, reason and usage, and no empty fields", "[openai]") {
  Conversation chat(Endpoint::kChat, ChatBody(""));
  chat.Take(TextEvent("Hello"));
  chat.Take(EndEvent(FinishReason::kLength));
  CHECK(chat.frames.empty());
  json body = chat.Body();
  CHECK(body["object"] == "chat.completion");
  CHECK(body["choices"][0]["message"] ==
        json{{"role", "assistant"}, {"content", "Hello"}, {"refusal", nullptr}});
  CHECK(body["choices"][0]["finish_reason"] == "length");
  CHECK(body["usage"]["completion_tokens"] == 5);
}

TEST_CASE("n choices interleave, each with its role, index and end; the prompt counts once",
          "[openai]") {
  Conversation chat(Endpoint::kChat,
                    ChatBody(R"("n":2,"stream":true,"stream_options":{"include_usage":true})"));
  chat.Take(TextEvent("a", 1));
  chat.Take(TextEvent("b", 0));
  chat.Take(EndEvent(FinishReason::kStop, 1));
  CHECK_FALSE(chat.answer->done());
  chat.Take(TextEvent("c", 0));
  chat.Take(EndEvent(FinishReason::kLength, 0));
  CHECK(chat.answer->done());
  std::vector<json> chunks = chat.Chunks();
  CHECK(chunks.back()["usage"]["prompt_tokens"] == 20);
  CHECK(chunks.back()["usage"]["completion_tokens"] == 4);
  chunks.pop_back();
  std::string texts[2];
  std::string reasons[2];
  int roles[2] = {0, 0};
  for (const json& chunk : chunks) {
    const json& choice = chunk["choices"].at(0);
    size_t index = choice["index"];
    texts[index] += choice["delta"].value("content", "");
    if (choice["delta"].contains("role")) ++roles[index];
    if (!choice["finish_reason"].is_null()) reasons[index] = choice["finish_reason"];
  }
  CHECK(texts[0] == "bc");
  CHECK(texts[1] == "a");
  CHECK(reasons[0] == "length");
  CHECK(reasons[1] == "stop");
  CHECK(roles[0] == 1);
  CHECK(roles[1] == 1);
}

TEST_CASE("Choices of several prompts are numbered prompt by prompt", "[openai]") {
  Conversation completion(Endpoint::kCompletion, R"({"prompt":["x","yz"],"n":2})");
  for (size_t prompt : {1, 0}) {
    for (int32_t branch : {0, 1}) {
      completion.Take(TextEvent(std::to_string(prompt) + std::to_string(branch), branch), prompt);
      completion.Take(EndEvent(FinishReason::kStop, branch), prompt);
    }
  }
  json body = completion.Body();
  CHECK(body["choices"].size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK(body["choices"][i]["index"] == i);
  CHECK(body["choices"][1]["text"] == "01");
  CHECK(body["choices"][2]["text"] == "10");
  CHECK(body["usage"]["prompt_tokens"] == 5);  // "<s>x" and "<s>yz"
}

TEST_CASE("A stop string ends a choice at once, and asks for its branch to be stopped",
          "[openai]") {
  Conversation chat(Endpoint::kChat, ChatBody(R"("stop":["\nUser:"])"));
  chat.Take(TextEvent("fine\nUs"));
  chat.Take(TextEvent("er: and more"));
  CHECK(chat.stopped == std::vector<int32_t>{0});
  CHECK(chat.answer->done());
  chat.Take(EndEvent(FinishReason::kCancelled));  // the engine's late word is ignored
  CHECK(chat.answer->error().ok());
  CHECK(chat.Body()["choices"][0]["message"]["content"] == "fine");
  CHECK(chat.Body()["choices"][0]["finish_reason"] == "stop");
  CHECK(chat.Body()["usage"]["completion_tokens"] == 10);  // up to the colon
}

TEST_CASE("A cancelled or failed sequence is an error and never a finish reason", "[openai]") {
  Conversation cancelled(Endpoint::kChat, ChatBody(R"("stream":true)"));
  cancelled.Take(TextEvent("a"));
  cancelled.Take(EndEvent(FinishReason::kCancelled));
  CHECK(cancelled.answer->done());
  CHECK(cancelled.answer->error().code() == absl::StatusCode::kUnavailable);
  CHECK(cancelled.frames.find("DONE") == std::string::npos);
  CHECK(cancelled.frames.find("stop") == std::string::npos);
  Conversation failed(Endpoint::kChat, ChatBody(""));
  failed.Take(EndEvent(FinishReason::kError));
  CHECK(failed.answer->error().code() == absl::StatusCode::kInternal);
}

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])";
const std::string kTwoCalls =
    "Wait.\n<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>\n"
    "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>";

TEST_CASE("A whole answer lists its tool calls, with null content where there is none",
          "[openai]") {
  Conversation chat(Endpoint::kChat, ChatBody(kTools));
  chat.Take(TextEvent(kTwoCalls.substr(6)));
  chat.Take(EndEvent(FinishReason::kStop));
  json choice = chat.Body()["choices"][0];
  CHECK(choice["finish_reason"] == "tool_calls");
  CHECK(choice["message"]["content"].is_null());
  REQUIRE(choice["message"]["tool_calls"].size() == 2);
  CHECK(choice["message"]["tool_calls"][0]["type"] == "function");
  CHECK(choice["message"]["tool_calls"][0]["function"] ==
        json{{"name", "f"}, {"arguments", R"({"a":1})"}});
  CHECK(choice["message"]["tool_calls"][0]["id"] != choice["message"]["tool_calls"][1]["id"]);
}

TEST_CASE("Streamed calls: id, type and name once, index rising, arguments concatenate",
          "[openai]") {
  Conversation chat(Endpoint::kChat, ChatBody(R"("stream":true,)" + kTools));
  for (char c : kTwoCalls) chat.Take(TextEvent(std::string(1, c)));
  chat.Take(EndEvent(FinishReason::kStop));
  std::string content;
  std::vector<std::string> names;
  std::vector<std::string> arguments;
  std::vector<json> chunks = chat.Chunks();
  for (const json& chunk : chunks) {
    const json& delta = chunk["choices"][0]["delta"];
    content += delta.value("content", "");
    if (!delta.contains("tool_calls")) continue;
    CHECK_FALSE(delta.contains("content"));
    for (const json& call : delta["tool_calls"]) {
      size_t index = call["index"];
      if (call.contains("id")) {
        CHECK(call["type"] == "function");
        names.push_back(call["function"]["name"]);
        arguments.emplace_back();
        CHECK(index == names.size() - 1);
      }
      arguments.at(index) += call["function"]["arguments"];
    }
  }
  CHECK(content == "Wait.");
  CHECK(names == std::vector<std::string>{"f", "g"});
  CHECK(arguments == std::vector<std::string>{R"({"a":1})", "{}"});
  CHECK(chunks.back()["choices"][0]["finish_reason"] == "tool_calls");
}

TEST_CASE("One call at most stops the model after it", "[openai]") {
  Conversation chat(Endpoint::kChat, ChatBody(R"("parallel_tool_calls":false,)" + kTools));
  chat.Take(TextEvent(kTwoCalls));
  CHECK(chat.answer->done());
  CHECK(chat.stopped == std::vector<int32_t>{0});
  CHECK(chat.Body()["choices"][0]["message"]["tool_calls"].size() == 1);
}

TEST_CASE("Without tools, or cut off inside a call, no call is claimed", "[openai]") {
  Conversation plain(Endpoint::kChat, ChatBody(""));
  plain.Take(TextEvent(kTwoCalls));
  plain.Take(EndEvent(FinishReason::kStop));
  CHECK(plain.Body()["choices"][0]["message"]["content"] == kTwoCalls);
  CHECK(plain.Body()["choices"][0]["finish_reason"] == "stop");
  Conversation cut(Endpoint::kChat, ChatBody(kTools));
  cut.Take(TextEvent(kTwoCalls.substr(0, 30)));
  cut.Take(EndEvent(FinishReason::kLength));
  CHECK(cut.Body()["choices"][0]["message"]["content"] == "Wait.");
  CHECK_FALSE(cut.Body()["choices"][0]["message"].contains("tool_calls"));
  CHECK(cut.Body()["choices"][0]["finish_reason"] == "length");
}

const std::string kThought = "<think>\nhm \n</think>\n\nHi <b>";

TEST_CASE("Reasoning has a field of its own, streamed and whole, and is counted", "[openai]") {
  Conversation whole(Endpoint::kChat, ChatBody(""));
  whole.Take(TextEvent(kThought));
  whole.Take(EndEvent(FinishReason::kStop));
  json message = whole.Body()["choices"][0]["message"];
  CHECK(message["reasoning_content"] == "hm");
  CHECK(message["content"] == "Hi <b>");
  // Every token after the one that ends "<think>", up to the one that ends "</think>".
  CHECK(whole.Body()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 13);
  for (size_t piece : {1, 4, 100}) {
    Conversation chat(Endpoint::kChat, ChatBody(R"("stream":true)"));
    for (size_t at = 0; at < kThought.size(); at += piece) {
      chat.Take(TextEvent(kThought.substr(at, piece)));
    }
    chat.Take(EndEvent(FinishReason::kStop));
    std::string reasoning;
    std::string content;
    for (const json& chunk : chat.Chunks()) {
      const json& delta = chunk["choices"][0]["delta"];
      bool role = delta.contains("role");
      CHECK_FALSE((!role && delta.contains("reasoning_content") && delta.contains("content")));
      reasoning += delta.value("reasoning_content", "");
      content += delta.value("content", "");
    }
    CHECK(reasoning == "hm");
    CHECK(content == "Hi <b>");
  }
}

TEST_CASE("A prompt that opened the reasoning, and clients that want none of it", "[openai]") {
  Conversation opened(Endpoint::kChat, ChatBody(R"("enable_thinking":true)"));
  opened.Take(TextEvent("hm</think>Hi"));
  opened.Take(EndEvent(FinishReason::kStop));
  CHECK(opened.Body()["choices"][0]["message"]["reasoning_content"] == "hm");
  CHECK(opened.Body()["choices"][0]["message"]["content"] == "Hi");
  Conversation hidden(Endpoint::kChat, ChatBody(R"("include_reasoning":false,"stream":true)"));
  hidden.Take(TextEvent(kThought));
  hidden.Take(EndEvent(FinishReason::kStop));
  CHECK(hidden.frames.find("hm") == std::string::npos);
  CHECK(hidden.frames.find("Hi <b>") != std::string::npos);
}

TEST_CASE("Streamed and whole answers hold the same text and usage", "[openai]") {
  const std::string text = "one \xF0\x9F\x8E\x89 two ## never";
  auto run = [&](const std::string& members) {
    auto chat = std::make_unique<Conversation>(Endpoint::kChat, ChatBody(members));
    for (char c : text) chat->Take(TextEvent(std::string(1, c)));
    return chat;
  };
  auto whole = run(R"("stop":"##")");
  auto streamed = run(R"("stop":"##","stream":true,"stream_options":{"include_usage":true})");
  std::string joined;
  for (const json& chunk : streamed->Chunks()) {
    if (!chunk["choices"].empty()) joined += chunk["choices"][0]["delta"].value("content", "");
  }
  CHECK(joined == "one \xF0\x9F\x8E\x89 two ");
  CHECK(joined == whole->Body()["choices"][0]["message"]["content"]);
  CHECK(streamed->Chunks().back()["usage"] == whole->Body()["usage"]);
}

// Each of the prediction's 6 bytes is a token. Of the answer "abXcd", a, b, c and d come as
// predicted; "-" and e never come.
TEST_CASE("Usage says how much of a prediction came", "[openai]") {
  const std::string prediction = R"("prediction":{"type":"content","content":"ab-cde"})";
  Conversation chat(Endpoint::kChat, ChatBody(prediction));
  chat.Take(TextEvent("abX"));
  chat.Take(TextEvent("cd"));
  chat.Take(EndEvent(FinishReason::kStop));
  const json details = chat.Body()["usage"]["completion_tokens_details"];
  CHECK(details["accepted_prediction_tokens"] == 4);
  CHECK(details["rejected_prediction_tokens"] == 2);

  Conversation plain(Endpoint::kChat, ChatBody(""));
  plain.Take(TextEvent("ab"));
  plain.Take(EndEvent(FinishReason::kStop));
  CHECK_FALSE(
      plain.Body()["usage"]["completion_tokens_details"].contains("accepted_prediction_tokens"));
}

TEST_CASE("The reason for which a choice stopped is told", "[openai]") {
  Conversation word(Endpoint::kChat, ChatBody(R"("stop":["lo"])"));
  word.Take(TextEvent("Hello"));
  CHECK(word.Body()["choices"][0]["stop_reason"] == "lo");
  CHECK(word.Body()["choices"][0]["matched_stop"] == "lo");
  Conversation token(Endpoint::kCompletion, R"({"prompt":"x","stop_token_ids":[98]})");
  GenerationEvent end = TextEvent("ab");  // 98 is "b"
  end.finished = true;
  token.Take(std::move(end));
  CHECK(token.Body()["choices"][0]["stop_reason"] == 98);
  CHECK(token.Body()["choices"][0]["matched_stop"] == 98);
  CHECK(token.Body()["choices"][0]["text"] == "a");
  for (const char* members : {"", R"("stop_token_ids":[257])"}) {  // the model's own end
    Conversation own(Endpoint::kChat, ChatBody(members));
    own.Take(TextEvent("x"));
    own.Take(EndEvent(FinishReason::kStop));
    CHECK(own.Body()["choices"][0]["stop_reason"].is_null());
    CHECK(own.Body()["choices"][0]["matched_stop"] == kEos);
  }
  Conversation ignored(Endpoint::kChat, ChatBody(R"("ignore_eos":true,"stop_token_ids":[257])"));
  ignored.Take(EndEvent(FinishReason::kStop));
  CHECK(ignored.Body()["choices"][0]["stop_reason"] == kEos);
}

TEST_CASE("What ends an answer is part of it where the client asks for it", "[openai]") {
  for (const bool streamed : {false, true}) {
    const std::string stream = streamed ? "true" : "false";
    const auto text = [streamed](const Conversation& chat) {
      if (!streamed) return chat.Body()["choices"][0]["message"]["content"].get<std::string>();
      std::string all;
      for (const json& chunk : chat.Chunks()) {
        all += chunk["choices"][0]["delta"].value("content", std::string());
      }
      return all;
    };
    Conversation word(Endpoint::kChat,
                      ChatBody(R"("stop":["lo"],"include_stop_str_in_output":true,)"
                               R"("stream":)" +
                               stream));
    word.Take(TextEvent("Hel"));
    word.Take(TextEvent("lo you"));
    CHECK(text(word) == "Hello");
    Conversation special(
        Endpoint::kChat,
        ChatBody(R"("include_stop_str_in_output":true,"skip_special_tokens":false,)"
                 R"("stream":)" +
                 stream));
    special.Take(TextEvent("Hi"));
    special.Take(EndEvent(FinishReason::kStop));
    CHECK(text(special) == "Hi<|end|>");
  }
}

TEST_CASE("Special tokens have text only where the client asks for it", "[openai]") {
  for (const bool skip : {true, false}) {
    Conversation chat(Endpoint::kChat,
                      ChatBody(base::StrCat(R"("skip_special_tokens":)", skip ? "true" : "false")));
    GenerationEvent event = TextEvent("a");
    event.tokens.push_back(Token(kTurn));
    event.tokens.push_back(Token('b'));
    chat.Take(std::move(event));
    chat.Take(EndEvent(FinishReason::kStop));
    CHECK(chat.Body()["choices"][0]["message"]["content"] == (skip ? "ab" : "a<|turn|>b"));
  }
}

TEST_CASE("The ids of all tokens are sent where the client asks for them", "[openai]") {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    const bool chat = endpoint == Endpoint::kChat;
    for (const bool streamed : {false, true}) {
      const std::string members =
          base::StrCat(R"("return_token_ids":true,"stream":)", streamed ? "true" : "false");
      Conversation one(endpoint,
                       chat ? ChatBody(members) : base::StrCat(R"({"prompt":"hi",)", members, "}"));
      one.Take(TextEvent("a\xC3"));  // half of a code point has no text yet
      one.Take(TextEvent("\xA9"));
      one.Take(EndEvent(FinishReason::kStop));
      std::vector<TokenId> ids;
      std::vector<json> prompts;
      const std::vector<json> parts = streamed ? one.Chunks() : std::vector<json>{one.Body()};
      for (const json& part : parts) {
        const json& choice = part["choices"][0];
        for (const json& id : choice.at("token_ids")) ids.push_back(id.get<TokenId>());
        const json& holder = chat ? part : choice;
        if (holder.contains("prompt_token_ids")) prompts.push_back(holder["prompt_token_ids"]);
      }
      CHECK(ids == std::vector<TokenId>{'a', 0xC3, 0xA9, kEos});
      REQUIRE(prompts.size() == 1);
      CHECK(prompts[0] == json(one.request.generations[0].prompt));
    }
  }
}

}  // namespace
}  // namespace heddle::test
