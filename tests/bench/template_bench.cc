// Rendering a chat of 20 messages through real templates: below 200 us once parsed.
// Templates: shared/data/chat_templates; a benchmark whose template is missing reports an error.
#include <fstream>
#include <iterator>
#include <string>

#include "benchmark/benchmark.h"
#include "engine/text/jinja/chat_template.h"
#include "nlohmann/json.hpp"
#include "tests/support/paths.h"

namespace heddle::engine::text {
namespace {

using Json = nlohmann::ordered_json;

// Ten turns of about 300 bytes each, with two tools.
Json TwentyMessages() {
  const std::string question =
      "What would you change about the second part of this plan, and why? ";
  const std::string answer =
      "First of all I would look at what the second part wants to reach. It names three goals, of "
      "which two pull in different directions; so the order matters more than the details do. ";
  Json messages = Json::array();
  for (int i = 0; i < 10; ++i) {
    messages.push_back({{"role", "user"}, {"content", question + std::to_string(i)}});
    messages.push_back({{"role", "assistant"}, {"content", answer + answer + std::to_string(i)}});
  }
  Json tool = Json::parse(R"({"type": "function", "function": {"name": "get_weather",
    "description": "Get the weather", "parameters": {"type": "object", "properties":
    {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}})");
  return {{"messages", messages},
          {"tools", Json::array({tool, tool})},
          {"add_generation_prompt", true},
          {"bos_token", "<s>"},
          {"eos_token", "</s>"}};
}

std::string ReadTemplate(const std::string& name) {
  std::string relative = "chat_templates/" + name + ".jinja";
  if (!test::HasSharedData(relative)) return "";
  std::ifstream in(test::SharedDataOrSkip(relative), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void Render20Messages(benchmark::State& state, const std::string& name) {
  auto parsed = ChatTemplate::Parse(ReadTemplate(name));
  Json context = TwentyMessages();
  auto text = parsed.ok() ? (*parsed)->Render(context) : parsed.status();
  if (!text.ok() || text->empty()) {
    state.SkipWithError("template missing or refused");
    return;
  }
  for (auto _ : state) benchmark::DoNotOptimize((*parsed)->Render(context));
  state.counters["output_bytes"] = static_cast<double>(text->size());
}

void Parse(benchmark::State& state, const std::string& name) {
  std::string source = ReadTemplate(name);
  for (auto _ : state) benchmark::DoNotOptimize(ChatTemplate::Parse(source));
}

BENCHMARK_CAPTURE(Render20Messages, llama31, "meta-llama-Llama-3.1-8B-Instruct");
BENCHMARK_CAPTURE(Render20Messages, qwen3, "Qwen-Qwen3-0.6B");
BENCHMARK_CAPTURE(Render20Messages, mistral_nemo, "mistralai-Mistral-Nemo-Instruct-2407");
BENCHMARK_CAPTURE(Render20Messages, gemma4, "google-gemma-4-31B-it-interleaved");
BENCHMARK_CAPTURE(Render20Messages, apertus, "Apertus-8B-Instruct");
BENCHMARK_CAPTURE(Parse, qwen3, "Qwen-Qwen3-0.6B");

}  // namespace
}  // namespace heddle::engine::text

BENCHMARK_MAIN();
