// Requests of Ollama's clients, and what becomes of each of their fields.
// Source of the fields: Ollama's docs/api.md.
#include "server/ollama/ollama_request.h"

#include <string>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/ollama/ollama_embed.h"
#include "server/ollama/ollama_models.h"
#include "server/request/api_error.h"
#include "tests/server/openai/api_parser.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::ApiError;
using server::ApiRequest;
using server::OllamaRequest;
using server::RequestContext;

struct OllamaParser : ApiParser {
  RequestContext context() const { return {&model, &codec, kRandomSeed}; }

  ApiRequest Chat(const std::string& members) const {
    const absl::StatusOr<OllamaRequest> request =
        server::ParseOllamaChat(ChatBody(members), context());
    INFO(members << " -> " << request.status());
    REQUIRE(request.ok());
    REQUIRE(request->api.has_value());
    return *request->api;
  }
  ApiRequest Generate(const std::string& body) const {
    const absl::StatusOr<OllamaRequest> request = server::ParseOllamaGenerate(body, context());
    INFO(body << " -> " << request.status());
    REQUIRE(request.ok());
    REQUIRE(request->api.has_value());
    return *request->api;
  }
  std::string ChatRefused(const std::string& members) const {
    const auto request = server::ParseOllamaChat(ChatBody(members), context());
    INFO(members);
    REQUIRE_FALSE(request.ok());
    return server::ToApiError(request.status()).message;
  }
};

TEST_CASE("A chat streams unless it says otherwise, and goes on to the end of the context",
          "[ollama]") {
  OllamaParser parser;
  const ApiRequest request = parser.Chat("");
  CHECK(request.stream);
  CHECK(request.generations[0].max_tokens ==
        100 - static_cast<int32_t>(request.generations[0].prompt.size()));
  CHECK_FALSE(parser.Chat(R"("stream":false)").stream);
}

TEST_CASE("Options are the parameters of sampling", "[ollama]") {
  OllamaParser parser;
  const ApiRequest request = parser.Chat(
      R"("options":{"num_predict":7,"seed":3,"temperature":0.5,"top_k":9,"top_p":0.25,"min_p":0.125,)"
      R"("typical_p":0.75,"repeat_penalty":1.5,"presence_penalty":1,"frequency_penalty":-1,)"
      R"("stop":["a","b"],"num_ctx":50,"num_gpu":1,"mirostat":0})");
  const engine::SamplingParams& sampling = request.generations[0].sampling;
  CHECK(request.generations[0].max_tokens == 7);
  CHECK(sampling.seed == 3);
  CHECK(sampling.temperature == 0.5f);
  CHECK(sampling.top_k == 9);
  CHECK(sampling.top_p == 0.25f);
  CHECK(sampling.min_p == 0.125f);
  CHECK(sampling.typical_p == 0.75f);
  CHECK(sampling.repetition_penalty == 1.5f);
  CHECK(sampling.presence_penalty == 1.0f);
  CHECK(sampling.frequency_penalty == -1.0f);
  CHECK(request.stop == std::vector<std::string>{"a", "b"});
  CHECK(request.warning.empty());
  CHECK(parser.Chat(R"("options":{"num_predict":-2})").generations[0].max_tokens > 10);
}

TEST_CASE("What an option cannot do is said", "[ollama]") {
  OllamaParser parser;
  CHECK(parser.Chat(R"("options":{"num_ctx":8192})").warning.find("100 tokens") !=
        std::string::npos);
  CHECK(parser.Chat(R"("options":{"repeat_penalty":1.1,"repeat_last_n":64})")
            .warning.find("repeat_last_n") == 0);
  CHECK(parser.Chat(R"("options":{"repeat_penalty":1,"repeat_last_n":64})").warning.empty());
  CHECK(parser.ChatRefused(R"("options":{"mirostat":2})").find("'options.mirostat'") == 0);
  CHECK(parser.ChatRefused(R"("options":{"top_p":2})").find("'options.top_p'") == 0);
  CHECK(parser.ChatRefused(R"("options":{"stop":[1]})").find("'options.stop'") == 0);
  CHECK(parser.ChatRefused(R"("options":{"repeat_penalty":0})").find("'options.repeat_penalty'") ==
        0);
}

TEST_CASE("A format is JSON, or a schema", "[ollama]") {
  OllamaParser parser;
  CHECK(parser.Chat(R"("format":"")").generations[0].grammar == nullptr);
  CHECK(parser.Chat(R"("format":"json")").generations[0].grammar != nullptr);
  CHECK(parser.Chat(R"("format":{"type":"boolean"})").generations[0].grammar != nullptr);
  CHECK(parser.ChatRefused(R"("format":"xml")").find("'format' must be") == 0);
  CHECK(parser.ChatRefused(R"("format":{"type":"what"})").find("'format'") == 0);
}

TEST_CASE("Thinking is asked of the template", "[ollama]") {
  OllamaParser parser;
  const auto prompt = [&](const char* think) {
    return parser.PromptText(parser.Chat(base::StrCat(R"("think":)", think)));
  };
  CHECK(prompt("true").ends_with("<think>\n"));
  CHECK_FALSE(prompt("false").ends_with("<think>\n"));
  CHECK(prompt(R"("low")").find(R"("reasoning_effort":"low")") != std::string::npos);
  CHECK(parser.ChatRefused(R"("think":5)").find("'think' must be") == 0);
}

TEST_CASE("Calls and results of a conversation find each other by name or order", "[ollama]") {
  OllamaParser parser;
  parser.model.max_context = 1000;
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"","tool_calls":[)"
      R"({"function":{"name":"f","arguments":{"a":1}}},{"function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","tool_name":"g","content":"second"},)"
      R"({"role":"tool","content":"first"}]})";
  const absl::StatusOr<OllamaRequest> request = server::ParseOllamaChat(body, parser.context());
  REQUIRE(request.ok());
  const std::string prompt = parser.PromptText(*request->api);
  CHECK(prompt.find(
            R"({"function":{"name":"f","arguments":{"a":1}},"type":"function","id":"call_1"})") !=
        std::string::npos);
  CHECK(prompt.find(R"("id":"call_2")") != std::string::npos);
}

TEST_CASE("Images are refused by their place", "[ollama]") {
  OllamaParser parser;
  const auto chat = server::ParseOllamaChat(
      R"({"messages":[{"role":"user","content":"x","images":["aGk="]}]})", parser.context());
  CHECK(server::ToApiError(chat.status()).message.find("'messages[0].images'") == 0);
  const auto generate =
      server::ParseOllamaGenerate(R"({"prompt":"x","images":["aGk="]})", parser.context());
  CHECK(server::ToApiError(generate.status()).message.find("'images'") == 0);
  CHECK(server::ParseOllamaGenerate(R"({"prompt":"x","images":[]})", parser.context()).ok());
}

TEST_CASE("A prompt is a chat, unless it is raw or has a suffix", "[ollama]") {
  OllamaParser parser;
  CHECK(parser.PromptText(parser.Generate(R"({"prompt":"hi","system":"be"})")) ==
        "<s><|turn|>system\nbe<|turn|>user\nhi<|turn|>assistant\n");
  CHECK(parser.PromptText(parser.Generate(R"({"prompt":"hi","raw":true})")) == "<s>hi");
  CHECK(parser.PromptText(parser.Generate(R"({"prompt":"a","suffix":"c"})")) == "<s>a<|turn|>c");
  parser.codec.has_template = false;
  CHECK(parser.PromptText(parser.Generate(R"({"prompt":"hi"})")) == "<s>hi");
}

TEST_CASE("Without a prompt the model is loaded, if it is there", "[ollama]") {
  OllamaParser parser;
  for (const auto& [parse, body] :
       {std::pair{&server::ParseOllamaChat, R"({"model":"test-model:latest"})"},
        std::pair{&server::ParseOllamaGenerate,
                  R"({"model":"test-model:latest","keep_alive":0})"}}) {
    const absl::StatusOr<OllamaRequest> loaded = parse(body, parser.context());
    REQUIRE(loaded.ok());
    CHECK_FALSE(loaded->api.has_value());
    CHECK(loaded->model == "test-model:latest");
    const auto unknown = parse(R"({"model":"other"})", parser.context());
    CHECK(server::ToApiError(unknown.status()).http_status == 404);
  }
}

TEST_CASE("The answer names the model as the client does", "[ollama]") {
  OllamaParser parser;
  CHECK(parser.Chat(R"("model":"test-model:latest")").model.shown == "test-model:latest");
  parser.model.aliases = {"a:latest"};
  CHECK(parser.Chat(R"("model":"a:latest")").model.shown == "a:latest");
}

json EmbeddingsBody(const server::EmbeddingRequest& request,
                    std::vector<std::vector<float>> states) {
  for (std::vector<float>& state : states) server::FinishPooled(request, &state);
  return json::parse(request.write(request, states, {"id", 1, 0.5}));
}

TEST_CASE("Embeddings have Ollama's two forms", "[ollama]") {
  OllamaParser parser;
  parser.model.embedding_size = 2;
  const auto several =
      server::ParseOllamaEmbed(R"({"model":"test-model","input":["a","b"]})", parser.context());
  REQUIRE(several.ok());
  const json body = EmbeddingsBody(*several, {{3, 4}, {0, 2}});
  CHECK(body["embeddings"][0][0].get<float>() == Approx(0.6));
  CHECK(body["embeddings"][1] == json::array({0.0, 1.0}));
  CHECK(body["total_duration"] == 500'000'000);
  CHECK(body["prompt_eval_count"] == 4);  // two begin tokens and two bytes
  const auto one = server::ParseOllamaEmbeddings(R"({"prompt":"a"})", parser.context());
  REQUIRE(one.ok());
  CHECK(EmbeddingsBody(*one, {{3, 4}}) == json::parse(R"({"embedding":[0.6,0.8]})"));
  const std::string longer = base::StrCat("\"", std::string(200, 'a'), "\"");
  const auto cut =
      server::ParseOllamaEmbed(base::StrCat(R"({"input":)", longer, "}"), parser.context());
  REQUIRE(cut.ok());
  CHECK(cut->generations[0].prompt.size() == 100);
  CHECK_FALSE(server::ParseOllamaEmbed(base::StrCat(R"({"truncate":false,"input":)", longer, "}"),
                                       parser.context())
                  .ok());
}

TEST_CASE("Models are described with what clients ask for", "[ollama]") {
  OllamaParser parser;
  parser.model.family = "qwen2";
  parser.model.weight_format = "q4_0";
  parser.model.num_parameters = 7'615'616'512;  // Qwen2.5-7B
  parser.model.created = 1'700'000'000;         // 2023-11-14T22:13:20Z
  const absl::StatusOr<std::string> tags = server::OllamaTags(parser.context());
  REQUIRE(tags.ok());
  const json first = json::parse(*tags)["models"][0];
  CHECK(first["name"] == "test-model");
  CHECK(first["modified_at"] == "2023-11-14T22:13:20Z");
  CHECK(first["details"]["parameter_size"] == "7.6B");
  CHECK(first["details"]["quantization_level"] == "Q4_0");
  CHECK(first["digest"].get<std::string>().size() == 64);
  const absl::StatusOr<std::string> shown =
      server::OllamaShow(R"({"name":"test-model"})", parser.context());
  REQUIRE(shown.ok());
  const json card = json::parse(*shown);
  CHECK(card["model_info"]["general.architecture"] == "qwen2");
  CHECK(card["model_info"]["qwen2.context_length"] == 100);
  CHECK(card["capabilities"] ==
        json::array({"completion", "tools", "insert", "thinking", "embedding"}));
  CHECK(json::parse(server::OllamaRunning(parser.context()))["models"].size() == 1);
}

}  // namespace
}  // namespace heddle::test
