#include "server/text/model_text_codec.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/detokenizer.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

using engine::text::ChatTemplate;
using engine::text::EncodeOptions;
using engine::text::IncrementalDetokenizer;
using engine::text::Tokenizer;
using nlohmann::ordered_json;

class ModelTokenStream final : public TokenStream {
 public:
  // `before`: a token whose text came before, or -1.
  ModelTokenStream(const Tokenizer* tokenizer, TokenId before)
      : detokenizer_(tokenizer, /*skip_special=*/true) {
    if (before >= 0) detokenizer_.Append(before);
  }
  void Push(TokenId token, std::string* out) override { out->append(detokenizer_.Append(token)); }
  void Finish(std::string* out) override { out->append(detokenizer_.Flush()); }

 private:
  IncrementalDetokenizer detokenizer_;
};

// The first token that is a lone letter or digit; every vocabulary has one.
TokenId FindPlainToken(const Tokenizer& tokenizer) {
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string_view bytes = tokenizer.TokenBytes(id);
    bool plain = bytes.size() == 1 && std::isalnum(static_cast<unsigned char>(bytes[0])) != 0;
    if (plain && !tokenizer.IsSpecial(id)) return id;
  }
  return -1;
}

std::string TokenTextOr(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id.has_value() ? std::string(tokenizer.TokenText(*id)) : std::string();
}

// The variables of a template as transformers' apply_chat_template sets them.
ordered_json TemplateContext(const ChatPrompt& prompt, const Tokenizer& tokenizer) {
  ordered_json context = ordered_json::object();
  context["bos_token"] = TokenTextOr(tokenizer, tokenizer.bos_id());
  const std::vector<TokenId>& ends = tokenizer.eos_ids();
  context["eos_token"] =
      TokenTextOr(tokenizer, ends.empty() ? std::nullopt : std::optional<TokenId>(ends.front()));
  if (prompt.kwargs != nullptr) {
    for (auto it = prompt.kwargs->begin(); it != prompt.kwargs->end(); ++it) {
      context[it.key()] = *it;
    }
  }
  context["messages"] = *prompt.messages;
  context["tools"] = prompt.tools == nullptr ? ordered_json(nullptr) : *prompt.tools;
  context["add_generation_prompt"] = prompt.add_generation_prompt;
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelTextCodec>> ModelTextCodec::Create(
    std::unique_ptr<Tokenizer> tokenizer, Options options) {
  std::string source =
      options.chat_template.empty() ? tokenizer->chat_template() : options.chat_template;
  std::unique_ptr<ChatTemplate> chat_template;
  if (!source.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(chat_template, ChatTemplate::Parse(std::move(source)));
  }
  return std::unique_ptr<ModelTextCodec>(
      new ModelTextCodec(std::move(tokenizer), std::move(chat_template), std::move(options)));
}

ModelTextCodec::ModelTextCodec(std::unique_ptr<Tokenizer> tokenizer,
                               std::unique_ptr<ChatTemplate> chat_template, Options options)
    : tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      end_tokens_(options.end_tokens.empty() ? tokenizer_->eos_ids()
                                             : std::move(options.end_tokens)),
      vocab_(std::max(options.vocab, tokenizer_->vocab_size())),
      plain_token_(FindPlainToken(*tokenizer_)) {}

absl::StatusOr<std::vector<TokenId>> ModelTextCodec::Encode(std::string_view text,
                                                            bool add_special) const {
  std::vector<TokenId> tokens;
  EncodeOptions options;
  options.add_special = add_special;
  HEDDLE_RETURN_IF_ERROR(tokenizer_->Encode(text, options, &tokens));
  return tokens;
}

absl::StatusOr<std::vector<TokenId>> ModelTextCodec::EncodeChat(const ChatPrompt& prompt) const {
  if (template_ == nullptr) {
    return absl::UnimplementedError(
        "the model has no chat template: use /v1/completions, or give one with --chat-template");
  }
  HEDDLE_ASSIGN_OR_RETURN(std::string text,
                          template_->Render(TemplateContext(prompt, *tokenizer_)));
  // A template writes the begin token itself.
  return Encode(text, /*add_special=*/false);
}

std::unique_ptr<TokenStream> ModelTextCodec::NewStream(bool after_text) const {
  return std::make_unique<ModelTokenStream>(tokenizer_.get(), after_text ? plain_token_ : -1);
}

std::string ModelTextCodec::Decode(std::span<const TokenId> ids, bool skip_special) const {
  return tokenizer_->Decode(ids, skip_special);
}

std::string ModelTextCodec::TokenBytes(TokenId token) const {
  std::string_view bytes = tokenizer_->TokenBytes(token);
  return std::string(bytes.empty() ? tokenizer_->TokenText(token) : bytes);
}

bool ModelTextCodec::knows_tools() const {
  return template_ != nullptr && template_->mentions("tools");
}

ToolFormat ModelTextCodec::tool_format() const {
  return template_ == nullptr ? ToolFormat::kNone : ToolFormatOf(template_->source());
}

}  // namespace heddle::server
