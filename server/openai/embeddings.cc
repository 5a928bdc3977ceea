#include "server/openai/embeddings.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_fields.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace fields {
inline constexpr Field kTextsPart[] = {{"add_special_tokens", kBoolean},
                                       {"truncate_prompt_tokens", kInteger}};
}  // namespace fields

namespace {

static_assert(std::endian::native == std::endian::little, "base64 is of little-endian floats");

constexpr size_t kMaxTexts = 2048;  // in one list; OpenAI's limit

// Adds the texts or tokens of the field `name`, one request each.
absl::Status AddTexts(const Json& texts, std::string_view name,
                      const RequestFields<fields::kTextsPart>& body, const RequestContext& context,
                      EmbeddingRequest* request) {
  const PromptOptions options{.max_prompts = kMaxTexts,
                              .add_special = body.Bool<"add_special_tokens">(true)};
  HEDDLE_ASSIGN_OR_RETURN(std::vector<ApiPrompt> prompts,
                          ReadPrompts(texts, name, options, *context.codec));
  const int64_t limit = body.Int<"truncate_prompt_tokens">(context.model->max_context + int64_t{1});
  if (limit == 0) return ZeroTruncation();
  for (ApiPrompt& prompt : prompts) {
    if (body.Has<"truncate_prompt_tokens">()) {
      KeepLast(limit < 0 ? context.model->max_context : limit, &prompt.tokens);
    }
    if (prompt.tokens.size() > static_cast<size_t>(context.model->max_context)) {
      return FieldError(name,
                        base::StrCat("a text has ", prompt.tokens.size(),
                                     " tokens, and the context of this server holds ",
                                     context.model->max_context),
                        "context_length_exceeded");
    }
    GenerationRequest generation;
    generation.prompt = std::move(prompt.tokens);
    generation.max_tokens = 0;
    generation.pooling = context.model->pooling;
    generation.tenant = context.tenant;
    request->generations.push_back(std::move(generation));
  }
  return absl::OkStatus();
}

absl::Status ReadEmbed(const RequestFields<fields::kEmbeddings>& body,
                       const RequestContext& context, EmbeddingRequest* request) {
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
  return AddTexts(*body.Value<"input">(), "input", body, context, request);
}

absl::Status ReadScore(const RequestFields<fields::kScore>& body, const RequestContext& context,
                       EmbeddingRequest* request) {
  HEDDLE_RETURN_IF_ERROR(AddTexts(*body.Value<"text_1">(), "text_1", body, context, request));
  request->num_queries = request->generations.size();
  HEDDLE_RETURN_IF_ERROR(AddTexts(*body.Value<"text_2">(), "text_2", body, context, request));
  size_t others = request->generations.size() - request->num_queries;
  if (request->num_queries != 1 && request->num_queries != others) {
    return FieldError("text_1",
                      base::StrCat("'text_1' must be one text or as many as 'text_2' has (", others,
                                   "), found ", request->num_queries));
  }
  return absl::OkStatus();
}

absl::Status ReadRerank(const RequestFields<fields::kRerank>& body, const RequestContext& context,
                        EmbeddingRequest* request) {
  HEDDLE_RETURN_IF_ERROR(AddTexts(*body.Value<"query">(), "query", body, context, request));
  Json texts = Json::array();
  std::vector<std::string> documents;
  for (const Json& document : *body.Value<"documents">()) {
    const std::string* text = TextOf(document.is_object() ? Find(document, "text") : &document);
    if (text == nullptr) {
      return FieldError("documents",
                        base::StrCat("'documents' must hold texts, found ", JsonKind(document),
                                     " at index ", texts.size()),
                        "invalid_type");
    }
    documents.push_back(*text);
    texts.push_back(*text);
  }
  HEDDLE_RETURN_IF_ERROR(AddTexts(texts, "documents", body, context, request));
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

// Cuts to `size` numbers and scales to length 1.
void Normalize(size_t size, std::vector<float>* values) {
  if (values->size() > size) values->resize(size);
  double square = 0;
  for (float value : *values) square += static_cast<double>(value) * value;
  double scale = square > 0 ? 1.0 / std::sqrt(square) : 0.0;
  for (float& value : *values) value = static_cast<float>(value * scale);
}

float Cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += static_cast<double>(a[i]) * b[i];
  return static_cast<float>(sum);
}

void WriteUsage(const EmbeddingRequest& request, JsonWriter* json) {
  size_t tokens = 0;
  for (const GenerationRequest& generation : request.generations) {
    tokens += generation.prompt.size();
  }
  json->Key("usage").BeginObject().Member("prompt_tokens", tokens);
  json->Member("total_tokens", tokens).EndObject();
}

void WriteEmbedding(const std::vector<float>& values, bool base64, JsonWriter* json) {
  if (base64) {
    std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                           values.size() * sizeof(float));
    json->String(absl::Base64Escape(base::AbslView(bytes)));
    return;
  }
  json->BeginArray();
  for (float value : values) json->Number(value);
  json->EndArray();
}

void WriteEmbeddings(const EmbeddingRequest& request,
                     const std::vector<std::vector<float>>& embeddings, JsonWriter* json) {
  json->Member("object", "list").Key("data").BeginArray();
  for (size_t i = 0; i < embeddings.size(); ++i) {
    json->BeginObject().Member("object", "embedding").Member("index", i).Key("embedding");
    WriteEmbedding(embeddings[i], request.base64, json);
    json->EndObject();
  }
  json->EndArray().Member("model", request.model.shown);
}

void WriteScores(const EmbeddingRequest& request, const std::vector<std::vector<float>>& embeddings,
                 JsonWriter* json) {
  json->Member("object", "list").Member("model", request.model.shown).Key("data").BeginArray();
  for (size_t i = request.num_queries; i < embeddings.size(); ++i) {
    size_t index = i - request.num_queries;
    const auto& query = embeddings[request.num_queries == 1 ? 0 : index];
    json->BeginObject().Member("index", index).Member("object", "score");
    json->Key("score").Number(Cosine(query, embeddings[i])).EndObject();
  }
  json->EndArray();
}

void WriteRanking(const EmbeddingRequest& request,
                  const std::vector<std::vector<float>>& embeddings, JsonWriter* json) {
  std::vector<float> scores;
  for (size_t i = 1; i < embeddings.size(); ++i) {
    scores.push_back(Cosine(embeddings[0], embeddings[i]));
  }
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&scores](size_t a, size_t b) { return scores[a] > scores[b]; });
  if (request.top_n > 0 && request.top_n < order.size()) order.resize(request.top_n);
  json->Member("model", request.model.shown).Key("results").BeginArray();
  for (size_t index : order) {
    json->BeginObject().Member("index", index).Key("relevance_score").Number(scores[index]);
    if (!request.documents.empty()) {
      json->Key("document").BeginObject().Member("text", request.documents[index]).EndObject();
    }
    json->EndObject();
  }
  json->EndArray();
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
  }
  return request;
}

std::string EmbeddingBody(const EmbeddingRequest& request,
                          std::vector<std::vector<float>> embeddings, const EmbeddingStamp& stamp) {
  for (std::vector<float>& values : embeddings) {
    Normalize(static_cast<size_t>(request.dimensions), &values);
  }
  return request.write(request, embeddings, stamp);
}

std::string WriteOpenAiEmbeddings(const EmbeddingRequest& request,
                                  const std::vector<std::vector<float>>& embeddings,
                                  const EmbeddingStamp& stamp) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  switch (request.task) {
    case EmbeddingTask::kEmbed:
      WriteEmbeddings(request, embeddings, &json);
      break;
    case EmbeddingTask::kScore:
      json.Member("id", base::StrCat("score-", stamp.id)).Member("created", stamp.created);
      WriteScores(request, embeddings, &json);
      break;
    case EmbeddingTask::kRerank:
      json.Member("id", base::StrCat("rerank-", stamp.id));
      WriteRanking(request, embeddings, &json);
      break;
  }
  WriteUsage(request, &json);
  json.EndObject();
  return out;
}

}  // namespace heddle::server
