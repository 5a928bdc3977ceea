// Descriptions of families whose layers have sizes of their own.
#include <string>

#include "catch2/catch.hpp"
#include "engine/family/model_description.h"
#include "nlohmann/json.hpp"
#include "tests/model/described_configs.h"
#include "tests/support/goldens.h"
#include "tests/support/status_matchers.h"

namespace heddle::engine {
namespace {

using absl::StatusCode;
using nlohmann::json;
using test::CheckError;
using test::DescribeJson;
using test::With;

// transformers 5.24 saves sizes of heads by layer, and no "global_head_dim" beside them.
TEST_CASE("Gemma 4's heads may have their sizes layer by layer", "[model][unit]") {
  const json config = *test::LoadGolden("gemma4_dense").config;
  const auto expected = DescribeJson(config);
  REQUIRE(expected.ok());
  json saved = config, own = json::object();
  saved.erase("global_head_dim");
  saved.erase("num_global_key_value_heads");
  for (size_t i = 0; i < expected->spec.layers.size(); ++i) {
    const AttentionSpec& attention = expected->spec.layers[i].attention;
    own[std::to_string(i)] = {{"head_dim", attention.head_dim},
                              {"num_key_value_heads", attention.n_kv_heads}};
  }
  const auto found = DescribeJson(With(saved, "per_layer_config", own));
  INFO(found.status().ToString());
  REQUIRE(found.ok());
  for (size_t i = 0; i < expected->spec.layers.size(); ++i) {
    const AttentionSpec& attention = found->spec.layers[i].attention;
    const AttentionSpec& wanted = expected->spec.layers[i].attention;
    CHECK(attention.head_dim == wanted.head_dim);
    CHECK(attention.n_kv_heads == wanted.n_kv_heads);
    CHECK(attention.keys_are_values == wanted.keys_are_values);
    CHECK(attention.rope.rotary_dim == wanted.rope.rotary_dim);
  }
  // All numbers are as long as the last layer's where there are more than ten.
  json padded = json::object();
  for (const auto& [number, keys] : own.items()) padded["0" + number] = keys;
  const auto same = DescribeJson(With(saved, "per_layer_config", padded));
  INFO(same.status().ToString());
  REQUIRE(same.ok());
  CHECK(same->spec.layers[3].attention.head_dim == expected->spec.layers[3].attention.head_dim);
  CHECK(same->spec.layers[3].attention.head_dim != same->spec.layers[0].attention.head_dim);
  for (const char* number : {"04", "", "-1", "1x", "99999999999999999999"}) {
    INFO(number);
    CheckError(
        DescribeJson(With(saved, "per_layer_config", {{number, {{"head_dim", 24}}}})).status(),
        StatusCode::kUnimplemented, {"per_layer_config.", "one of 4 layers"});
  }
  own["1"]["intermediate_size"] = 8;
  CheckError(DescribeJson(With(saved, "per_layer_config", own)).status(),
             StatusCode::kUnimplemented, {"per_layer_config.1.intermediate_size", "head_dim"});
  own["1"] = {{"head_dim", "wide"}};
  CheckError(DescribeJson(With(saved, "per_layer_config", own)).status(),
             StatusCode::kInvalidArgument, {"per_layer_config.1.head_dim"});
  own["1"] = {{"head_dim", 23}};
  CheckError(DescribeJson(With(saved, "per_layer_config", own)).status(),
             StatusCode::kInvalidArgument, {"per_layer_config.1.head_dim", "23", "even"});
  own["1"] = {{"head_dim", 24}};
  own["4"] = {{"head_dim", 24}};  // there are four layers
  CheckError(DescribeJson(With(saved, "per_layer_config", own)).status(),
             StatusCode::kUnimplemented, {"per_layer_config.4"});
  // A layer of its own size alone: the others have the model's.
  CHECK(DescribeJson(With(saved, "per_layer_config", {{"3", {{"head_dim", 48}}}}))
            ->spec.layers[2]
            .attention.head_dim == config["head_dim"]);
}

TEST_CASE("Llama 4's layers without positions may be counted under an older name",
          "[model][unit]") {
  const json config = *test::LoadGolden("llama4").config;
  CHECK(DescribeJson(With(config, "nope_layer_interval", 4)).ok());
  CheckError(DescribeJson(With(config, "nope_layer_interval", 3)).status(),
             StatusCode::kUnimplemented, {"\"nope_layer_interval\" is 3", "(4)"});
}

TEST_CASE("A layer with another's keys has heads of the same size", "[model][unit]") {
  const json config = *test::LoadGolden("gemma4").config;
  const auto whole = DescribeJson(config);
  REQUIRE(whole.ok());
  const LayerSpec& last = whole->spec.layers.back();
  REQUIRE(last.attention.kv_layer >= 0);
  json own;
  for (int32_t i = 0; i < whole->spec.n_layers(); ++i) {
    own[std::to_string(i)] = {
        {"head_dim", whole->spec.layers[static_cast<size_t>(i)].attention.head_dim}};
  }
  CHECK(DescribeJson(With(config, "per_layer_config", own)).ok());
  own[std::to_string(whole->spec.n_layers() - 1)] = {{"head_dim", last.attention.head_dim * 2}};
  CheckError(DescribeJson(With(config, "per_layer_config", own)).status(),
             StatusCode::kInvalidArgument,
             {"num_kv_shared_layers", "size of heads", std::to_string(last.attention.kv_layer)});
}

}  // namespace
}  // namespace heddle::engine
