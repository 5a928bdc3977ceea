// Shared code of the BPE vocabulary readers: from tokens, and merges in one of the three notations,
// to the tables that Bpe runs on. Internal to engine/text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/bpe.h"
#include "engine/text/token_table.h"

namespace heddle::engine::text {

// The 256 tokens <0xNN>; empty if any is missing.
std::vector<TokenId> ByteTokens(const TokenTable& tokens);

// Whether no merge crosses the border before a run of U+2581 (see NewMetaspaceBoundaries): no token
// has U+2581 behind something else, and U+2581 itself is a token.
bool HasMetaspaceBoundaries(const TokenTable& tokens);

// Fills `single` and `symbols` with every token of one code point (of the byte alphabet, if
// `byte_level`).
void IndexSymbols(const TokenTable& tokens, BpeVocabulary* vocabulary);
// Fills `whole_words` with all tokens.
void IndexWholeWords(const TokenTable& tokens, BpeVocabulary* vocabulary);

// Notation 1: ordered pairs of tokens. INVALID_ARGUMENT names the token that is not in `tokens`.
absl::Status AddMerge(const TokenTable& tokens, std::string_view left, std::string_view right,
                      uint32_t rank, MergeTable* merges);

// Notations 2 and 3: a pair merges if its concatenation is a token, by that token's rank.
struct RankedToken {
  std::string_view text;
  TokenId id;
  uint32_t rank;  // lower ones merge first; equal ones from left to right
  bool unused;    // see UnusedToken
};
// `vocabulary` has `vocab_size` and `byte_level` set, and gets its symbols. Code points that occur
// only inside tokens get ids from vocab_size on. REQUIRES: texts are UTF-8 unless `byte_level`.
Bpe BuildRankedBpe(const std::vector<RankedToken>& tokens, BpeVocabulary vocabulary);

}  // namespace heddle::engine::text
