// Opens the files of draft networks that read the model's hidden states. Formats are recognised by
// the tensors in them, since names of classes and counts in config.json are often wrong:
//   Medusa   config.json with medusa_lm_head.safetensors or model.safetensors. Any number of heads
//            and layers; with matrices to the vocabulary of their own, or with the model's (LoRAX's
//            version 2).
//   EAGLE    config.json with model.safetensors, of EAGLE-1 and 2 (one kind of network), EAGLE-3
//            and 3.1, also as the speculators library writes them; GGUF of architecture eagle3.
//   MTP      layers behind the model's own, in the model's files: of DeepSeek-V3 and GLM-4.5
//            (num_nextn_predict_layers), of Qwen (mtp.*), and GGUF's nextn. Of several, the first
//            is used for all guesses.
// Everything read is checked against the model. An error names the file, what is wrong, and what
// would fit. Tensors that are not understood are errors too: a variant of a network that is run as
// another one makes no wrong answers, but wrong guesses, which nobody would notice.
// Sources: Cai et al., "Medusa", 2024; Li et al., "EAGLE", "EAGLE-2", 2024, "EAGLE-3", 2025;
// DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/model/draft_network.h"

namespace heddle::engine {

// `target` is the checkpoint of the model that is described by `model`.
absl::StatusOr<std::unique_ptr<DraftSource>> OpenMedusa(const std::filesystem::path& path,
                                                        const ModelDescription& model);
absl::StatusOr<std::unique_ptr<DraftSource>> OpenEagle(const std::filesystem::path& path,
                                                       const Checkpoint& target,
                                                       const ModelDescription& model);
// `target` must outlive DraftSource::Load.
absl::StatusOr<std::unique_ptr<DraftSource>> OpenMtp(const Checkpoint& target,
                                                     const ModelDescription& model);

// Whether the model's files have MTP layers.
bool HasMtp(const Checkpoint& target, const ModelDescription& model);

}  // namespace heddle::engine
