// A SentencePiece vocabulary from either file (tokenizer.model, GGUF of the kind `llama`), and the
// tokenizer built from it. Internal to engine/text.
// Source: sentencepiece `src/sentencepiece_model.proto`, `src/bpe_model.cc`,
// `src/unigram_model.cc`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/normalizer.h"
#include "engine/text/tokenizer_parts.h"

namespace heddle::engine::text {

struct SentencePieceVocabulary {
  // The values are those of the file format.
  enum class Type {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };

  std::vector<Piece> pieces;  // by id
  bool is_unigram = false;
  // User-defined pieces are cut out of the raw text like added tokens (GGUF), not out of the
  // normalised text (SentencePiece).
  bool user_defined_in_raw_text = false;
  SentencePieceRules rules;  // `user_defined` is filled in here
  TokenId unk_id = -1;
  TokenId bos_id = -1;
  TokenId eos_id = -1;
  bool add_bos = true;
  bool add_eos = false;
};

// INVALID_ARGUMENT with a message that begins with `place` if there are no pieces, a piece is not
// UTF-8, or an id is out of range.
absl::StatusOr<TokenizerParts> BuildSentencePiece(SentencePieceVocabulary vocabulary,
                                                  const std::string& place);

}  // namespace heddle::engine::text
