// Reads the configuration of a network that guesses a block at once, from config.json or GGUF.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/heads/config_json.h"
#include "engine/heads/eagle_config.h"
#include "engine/heads/head_tensors.h"

namespace heddle::engine {
namespace {

using nlohmann::json;

// Layers are counted by their outputs in `key`, and by their inputs here.
absl::StatusOr<std::vector<int32_t>> OutputsOf(const Checkpoint& file, const json& list,
                                               std::string_view key, int32_t n_layers) {
  std::vector<int32_t> features;
  for (const json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= n_layers) {
      return HeadError(
          file, base::StrCat("reads a layer that a model of ", n_layers, " layers does not have (",
                             base::Quote(key), "): it is for another model"));
    }
    features.push_back(static_cast<int32_t>(id.get<int64_t>()) + 1);
  }
  return features;
}

// The layers that the authors' code reads where none are listed: evenly from the second to the
// third from the end.
json DefaultOutputs(int32_t n_model_layers, int32_t n_layers) {
  if (n_layers == 1) return {n_model_layers / 2};
  json ids = json::array();
  for (int32_t i = 0; i < n_layers; ++i) {
    const double at = 1.0 + static_cast<double>(i) * (n_model_layers - 4) / (n_layers - 1);
    ids.push_back(static_cast<int64_t>(std::nearbyint(at)));
  }
  return ids;
}

// Members that make another network of it, and the only value that is DFlash's.
absl::Status CheckVariant(const Checkpoint& file, const json& config, const json& nested) {
  const std::pair<const char*, json> plain_members[] = {
      {"sample_from_anchor", false}, {"shift_label", false}, {"projector_type", "dflash"}};
  const auto refuse = [&](const std::string& key) {
    return absl::UnimplementedError(
        base::StrCat(file.path().string(), ": has ", base::Quote(key),
                     ", which makes another network of DFlash than this version runs"));
  };
  for (const auto& [key, plain] : plain_members) {
    const auto value = config.find(key);
    if (value != config.end() && !value->is_null() && *value != plain) return refuse(key);
  }
  constexpr std::string_view kKnown[] = {"mask_token_id",
                                         "target_layer_ids",
                                         "block_size",
                                         "causal",
                                         "is_causal",
                                         "sliding_window_non_causal",
                                         "input_embedding_scale",
                                         "output_multiplier",
                                         "final_logit_softcapping"};
  for (const auto& [key, value] : nested.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      return refuse("dflash_config." + key);
    }
  }
  return absl::OkStatus();
}

// A boolean, a positive number, or absent where the key is missing or null.
absl::StatusOr<std::optional<bool>> FlagOf(const Checkpoint& file, const json& config,
                                           const char* key) {
  const auto value = config.find(key);
  if (value == config.end() || value->is_null()) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  return HeadError(file, base::StrCat(base::Quote(key), " is neither true nor false"));
}
absl::StatusOr<std::optional<float>> FactorOf(const Checkpoint& file, const json& config,
                                              const char* key) {
  const auto value = config.find(key);
  if (value == config.end() || value->is_null()) return std::nullopt;
  const double factor = value->is_number() ? value->get<double>() : 0.0;
  constexpr double kMost = 1e6;
  if (factor > 0 && factor <= kMost) return static_cast<float>(factor);
  return HeadError(file, base::StrCat(base::Quote(key), " is not a number above 0"));
}

// By the authors' rule rows of a block see it in order in layers with windows, and all of it in
// others, unless "is_causal" (vLLM: "causal") says it for all layers; the speculators library has a
// key for layers with windows.
absl::Status ReadOrder(const Checkpoint& file, const json& config, const ModelSpec& layers,
                       std::vector<bool>* in_order) {
  HEDDLE_ASSIGN_OR_RETURN(std::optional<bool> all, FlagOf(file, config, "is_causal"));
  if (!all.has_value()) {
    HEDDLE_ASSIGN_OR_RETURN(all, FlagOf(file, config, "causal"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<bool> windows_see_all,
                          FlagOf(file, config, "sliding_window_non_causal"));
  for (const LayerSpec& layer : layers.layers) {
    const bool by_window = layer.attention.window > 0 && !windows_see_all.value_or(false);
    in_order->push_back(all.value_or(by_window));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EagleConfig::Block> EagleConfig::ReadBlock(const Checkpoint& file,
                                                          const ModelSpec& model,
                                                          const ModelSpec& layers) const {
  constexpr int64_t kMaxRows = 64;
  const auto found = json_->find("dflash_config");
  const json nested = found != json_->end() && found->is_object() ? *found : json::object();
  HEDDLE_RETURN_IF_ERROR(CheckVariant(file, *json_, nested));
  json both = *json_;
  MergeMembers(nested, &both);
  Block block;
  HEDDLE_ASSIGN_OR_RETURN(block.rows, ReadDim(file, both, "block_size", 0, kMaxRows));
  if (block.rows < 2) {
    return HeadError(file, base::StrCat("\"block_size\" is not an integer from 2 to ", kMaxRows));
  }
  const json mask = both.value("mask_token_id", json());
  if (!mask.is_number_integer() || mask.get<int64_t>() < 0 || mask.get<int64_t>() >= model.vocab) {
    return HeadError(file, base::StrCat("\"mask_token_id\" is not a token of the model, from 0 to ",
                                        model.vocab - 1));
  }
  block.mask = static_cast<TokenId>(mask.get<int64_t>());
  HEDDLE_RETURN_IF_ERROR(ReadOrder(file, both, layers, &block.in_order));
  HEDDLE_ASSIGN_OR_RETURN(block.embedding_scale, FactorOf(file, both, "input_embedding_scale"));
  HEDDLE_ASSIGN_OR_RETURN(const auto multiplier, FactorOf(file, both, "output_multiplier"));
  block.logit_scale = multiplier.value_or(1.0f);
  HEDDLE_ASSIGN_OR_RETURN(const auto softcap, FactorOf(file, both, "final_logit_softcapping"));
  block.logit_softcap = softcap.value_or(0.0f);
  constexpr std::string_view kOutputs = "target_layer_ids";
  const json* list = FindList(both, kOutputs);
  const json* inputs = FindList(*json_, kInputsKey);
  if (list == nullptr && inputs != nullptr) {
    const auto count = static_cast<int32_t>(std::min<size_t>(inputs->size(), kMaxRows));
    HEDDLE_ASSIGN_OR_RETURN(block.features, Features(file, count, model.n_layers()));
    return block;
  }
  HEDDLE_ASSIGN_OR_RETURN(
      block.features,
      OutputsOf(file, list == nullptr ? DefaultOutputs(model.n_layers(), layers.n_layers()) : *list,
                kOutputs, model.n_layers()));
  return block;
}

}  // namespace heddle::engine
