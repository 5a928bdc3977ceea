// The tokens of a model as texts, in the order in which a grammar looks at them: tries over their
// bytes, laid out depth first, so that tokens with one beginning share the work for it and a
// refused beginning skips all of them.
//
// Thread-safety: immutable. Size: about 12 bytes per node, two nodes per token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/step.h"

namespace heddle::engine::grammar {

// [mask_words]: bit `id % 32` of word `id / 32` says whether token `id` is allowed.
using TokenMask = std::vector<uint32_t>;

inline bool IsAllowed(const TokenMask& mask, TokenId id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

class TokenTrie {
 public:
  struct Node {
    uint8_t byte;
    uint16_t depth;  // bytes from the root to here, this one included
    TokenId token;   // that ends here, or -1
    uint32_t end;    // one past the last node below this one
  };
  // `tokens` are sorted by text and not empty texts.
  struct Entry {
    std::string_view text;
    TokenId id;
  };
  explicit TokenTrie(std::span<const Entry> tokens);

  std::span<const Node> nodes() const { return nodes_; }  // without the root
  int32_t max_depth() const { return max_depth_; }
  // Whether some token begins with `text` and is longer.
  bool HasLonger(std::string_view text) const;

 private:
  std::vector<Node> nodes_;
  int32_t max_depth_ = 0;
};

class Vocabulary {
 public:
  // The tokens that the model's tokenizer writes a text with, in the middle of a text; empty where
  // their bytes are not just these. Any thread.
  using Encoder = std::function<std::vector<TokenId>(std::string_view text)>;

  // `text_of(id)`: the bytes that token `id` of [0, size) stands for within a text; empty for one
  // that is no text (control tokens, holes) and that no grammar allows. Without `encode` no token
  // is ever forced (Matcher::Forced).
  Vocabulary(int32_t size, const std::function<std::string_view(TokenId)>& text_of,
             Encoder encode = nullptr);

  int32_t size() const { return static_cast<int32_t>(texts_begin_.size()) - 1; }
  int32_t mask_words() const { return (size() + 31) / 32; }
  std::string_view text(TokenId id) const {
    return std::string_view(texts_).substr(texts_begin_[id],
                                           texts_begin_[id + 1] - texts_begin_[id]);
  }
  const TokenTrie& trie() const { return trie_; }
  // Of tokens longer than Automaton::kSightBytes only.
  const TokenTrie& long_tokens() const { return long_; }
  // The next token with the same text, or -1.
  TokenId next_alike(TokenId id) const { return alike_[id]; }
  // Sets the bits of a token and of those with the same text.
  void Allow(TokenId id, TokenMask* mask) const {
    for (; id >= 0; id = alike_[id]) {
      (*mask)[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
    }
  }
  TokenMask EmptyMask() const { return TokenMask(static_cast<size_t>(mask_words()), 0); }
  // By the tokenizer; empty: it has no tokens for exactly this text.
  std::vector<TokenId> Encode(std::string_view text) const;

 private:
  Encoder encode_;
  std::string texts_;
  std::vector<uint32_t> texts_begin_;  // [size + 1]
  std::vector<TokenId> alike_;         // [size]
  TokenTrie trie_{{}};
  TokenTrie long_{{}};
};

}  // namespace heddle::engine::grammar
