// Requests and answers in llama.cpp's form. Source of the fields: its tools/server/README.md.
#include <memory>
#include <string>
#include <vector>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/answer/answer.h"
#include "server/llamacpp/llama_format.h"
#include "server/llamacpp/llama_request.h"
#include "server/llamacpp/llama_server.h"
#include "tests/server/openai/api_parser.h"
#include "tests/server/raw_client.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::Answer;
using server::LlamaRequest;
using server::RequestContext;

struct LlamaParser : ApiParser {
  RequestContext context() const { return {&model, &codec, kRandomSeed}; }

  LlamaRequest Completion(const std::string& body) const {
    const absl::StatusOr<LlamaRequest> request = server::ParseLlamaCompletion(body, context());
    INFO(body << " -> " << request.status());
    REQUIRE(request.ok());
    return *request;
  }
  server::ApiError CompletionRefused(const std::string& body) const {
    const auto request = server::ParseLlamaCompletion(body, context());
    REQUIRE_FALSE(request.ok());
    return server::ToApiError(request.status());
  }
  std::string Infill(const std::string& body) const {
    const absl::StatusOr<LlamaRequest> request = server::ParseLlamaInfill(body, context());
    INFO(body << " -> " << request.status());
    REQUIRE(request.ok());
    return PromptText(request->api);
  }
};

// The answer to a request by a model that writes `text`, as a body or as events.
struct Played {
  Played(const LlamaParser& parser, const std::string& body, std::string_view text,
         bool ends = true)
      : request(parser.Completion(body)) {
    Answer answer(
        &request.api, &parser.codec,
        std::make_unique<server::LlamaFormat>(&request.api, &parser.codec, request.return_tokens));
    answer.format().SetTimes({.queued = 1, .first_token = 1.5, .now = 2.5});
    for (size_t prompt = 0; prompt < request.api.generations.size(); ++prompt) {
      server::GenerationEvent event;
      for (TokenId id : Bytes(text)) event.tokens.push_back({.token = id, .logprob = -0.5f});
      if (ends) event.tokens.push_back({.token = kEos});
      event.finished = true;
      event.reason = ends ? server::FinishReason::kStop : server::FinishReason::kLength;
      Answer::Output output;
      answer.Take(prompt, std::move(event), &output);
      frames += output.frames;
    }
    if (!request.api.stream) whole = json::parse(answer.Body());
  }
  std::vector<json> Events() const {
    std::vector<json> events;
    for (const std::string& data : SseData(frames)) events.push_back(json::parse(data));
    return events;
  }

  LlamaRequest request;
  std::string frames;
  json whole;
};

TEST_CASE("llama.cpp's names mean what they mean there", "[llamacpp]") {
  LlamaParser parser;
  const LlamaRequest request = parser.Completion(
      R"({"prompt":"x","n_predict":5,"repeat_penalty":1.5,"n_probs":2,"seed":-1,"top_k":3,)"
      R"("logit_bias":[[97,1.5],["bc",-2],[100,false]],"mirostat":0,"cache_prompt":true})");
  const server::GenerationRequest& generation = request.api.generations[0];
  CHECK(generation.max_tokens == 5);
  CHECK(generation.sampling.repetition_penalty == 1.5f);
  CHECK(generation.sampling.seed == kRandomSeed);
  CHECK(generation.sampling.top_k == 3);
  CHECK(request.api.top_logprobs == 2);
  CHECK(generation.sampling.logit_bias ==
        std::vector<std::pair<TokenId, float>>{{97, 1.5f}, {'b', -2}, {'c', -2}, {100, -100}});
  CHECK(parser.Completion(R"({"prompt":"x"})").api.generations[0].max_tokens == 98);
  CHECK(parser.Completion(R"({"prompt":"x","samplers":["top_k"]})").api.warning.find("samplers") ==
        0);
  CHECK(parser.CompletionRefused(R"({"prompt":"x","mirostat":2})").param == "mirostat");
  CHECK(parser.CompletionRefused(R"({"prompt":"x","n_predict":-3})").param == "n_predict");
  CHECK(parser.CompletionRefused(R"({"prompt":"x","logit_bias":[[1]]})").param == "logit_bias");
}

TEST_CASE("A prompt may mix texts and ids", "[llamacpp]") {
  LlamaParser parser;
  const auto text = [&parser](const std::string& prompt) {
    const LlamaRequest request = parser.Completion(base::StrCat(R"({"prompt":)", prompt, "}"));
    std::string all;
    for (size_t i = 0; i < request.api.generations.size(); ++i) {
      all += parser.PromptText(request.api, i) + ";";
    }
    return all;
  };
  CHECK(text(R"(["a",98,"c"])") == "<s>abc;");
  CHECK(text(R"([98,"c"])") == "bc;");
  CHECK(text(R"([["a",98],"c"])") == "<s>ab;<s>c;");
  CHECK(parser.CompletionRefused(R"({"prompt":["a",9999]})").param == "prompt");
}

TEST_CASE("An answer says why it ended and how long it took", "[llamacpp]") {
  LlamaParser parser;
  const json body = Played(parser, R"({"prompt":"hi","return_tokens":true})", "abc").whole;
  CHECK(body["content"] == "abc");
  CHECK(body["tokens"] == json::array({'a', 'b', 'c', kEos}));
  CHECK(body["stop"] == true);
  CHECK(body["stop_type"] == "eos");
  CHECK(body["tokens_predicted"] == 4);
  CHECK(body["tokens_evaluated"] == 3);
  CHECK(body["prompt"] == "<s>hi");
  CHECK(body["timings"]["prompt_ms"] == 500);
  CHECK(body["timings"]["predicted_per_second"] == 4);  // four tokens in one second
  const json word = Played(parser, R"({"prompt":"hi","stop":["c"]})", "abc").whole;
  CHECK(word["stop_type"] == "word");
  CHECK(word["stopping_word"] == "c");
  CHECK(word["tokens"].empty());
  CHECK(Played(parser, R"({"prompt":"hi"})", "abc", false).whole["stop_type"] == "limit");
  CHECK(Played(parser, R"({"prompt":["a","b"]})", "x").whole[1]["index"] == 1);
  const json rated = Played(parser, R"({"prompt":"hi","n_probs":1})", "a").whole;
  CHECK(rated["completion_probabilities"][0]["token"] == "a");
}

TEST_CASE("A stream brings pieces of text, and the rest with its last event", "[llamacpp]") {
  LlamaParser parser;
  const std::vector<json> events =
      Played(parser, R"({"prompt":"hi","stream":true,"return_tokens":true})", "abc").Events();
  REQUIRE(events.size() == 2);
  CHECK(events[0]["content"] == "abc");
  CHECK(events[0]["stop"] == false);
  CHECK(events[1]["content"] == "");
  CHECK(events[1]["stop"] == true);
  CHECK(events[1]["tokens_predicted"] == 4);
  json ids = events[0]["tokens"];
  for (const json& id : events[1]["tokens"]) ids.push_back(id);
  CHECK(ids == json::array({'a', 'b', 'c', kEos}));
}

TEST_CASE("A text is filled in between its prefix and its suffix", "[llamacpp]") {
  LlamaParser parser;  // its marks are <s>, <|turn|> and a token without bytes
  CHECK(parser.Infill(R"({"input_prefix":"ab","input_suffix":"cd","prompt":"x"})") ==
        "<s>ab<|turn|>cdx");
  CHECK(parser.Infill(R"({"input_prefix":"ab","input_extra":[{"filename":"f","text":"t"}]})") ==
        "<s>--- f\nt\n\nab<|turn|>");
  // The context has 100 tokens: 20 are for the answer, three are marks and one is the answer's own:
  // 76 are left, a quarter of them for what follows.
  const std::string longer = base::StrCat(
      R"({"n_predict":20,"input_prefix":"x)", std::string(200, 'a'), R"(","input_suffix":")",
      std::string(200, 'b'), R"(","input_extra":[{"text":"t"}]})");
  CHECK(parser.Infill(longer) ==
        base::StrCat("<s>", std::string(57, 'a'), "<|turn|>", std::string(19, 'b')));
  CHECK(server::ToApiError(
            server::ParseLlamaInfill(R"({"input_extra":[{"filename":"f"}]})", parser.context())
                .status())
            .param == "input_extra[0]");
  parser.codec.fills = false;
  CHECK_FALSE(server::ParseLlamaInfill(R"({"input_prefix":"a"})", parser.context()).ok());
}

TEST_CASE("The server is described as llama.cpp's clients expect", "[llamacpp]") {
  LlamaParser parser;
  parser.model.max_sequences = 3;
  const json props = json::parse(server::LlamaProps(parser.context()));
  CHECK(props["total_slots"] == 3);
  CHECK(props["default_generation_settings"]["n_ctx"] == 100);
  CHECK(props["bos_token"] == "<s>");
  CHECK(props["eos_token"] == "<|end|>");
  server::EngineStats stats;
  stats.running_sequences = 2;
  const auto slots = server::LlamaSlots(stats, parser.model, {});
  REQUIRE(slots.ok());
  CHECK(json::parse(*slots)[1]["is_processing"] == true);
  CHECK(json::parse(*slots)[2]["is_processing"] == false);
  const std::vector<server::QueryParameter> strict = {{"fail_on_no_slot", "1"}};
  CHECK(server::LlamaSlots(stats, parser.model, strict).ok());
  stats.running_sequences = 3;
  CHECK(absl::IsUnavailable(server::LlamaSlots(stats, parser.model, strict).status()));
  const auto rendered =
      server::ApplyTemplate(R"({"messages":[{"role":"user","content":"hi"}]})", parser.context());
  REQUIRE(rendered.ok());
  CHECK(json::parse(*rendered)["prompt"] == "<s><|turn|>user\nhi<|turn|>assistant\n");
  CHECK(json::parse(server::TokenizerInfo(parser.context()))["vocab_size"] == kByteVocab);
}

}  // namespace
}  // namespace heddle::test
