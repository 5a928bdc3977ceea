#include "server/ollama/ollama_embed.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/ollama/ollama_fields.h"
#include "server/ollama/ollama_options.h"
#include "server/openai/request_parts.h"

namespace heddle::server {
namespace {

void WriteVector(const std::vector<float>& values, JsonWriter* json) {
  json->BeginArray();
  for (float value : values) json->Number(value);
  json->EndArray();
}

std::string EmbedBody(const EmbeddingRequest& request,
                      const std::vector<std::vector<float>>& embeddings,
                      const EmbeddingStamp& stamp) {
  int64_t tokens = 0;
  for (const GenerationRequest& generation : request.generations) {
    tokens += static_cast<int64_t>(generation.prompt.size());
  }
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("model", request.model.shown).Key("embeddings").BeginArray();
  for (const std::vector<float>& values : embeddings) WriteVector(values, &json);
  json.EndArray();
  json.Member("total_duration", std::max<int64_t>(1, std::llround(stamp.seconds * 1e9)));
  json.Member("load_duration", 0).Member("prompt_eval_count", tokens).EndObject();
  return out;
}

std::string OneEmbeddingBody(const EmbeddingRequest&,
                             const std::vector<std::vector<float>>& embeddings,
                             const EmbeddingStamp&) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Key("embedding");
  WriteVector(embeddings.front(), &json);
  json.EndObject();
  return out;
}

// The request that `body` makes of OpenAI's route; the answer names the model as `name` does.
absl::StatusOr<EmbeddingRequest> Read(const std::string* name, Json body, EmbeddingWriter write,
                                      const RequestContext& context) {
  if (name != nullptr) body["model"] = WithoutLatest(*name, *context.model);
  HEDDLE_ASSIGN_OR_RETURN(EmbeddingRequest request,
                          ReadEmbeddingRequest(EmbeddingTask::kEmbed, body, context));
  if (name != nullptr) request.model.shown = *name;
  request.write = write;
  return request;
}

}  // namespace

absl::StatusOr<EmbeddingRequest> ParseOllamaEmbed(std::string_view text,
                                                  const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kOllamaEmbed> fields,
                          CheckBody<fields::kOllamaEmbed>(json, {}, context));
  Json body = {{"input", *fields.Value<"input">()}};
  if (fields.Bool<"truncate">(true)) body["truncate_prompt_tokens"] = -1;
  if (const Json* dimensions = fields.Value<"dimensions">()) body["dimensions"] = *dimensions;
  return Read(fields.Text<"model">(), std::move(body), EmbedBody, context);
}

absl::StatusOr<EmbeddingRequest> ParseOllamaEmbeddings(std::string_view text,
                                                       const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kOllamaEmbeddings> fields,
                          CheckBody<fields::kOllamaEmbeddings>(json, {}, context));
  Json body = {{"input", *fields.Value<"prompt">()}, {"truncate_prompt_tokens", -1}};
  absl::StatusOr<EmbeddingRequest> request =
      Read(fields.Text<"model">(), std::move(body), OneEmbeddingBody, context);
  constexpr Renamed kNames[] = {{"input", "prompt"}};
  if (!request.ok()) return RenameFields(request.status(), kNames);
  return request;
}

}  // namespace heddle::server
