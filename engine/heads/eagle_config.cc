#include "engine/heads/eagle_config.h"
#include "engine/family/describe_draft.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/heads/config_json.h"
#include "engine/heads/head_tensors.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr std::string_view kLayerIds = "eagle_aux_hidden_state_layer_ids";
// SpecForge's and SGLang's place for what others have at the top.
constexpr std::string_view kNested = "eagle_config";

json FlattenConfig(const json& config) {
  json flat = config;
  const auto layer = config.find("transformer_layer_config");
  if (layer != config.end() && layer->is_object()) MergeMembers(*layer, &flat);
  return flat;
}

constexpr std::string_view kDflash = "DFlash";

// The name of a network that guesses a block at once, by its own attention to the model's states;
// empty: it is another one.
std::string_view BlockNetwork(const json& config) {
  constexpr std::pair<std::string_view, std::string_view> kMembers[] = {
      {"dflash_config", kDflash}, {"dspark_config", "DSpark"}};
  for (const auto& [member, name] : kMembers) {
    if (config.contains(std::string(member))) return name;
  }
  if (config.value("speculators_model_type", json()) == "dflash") return kDflash;
  const auto classes = config.find("architectures");
  if (classes == config.end() || !classes->is_array()) return {};
  for (const json& name : *classes) {
    if (!name.is_string()) continue;
    // "DFlash2..." is another network.
    for (const std::string_view kind :
         {std::string_view("DFlash2"), kDflash, std::string_view("DSpark")}) {
      if (name.get_ref<const std::string&>().find(kind) != std::string::npos) return kind;
    }
  }
  return {};
}

json EagleGgufConfig(const GgufFile& gguf) {
  json flat = json::object();
  for (const char* key : {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"}) {
    const std::string name = base::StrCat("eagle3.", key);
    if (const auto flag = gguf.Bool(name); flag.ok()) flat[key] = *flag;
  }
  if (const auto width = gguf.Int("eagle3.target_hidden_size"); width.ok()) {
    flat["target_hidden_size"] = *width;
  }
  for (const char* key : {"eagle3.extract_layers", "eagle3.target_layers"}) {
    if (const auto ids = gguf.Ints(key); ids.ok()) flat[std::string(kLayerIds)] = *ids;
  }
  return flat;
}

// llama.cpp counts layers by what enters them, and has no key for the order of a block's rows.
json DflashGgufConfig(const GgufFile& gguf) {
  json flat = json::object();
  const auto copy = [&](const char* from, const char* to) {
    if (const auto value = gguf.Int(from); value.ok()) flat[to] = *value;
  };
  copy("dflash.block_size", "block_size");
  copy("dflash.target_hidden_size", "target_hidden_size");
  copy("tokenizer.ggml.mask_token_id", "mask_token_id");
  if (const auto scale = gguf.Float("dflash.logit_scale"); scale.ok()) {
    flat["output_multiplier"] = *scale;
  }
  if (const auto cap = gguf.Float("dflash.final_logit_softcapping"); cap.ok() && *cap > 0) {
    flat["final_logit_softcapping"] = *cap;
  }
  if (const auto ids = gguf.Ints("dflash.target_layers"); ids.ok())
    flat[std::string(kInputsKey)] = *ids;
  if (const auto flag = gguf.Bool("dflash.sample_from_anchor"); flag.ok()) {
    flat["sample_from_anchor"] = *flag;
  }
  return flat;
}

}  // namespace

absl::StatusOr<EagleConfig> EagleConfig::Read(const Checkpoint& file) {
  EagleConfig config;
  if (const GgufFile* gguf = file.gguf()) {
    HEDDLE_ASSIGN_OR_RETURN(const std::string_view name,
                            gguf->StringOr("general.architecture", ""));
    config.is_block_ = name == "dflash";
    if (name != "eagle3" && !config.is_block_) {
      return HeadError(file, base::StrCat("is of architecture ", base::Quote(name),
                                          ", expected \"eagle3\" or \"dflash\" as llama.cpp's "
                                          "converter writes them"));
    }
    config.json_ = std::make_shared<const json>(config.is_block_ ? DflashGgufConfig(*gguf)
                                                                 : EagleGgufConfig(*gguf));
    return config;
  }
  config.json_ = std::make_shared<const json>(FlattenConfig(file.config()));
  if (const auto type = config.json_->find("speculators_model_type");
      type != config.json_->end() && *type != "eagle3" && *type != "eagle" && *type != "dflash") {
    return absl::UnimplementedError(
        base::StrCat(file.path().string(), ": \"speculators_model_type\" is ",
                     base::Quote(type->dump(-1, ' ', true, json::error_handler_t::replace)),
                     ", supported are eagle, eagle3 and dflash"));
  }
  const std::string_view block = BlockNetwork(*config.json_);
  config.is_block_ = block == kDflash;
  if (!block.empty() && !config.is_block_) {
    return absl::UnimplementedError(
        base::StrCat(file.path().string(), ": is a ", block,
                     " network; this version runs DFlash, EAGLE-1, 2, 3 and 3.1, Medusa and MTP"));
  }
  return config;
}

absl::Status EagleConfig::CheckVerifier(const Checkpoint& file, const Checkpoint& target) const {
  const auto verifier = json::json_pointer("/speculators_config/verifier/architectures");
  if (!json_->contains("speculators_config") || !(*json_)["speculators_config"].is_object()) {
    return absl::OkStatus();
  }
  const json& own = target.config();
  if (!json_->contains(verifier) || !own.contains("architectures")) return absl::OkStatus();
  const json& wanted = json_->at(verifier);
  const json& found = own["architectures"];
  if (!wanted.is_array() || wanted.empty() || !found.is_array() || found.empty()) {
    return absl::OkStatus();
  }
  for (const json& name : wanted) {
    if (name == found.front()) return absl::OkStatus();
  }
  const auto show = [](const json& value) {
    return base::Quote(value.is_string() ? value.get_ref<const std::string&>() : "?");
  };
  return HeadError(file, base::StrCat("is for models of class ", show(wanted.front()),
                                      " (speculators_config.verifier), and the model is a ",
                                      show(found.front())));
}

absl::StatusOr<ModelDescription> EagleConfig::DescribeLayers(const Checkpoint& file,
                                                             std::string_view family, bool qkv_bias,
                                                             bool mlp_bias) const {
  json config = *json_;
  // Classes have many names, and all layers are those of a known family.
  config.erase("architectures");
  const auto type = config.find("model_type");
  const bool is_family = type != config.end() && type->is_string() && *type != "speculators" &&
                         *type != "eagle" && *type != "eagle3" && *type != "dflash";
  if (!is_family) config["model_type"] = family;
  config["attention_bias"] = qkv_bias;
  config["mlp_bias"] = mlp_bias;
  config["tie_word_embeddings"] = false;
  config.erase("quantization_config");
  if (!config.contains("num_hidden_layers")) config["num_hidden_layers"] = 1;
  // Its own context is no limit: training stops early, and positions are relative.
  if (!config.contains("max_position_embeddings")) config["max_position_embeddings"] = 2048;
  return DescribeDraftConfig(config, (file.path() / "config.json").string());
}

const json* EagleConfig::Nested() const {
  const auto nested = json_->find(std::string(kNested));
  return nested == json_->end() || !nested->is_object() ? nullptr : &*nested;
}

std::optional<bool> EagleConfig::Flag(std::string_view key) const {
  for (const json* config : {json_.get(), Nested()}) {
    if (config == nullptr) continue;
    const auto flag = config->find(std::string(key));
    if (flag != config->end() && flag->is_boolean()) return flag->get<bool>();
  }
  return std::nullopt;
}

absl::StatusOr<int32_t> EagleConfig::TargetHidden(const Checkpoint& file, int32_t absent) const {
  constexpr int64_t kMaxHidden = 1 << 20;
  return ReadDim(file, *json_, "target_hidden_size", absent, kMaxHidden);
}

absl::StatusOr<int32_t> EagleConfig::DraftVocab(const Checkpoint& file, int64_t absent,
                                                int32_t vocab) const {
  if (absent < 1 || absent > vocab) {
    return HeadError(file, base::StrCat("has a head of ", absent,
                                        " tokens, expected from 1 to the model's ", vocab));
  }
  return ReadDim(file, *json_, "draft_vocab_size", absent, vocab);
}

absl::StatusOr<std::vector<int32_t>> EagleConfig::Features(const Checkpoint& file, int32_t count,
                                                           int32_t n_layers) const {
  const json* list = FindList(*json_, kLayerIds);
  if (list == nullptr) list = FindList(*json_, kInputsKey);
  int32_t offset = 0;
  if (list == nullptr && Nested() != nullptr) {
    list = FindList(*Nested(), kLayerIds);
    offset = 1;  // here a layer stands for its output, which is what the next one reads
  }
  std::vector<int32_t> layers;
  if (list == nullptr) {
    if (count == 3) layers = {2, n_layers / 2, n_layers - 3};
  } else {
    for (const json& id : *list) {
      const bool is_layer = id.is_number_integer() && id.get<int64_t>() >= 0 &&
                            id.get<int64_t>() <= n_layers - offset;
      layers.push_back(is_layer ? static_cast<int32_t>(id.get<int64_t>()) + offset : -1);
    }
  }
  if (layers.size() != static_cast<size_t>(count)) {
    return HeadError(file, base::StrCat("reads the hidden states of ", count,
                                        " layers by the shape of fc.weight, and ",
                                        base::Quote(kLayerIds), " lists ", layers.size()));
  }
  for (const int32_t layer : layers) {
    if (layer >= 0 && layer <= n_layers) continue;
    return HeadError(
        file, base::StrCat("reads a layer that a model of ", n_layers, " layers does not have (",
                           base::Quote(kLayerIds), "): it is for another model"));
  }
  return layers;
}

}  // namespace heddle::engine
