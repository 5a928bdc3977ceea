// The decoder chain of a tokenizer, split into its effect on each token (computed once per
// vocabulary entry when the tokenizer is loaded) and its effect on the text as a whole, so that a
// stream of tokens decodes at the cost of copying bytes.
//
// Source: the decoders of the Hugging Face `tokenizers` library, with one difference: each
// ill-formed part of a byte run that is not UTF-8 becomes one U+FFFD for every kind of tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::engine::text {

struct DecodeStep {
  enum class Kind {
    kByteLevel,     // byte alphabet to bytes; a token outside the alphabet stays
    kByteFallback,  // <0xNN> to its byte
    kReplace,       // every `from` by `to`
    kWordPiece,  // without `from` at its begin, or else behind a space; start 1: the space before
                 // punctuation is dropped
    kStrip,      // up to `start` copies of `from` from the left, `stop` from the right
  };
  Kind kind;
  std::string from;
  std::string to;
  int32_t start = 0;
  int32_t stop = 0;
};

struct TokenDecoder {
  std::vector<DecodeStep> steps;  // applied to each token

  std::string separator;         // between two tokens
  std::string strip_left;        // dropped from the left of the text
  int32_t strip_left_count = 0;  // at most so many times
  std::string drop_in_first;     // Metaspace: dropped from the first token before the steps

  // The bytes of one token. `is_first`: it begins its text.
  std::string Apply(std::string_view token, bool is_first) const;
};

// SentencePiece: U+2581 means a space, <0xNN> a byte; `strip_space` drops the space that encoding
// put in front of the text.
TokenDecoder SentencePieceDecoder(bool strip_space);
TokenDecoder ByteLevelDecoder();

}  // namespace heddle::engine::text
