// The tokens of a vocabulary by how they begin with characters of one set. In a place that reads
// any characters of the set, one after the other, nearly all tokens are of these alone, and which
// are allowed follows from how many characters may come; of the others only the rest behind those
// characters has to be looked at, and few rests differ. So a mask within a string of JSON takes a
// copy of bits and some hundred steps of a grammar, in place of a walk over all tokens.
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

 private:
  std::vector<ByteState> states_;
  std::vector<std::vector<int32_t>> next_;  // [states][256]
  std::bitset<256> first_bytes_;
};

class TokenSlices {
 public:
  // Null if so many tokens are of the set in part only that this would be of no use.
  static std::shared_ptr<const TokenSlices> Make(const CodePointSet& chars,
                                                 const Vocabulary& vocabulary);

  const CodePointSet& chars() const { return chars_; }
  bool MayBegin(uint8_t byte) const { return first_bytes_[byte]; }
  const std::bitset<256>& first_bytes() const { return first_bytes_; }

  // Most characters of the set that a token begins with.
  int32_t max_length() const { return static_cast<int32_t>(rest_of_.size()) - 1; }
  // Allows the tokens of 1 to `length` characters of the set and nothing else.
  void AllowUpTo(int32_t length, TokenMask* mask) const;

  // Of all other tokens whose first byte may be one of the set's:
  // what follows the first `length` characters, of those that begin with just so many;
  const TokenTrie& rests() const { return rests_; }
  TokenTrie::Range rest(int32_t length) const { return rest_of_[static_cast<size_t>(length)]; }
  // the whole texts.
  const TokenTrie& mixed() const { return mixed_; }

 private:
  class Sorter;
  struct Dense {
    int32_t length;
    TokenMask mask;  // of up to so many characters
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
