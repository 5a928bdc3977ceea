// Turns a stream of tokens into a stream of text, a token at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/step.h"

namespace heddle::engine::text {

class Tokenizer;

// For any sequence of tokens, the texts that Append returned and the one of Flush, put together,
// are Tokenizer::Decode of the sequence. Each of them is well-formed UTF-8: the bytes of an
// unfinished code point wait for the tokens that finish it, ill-formed ones become U+FFFD as soon
// as that is certain.
//
// Amortised O(bytes of the token). Holds at most three bytes of text.
// Ownership: keeps a pointer to the tokenizer, which must outlive it. Thread-safety: none.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special);

  // The text that `token` completes, often all of it, sometimes none. Valid until the next call.
  std::string_view Append(TokenId token);

  // What is left when no token follows. Valid until the next call; then the object starts afresh.
  std::string_view Flush();

 private:
  void Feed(std::string_view bytes);
  void DropLeft(std::string_view* bytes);
  void EmitComplete();

  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool at_start_ = true;     // no token has contributed yet
  int32_t strips_left_ = 0;  // how many more copies of the decoder's prefix are dropped
  std::string pending_;      // bytes that are no complete code point yet
  std::string ready_;
};

}  // namespace heddle::engine::text
