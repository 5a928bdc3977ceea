// The tokens that two tokenizers have in common, and what stands for the others: how a draft model
// of another tokenizer reads and guesses the tokens of the model that it drafts for.
//
// Tokens are the same if they add the same bytes to a text. A token that only the model has is read
// as the draft model's longest token with which its bytes end, and is never guessed.
// Source: Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
// for Heterogeneous Vocabularies", ICML 2025 (token-level intersection).
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ids.h"

namespace heddle::engine::text {
class Tokenizer;
}

namespace heddle::engine {

struct CommonTokens {
  // [vocab of the model] the draft model's token that each is read as, and guessed by if it can be.
  std::vector<TokenId> draft_ids;
  // Bit mask [ceil(vocab of the model / 32)]: the tokens that can be guessed. No two of them have
  // the same draft token.
  std::vector<uint32_t> guessable;
  int32_t num_guessable = 0;
};

// A tokenizer with the number of rows of its model's embedding, beyond which its ids are ignored.
struct TokensOfModel {
  const text::Tokenizer& tokenizer;
  int32_t vocab = 0;
};

// The model's first EOS is the draft model's. Other control tokens are the same if their texts are;
// if not, BOS is read as BOS, and what ends an answer as EOS. Time: a few look-ups for each
// token.
CommonTokens FindCommonTokens(const TokensOfModel& draft, const TokensOfModel& target);

}  // namespace heddle::engine
