// The TextCodec of a loaded model: its tokenizer and its chat template.
//
// Thread-safety: immutable; used by all I/O threads and those that prepare requests at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/grammar/grammar_compiler.h"
#include "engine/text/jinja/chat_template.h"
#include "engine/text/tokenizer.h"
#include "server/text/text_codec.h"

namespace heddle::server {

class ModelTextCodec final : public TextCodec {
 public:
  struct Options {
    // Ids that end an answer; empty: the tokenizer's own. Ids beyond the vocabulary are left out.
    std::vector<TokenId> end_tokens;
    // Tokens for which the model has embeddings and logits; 0: as many as the tokenizer knows.
    // Further tokens of the tokenizer do not exist: a text that contains one is refused.
    int32_t vocab = 0;
    // Jinja source; empty: the tokenizer's own, if any, and if it has a tag. With a source, pairs
    // of texts are messages of the roles "query" and "document".
    std::string chat_template;
    // Its name in messages, such as its file.
    std::string template_name = "the chat template";
    // Rows of server/toolcalls/output_syntax.h by name; "auto": those that the template suggests.
    std::string tool_parser = "auto";
    std::string reasoning_parser = "auto";
    size_t grammar_cache_bytes = size_t{256} << 20;  // cache_bytes.h
  };

  // INVALID_ARGUMENT: the chat template does not parse, or a parser's name is unknown.
  static absl::StatusOr<std::unique_ptr<ModelTextCodec>> Create(
      std::unique_ptr<engine::text::Tokenizer> tokenizer, const Options& options);

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              bool add_special) const override;
  std::span<const TokenId> ending() const override { return tokenizer_->suffix(); }
  absl::StatusOr<TextPair> EncodePair(std::string_view first, std::string_view second,
                                      size_t limit) const override;
  absl::StatusOr<std::vector<TokenId>> EncodeChat(const ChatPrompt& prompt) const override;
  absl::StatusOr<std::string> RenderChat(const ChatPrompt& prompt) const override;
  std::unique_ptr<TokenStream> NewStream(bool after_text, KeptTokens kept) const override;
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const override;
  std::string TokenBytes(TokenId token) const override;
  std::optional<FillTokens> fill_tokens() const override { return fill_tokens_; }
  int32_t vocab() const override { return vocab_; }
  std::span<const TokenId> end_tokens() const override { return end_tokens_; }
  bool has_chat_template() const override { return template_ != nullptr; }
  std::string_view chat_template() const override;
  bool knows_tools() const override;
  const OutputSyntax& syntax() const override { return syntax_; }
  engine::grammar::GrammarCompiler& grammars() const override { return *grammars_; }

  const engine::text::Tokenizer& tokenizer() const { return *tokenizer_; }

  // Warnings to an operator about a tokenizer and a model that do not fit, or a chat template that
  // is none; one sentence each.
  std::vector<std::string> Warnings() const;

 private:
  ModelTextCodec(std::unique_ptr<engine::text::Tokenizer> tokenizer,
                 std::unique_ptr<engine::text::ChatTemplate> chat_template, OutputSyntax syntax,
                 const Options& options);

  engine::grammar::Vocabulary MakeVocabulary() const;
  // Two texts in their places of PairTemplate::text.
  absl::StatusOr<TextPair> EncodeInText(std::string_view around, std::string_view first,
                                        std::string_view second, size_t limit) const;
  bool IsKnown(TokenId token) const { return token >= 0 && token < vocab_; }
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const;

  std::shared_ptr<const engine::text::Tokenizer> tokenizer_;  // grammars may outlive the codec
  std::unique_ptr<engine::text::ChatTemplate> template_;      // null: the model has none
  std::string template_name_;  // what the model has in a template's place; empty: nothing
  const bool pairs_by_template_;
  OutputSyntax syntax_;
  int32_t vocab_;
  TokenId plain_token_;  // a token with plain text, which moves a detokenizer past its start
  std::vector<TokenId> end_tokens_;
  std::vector<TokenId> unknown_ends_;  // end tokens without logits in the model
  std::optional<FillTokens> fill_tokens_;
  std::unique_ptr<engine::grammar::GrammarCompiler> grammars_;
};

}  // namespace heddle::server
