// The tokenizer of BERT's vocabulary as GGUF files keep it: tokens at the begin of a word have
// U+2581 in front, those behind have nothing, where other files have nothing and "##". Internal to
// engine/text. Thread-safety: pure function.
//
// The format does not say whether texts are put into lower case; the vocabulary does.
// Source: llama.cpp's converter for `tokenizer.ggml.model` "bert".
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/ids.h"
#include "engine/text/tokenizer_parts.h"

namespace heddle::engine::text {

struct WordPieceEntry {
  std::string_view text;  // UTF-8
  bool is_special = false;
};

// Ids that the file gives; -1: it gives none, and the token of the usual text counts.
struct WordPieceIds {
  TokenId begin = -1;    // [CLS]
  TokenId end = -1;      // [SEP]
  TokenId unknown = -1;  // [UNK]
};

// INVALID_ARGUMENT with a message that begins with `place` if a text appears twice or one of the
// three tokens is missing.
absl::StatusOr<TokenizerParts> BuildGgufWordPiece(std::span<const WordPieceEntry> entries,
                                                  WordPieceIds ids, const std::string& place);

}  // namespace heddle::engine::text
