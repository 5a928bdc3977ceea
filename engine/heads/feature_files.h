// Reads what the files of EAGLE and DFlash networks have in common: layers with the names of
// transformers' decoders behind another prefix, tables of their own or the model's, and the rule
// that every tensor has a place. Private to engine/heads.
// Thread-safety: functions without state.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/heads/eagle_config.h"
#include "engine/heads/feature_draft.h"
#include "engine/heads/token_map.h"

namespace heddle::engine {

// Where the parts of a network are in its file.
struct FeatureLayout {
  std::string layers;  // prefix of layer {}
  std::string top;     // prefix of everything else
  bool is_gguf = false;

  std::string Layer0(const std::string& name) const;
  std::string Top(const std::string& name) const { return top + name; }
};

// The first of the names that the file has; empty: none.
std::string FirstOf(const Checkpoint& file, std::initializer_list<std::string> names);

// The layers as those of an ordinary decoder, of `family` where the configuration names none, with
// this file's names. Which of them have biases follows from the tensors. Not for GGUF.
absl::StatusOr<ModelDescription> ReadFeatureLayers(const Checkpoint& file,
                                                   const EagleConfig& config,
                                                   const FeatureLayout& layout,
                                                   std::string_view family);

// Reads embedding, head and the map of the draft vocabulary to `draft`, whose layers are known, and
// whose size of the model's vocabulary is right. INVALID_ARGUMENT if they do not fit together or to
// `model`.
absl::Status ReadFeatureTables(const Checkpoint& file, const EagleConfig& config,
                               const FeatureLayout& layout, const ModelDescription& model,
                               FeatureDraft* draft);

// INVALID_ARGUMENT unless the network reads hidden states of the model's size and is for a
// vocabulary of its size.
absl::Status CheckFeatureSizes(const Checkpoint& file, const EagleConfig& config,
                               const ModelDescription& model, FeatureDraft* draft);

// UNIMPLEMENTED, naming `known` networks, if a tensor of the file has no place in the network: it
// belongs to a variant that would be run wrongly.
absl::Status CheckAllUsed(const Checkpoint& file, const FeatureDraft& draft,
                          std::string_view known);

}  // namespace heddle::engine
