// RWKV's "World" vocabularies: byte strings, of which the longest that the text goes on with is the
// next token, and no merges. Source: BlinkDL's rwkv_vocab_v20230424.txt and its reader.
// Internal to engine/text. Thread-safety: pure functions; models are immutable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/byte_trie.h"
#include "engine/text/model.h"
#include "engine/text/tokenizer_parts.h"

namespace heddle::engine::text {

// Always the longest token; bytes with which no token begins are left out.
class LongestMatch final : public Model {
 public:
  explicit LongestMatch(std::vector<ByteTrie::Entry> tokens)
      : trie_(ByteTrie::Build(std::move(tokens))) {}
  void EncodeWord(std::string_view word, ModelScratch* scratch,
                  std::vector<TokenId>* out) const override;

 private:
  const ByteTrie trie_;
};

// The bytes that an escaped text stands for, as Python writes them between quotes: \t, \n, \r,
// \xNN, and \ before any other character that means itself. With `is_text`, \uNNNN and \UNNNNNNNN
// are code points, and so is \xNN. nullopt if an escape is not complete, or stands for no code
// point.
std::optional<std::string> Unescape(std::string_view text, bool is_text);

struct WorldToken {
  TokenId id = -1;
  std::string bytes;
};

// Makes a tokenizer of byte strings, whose ids are below `limit`. The token 0 ends texts, is none
// of them, and has no name yet. INVALID_ARGUMENT for an id beyond the limit or one that another
// token has, and for a token above kMaxTriedBytes.
absl::StatusOr<TokenizerParts> BuildWorld(const std::vector<WorldToken>& tokens, int64_t limit,
                                          const std::string& place);

// Reads lines of an id, a token as Python writes a string or bytes, and the number of its bytes.
// The token 0 has the name that fla-hub gives it, "<|rwkv_tokenizer_end_of_text|>".
// INVALID_ARGUMENT, with the line, for any other line, and as BuildWorld; ids may leave out a
// thousand.
absl::StatusOr<TokenizerParts> ParseWorldVocabulary(std::string_view text,
                                                    const std::string& place);

}  // namespace heddle::engine::text
