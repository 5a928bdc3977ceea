// Files of draft networks that are refused, and how the message says so.
#include <filesystem>
#include <functional>
#include <string>

#include "catch2/catch.hpp"
#include "engine/heads/open_heads.h"
#include "tests/heads/draft_goldens.h"
#include "tests/support/paths.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using nlohmann::json;
using Edit = std::function<void(test::DraftGolden&)>;

absl::Status OpenEdited(const std::string& name, const Edit& edit) {
  test::DraftGolden golden = test::LoadDraftGolden(name);
  edit(golden);
  test::TempDir dir;
  const auto target =
      engine::OpenCheckpoint(test::WriteSyntheticModel(golden.model, dir.path() / "model"));
  REQUIRE(target.ok());
  const auto model = engine::Describe(*target);
  REQUIRE(model.ok());
  if (!golden.is_mtp()) test::WriteSyntheticModel(golden.files, dir.path() / "network");
  return test::OpenNetwork(golden, dir.path() / "network", *target, *model).status();
}

void SetConfig(test::DraftGolden& golden, const std::string& key, const json& value) {
  json config = *golden.files.config;
  config[key] = value;
  golden.files.config = std::make_shared<const json>(std::move(config));
}

test::SyntheticTensor& Tensor(test::Golden& files, const std::string& name) {
  for (test::SyntheticTensor& tensor : files.tensors) {
    if (tensor.name == name) return tensor;
  }
  FAIL("no tensor " + name);
  return files.tensors.front();
}

void Remove(test::Golden& files, const std::string& name) {
  std::erase_if(files.tensors, [&](const auto& tensor) { return tensor.name == name; });
}

struct Refusal {
  std::string network;
  std::string what;  // part of the message
  Edit edit;
};

TEST_CASE("Files of draft networks that do not fit are refused by name", "[golden]") {
  const Refusal refusals[] = {
      {"eagle3", "tensor \"d2t\" holds 301 at 0, expected from 0 to 300 for a vocabulary of 301",
       [](auto& g) { Tensor(g.files, "d2t").values[0] = 301; }},
      {"eagle3", "tensor \"d2t\" holds -2 at 1",
       [](auto& g) { Tensor(g.files, "d2t").values[1] = -2; }},
      {"eagle3", "tensor \"d2t\" gives token 3 a second time, at 2",
       [](auto& g) { Tensor(g.files, "d2t").values[2] = 1; }},
      {"eagle3", "tensor \"d2t\" is missing, though the draft vocabulary has 70 tokens",
       [](auto& g) { Remove(g.files, "d2t"); }},
      {"eagle3", "is of type F32; valid are I64 and I32",
       [](auto& g) {
         Tensor(g.files, "d2t") = {"d2t", {70}, 1.0f, 0.0f};
       }},
      {"eagle3", "has shape [70], expected [60]",
       [](auto& g) { SetConfig(g, "draft_vocab_size", 60); }},
      {"eagle3", "\"draft_vocab_size\" is not an integer from 1 to 301",
       [](auto& g) { SetConfig(g, "draft_vocab_size", 302); }},
      {"eagle3", "is for a vocabulary of 300 tokens, and the model's has 301",
       [](auto& g) { SetConfig(g, "vocab_size", 300); }},
      {"eagle3", "reads hidden states of 128, and those of the model are 96",
       [](auto& g) { SetConfig(g, "target_hidden_size", 128); }},
      {"eagle3", "tensor \"midlayer.mlp.up_proj.weight\" is missing, expected [112, 64]",
       [](auto& g) { Remove(g.files, "midlayer.mlp.up_proj.weight"); }},
      {"eagle3",
       "tensor \"midlayer.self_attn.q_proj.weight\" has shape [64, 64], expected [64, 128]",
       [](auto& g) {
         Tensor(g.files, "midlayer.self_attn.q_proj.weight").shape = {64, 64};
       }},
      {"eagle3", "tensor \"norm.weight\" is missing",
       [](auto& g) { Remove(g.files, "norm.weight"); }},
      {"eagle3", "has no embedding of its own, and its hidden size of 64 is not the model's, 96",
       [](auto& g) { Remove(g.files, "embed_tokens.weight"); }},
      {"eagle3", "tensor \"markov_head.markov_w1\" belongs to no network that this version knows",
       [](auto& g) {
         g.files.tensors.push_back({"markov_head.markov_w1", {4, 4}, 1.0f, 0.0f});
       }},
      {"eagle3", "reads the hidden states of 3 layers by the shape of fc.weight",
       [](auto& g) {
         SetConfig(g, "eagle_aux_hidden_state_layer_ids", {1, 2});
       }},
      {"eagle3", "reads a layer that a model of 3 layers does not have",
       [](auto& g) {
         SetConfig(g, "eagle_aux_hidden_state_layer_ids", {1, 2, 4});
       }},
      {"eagle31", "reads a layer that a model of 3 layers does not have",
       [](auto& g) {
         SetConfig(g, "eagle_config", {{"eagle_aux_hidden_state_layer_ids", {0, 1, 3}}});
       }},
      {"eagle31", "norm_before_fc and fc_norm exclude each other",
       [](auto& g) { SetConfig(g, "norm_before_fc", true); }},
      {"eagle31", "tensor \"model.fc_norm.1.weight\" is missing",
       [](auto& g) { Remove(g.files, "model.fc_norm.1.weight"); }},
      {"eagle3_speculators", "is for models of class \"Qwen3ForCausalLM\"",
       [](auto& g) {
         json config = *g.files.config;
         config["speculators_config"]["verifier"]["architectures"] = {"Qwen3ForCausalLM"};
         g.files.config = std::make_shared<const json>(std::move(config));
       }},
      {"eagle3_speculators", "\"speculators_model_type\" is \"\\\"dspark",
       [](auto& g) { SetConfig(g, "speculators_model_type", "dspark"); }},
      {"eagle1", "\"block_size\" is not an integer from 2 to 64",
       [](auto& g) {
         SetConfig(g, "dflash_config", {{"mask_token_id", 3}});
       }},
      {"eagle3", "is a DFlash2 network",
       [](auto& g) { SetConfig(g, "architectures", json::array({"DFlash2DraftModel"})); }},
      {"dflash", "\"block_size\" is not an integer from 1 to 64",
       [](auto& g) { SetConfig(g, "block_size", 65); }},
      {"dflash", "\"block_size\" is not an integer from 2 to 64",
       [](auto& g) { SetConfig(g, "block_size", 1); }},
      {"dflash", "\"mask_token_id\" is not a token of the model, from 0 to 319",
       [](auto& g) {
         SetConfig(g, "dflash_config", {{"mask_token_id", 320}});
       }},
      {"dflash", "\"mask_token_id\" is not a token of the model",
       [](auto& g) {
         SetConfig(g, "dflash_config", {{"target_layer_ids", {0, 1}}});
       }},
      {"dflash", "reads a layer that a model of 3 layers does not have (\"target_layer_ids\")",
       [](auto& g) {
         SetConfig(g, "dflash_config", {{"mask_token_id", 7}, {"target_layer_ids", {0, 3}}});
       }},
      {"dflash", "tensor \"fc.weight\" has shape [64, 128], expected [64, 64]",
       [](auto& g) {
         SetConfig(g, "dflash_config", {{"mask_token_id", 7}, {"target_layer_ids", {0}}});
       }},
      {"dflash", "has \"dflash_config.selector_rank\", which makes another network",
       [](auto& g) {
         SetConfig(g, "dflash_config", {{"mask_token_id", 7}, {"selector_rank", 16}});
       }},
      {"dflash", "\"causal\" is neither true nor false",
       [](auto& g) {
         SetConfig(g, "dflash_config", {{"mask_token_id", 7}, {"causal", 1}});
       }},
      {"dflash", "\"is_causal\" is neither true nor false",
       [](auto& g) { SetConfig(g, "is_causal", "no"); }},
      {"dflash", "\"output_multiplier\" is not a number above 0",
       [](auto& g) {
         SetConfig(g, "dflash_config", {{"mask_token_id", 7}, {"output_multiplier", 0.0}});
       }},
      {"dflash_windows",
       "has a sliding window of 4 positions, which is shorter than its blocks of 5",
       [](auto& g) { SetConfig(g, "sliding_window", 4); }},
      {"dflash_windows", "\"layer_types\"",
       [](auto& g) { SetConfig(g, "use_sliding_window", false); }},
      {"dflash", "tensor \"hidden_norm.weight\" is missing",
       [](auto& g) { Remove(g.files, "hidden_norm.weight"); }},
      {"dflash", "tensor \"layers.1.self_attn.k_norm.weight\" is missing",
       [](auto& g) { Remove(g.files, "layers.1.self_attn.k_norm.weight"); }},
      {"dflash_speculators", "has \"sample_from_anchor\", which makes another network",
       [](auto& g) { SetConfig(g, "sample_from_anchor", true); }},
      {"dflash_speculators", "has \"projector_type\"",
       [](auto& g) { SetConfig(g, "projector_type", "domino"); }},
      {"dflash_speculators", "tensor \"d2t\" is missing", [](auto& g) { Remove(g.files, "d2t"); }},
      {"eagle3", "is a DSpark network",
       [](auto& g) {
         SetConfig(g, "architectures", json::array({7, "Qwen3DSparkModel"}));
       }},
      {"eagle1", "has no layer of an EAGLE network",
       [](auto& g) { Remove(g.files, "layers.0.mlp.down_proj.weight"); }},
      {"eagle1", "tensor \"fc.weight\" has shape [96, 96], expected [96, 192]",
       [](auto& g) {
         Tensor(g.files, "fc.weight").shape = {96, 96};
       }},
      {"mtp_deepseek", "has no MTP layer: neither \"model.layers.\"3 with eh_proj",
       [](auto& g) { Remove(g.model, "model.layers.3.eh_proj.weight"); }},
      {"mtp_deepseek", "tensor \"model.layers.3.hnorm.weight\" is missing",
       [](auto& g) { Remove(g.model, "model.layers.3.hnorm.weight"); }},
      {"mtp_qwen", "tensor \"mtp.layers.0.self_attn.k_norm.weight\" is missing",
       [](auto& g) { Remove(g.model, "mtp.layers.0.self_attn.k_norm.weight"); }},
      {"medusa", "tensor \"1.0.linear.weight\" has shape [64, 64], expected [96, 96]",
       [](auto& g) {
         Tensor(g.files, "1.0.linear.weight").shape = {64, 64};
       }},
      {"medusa", "tensor \"0.1.weight\" has shape [300, 96], expected [301, 96]",
       [](auto& g) {
         Tensor(g.files, "0.1.weight").shape = {300, 96};
       }},
      {"medusa", "head 1 has no matrix to the vocabulary, unlike the heads before",
       [](auto& g) { Remove(g.files, "1.1.weight"); }},
      {"medusa", "belongs to none of 1 Medusa heads",
       [](auto& g) {
         Remove(g.files, "1.0.linear.weight");
         Remove(g.files, "1.1.weight");
       }},
      {"medusa", "has no Medusa head",
       [](auto& g) {
         Remove(g.files, "0.0.linear.weight");
         Remove(g.files, "0.1.weight");
       }},
  };
  for (const Refusal& refusal : refusals) {
    const absl::Status status = OpenEdited(refusal.network, refusal.edit);
    INFO(refusal.network << ": " << status.ToString());
    CHECK(status.message().find(refusal.what) != absl::string_view::npos);
  }
}

TEST_CASE("Untouched files of draft networks open, whatever their configuration counts",
          "[golden]") {
  for (const std::string& name : test::DraftGoldenNames()) {
    const absl::Status status = OpenEdited(name, [](auto&) {});
    INFO(name << ": " << status.ToString());
    CHECK(status.ok());
  }
  const auto count = [](test::DraftGolden& golden) { SetConfig(golden, "medusa_num_heads", 7); };
  CHECK(OpenEdited("medusa", count).ok());
}

TEST_CASE("The tensors of MTP layers are nothing to warn of", "[golden]") {
  for (const char* name : {"mtp_deepseek", "mtp_qwen"}) {
    const test::DraftGolden golden = test::LoadDraftGolden(name);
    test::TempDir dir;
    const auto target =
        engine::OpenCheckpoint(test::WriteSyntheticModel(golden.model, dir.path() / "model"));
    REQUIRE(target.ok());
    CHECK(engine::UnusedTensors(*target, *engine::Describe(*target)).empty());
  }
}

TEST_CASE("A pickle of Medusa heads is not read, and the message says how to convert it",
          "[golden]") {
  test::TempDir dir;
  std::filesystem::create_directories(dir.path());
  test::WriteFile(dir.path() / "config.json", "{}");
  test::WriteFile(dir.path() / "medusa_lm_head.pt", "PK");
  const auto status = engine::OpenMedusa(dir.path(), {}).status();
  CHECK(status.message().find("medusa_lm_head.pt is a pickle") != absl::string_view::npos);
  CHECK(status.message().find("save_file(") != absl::string_view::npos);
}

TEST_CASE("The demo model's Medusa heads are for the demo model", "[golden]") {
  const auto demo = test::SourceDir() / "share/demo-model";
  const auto target = engine::OpenCheckpoint(demo);
  REQUIRE(target.ok());
  const auto model = engine::Describe(*target);
  REQUIRE(model.ok());
  const auto heads = engine::OpenMedusa(demo / "medusa", *model);
  INFO(heads.status().ToString());
  REQUIRE(heads.ok());
  CHECK((*heads)->traits().guesses_per_pass == 4);
  CHECK((*heads)->traits().text == "4 Medusa heads on the model's own matrix, 582.0 KiB");
  CHECK_FALSE(engine::HasMtp(*target, *model));
}

}  // namespace
}  // namespace heddle
