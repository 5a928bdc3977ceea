#include "server/openai/embeddings.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/openai/api_fields.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace fields {
inline constexpr Field kTextsPart[] = {{"add_special_tokens", kBoolean},
                                       {"truncate_prompt_tokens", kInteger}};
}  // namespace fields

namespace {

constexpr size_t kMaxTexts = 2048;  // in one list; OpenAI's limit

// Tokens that a text may have: what the client wants read of it, or the context. 0: the client's
// demand is none.
int64_t LimitOf(const RequestFields<fields::kTextsPart>& body, const RequestContext& context) {
  const int64_t most = context.model->max_context;
  const int64_t limit = body.Int<"truncate_prompt_tokens">(most);
  return limit < 0 ? most : std::min(limit, most);
}

// Cuts a text to `limit` tokens. A model that writes reads the end of it; others read its begin,
// and the tokens that the tokenizer puts behind a text (`ending`) stay.
void CutText(int64_t limit, bool keeps_begin, std::span<const TokenId> ending,
             std::vector<TokenId>* tokens) {
  const auto most = static_cast<size_t>(limit);
  if (!keeps_begin || tokens->size() <= most) {
    KeepLast(limit, tokens);
    return;
  }
  const bool is_ended = ending.size() < most &&
                        std::equal(ending.rbegin(), ending.rend(), tokens->rbegin(),
                                   tokens->rbegin() + static_cast<std::ptrdiff_t>(ending.size()));
  const std::span<const TokenId> kept = is_ended ? ending : std::span<const TokenId>();
  tokens->resize(most - kept.size());
  tokens->insert(tokens->end(), kept.begin(), kept.end());
}

absl::Status TooLong(std::string_view name, size_t tokens, const RequestContext& context) {
  return FieldError(
      name,
      base::StrCat("a text has ", tokens, " tokens, and the context of this server holds ",
                   context.model->max_context),
      "context_length_exceeded");
}

void AddGeneration(std::vector<TokenId> tokens, const RequestContext& context,
                   EmbeddingRequest* request) {
  GenerationRequest generation;
  generation.prompt = std::move(tokens);
  generation.max_tokens = 0;
  generation.pooling = context.model->pooling;
  generation.tenant = context.tenant;
  request->generations.push_back(std::move(generation));
}

// The texts with `prompt` before each of them; token ids stay.
Json WithPrompt(const Json& texts, const std::string& prompt) {
  Json prompted = texts;
  const auto add = [&prompt](Json* text) {
    if (std::string* value = text->get_ptr<std::string*>()) value->insert(0, prompt);
  };
  add(&prompted);
  if (prompted.is_array()) {
    for (Json& entry : prompted) add(&entry);
  }
  return prompted;
}

// Adds the texts or tokens of the field `name`, one request each.
absl::Status AddTexts(const Json& given, std::string_view name,
                      const RequestFields<fields::kTextsPart>& body, const RequestContext& context,
                      EmbeddingRequest* request, const std::string& prompt_text = {}) {
  const PromptOptions options{.max_prompts = kMaxTexts,
                              .add_special = body.Bool<"add_special_tokens">(true)};
  std::optional<Json> prompted;
  if (!prompt_text.empty()) prompted = WithPrompt(given, prompt_text);
  const Json& texts = prompted.has_value() ? *prompted : given;
  HEDDLE_ASSIGN_OR_RETURN(std::vector<ApiPrompt> prompts,
                          ReadPrompts(texts, name, options, *context.codec));
  const int64_t limit = LimitOf(body, context);
  if (limit == 0) return ZeroTruncation();
  for (ApiPrompt& prompt : prompts) {
    if (body.Has<"truncate_prompt_tokens">()) {
      CutText(limit, request->head != nullptr, context.codec->ending(), &prompt.tokens);
    }
    if (prompt.tokens.size() > static_cast<size_t>(context.model->max_context)) {
      return TooLong(name, prompt.tokens.size(), context);
    }
    AddGeneration(std::move(prompt.tokens), context, request);
  }
  return absl::OkStatus();
}

// Adds two texts that a cross-encoder reads as one. `name`: of the second's field.
absl::Status AddPair(const std::string& first, const std::string& second, std::string_view name,
                     const RequestFields<fields::kTextsPart>& body, const RequestContext& context,
                     EmbeddingRequest* request) {
  const int64_t limit = LimitOf(body, context);
  if (limit == 0) return ZeroTruncation();
  constexpr size_t kUncut = std::numeric_limits<int32_t>::max();
  const bool cuts = body.Has<"truncate_prompt_tokens">();
  absl::StatusOr<TextPair> pair =
      context.codec->EncodePair(first, second, cuts ? static_cast<size_t>(limit) : kUncut);
  if (!pair.ok()) return FieldError(name, MessageOf(pair.status()));
  if (pair->tokens.empty()) return FieldError(name, base::StrCat("'", name, "' is empty"));
  if (pair->tokens.size() > static_cast<size_t>(context.model->max_context)) {
    return TooLong(name, pair->tokens.size(), context);
  }
  const bool has_second = pair->second_begin < static_cast<int32_t>(pair->tokens.size());
  AddGeneration(std::move(pair->tokens), context, request);
  if (has_second) request->generations.back().second_begin = pair->second_begin;
  return absl::OkStatus();
}

// The text of the prompt with that name, or of the folder's default one.
absl::StatusOr<std::string> PromptOf(const std::string* name, const EmbeddingRequest& request) {
  const engine::PooledOutput none;
  const engine::PooledOutput& output = request.head == nullptr ? none : request.head->output();
  const std::string& wanted = name == nullptr ? output.default_prompt : *name;
  if (wanted.empty()) return std::string();
  std::string names;
  for (const auto& [known, text] : output.prompts) {
    if (known == wanted) return text;
    names = base::StrCat(names, names.empty() ? "" : ", ", known);
  }
  if (name == nullptr) return std::string();
  return FieldError("prompt_name", base::StrCat("'prompt_name' must be one of the model's (",
                                                names.empty() ? "it has none" : names, "), found ",
                                                base::Quote(wanted)));
}

// The same for a use that a folder may have a prompt for.
std::string PromptFor(std::string_view use, const EmbeddingRequest& request) {
  const std::string name(use);
  return PromptOf(&name, request).value_or("");
}

bool Classifies(const EmbeddingRequest& request) {
  return request.head != nullptr && request.head->output().is_classifier();
}

absl::Status ReadEmbed(const RequestFields<fields::kEmbeddings>& body,
                       const RequestContext& context, EmbeddingRequest* request) {
  if (Classifies(*request)) {
    return FieldError("model",
                      "this model gives scores of classes and no embeddings: use /v1/classify, or "
                      "with one class /v1/score and /v1/rerank");
  }
  const std::string* format = body.Text<"encoding_format">();
  request->base64 = format != nullptr && *format == "base64";
  if (format != nullptr && !request->base64 && *format != "float") {
    return FieldError(
        "encoding_format",
        base::StrCat("'encoding_format' must be float or base64, found ", base::Quote(*format)));
  }
  int64_t size = context.model->embedding_size;
  request->dimensions = static_cast<int32_t>(body.Int<"dimensions">(size));
  if (request->dimensions > size) {
    return FieldError("dimensions", base::StrCat("'dimensions' must be from 1 to ", size,
                                                 ", found ", request->dimensions));
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string prompt, PromptOf(body.Text<"prompt_name">(), *request));
  return AddTexts(*body.Value<"input">(), "input", body, context, request, prompt);
}

absl::Status ReadClassify(const RequestFields<fields::kClassify>& body,
                          const RequestContext& context, EmbeddingRequest* request) {
  if (!Classifies(*request)) {
    return FieldError("model", "this model has no classes: it gives embeddings (/v1/embeddings)");
  }
  request->use_activation = body.Bool<"use_activation">(true);
  return AddTexts(*body.Value<"input">(), "input", body, context, request);
}

// Whether texts are compared by a class: the only one, or the first where the model says so.
absl::Status ChooseComparison(bool use_activation, EmbeddingRequest* request) {
  request->use_activation = use_activation;
  request->reads_pairs = Classifies(*request);
  const size_t n_labels = request->reads_pairs ? request->head->output().labels.size() : 1;
  if (n_labels == 1 || request->head->output().first_class_ranks) return absl::OkStatus();
  return FieldError("model", base::StrCat("this model has ", n_labels,
                                          " classes, and texts are compared by one: use "
                                          "/v1/classify"));
}

// One text, or several, of a field whose texts are read in pairs.
absl::StatusOr<std::vector<std::string>> TextsOf(const Json& value, std::string_view name) {
  std::vector<std::string> texts;
  const Json list = value.is_array() ? value : Json::array({value});
  if (list.empty() || list.size() > kMaxTexts) {
    return FieldError(name, base::StrCat("'", name, "' must have 1 to ", kMaxTexts,
                                         " texts, found ", list.size()));
  }
  for (const Json& entry : list) {
    const std::string* text = TextOf(&entry);
    if (text == nullptr) {
      return FieldError(name,
                        base::StrCat("'", name, "' must hold texts, found ", JsonKind(entry),
                                     " at index ", texts.size()),
                        "invalid_type");
    }
    texts.push_back(*text);
  }
  return texts;
}

absl::Status UnevenTexts(size_t first, size_t second) {
  return FieldError("text_1", base::StrCat("'text_1' must be one text or as many as 'text_2' has (",
                                           second, "), found ", first));
}

absl::Status ReadScorePairs(const RequestFields<fields::kScore>& body,
                            const RequestContext& context, EmbeddingRequest* request) {
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<std::string> first,
                          TextsOf(*body.Value<"text_1">(), "text_1"));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<std::string> second,
                          TextsOf(*body.Value<"text_2">(), "text_2"));
  if (first.size() != 1 && first.size() != second.size()) {
    return UnevenTexts(first.size(), second.size());
  }
  for (size_t i = 0; i < second.size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(
        AddPair(first[first.size() == 1 ? 0 : i], second[i], "text_2", body, context, request));
  }
  return absl::OkStatus();
}

absl::Status ReadScore(const RequestFields<fields::kScore>& body, const RequestContext& context,
                       EmbeddingRequest* request) {
  HEDDLE_RETURN_IF_ERROR(ChooseComparison(body.Bool<"use_activation">(true), request));
  if (request->reads_pairs) return ReadScorePairs(body, context, request);
  HEDDLE_RETURN_IF_ERROR(AddTexts(*body.Value<"text_1">(), "text_1", body, context, request));
  request->num_queries = request->generations.size();
  HEDDLE_RETURN_IF_ERROR(AddTexts(*body.Value<"text_2">(), "text_2", body, context, request));
  size_t others = request->generations.size() - request->num_queries;
  if (request->num_queries == 1 || request->num_queries == others) return absl::OkStatus();
  return UnevenTexts(request->num_queries, others);
}

absl::StatusOr<std::vector<std::string>> ReadDocuments(const Json& documents) {
  std::vector<std::string> texts;
  for (const Json& document : documents) {
    const std::string* text = TextOf(document.is_object() ? Find(document, "text") : &document);
    if (text == nullptr) {
      return FieldError("documents",
                        base::StrCat("'documents' must hold texts, found ", JsonKind(document),
                                     " at index ", texts.size()),
                        "invalid_type");
    }
    texts.push_back(*text);
  }
  return texts;
}

absl::Status ReadRerank(const RequestFields<fields::kRerank>& body, const RequestContext& context,
                        EmbeddingRequest* request) {
  HEDDLE_RETURN_IF_ERROR(ChooseComparison(body.Bool<"use_activation">(true), request));
  HEDDLE_ASSIGN_OR_RETURN(std::vector<std::string> documents,
                          ReadDocuments(*body.Value<"documents">()));
  if (request->reads_pairs) {
    for (const std::string& document : documents) {
      HEDDLE_RETURN_IF_ERROR(
          AddPair(*body.Text<"query">(), document, "documents", body, context, request));
    }
  } else {
    HEDDLE_RETURN_IF_ERROR(AddTexts(*body.Value<"query">(), "query", body, context, request,
                                    PromptFor("query", *request)));
    HEDDLE_RETURN_IF_ERROR(AddTexts(Json(documents), "documents", body, context, request,
                                    PromptFor("document", *request)));
  }
  request->top_n = static_cast<size_t>(body.Int<"top_n">(0));
  if (body.Bool<"return_documents">(true)) request->documents = std::move(documents);
  return absl::OkStatus();
}

template <const auto& kTable>
absl::Status Read(const Json& json, const RequestContext& context,
                  absl::Status (*read)(const RequestFields<kTable>&, const RequestContext&,
                                       EmbeddingRequest*),
                  EmbeddingRequest* request) {
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<kTable> body, CheckBody<kTable>(json, {}, context));
  HEDDLE_ASSIGN_OR_RETURN(request->model, ChooseModel(body.template Text<"model">(),
                                                      body.template Value<"lora">(), context));
  return read(body, context, request);
}

}  // namespace

absl::StatusOr<EmbeddingRequest> ParseEmbeddingRequest(EmbeddingTask task, std::string_view text,
                                                       const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(text));
  return ReadEmbeddingRequest(task, body, context);
}

absl::StatusOr<EmbeddingRequest> ReadEmbeddingRequest(EmbeddingTask task, const Json& body,
                                                      const RequestContext& context) {
  EmbeddingRequest request;
  request.task = task;
  request.dimensions = context.model->embedding_size;
  request.head = context.model->head;
  switch (task) {
    case EmbeddingTask::kEmbed:
      HEDDLE_RETURN_IF_ERROR(Read<fields::kEmbeddings>(body, context, &ReadEmbed, &request));
      break;
    case EmbeddingTask::kScore:
      HEDDLE_RETURN_IF_ERROR(Read<fields::kScore>(body, context, &ReadScore, &request));
      break;
    case EmbeddingTask::kRerank:
      HEDDLE_RETURN_IF_ERROR(Read<fields::kRerank>(body, context, &ReadRerank, &request));
      break;
    case EmbeddingTask::kClassify:
      HEDDLE_RETURN_IF_ERROR(Read<fields::kClassify>(body, context, &ReadClassify, &request));
      break;
  }
  return request;
}

}  // namespace heddle::server
