// Reads the configuration of an EAGLE or DFlash network: config.json in its forms (EAGLE's own and
// SpecForge's, with some keys in "eagle_config"; vLLM's; the speculators library's, with the
// layer's keys in "transformer_layer_config"; z-lab's, with some in "dflash_config"), or GGUF
// metadata. Private to engine/heads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/ids.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

class EagleConfig {
 public:
  static absl::StatusOr<EagleConfig> Read(const Checkpoint& file);

  // Whether it is a DFlash network, whose tensors resemble EAGLE's.
  bool is_block() const { return is_block_; }

  // INVALID_ARGUMENT if it names a class of models that `target` is not.
  absl::Status CheckVerifier(const Checkpoint& file, const Checkpoint& target) const;

  // The layers as an ordinary decoder with transformers' names, of `family` unless it names one
  // that is known. Not for GGUF.
  absl::StatusOr<ModelDescription> DescribeLayers(const Checkpoint& file, std::string_view family,
                                                  bool qkv_bias, bool mlp_bias) const;

  // A boolean by its name in config.json; absent if it is not there.
  std::optional<bool> Flag(std::string_view key) const;

  // The width of the model's hidden states that it reads; `absent` if it does not say so.
  absl::StatusOr<int32_t> TargetHidden(const Checkpoint& file, int32_t absent) const;

  // The size of its own vocabulary; `absent` if it does not say so. INVALID_ARGUMENT above `vocab`.
  absl::StatusOr<int32_t> DraftVocab(const Checkpoint& file, int64_t absent, int32_t vocab) const;

  // The configuration of a network that guesses a block at once.
  struct Block {
    int32_t rows = 0;  // at most 64, the last token among them
    TokenId mask = kNoToken;
    std::vector<int32_t> features;  // DraftTraits::features
    // Whether each layer's rows see the rows of their block in order; otherwise they see all of it.
    std::vector<bool> in_order;
    std::optional<float> embedding_scale;  // of the model's table; absent: the model's own
    float logit_scale = 1.0f;
    float logit_softcap = 0.0f;
  };
  // `model`: the one that it is for; `layers`: the network's. UNIMPLEMENTED for variants of DFlash,
  // by name.
  absl::StatusOr<Block> ReadBlock(const Checkpoint& file, const ModelSpec& model,
                                  const ModelSpec& layers) const;

  // The model's layers whose input it reads, `count` of them (DraftTraits::features). Without a
  // list three of them are the third, the middle one and the third from the end, as in EAGLE-3's
  // own code.
  absl::StatusOr<std::vector<int32_t>> Features(const Checkpoint& file, int32_t count,
                                                int32_t n_layers) const;

 private:
  const nlohmann::json* Nested() const;  // "eagle_config"; nullptr: there is none

  bool is_block_ = false;
  std::shared_ptr<const nlohmann::json> json_;  // with the layer's keys at the top
};

}  // namespace heddle::engine
