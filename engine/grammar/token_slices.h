// A vocabulary's tokens sorted by the characters of one set that they begin with. At a position
// that reads any sequence of these characters, nearly all tokens consist of them alone, and which
// are allowed depends only on how many characters may come. For the others only the rest behind
// those characters has to be checked, and there are few different rests. A mask within a JSON
// string so takes a copy of bits and some hundred steps of a grammar, instead of a walk over all
// tokens.
// Sources: Moskal et al., LLGuidance (slices of the vocabulary); Dong et al., "XGrammar", 2024.
//
// Thread-safety: immutable.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/grammar/code_points.h"
#include "engine/grammar/utf8_lowering.h"
#include "engine/grammar/vocabulary.h"

namespace heddle::engine::grammar {

// The UTF-8 encodings of a set's characters as an automaton: state 0 is before the first byte.
class CharacterBytes {
 public:
  static constexpr int32_t kWhole = 1;  // the state behind the last byte
  static constexpr int32_t kNone = -1;

  explicit CharacterBytes(const CodePointSet& chars);
  std::span<const ByteEdge> edges(int32_t state) const { return states_[state].bytes; }
  int32_t Next(int32_t state, uint8_t byte) const;  // or kNone
  const std::bitset<256>& first_bytes() const { return first_bytes_; }
  size_t heap_bytes() const {
    return states_.size() *
           (sizeof(ByteState) + sizeof(std::vector<int32_t>) + 256 * sizeof(int32_t));
  }

 private:
  std::vector<ByteState> states_;
  std::vector<std::vector<int32_t>> next_;  // [states][256]
  std::bitset<256> first_bytes_;
};

class TokenSlices {
 public:
  // Null if so many tokens are only partly of the set that slices would not help.
  static std::shared_ptr<const TokenSlices> Make(const CodePointSet& chars,
                                                 const Vocabulary& vocabulary);

  const CodePointSet& chars() const { return chars_; }
  bool MayBegin(uint8_t byte) const { return first_bytes_[byte]; }
  const std::bitset<256>& first_bytes() const { return first_bytes_; }

  // The most characters of the set that any token begins with.
  int32_t max_length() const { return static_cast<int32_t>(rest_of_.size()) - 1; }
  // Allows the tokens that consist of 1 to `length` characters of the set, and no others.
  void AllowUpTo(int32_t length, TokenMask* mask) const;

  // The other tokens whose first byte may begin a character of the set: the rests behind the first
  // `length` characters, of tokens that begin with exactly that many;
  const TokenTrie& rests() const { return rests_; }
  TokenTrie::Range rest(int32_t length) const { return rest_of_[static_cast<size_t>(length)]; }
  // and their whole texts.
  const TokenTrie& mixed() const { return mixed_; }

 private:
  class Sorter;
  struct Dense {
    int32_t length;
    TokenMask mask;  // tokens of up to `length` characters
  };

  TokenSlices() = default;
  void SetPure(std::vector<std::vector<TokenId>> by_length, const Vocabulary& vocabulary);

  CodePointSet chars_;
  std::bitset<256> first_bytes_;
  std::vector<TokenId> pure_;         // by length
  std::vector<uint32_t> pure_begin_;  // [max_length + 2]: into pure_
  std::vector<Dense> dense_;          // by length
  TokenTrie rests_;
  std::vector<TokenTrie::Range> rest_of_;  // [max_length + 1]
  TokenTrie mixed_;
};

}  // namespace heddle::engine::grammar
