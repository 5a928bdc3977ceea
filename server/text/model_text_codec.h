// The TextCodec of a loaded model: its tokenizer and its chat template.
//
// Thread-safety: immutable; used by all I/O threads and those that prepare requests at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/grammar/grammar_compiler.h"
#include "engine/text/template/chat_template.h"
#include "engine/text/tokenizer.h"
#include "server/openai/text_codec.h"

namespace heddle::server {

class ModelTextCodec final : public TextCodec {
 public:
  struct Options {
    // Ids that end an answer; empty: the tokenizer's own.
    std::vector<TokenId> end_tokens;
    // Tokens that the model has logits for, where that is more than the tokenizer knows.
    int32_t vocab = 0;
    // Jinja source; empty: the one that came with the tokenizer, if any.
    std::string chat_template;
    // What messages call it, such as its file.
    std::string template_name = "the chat template";
    // Rows of server/openai/output_syntax.h by name; "auto": those that the template asks for.
    std::string tool_parser = "auto";
    std::string reasoning_parser = "auto";
  };

  // INVALID_ARGUMENT: the chat template does not parse, or a parser's name is none.
  static absl::StatusOr<std::unique_ptr<ModelTextCodec>> Create(
      std::unique_ptr<engine::text::Tokenizer> tokenizer, const Options& options);

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              bool add_special) const override;
  absl::StatusOr<std::vector<TokenId>> EncodeChat(const ChatPrompt& prompt) const override;
  std::unique_ptr<TokenStream> NewStream(
      bool after_text, std::span<const std::string_view> kept_marks) const override;
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const override;
  std::string TokenBytes(TokenId token) const override;
  std::optional<FillTokens> fill_tokens() const override { return fill_tokens_; }
  int32_t vocab() const override { return vocab_; }
  std::span<const TokenId> end_tokens() const override { return end_tokens_; }
  bool knows_tools() const override;
  const OutputSyntax& syntax() const override { return syntax_; }
  engine::grammar::GrammarCompiler& grammars() const override { return *grammars_; }

  const engine::text::Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  ModelTextCodec(std::unique_ptr<engine::text::Tokenizer> tokenizer,
                 std::unique_ptr<engine::text::ChatTemplate> chat_template, OutputSyntax syntax,
                 const Options& options);

  engine::grammar::Vocabulary MakeVocabulary() const;
  absl::StatusOr<std::string> RenderChat(const ChatPrompt& prompt) const;
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const;

  std::shared_ptr<const engine::text::Tokenizer> tokenizer_;  // grammars may outlive the codec
  std::unique_ptr<engine::text::ChatTemplate> template_;      // null: the model has none
  OutputSyntax syntax_;
  std::vector<TokenId> end_tokens_;
  int32_t vocab_;
  std::optional<FillTokens> fill_tokens_;
  std::unique_ptr<engine::grammar::GrammarCompiler> grammars_;
  TokenId plain_token_;  // some token with plain text: puts a detokenizer past its start
};

}  // namespace heddle::server
