// An answer's events and what a client gets of them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/answer/answer.h"
#include "server/openai/openai_format.h"
#include "server/openai/openai_request.h"
#include "tests/server/byte_codec.h"
#include "tests/server/raw_client.h"

namespace heddle::test {

using nlohmann::json;
using server::Answer;
using server::ApiRequest;
using server::Endpoint;
using server::FinishReason;
using server::GenerationEvent;
using server::OpenAiFormat;

inline engine::SampledToken Token(TokenId id, float logprob = -0.25f,
                                  std::vector<engine::TokenLogprob> top = {}) {
  engine::SampledToken token{};
  token.token = id;
  token.logprob = logprob;
  token.top = std::move(top);
  return token;
}

inline GenerationEvent TextEvent(std::string_view text, int32_t branch = 0) {
  GenerationEvent event;
  event.branch = branch;
  for (TokenId id : Bytes(text)) event.tokens.push_back(Token(id));
  return event;
}

inline GenerationEvent EndEvent(FinishReason reason, int32_t branch = 0) {
  GenerationEvent event;
  event.branch = branch;
  event.finished = true;
  event.reason = reason;
  if (reason == FinishReason::kStop) event.tokens.push_back(Token(kEos));
  return event;
}

// A request, its answer, and all frames so far.
struct Conversation {
  Conversation(Endpoint endpoint, const std::string& body) {
    model.id = "test-model";
    model.fingerprint = "fp_1";
    model.max_context = 1000;
    auto parsed = server::ParseRequest(endpoint, body, {&model, &codec, 1});
    INFO(parsed.status());
    REQUIRE(parsed.ok());
    request = *std::move(parsed);
    answer = std::make_unique<Answer>(
        &request, &codec,
        std::make_unique<OpenAiFormat>(&request, &model, &codec,
                                       OpenAiFormat::Identity{"id-1", 1700}));
  }
  void Take(GenerationEvent event, size_t prompt = 0) {
    Answer::Output output;
    answer->Take(prompt, std::move(event), &output);
    frames += output.frames;
    for (int32_t branch : output.stopped_branches) stopped.push_back(branch);
  }
  // All events but "[DONE]", which must be the last.
  std::vector<json> Chunks() const {
    std::vector<std::string> data = SseData(frames);
    REQUIRE_FALSE(data.empty());
    CHECK(data.back() == "[DONE]");
    data.pop_back();
    std::vector<json> chunks;
    for (const std::string& text : data) chunks.push_back(json::parse(text));
    return chunks;
  }
  json Body() const { return json::parse(answer->Body()); }

  server::ServedModel model;
  ByteCodec codec;
  ApiRequest request;
  std::unique_ptr<Answer> answer;
  std::string frames;
  std::vector<int32_t> stopped;
};

inline std::string ChatBody(const std::string& members) {
  return base::StrCat(R"({"messages":[{"role":"user","content":"hi"}])", members.empty() ? "" : ",",
                      members, "}");
}

}  // namespace heddle::test
