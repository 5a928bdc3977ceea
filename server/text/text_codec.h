// The API's only access to text: an interface to tokenizer, chat template and detokenizer, so that
// request and answer code can be tested with a byte-level double and no model.
// Thread-safety: a TextCodec is immutable and used by all I/O threads and preparing threads at
// once. A TokenStream belongs to one branch of one request, and to that connection's I/O thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ids.h"
#include "nlohmann/json_fwd.hpp"
#include "server/toolcalls/output_syntax.h"

namespace heddle::engine::grammar {
class GrammarCompiler;
}

namespace heddle::server {

using engine::TokenId;

// Turns the tokens of one continuation into text, token by token.
class TokenStream {
 public:
  virtual ~TokenStream() = default;

  // Appends what `token` completes, whole code points only; the bytes of an unfinished one wait for
  // the next token.
  virtual void Push(TokenId token, std::string* out) = 0;

  // Appends the waiting bytes as U+FFFD: no token will complete them.
  virtual void Finish(std::string* out) = 0;
};

// The special tokens that have text in a stream: all of them, or those whose name is part of one of
// `marks`, which outlive the stream.
struct KeptTokens {
  std::span<const std::string_view> marks = {};
  bool all = false;
};

// The input of a chat template. The messages are checked (server/openai/chat_messages.h): contents
// are strings, "developer" has become "system", arguments of tool calls are objects.
struct ChatPrompt {
  const nlohmann::ordered_json* messages = nullptr;  // array; never null
  const nlohmann::ordered_json* tools = nullptr;     // array, or null: none
  const nlohmann::ordered_json* kwargs = nullptr;    // object of further variables, or null
  bool add_generation_prompt = true;
  bool continue_final = false;  // leave the last message open, so that the model continues it
};

// The tokens of a model trained to fill in text: PREFIX text SUFFIX text MIDDLE.
struct FillTokens {
  TokenId prefix = -1;
  TokenId suffix = -1;
  TokenId middle = -1;
};

// Two texts that a model reads as one.
struct TextPair {
  std::vector<TokenId> tokens;
  int32_t second_begin = -1;  // the first token whose type is 1; -1: none
};

class TextCodec {
 public:
  virtual ~TextCodec() = default;

  // `add_special`: with the model's begin-of-sequence token and similar ones.
  virtual absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                                      bool add_special) const = 0;

  // The tokens that Encode puts behind a text with add_special.
  virtual std::span<const TokenId> ending() const { return {}; }

  // Both texts as a cross-encoder reads them, cut to `limit` tokens: the longer one first.
  virtual absl::StatusOr<TextPair> EncodePair(std::string_view first, std::string_view second,
                                              size_t limit) const {
    absl::StatusOr<std::vector<TokenId>> tokens =
        Encode(std::string(first).append(second), /*add_special=*/true);
    if (!tokens.ok()) return tokens.status();
    if (tokens->size() > limit) tokens->resize(limit);
    return TextPair{*std::move(tokens)};
  }

  // INVALID_ARGUMENT: the template refuses these messages; the message has its own words.
  // UNIMPLEMENTED: the model has no chat template.
  virtual absl::StatusOr<std::vector<TokenId>> EncodeChat(const ChatPrompt& prompt) const = 0;

  // The text of which EncodeChat makes tokens, with its errors.
  virtual absl::StatusOr<std::string> RenderChat(const ChatPrompt& prompt) const {
    const absl::StatusOr<std::vector<TokenId>> tokens = EncodeChat(prompt);
    if (!tokens.ok()) return tokens.status();
    return Decode(*tokens, /*skip_special=*/false);
  }

  // `after_text`: the tokens follow a prompt, so that the first word's leading space is kept;
  // otherwise they begin a text. Special tokens have no text, except those of `kept`.
  virtual std::unique_ptr<TokenStream> NewStream(bool after_text, KeptTokens kept) const = 0;

  // The text of a whole sequence. `ids` are in [0, vocab()).
  virtual std::string Decode(std::span<const TokenId> ids, bool skip_special) const = 0;

  // The bytes that `token` stands for, in the middle of a text; they need not be whole code points.
  // Special tokens give their name, as in "<|im_end|>". `token` is in [0, vocab()).
  virtual std::string TokenBytes(TokenId token) const = 0;

  // If false, EncodeChat is UNIMPLEMENTED, and the model can only continue a text.
  virtual bool has_chat_template() const = 0;

  // The template's source; empty: the model has none.
  virtual std::string_view chat_template() const { return {}; }

  // Whether the chat template uses tools, and how its model writes calls and reasoning.
  virtual bool knows_tools() const = 0;
  virtual const OutputSyntax& syntax() const = 0;

  // Empty if the model has none.
  virtual std::optional<FillTokens> fill_tokens() const { return std::nullopt; }

  // Compiles constraints of answers for this vocabulary.
  virtual engine::grammar::GrammarCompiler& grammars() const = 0;

  virtual int32_t vocab() const = 0;
  // The tokens that end an answer.
  virtual std::span<const TokenId> end_tokens() const = 0;
};

}  // namespace heddle::server
