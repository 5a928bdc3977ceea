// A draft model: a smaller model of the same vocabulary that guesses the next tokens of a larger
// one. Any family and weight format that the loader reads will do.
// Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
// Decoding", ICML 2023.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/model/draft_network.h"

namespace heddle::engine {

// Whether texts of tokens are compared, or only the sizes of the vocabularies (for models that have
// no tokenizer).
enum class VocabularyCheck : uint8_t { kTokens, kSize };

// INVALID_ARGUMENT, with the first difference, unless both models have the same tokens: the same
// BOS and EOS, and equal texts of all ids from 5 on, but for at most 128 ids at the end that only
// one of them has (files are padded differently). Otherwise as LoadModel.
absl::StatusOr<std::unique_ptr<DraftSource>> OpenDraftModel(
    const std::filesystem::path& path, const Checkpoint& target, const ModelDescription& model,
    VocabularyCheck check = VocabularyCheck::kTokens);

}  // namespace heddle::engine
