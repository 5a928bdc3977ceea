// WordPiece: a word is cut from its left into the longest tokens of the vocabulary, those behind
// the first with a prefix ("##") in front; a word for which that fails is one unknown token.
// Source: Schuster & Nakajima 2012; the `tokenizers` library's models::wordpiece.
// Thread-safety: immutable after construction.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/byte_trie.h"
#include "engine/text/model.h"

namespace heddle::engine::text {

struct WordPieceOptions {
  TokenId unk_id = -1;
  std::string prefix = "##";
  int32_t max_word_chars = 100;  // a word with more code points is unknown
};

class WordPiece final : public Model {
 public:
  // `tokens`: texts and ids of the vocabulary.
  WordPiece(const std::vector<std::pair<std::string_view, TokenId>>& tokens,
            WordPieceOptions options);

  void EncodeWord(std::string_view word, ModelScratch* scratch,
                  std::vector<TokenId>* out) const override;

 private:
  const WordPieceOptions options_;
  ByteTrie first_;   // tokens at the begin of a word
  ByteTrie others_;  // those behind, without the prefix
};

}  // namespace heddle::engine::text
