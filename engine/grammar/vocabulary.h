// A model's tokens as texts in the order in which a grammar looks at them: tries over their bytes,
// laid out depth first, so that tokens with a common prefix share the work for it, and a refused
// prefix skips all of them.
//
// Thread-safety: immutable except for the slices that Slices remembers, which any thread may ask
// for. Size: about 12 bytes per node, two nodes per token.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/code_points.h"
#include "engine/ids.h"

namespace heddle::engine::grammar {

// [mask_words]: bit `id % 32` of word `id / 32` says whether token `id` is allowed.
using TokenMask = std::vector<uint32_t>;

inline bool IsAllowed(const TokenMask& mask, TokenId id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}
inline void Allow(std::span<const TokenId> tokens, TokenMask* mask) {
  for (TokenId id : tokens) (*mask)[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
}
inline void Allow(const TokenMask& other, TokenMask* mask) {
  for (size_t w = 0; w < other.size(); ++w) (*mask)[w] |= other[w];
}

class TokenTrie {
 public:
  struct Node {
    uint8_t byte;
    uint16_t depth;        // bytes from the root to here, inclusive
    uint32_t first_token;  // first token that ends here or below
    uint32_t end;          // one past the last node below this one
  };
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
    bool empty() const { return begin == end; }
  };
  struct Entry {
    std::string_view text;
    TokenId id;
  };
  TokenTrie() = default;
  // Appends a separate tree. `tokens` are sorted by text, texts are not empty; some may be equal.
  // Returns its nodes.
  Range Append(std::span<const Entry> tokens);

  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  Range all() const { return {0, static_cast<uint32_t>(nodes_.size() - 1)}; }
  Range below(uint32_t node) const { return {node + 1, nodes_[node].end}; }
  // tokens: those that end at the node. all_tokens: those that end at it or below.
  std::span<const TokenId> tokens(uint32_t node) const { return TokensOf(node, node + 1); }
  std::span<const TokenId> all_tokens(uint32_t node) const {
    return TokensOf(node, nodes_[node].end);
  }
  int32_t max_depth() const { return max_depth_; }
  size_t bytes() const { return nodes_.size() * sizeof(Node) + tokens_.size() * sizeof(TokenId); }
  // Whether some token is longer than `text` and begins with it. REQUIRES: appended to once.
  bool HasLonger(std::string_view text) const;
  // The tokens that `text` begins with, and those that begin with it. REQUIRES: as above.
  std::vector<TokenId> BeginningsOf(std::string_view text) const;
  std::span<const TokenId> BeginningWith(std::string_view text) const;

 private:
  std::span<const TokenId> TokensOf(uint32_t begin, uint32_t end) const {
    return {tokens_.data() + nodes_[begin].first_token, tokens_.data() + nodes_[end].first_token};
  }

  std::vector<Node> nodes_ = {{0, 0, 0, 0}};  // without roots; then one that ends the tokens
  std::vector<TokenId> tokens_;
  int32_t max_depth_ = 0;
};

class TokenSlices;

class Vocabulary {
 public:
  // Encodes a text as the model's tokenizer does it in the middle of a text; empty if the tokens'
  // bytes are not exactly the text. Called from any thread.
  using Encoder = std::function<std::vector<TokenId>(std::string_view text)>;

  // `text_of(id)`: the bytes that token `id` of [0, size) stands for within a text; empty for one
  // that has no text (control tokens, holes), which no grammar allows. Without `encode` no token is
  // ever forced (Matcher::Forced).
  Vocabulary(int32_t size, const std::function<std::string_view(TokenId)>& text_of,
             Encoder encode = nullptr);
  ~Vocabulary();
  Vocabulary(Vocabulary&&) noexcept;

  int32_t size() const { return static_cast<int32_t>(texts_begin_.size()) - 1; }
  int32_t mask_words() const { return (size() + 31) / 32; }
  std::string_view text(TokenId id) const {
    return std::string_view(texts_).substr(texts_begin_[id],
                                           texts_begin_[id + 1] - texts_begin_[id]);
  }
  // Flags of the characters in a token that matter for values of JSON.
  enum JsonParts : uint8_t {
    kQuote = 1,
    kTwoQuotes = 2,
    kThreeQuotes = 4,
    kComma = 8,
    kOpens = 16,
    kCommaBehindQuote = 32,
    kBeginsKey = 64  // white space and a quotation mark
  };
  // The tokens with certain parts, as masks.
  enum class PartSet : uint8_t {
    kQuote,
    kComma,
    kCommaBehindQuote,
    kTwoQuotesOrComma,
    kKeyOrTwoQuotesOrComma
  };
  const TokenMask& tokens_with(PartSet parts) const {
    return part_masks_[static_cast<size_t>(parts)];
  }
  // The tokens with a quotation mark that may end a string behind an escape.
  const std::vector<TokenId>& escaped_end_tokens() const { return escaped_end_tokens_; }
  // The tokens with at least three quotation marks, or with a bracket that opens and a comma.
  const std::vector<TokenId>& many_part_tokens() const { return many_part_tokens_; }
  // Those of them with a quotation mark.
  const std::vector<TokenId>& many_part_ends() const { return many_part_ends_; }
  const TokenTrie& trie() const { return trie_; }
  // The trie of tokens longer than Automaton::kSightBytes.
  const TokenTrie& long_tokens() const { return long_; }
  // The tokens sorted by the characters of a set that they begin with; the last sets are
  // remembered. Null if too many tokens are only partly of the set. Cost: some 2 ms the first time.
  std::shared_ptr<const TokenSlices> Slices(const CodePointSet& chars) const;
  TokenMask EmptyMask() const { return TokenMask(static_cast<size_t>(mask_words()), 0); }
  // The tokenizer's tokens; empty if it has none for exactly this text.
  std::vector<TokenId> Encode(std::string_view text) const;

 private:
  Encoder encode_;
  std::string texts_;
  std::vector<uint32_t> texts_begin_;    // [size + 1]
  std::array<TokenMask, 5> part_masks_;  // by PartSet
  std::vector<TokenId> many_part_tokens_, many_part_ends_, escaped_end_tokens_;
  TokenTrie trie_;
  TokenTrie long_;
  struct SliceCache;
  std::unique_ptr<SliceCache> slices_;
};

}  // namespace heddle::engine::grammar
