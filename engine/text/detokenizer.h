// Turns a stream of tokens into a stream of text, token by token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/ids.h"

namespace heddle::engine::text {

class Tokenizer;

// For any sequence of tokens, the texts of all Append calls and of Flush, concatenated, are
// Tokenizer::Decode of the sequence. Each of them is well-formed UTF-8: the bytes of an unfinished
// code point wait for the tokens that complete it, and ill-formed ones become U+FFFD as soon as
// they are known to be.
//
// Amortised O(bytes of the token). Holds at most three bytes of text.
// Ownership: keeps a pointer to the tokenizer, which must outlive it. Thread-safety: none.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special);

  // The text that `token` completes, which may be empty. Valid until the next call.
  std::string_view Append(TokenId token);

  // The rest if no token follows. Valid until the next call; the object then starts afresh.
  std::string_view Flush();

 private:
  void Feed(std::string_view bytes);
  void DropLeft(std::string_view* bytes);
  void EmitComplete();

  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool at_start_ = true;     // no token has contributed yet
  int32_t strips_left_ = 0;  // copies of the decoder's prefix still to be dropped
  std::string pending_;      // bytes of an incomplete code point
  std::string ready_;
};

}  // namespace heddle::engine::text
