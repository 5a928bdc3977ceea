// A draft model: a smaller model that guesses the next tokens of a larger
// one. Any family and weight format that the loader reads will do.
// Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
// Decoding", ICML 2023.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/model/common_tokens.h"
#include "engine/model/draft_network.h"

namespace heddle::engine {

// A model of the target's tokens drafts with all of them: the same BOS and EOS, and equal texts of
// all ids from 5 on, but for at most 128 ids at the end that only one of them has (files are padded
// differently). One of another tokenizer drafts with the tokens that both have (common_tokens.h).
// INVALID_ARGUMENT if these are less than a sixteenth of the smaller vocabulary. Otherwise as
// LoadModel and LoadTokenizer.
absl::StatusOr<std::unique_ptr<DraftSource>> OpenDraftModel(const std::filesystem::path& path,
                                                            const Checkpoint& target,
                                                            const ModelDescription& model);

// The same for models without a tokenizer, whose tokens are compared elsewhere. `common`: read
// during the call; nullptr if all tokens are the same. REQUIRES: `draft_ids` are below the draft
// model's vocabulary.
absl::StatusOr<std::unique_ptr<DraftSource>> OpenDraftModelAs(const std::filesystem::path& path,
                                                              const CommonTokens* common = nullptr);

}  // namespace heddle::engine
