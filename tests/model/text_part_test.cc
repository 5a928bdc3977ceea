// Models that also read images: their decoder is served, described by config.json's text_config.
#include "catch2/catch.hpp"
#include "engine/family/model_description.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"

namespace heddle::engine {
namespace {

using nlohmann::json;

// config.json of google/gemma-3-4b-it, without the image encoder's part.
json Gemma3Config() {
  return json::parse(R"({
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
    "mm_tokens_per_image": 256, "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
      "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
      "sliding_window": 1024}})");
}

TEST_CASE("A text_config that says little is completed as by transformers", "[model][unit]") {
  const auto description = DescribeConfig(Gemma3Config(), json::object(), "m/config.json");
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  // Gemma3TextConfig of transformers.
  const ModelSpec& spec = description->spec;
  CHECK(spec.family == "gemma3");
  CHECK(spec.vocab == 262208);
  CHECK(spec.max_context == 131072);
  CHECK(spec.tied_embeddings);
  REQUIRE(spec.n_layers() == 34);
  const AttentionSpec& first = spec.layers[0].attention;
  CHECK(first.n_heads == 8);
  CHECK(first.n_kv_heads == 4);
  CHECK(first.head_dim == 256);
  CHECK(first.scale == 1.0f / 16.0f);
  CHECK(first.window == 1024);
  CHECK(first.rope.theta == 10000.0f);
  const AttentionSpec& sixth = spec.layers[5].attention;
  CHECK(sixth.window == 0);
  CHECK(sixth.rope.theta == 1e6f);
  CHECK(sixth.rope.factor == 8.0f);
  CHECK(description->eos_ids == std::vector<TokenId>{1, 106});
  // The published count of the 4B model's decoder.
  CHECK(CountParameters(*description) == 3'880'263'168);
}

// InternVL's own code has its decoder's configuration under another key.
TEST_CASE("A decoder's configuration may be an llm_config", "[model][unit]") {
  json config = Gemma3Config();
  config["llm_config"] = config["text_config"];
  config.erase("text_config");
  config["architectures"] = json::array({"InternVLChatModel"});
  const auto description = DescribeConfig(config, json::object(), "m/config.json");
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  CHECK(description->spec.family == "gemma3");
  CHECK(description->spec.n_layers() == 34);
  config["llm_config"]["model_type"] = "gemma9_text";
  test::CheckError(DescribeConfig(config, json::object(), "m/config.json").status(),
                   absl::StatusCode::kUnimplemented, {"\"llm_config.model_type\""});
}

TEST_CASE("What is wrong in a text_config is named with where it stands", "[model][unit]") {
  json config = Gemma3Config();
  config["text_config"]["hidden_size"] = "wide";
  test::CheckError(DescribeConfig(config, json::object(), "m/config.json").status(),
                   absl::StatusCode::kInvalidArgument, {"\"text_config.hidden_size\" is \"wide\""});
  config["text_config"]["model_type"] = "gemma9_text";
  test::CheckError(DescribeConfig(config, json::object(), "m/config.json").status(),
                   absl::StatusCode::kUnimplemented,
                   {"\"text_config.model_type\" is \"gemma9_text\"", "the nearest is gemma3_text"});
  config["text_config"] = 7;
  test::CheckError(DescribeConfig(config, json::object(), "m/config.json").status(),
                   absl::StatusCode::kInvalidArgument, {"\"text_config\" is 7", "an object"});
}

}  // namespace
}  // namespace heddle::engine
