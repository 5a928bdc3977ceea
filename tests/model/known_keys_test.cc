// Keys of configurations that nobody reads are refused, and those of published models are not among
// them.
#include <fstream>
#include <string>

#include "catch2/catch.hpp"
#include "engine/family/model_description.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_model.h"
#include "tests/support/goldens.h"
#include "tests/support/paths.h"
#include "tests/support/status_matchers.h"

namespace heddle::engine {
namespace {

using nlohmann::json;

absl::Status StatusOf(const json& config) {
  return DescribeConfig(config, json::object(), "m/config.json").status();
}

TEST_CASE("Configurations of published models and of transformers' classes are read",
          "[model][unit]") {
  std::ifstream in(test::SourceDir() / "tests/model/configs.jsonl");
  REQUIRE(in);
  int count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const json golden = json::parse(line);
    const absl::Status status = StatusOf(golden.at("config"));
    INFO(golden.at("name") << ": " << status.ToString());
    // Defaults of classes are no models: some of them contradict each other.
    const bool is_class = golden.at("name").get<std::string>().starts_with("transformers ");
    CHECK((status.ok() || is_class));
    CHECK(status.message().find("nothing reads it") == status.message().npos);
  }
  CHECK(count >= 50);
}

TEST_CASE("A key that nobody reads and nobody knows is refused by its name", "[model][unit]") {
  for (const char* name :
       {"llama", "qwen3_moe", "gemma3_images", "deepseek_v3", "falcon", "gpt2"}) {
    INFO(name);
    json config = *test::LoadGolden(name).config;
    CHECK(StatusOf(config).ok());
    json& decoder = config.contains("text_config") ? config["text_config"] : config;
    decoder["residual_gate_rank"] = nullptr;
    CHECK(StatusOf(config).ok());
    decoder["residual_gate_rank"] = 8;
    test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented,
                     {"residual_gate_rank\" is 8", "nothing reads it"});
  }
  // Of other families' keys, one that this family does not read is as unknown as any.
  json config = *test::LoadGolden("llama").config;
  config["residual_multiplier"] = 0.25;
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented, {"\"residual_multiplier\""});
  config = *test::LoadGolden("llama3_rope").config;
  config["rope_scaling"]["llama_4_scaling_beta"] = 0.1;
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented,
                   {"\"rope_scaling.llama_4_scaling_beta\" is 0.1"});
  // Some are known to be harmless with one value only.
  config = *test::LoadGolden("mistral").config;
  config["attention_bias"] = false;
  CHECK(StatusOf(config).ok());
  config["attention_bias"] = true;
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented,
                   {"\"attention_bias\" is true"});
  config = *test::LoadGolden("qwen3_moe").config;
  config["layer_types"] = json::array({"full_attention", "linear_attention"});
  CHECK_FALSE(StatusOf(config).ok());
}

}  // namespace
}  // namespace heddle::engine
