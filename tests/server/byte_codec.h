// A TextCodec without a model: a token is a byte, and a few special tokens follow, so that a test
// reads what it wrote.
#pragma once

#include "engine/grammar/grammar_compiler.h"
#include "server/text/text_codec.h"

namespace heddle::test {

using engine::TokenId;

inline constexpr TokenId kBos = 256;   // "<s>"
inline constexpr TokenId kEos = 257;   // "<|end|>"
inline constexpr TokenId kTurn = 258;  // "<|turn|>"
inline constexpr TokenId kNull = 259;  // not special, and of no bytes
inline constexpr int32_t kByteVocab = 260;

std::vector<TokenId> Bytes(std::string_view text);

// Chats become "<s><|turn|>role\ncontent" per message, then "<|turn|>tools\n" with the tools' JSON,
// "<|turn|>kwargs\n" with theirs, and "<|turn|>assistant\n", and "<think>\n" where
// enable_thinking is set.
class ByteCodec : public server::TextCodec {
 public:
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              bool add_special) const override;
  absl::StatusOr<std::vector<TokenId>> EncodeChat(const server::ChatPrompt& prompt) const override;
  std::unique_ptr<server::TokenStream> NewStream(bool after_text,
                                                 server::KeptTokens kept) const override;
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const override;
  std::string TokenBytes(TokenId token) const override;
  int32_t vocab() const override { return kByteVocab; }
  std::span<const TokenId> end_tokens() const override { return end_tokens_; }

  bool has_chat_template() const override { return has_template; }
  bool knows_tools() const override { return has_tools; }

  // Hermes calls and <think>, unless a test says otherwise.
  const server::OutputSyntax& syntax() const override { return output_syntax; }

  engine::grammar::GrammarCompiler& grammars() const override { return grammars_; }

  // kBos, kTurn and kNull are prefix, suffix and middle.
  std::optional<server::FillTokens> fill_tokens() const override {
    return fills ? std::optional(server::FillTokens{kBos, kTurn, kNull}) : std::nullopt;
  }

  bool fills = true;
  bool has_template = true;
  bool has_tools = true;
  server::OutputSyntax output_syntax = server::SyntaxOf("<tool_call> </think>");

 private:
  static engine::grammar::Vocabulary MakeVocabulary();

  std::vector<TokenId> end_tokens_ = {kEos};
  mutable engine::grammar::GrammarCompiler grammars_{MakeVocabulary, {kEos}};
};

}  // namespace heddle::test
