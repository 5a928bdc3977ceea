#include "server/text/model_text_codec.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
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
  // `before`: a token whose text precedes, or -1.
  ModelTokenStream(const Tokenizer* tokenizer, TokenId before, KeptTokens kept)
      : tokenizer_(tokenizer),
        kept_(kept),
        detokenizer_(tokenizer, /*skip_special=*/!kept.all && kept.marks.empty()) {
    if (before >= 0) detokenizer_.Append(before);
  }
  void Push(TokenId token, std::string* out) override {
    if (tokenizer_->IsSpecial(token) && !IsKept(token)) return;
    out->append(detokenizer_.Append(token));
  }
  void Finish(std::string* out) override { out->append(detokenizer_.Flush()); }

 private:
  bool IsKept(TokenId token) const {
    if (kept_.all) return true;
    std::string_view name = tokenizer_->TokenText(token);
    return std::any_of(kept_.marks.begin(), kept_.marks.end(), [name](std::string_view mark) {
      return mark.find(name) != std::string_view::npos;
    });
  }

  const Tokenizer* tokenizer_;
  KeptTokens kept_;
  IncrementalDetokenizer detokenizer_;
};

// The first token that is a single letter or digit; every vocabulary has one.
TokenId FindPlainToken(const Tokenizer& tokenizer) {
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string_view bytes = tokenizer.TokenBytes(id);
    bool plain = bytes.size() == 1 && std::isalnum(static_cast<unsigned char>(bytes[0])) != 0;
    if (plain && !tokenizer.IsSpecial(id)) return id;
  }
  return -1;
}

// Finds the tokens by the names in published models.
std::optional<FillTokens> FindFillTokens(const Tokenizer& tokenizer) {
  struct Names {
    std::string_view prefix, suffix, middle;
  };
  constexpr Names kNames[] = {
      {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},     // Qwen, CodeGemma
      {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},           // StarCoder, Granite
      {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"},              // Code Llama
      {"<PRE>", "<SUF>", "<MID>"},                                // its GGUF files
      {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},     // DeepSeek
      {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},  // GLM
  };
  for (const Names& names : kNames) {
    FillTokens found;
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      std::string_view text = tokenizer.TokenText(id);
      if (text == names.prefix) found.prefix = id;
      if (text == names.suffix) found.suffix = id;
      if (text == names.middle) found.middle = id;
    }
    if (found.prefix >= 0 && found.suffix >= 0 && found.middle >= 0) return found;
  }
  return std::nullopt;
}

// Whether a text's first token differs from that of the same text further on: SentencePiece puts a
// space before it.
bool ChangesBeginnings(const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens;
  EncodeOptions options;
  options.add_special = false;
  return !tokenizer.Encode("a", options, &tokens).ok() || tokens.empty() ||
         tokenizer.TokenBytes(tokens.front()) != "a";
}

// Encodes a text as in the middle of a text. If beginnings differ, it is encoded behind a line end,
// whose tokens are removed. Empty if that is impossible.
std::vector<TokenId> EncodeWithin(const Tokenizer& tokenizer, bool changes_beginnings,
                                  std::string_view text) {
  constexpr std::string_view kBefore = "\n";
  std::vector<TokenId> tokens;
  EncodeOptions options;
  options.add_special = false;
  const std::string whole = changes_beginnings ? base::StrCat(kBefore, text) : std::string(text);
  if (!tokenizer.Encode(whole, options, &tokens).ok()) return {};
  if (!changes_beginnings) return tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view bytes = tokenizer.TokenBytes(tokens[i]);
    if (bytes.find(kBefore) == std::string_view::npos) continue;
    if (!bytes.ends_with(kBefore)) return {};
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    return tokens;
  }
  return {};
}

// A text that costs too much is an invalid input and not worth sending again, unlike a full queue,
// so it is not RESOURCE_EXHAUSTED.
absl::Status AsInputError(const absl::Status& status, std::string_view prefix) {
  if (!absl::IsResourceExhausted(status) && !absl::IsInvalidArgument(status)) return status;
  return absl::InvalidArgumentError(base::StrCat(prefix, status.message()));
}

// The token as a text has it, for templates. One that is plain text, as the "\n\n" that ends RWKV's
// answers, is written otherwise in a vocabulary of bytes.
std::string TokenTextOr(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  if (!id.has_value()) return "";
  const std::string_view bytes = tokenizer.TokenBytes(*id);
  const bool is_text = !tokenizer.IsSpecial(*id) && !bytes.empty();
  return std::string(is_text ? bytes : tokenizer.TokenText(*id));
}

// Cuts both to `limit` tokens, the longer one first, as `tokenizers` truncates "longest first".
void CutLongest(size_t limit, std::vector<TokenId>* first, std::vector<TokenId>* second) {
  const bool is_longer = first->size() > second->size();
  size_t shorter = std::min(first->size(), second->size());
  size_t longer = std::max(first->size(), second->size());
  if (shorter + longer <= limit) return;
  longer = shorter > limit ? shorter : std::max(shorter, limit - shorter);
  if (shorter + longer > limit) {
    shorter = limit / 2;
    longer = shorter + limit % 2;
  }
  first->resize(is_longer ? longer : shorter);
  second->resize(is_longer ? shorter : longer);
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
    std::unique_ptr<Tokenizer> tokenizer, const Options& options) {
  std::string source =
      options.chat_template.empty() ? tokenizer->chat_template() : options.chat_template;
  // Without a tag it is a name, as converters write for programs with built-in templates; rendered,
  // every prompt would be this text.
  std::string name;
  if (options.chat_template.empty() && source.find('{') == std::string::npos) source.swap(name);
  std::unique_ptr<ChatTemplate> chat_template;
  if (!source.empty()) {
    absl::StatusOr<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Parse(std::move(source));
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          base::StrCat(options.template_name, ", ", parsed.status().message()));
    }
    chat_template = *std::move(parsed);
  }
  OutputSyntax detected =
      chat_template == nullptr ? OutputSyntax() : SyntaxOf(chat_template->source());
  HEDDLE_ASSIGN_OR_RETURN(OutputSyntax syntax,
                          OverrideSyntax(detected, options.tool_parser, options.reasoning_parser));
  std::unique_ptr<ModelTextCodec> codec(
      new ModelTextCodec(std::move(tokenizer), std::move(chat_template), syntax, options));
  codec->template_name_ = std::move(name);
  return codec;
}

ModelTextCodec::ModelTextCodec(std::unique_ptr<Tokenizer> tokenizer,
                               std::unique_ptr<ChatTemplate> chat_template, OutputSyntax syntax,
                               const Options& options)
    : tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      pairs_by_template_(!options.chat_template.empty()),
      syntax_(syntax),
      vocab_(options.vocab > 0 ? options.vocab : tokenizer_->vocab_size()),
      plain_token_(FindPlainToken(*tokenizer_)) {
  for (TokenId end : options.end_tokens.empty() ? tokenizer_->eos_ids() : options.end_tokens) {
    (IsKnown(end) ? end_tokens_ : unknown_ends_).push_back(end);
  }
  fill_tokens_ = FindFillTokens(*tokenizer_);
  if (fill_tokens_.has_value() &&
      !(IsKnown(fill_tokens_->prefix) && IsKnown(fill_tokens_->suffix) &&
        IsKnown(fill_tokens_->middle))) {
    fill_tokens_.reset();
  }
  grammars_ = std::make_unique<engine::grammar::GrammarCompiler>(
      [this] { return MakeVocabulary(); }, end_tokens_, options.grammar_cache_bytes);
}

std::vector<std::string> ModelTextCodec::Warnings() const {
  std::vector<std::string> warnings;
  if (const int32_t known = tokenizer_->vocab_size(); known > vocab_) {
    warnings.push_back(base::StrCat(
        "the tokenizer has tokens up to id ", known - 1, " and the model only up to ", vocab_ - 1,
        ": requests that name one beyond, or whose text holds one, are refused"));
  }
  for (TokenId end : unknown_ends_) {
    warnings.push_back(base::StrCat("token ", end, " is to end answers, and the model, which has ",
                                    vocab_, " tokens, can never say it"));
  }
  if (!template_name_.empty()) {
    warnings.push_back(base::StrCat("the model's chat template is ", base::Quote(template_name_),
                                    ", which is no template and no name known here: the model is "
                                    "taken to have none; give one with --chat-template"));
  }
  return warnings;
}

// Grammars may use those control tokens that mark calls and reasoning.
engine::grammar::Vocabulary ModelTextCodec::MakeVocabulary() const {
  const std::vector<std::string_view> marks = syntax_.AllMarks();
  auto encode = [tokenizer = tokenizer_, opens = ChangesBeginnings(*tokenizer_),
                 vocab = vocab_](std::string_view text) {
    std::vector<TokenId> tokens = EncodeWithin(*tokenizer, opens, text);
    const auto beyond = [vocab](TokenId token) { return token < 0 || token >= vocab; };
    if (std::any_of(tokens.begin(), tokens.end(), beyond)) tokens.clear();
    return tokens;
  };
  return {vocab_,
          [this, &marks](TokenId id) -> std::string_view {
            if (id >= tokenizer_->vocab_size()) return {};
            if (!tokenizer_->IsSpecial(id)) return tokenizer_->TokenBytes(id);
            const std::string_view name = tokenizer_->TokenText(id);
            const bool is_mark = std::any_of(marks.begin(), marks.end(), [name](auto mark) {
              return !name.empty() && mark.find(name) != std::string_view::npos;
            });
            return is_mark ? name : std::string_view();
          },
          std::move(encode)};
}

absl::StatusOr<std::vector<TokenId>> ModelTextCodec::Encode(std::string_view text,
                                                            bool add_special) const {
  std::vector<TokenId> tokens;
  EncodeOptions options;
  options.add_special = add_special;
  HEDDLE_RETURN_IF_ERROR(AsInputError(tokenizer_->Encode(text, options, &tokens), ""));
  const auto unknown = std::find_if_not(tokens.begin(), tokens.end(),
                                        [this](TokenId token) { return IsKnown(token); });
  if (unknown == tokens.end()) return tokens;
  return absl::InvalidArgumentError(base::StrCat("the text holds token ", *unknown, " (",
                                                 base::Quote(tokenizer_->TokenText(*unknown)),
                                                 "), and the model has only ", vocab_, " tokens"));
}

// Where the whole is cut, the text behind the second one stays.
absl::StatusOr<TextPair> ModelTextCodec::EncodeInText(std::string_view around,
                                                      std::string_view first,
                                                      std::string_view second, size_t limit) const {
  constexpr std::string_view kDocument = "{document}";
  TextPair pair;
  const size_t at = around.find(kDocument);
  const std::string_view head = around.substr(0, at);
  const std::string_view tail =
      at == std::string_view::npos ? std::string_view() : around.substr(at + kDocument.size());
  std::string text = base::ReplaceAll(head, "{query}", first);
  if (at != std::string_view::npos) text.append(second).append(tail);
  HEDDLE_ASSIGN_OR_RETURN(pair.tokens, Encode(text, false));
  if (pair.tokens.size() <= limit) return pair;
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<TokenId> end, Encode(tail, false));
  if (end.size() > limit) {
    return absl::InvalidArgumentError(base::StrCat(
        "two texts have ", end.size(), " tokens behind them, and ", limit, " are to be read"));
  }
  pair.tokens.resize(limit - end.size());
  pair.tokens.insert(pair.tokens.end(), end.begin(), end.end());
  return pair;
}

absl::StatusOr<TextPair> ModelTextCodec::EncodePair(std::string_view first, std::string_view second,
                                                    size_t limit) const {
  TextPair pair;
  if (pairs_by_template_) {
    const ordered_json messages = {{{"role", "query"}, {"content", std::string(first)}},
                                   {{"role", "document"}, {"content", std::string(second)}}};
    HEDDLE_ASSIGN_OR_RETURN(pair.tokens, EncodeChat({.messages = &messages}));
    if (pair.tokens.size() > limit) pair.tokens.resize(limit);
    return pair;
  }
  const engine::text::PairTemplate& around = tokenizer_->pair();
  if (!around.is_known) {
    HEDDLE_ASSIGN_OR_RETURN(pair.tokens, Encode(base::StrCat(first, second), true));
    if (pair.tokens.size() > limit) pair.tokens.resize(limit);
    return pair;
  }
  if (!around.text.empty()) return EncodeInText(around.text, first, second, limit);
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> left, Encode(first, false));
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> right, Encode(second, false));
  const size_t specials = around.before.size() + around.between.size() + around.behind.size();
  if (specials > limit) {
    return absl::InvalidArgumentError(base::StrCat(
        "two texts have ", specials, " tokens around them, and ", limit, " tokens are to be read"));
  }
  CutLongest(limit - specials, &left, &right);
  const auto add = [&pair](std::span<const TokenId> tokens) {
    pair.tokens.insert(pair.tokens.end(), tokens.begin(), tokens.end());
  };
  add(around.before);
  add(left);
  add(around.between);
  if (around.types_differ) pair.second_begin = static_cast<int32_t>(pair.tokens.size());
  add(right);
  add(around.behind);
  return pair;
}

absl::StatusOr<std::vector<TokenId>> ModelTextCodec::EncodeChat(const ChatPrompt& prompt) const {
  HEDDLE_ASSIGN_OR_RETURN(std::string text, RenderChat(prompt));
  // A template writes the begin token itself.
  return Encode(text, /*add_special=*/false);
}

// An open last message is found by a tag at its end, as in transformers.
absl::StatusOr<std::string> ModelTextCodec::RenderChat(const ChatPrompt& prompt) const {
  if (template_ == nullptr) {
    return absl::UnimplementedError(
        "the model has no chat template: use /v1/completions, or give one with --chat-template");
  }
  ordered_json context = TemplateContext(prompt, *tokenizer_);
  if (!prompt.continue_final) return Render(context);
  constexpr std::string_view kTag = "CONTINUE_FINAL_MESSAGE_TAG ";
  constexpr std::string_view kTrimmedTag = kTag.substr(0, kTag.size() - 1);
  ordered_json& content = context["messages"].back()["content"];
  std::string* last = content.get_ptr<std::string*>();
  if (last == nullptr) return absl::InvalidArgumentError("the last message has no text");
  last->append(kTag);
  HEDDLE_ASSIGN_OR_RETURN(std::string text, Render(context));
  size_t tag = text.rfind(kTrimmedTag);
  if (tag == std::string::npos) {
    return absl::InvalidArgumentError(
        "the chat template does not show the last message, so that it cannot be continued");
  }
  // A template that trims messages has removed the tag's space, and would have removed the
  // message's.
  bool trimmed = text.compare(tag, kTag.size(), kTag) != 0;
  text.resize(tag);
  if (trimmed) text.resize(text.find_last_not_of(" \t\r\n\f\v") + 1);
  return text;
}

absl::StatusOr<std::string> ModelTextCodec::Render(const ordered_json& context) const {
  absl::StatusOr<std::string> text = template_->Render(context);
  if (text.ok()) return text;
  return AsInputError(text.status(), "the chat template, ");
}

std::unique_ptr<TokenStream> ModelTextCodec::NewStream(bool after_text, KeptTokens kept) const {
  return std::make_unique<ModelTokenStream>(tokenizer_.get(), after_text ? plain_token_ : -1, kept);
}

std::string ModelTextCodec::Decode(std::span<const TokenId> ids, bool skip_special) const {
  return tokenizer_->Decode(ids, skip_special);
}

std::string ModelTextCodec::TokenBytes(TokenId token) const {
  std::string_view bytes = tokenizer_->TokenBytes(token);
  return std::string(bytes.empty() ? tokenizer_->TokenText(token) : bytes);
}

std::string_view ModelTextCodec::chat_template() const {
  return template_ == nullptr ? std::string_view() : std::string_view(template_->source());
}

bool ModelTextCodec::knows_tools() const {
  return template_ != nullptr && template_->mentions("tools");
}

}  // namespace heddle::server
