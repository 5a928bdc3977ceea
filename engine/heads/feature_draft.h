// Draft networks with layers of their own that read hidden states of the model, as data: EAGLE-1 to
// 3 and MTP differ in how a row's embedding and state become the layers' input, and in what is fed
// back. Private to engine/heads.
//
// For each row:
//   state = fuse(feature_norm(features)), or what the network has kept of the pass before
//   pair  = [embedding_norm(embedding), state_norm(state)]
//   stream = project(pair); without a projection, attention reads the pair, and the stream is the
//            state, normed if `stream_is_normed`
//   the layers; then logits = head(final_norm(stream)), and what is kept is the stream, normed if
//   `keeps_normed`.
// DFlash guesses a block at once (DraftTraits::mask): keys and values of the step's rows are those
// of state_norm(state), in every layer; rows of a block begin with their embedding alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/family/model_description.h"
#include "engine/ids.h"

namespace heddle::engine {

struct FeatureDraft {
  std::string kind;  // DraftTraits::kind
  // Its layers and their tensors. Names of embedding and head are empty here; the vocabulary is the
  // model's.
  ModelDescription model;
  std::vector<int32_t> features;  // DraftTraits::features
  int32_t feature_width = 0;      // of each: the model's hidden size

  // Names of tensors; empty: none.
  std::vector<std::string> feature_norms;  // none, one of all features together, or one of each
  std::string fuse;                        // [hidden, features * feature_width]
  std::string project;                     // [hidden, 2 hidden]
  std::string project_bias;                // [hidden]
  std::string embedding_norm;              // [hidden]
  std::string state_norm;                  // [hidden]
  std::string own_embedding;               // [vocab, hidden]; empty: the model's
  std::string own_head;                    // [draft vocab, hidden]; empty: the model's

  int32_t block = 0;        // rows of a block: the last token and masks; 0: one guess at a time
  TokenId mask = kNoToken;  // DraftTraits::mask

  bool stream_is_normed = false;    // EAGLE-3's norm_before_residual
  bool keeps_normed = false;        // EAGLE-3.1's norm_output; Qwen's MTP
  std::vector<TokenId> target_ids;  // DraftTraits::target_ids

  int32_t draft_vocab() const {
    return target_ids.empty() ? model.spec.vocab : static_cast<int32_t>(target_ids.size());
  }
};

}  // namespace heddle::engine
