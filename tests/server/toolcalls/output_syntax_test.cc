// The chat templates of published models, and conversations that transformers rendered with them:
// the template tells the row, and the row finds the calls in what the template shows the model.
#include "server/toolcalls/output_syntax.h"

#include <fstream>
#include <iterator>
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/toolcalls/output_parser.h"
#include "tests/support/paths.h"

namespace heddle::test {
namespace {

using server::OutputPiece;

std::string Read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Model {
  const char* file;
  const char* tools;      // nullptr: none
  const char* reasoning;  // nullptr: none
  // Between the user's question and the assistant's words in the rendered text; nullptr: the
  // template shows no calls.
  const char* before;
};

constexpr Model kModels[] = {
    {"Qwen-Qwen3-0.6B", "hermes", "think", "<|im_start|>assistant\n"},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", nullptr, "<|im_start|>assistant\n"},
    {"ibm-granite-granite-4.0", "hermes", nullptr, "<|end_of_role|>"},
    {"Qwen3-Coder", "qwen3-coder", nullptr, "<|im_start|>assistant\n"},
    {"ByteDance-Seed-OSS", "seed", "seed", "<seed:bos>assistant\n"},
    {"MiniMax-M2", "minimax", "think", "]~b]ai\n"},
    {"GLM-4.6", "glm", "think", "<|assistant|>"},
    {"deepseek-ai-DeepSeek-V3.1", "deepseek", "think", "<｜Assistant｜>"},
    {"llama-cpp-deepseek-r1", "deepseek", "think", nullptr},
    {"moonshotai-Kimi-K2", "kimi", nullptr, "assistant<|im_middle|>"},
    {"mistralai-Mistral-Nemo-Instruct-2407", "mistral", nullptr, "[/INST]"},
    {"unsloth-mistral-Devstral-Small-2507", "mistral", nullptr, "[/INST]"},
    {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere", "cohere", "<|CHATBOT_TOKEN|>"},
    {"LFM2.5-8B-A1B", "lfm", "think", "<|im_start|>assistant\n"},
    {"meta-llama-Llama-3.1-8B-Instruct", "llama3-json", nullptr,
     "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"meta-llama-Llama-3.3-70B-Instruct", "llama3-json", nullptr,
     "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"ibm-granite-granite-3.3-2B-Instruct", "granite", "think-response", nullptr},
    {"Qwen-QwQ-32B", "hermes", "think", nullptr},
    {"google-gemma-2-2b-it", nullptr, nullptr, nullptr},
    {"microsoft-Phi-3.5-mini-instruct", nullptr, nullptr, nullptr},
};

TEST_CASE("A published template tells how its model writes", "[golden]") {
  const std::filesystem::path folder = SharedDataOrSkip("chat_templates");
  for (const Model& model : kModels) {
    INFO(model.file);
    server::OutputSyntax syntax =
        server::SyntaxOf(Read(folder / (std::string(model.file) + ".jinja")));
    CHECK((syntax.tools == nullptr ? "" : syntax.tools->name) ==
          std::string_view(model.tools == nullptr ? "" : model.tools));
    CHECK((syntax.reasoning == nullptr ? "" : syntax.reasoning->name) ==
          std::string_view(model.reasoning == nullptr ? "" : model.reasoning));
  }
}

// The first conversation in which an assistant calls a tool, as transformers rendered it.
std::string RenderedCall(const std::filesystem::path& cases) {
  for (const nlohmann::json& one : nlohmann::json::parse(Read(cases))) {
    for (const nlohmann::json& message : one["messages"]) {
      if (message.contains("tool_calls") && one.contains("expected") &&
          one["expected"].is_string()) {
        return one["expected"];
      }
    }
  }
  return "";
}

TEST_CASE("A call that a template shows its model is read back as it was", "[golden]") {
  const std::filesystem::path folder = SharedDataOrSkip("chat_templates");
  const server::ToolSet tools{
      {{"get_weather", {{"city", "string"}, {"unit", "string"}, {"days", "integer"}}}}};
  for (const Model& model : kModels) {
    if (model.before == nullptr) continue;
    INFO(model.file);
    std::string rendered = RenderedCall(folder / (std::string(model.file) + ".jinja.cases.json"));
    size_t question = rendered.rfind("Weather in Z");
    REQUIRE(question != std::string::npos);
    size_t begin = rendered.find(model.before, question);
    REQUIRE(begin != std::string::npos);
    std::string words = rendered.substr(begin + std::string_view(model.before).size());
    server::OutputSyntax syntax =
        server::SyntaxOf(Read(folder / (std::string(model.file) + ".jinja")));
    server::OutputParser parser(syntax, &tools, /*in_reasoning=*/false);
    std::vector<OutputPiece> pieces;
    for (char c : words) parser.Push(std::string_view(&c, 1), &pieces);
    parser.Finish(/*natural=*/true, &pieces);
    auto call = std::find_if(pieces.begin(), pieces.end(), [](const OutputPiece& piece) {
      return piece.kind == OutputPiece::Kind::kCall;
    });
    REQUIRE(call != pieces.end());
    for (auto more = call + 1; more != pieces.end(); ++more) {
      if (more->kind == OutputPiece::Kind::kArguments) call->call.arguments += more->text;
    }
    CHECK(call->call.name == "get_weather");
    CHECK(nlohmann::json::parse(call->call.arguments) ==
          nlohmann::json{{"city", "Z\xC3\xBCrich"}, {"unit", "celsius"}});
    for (auto piece = pieces.begin(); piece != call; ++piece) CHECK(piece->text.empty());
  }
}

}  // namespace
}  // namespace heddle::test
