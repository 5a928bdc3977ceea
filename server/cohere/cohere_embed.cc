#include "server/cohere/cohere_embed.h"

#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/cohere/cohere_fields.h"
#include "server/json_writer.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr RefusedField kRefused[] = {
    {"images", "[]", "this server reads no images for embeddings"},
    {"inputs", "[]", "this server reads 'texts'"},
};

// The types of vectors in an answer.
struct Types {
  bool floats = false;
  bool base64 = false;
  bool named = false;  // the client named them
};

void WriteVectors(const std::vector<std::vector<float>>& embeddings, bool base64,
                  JsonWriter* json) {
  json->BeginArray();
  for (const std::vector<float>& values : embeddings) WriteEmbedding(values, base64, json);
  json->EndArray();
}

void WriteMeta(const EmbeddingRequest& request, int version, JsonWriter* json) {
  size_t tokens = 0;
  for (const GenerationRequest& generation : request.generations) {
    tokens += generation.prompt.size();
  }
  json->Key("meta").BeginObject().Key("api_version").BeginObject();
  json->Member("version", std::to_string(version)).EndObject();
  json->Key("billed_units").BeginObject().Member("input_tokens", tokens).EndObject().EndObject();
}

std::string Answer(const EmbeddingRequest& request,
                   const std::vector<std::vector<float>>& embeddings, const EmbeddingStamp& stamp,
                   Types types, int version) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", stamp.id);
  json.Member("response_type", types.named ? "embeddings_by_type" : "embeddings_floats");
  json.Key("embeddings");
  if (types.named) {
    json.BeginObject();
    if (types.floats) WriteVectors(embeddings, /*base64=*/false, &json.Key("float"));
    if (types.base64) WriteVectors(embeddings, /*base64=*/true, &json.Key("base64"));
    json.EndObject();
  } else {
    WriteVectors(embeddings, /*base64=*/false, &json);
  }
  json.Key("texts").BeginArray();
  for (const std::string& text : request.documents) json.String(text);
  json.EndArray();
  WriteMeta(request, version, &json);
  json.EndObject();
  return out;
}

template <int kVersion, bool kFloats, bool kBase64, bool kNamed>
std::string Body(const EmbeddingRequest& request, const std::vector<std::vector<float>>& embeddings,
                 const EmbeddingStamp& stamp) {
  return Answer(request, embeddings, stamp, {kFloats, kBase64, kNamed}, kVersion);
}

template <int kVersion>
EmbeddingWriter WriterOf(const Types& types) {
  if (!types.named) return Body<kVersion, true, false, false>;
  if (!types.base64) return Body<kVersion, true, false, true>;
  return types.floats ? Body<kVersion, true, true, true> : Body<kVersion, false, true, true>;
}

absl::StatusOr<Types> ReadTypes(const Json* given, int version) {
  Types types{.floats = given == nullptr, .named = given != nullptr || version > 1};
  if (given == nullptr) return types;
  for (const Json& type : *given) {
    if (type == "float") {
      types.floats = true;
    } else if (type == "base64") {
      types.base64 = true;
    } else {
      return FieldError("embedding_types",
                        base::StrCat("'embedding_types' may hold float and base64, found ",
                                     type.is_string() ? base::Quote(type.get<std::string>())
                                                      : std::string(JsonKind(type))));
    }
  }
  return types;
}

// The model's prompt for a use of embeddings, where it has one.
std::string PromptFor(const std::string* use, const RequestContext& context) {
  if (use == nullptr || context.model->head == nullptr) return std::string();
  std::string wanted = *use == "search_query"      ? "query"
                       : *use == "search_document" ? "document"
                                                   : "";
  for (const auto& [name, text] : context.model->head->output().prompts) {
    if (name == wanted) return wanted;
  }
  return std::string();
}

}  // namespace

absl::StatusOr<EmbeddingRequest> ParseCohereEmbed(int version, std::string_view text,
                                                  const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kCohereEmbed> fields,
                          CheckBody<fields::kCohereEmbed>(json, kRefused, context));
  HEDDLE_ASSIGN_OR_RETURN(const Types types, ReadTypes(fields.Value<"embedding_types">(), version));
  const Json& texts = *fields.Value<"texts">();
  Json body = {{"input", texts}};
  if (const std::string* model = fields.Text<"model">()) body["model"] = *model;
  if (const Json* size = fields.Value<"output_dimension">()) body["dimensions"] = *size;
  const std::string prompt = PromptFor(fields.Text<"input_type">(), context);
  if (!prompt.empty()) body["prompt_name"] = prompt;
  const std::string* truncate = fields.Text<"truncate">();
  if (truncate == nullptr || *truncate == "END") {
    body["truncate_prompt_tokens"] = -1;
  } else if (*truncate != "NONE") {
    return FieldError(
        "truncate", base::StrCat("'truncate' must be END or NONE, found ", base::Quote(*truncate)));
  }
  absl::StatusOr<EmbeddingRequest> request =
      ReadEmbeddingRequest(EmbeddingTask::kEmbed, body, context);
  constexpr Renamed kNames[] = {{"input", "texts"}, {"dimensions", "output_dimension"}};
  if (!request.ok()) return RenameFields(request.status(), kNames);
  for (const Json& entry : texts) {
    const std::string* value = TextOf(&entry);
    if (value == nullptr) {
      return FieldError("texts", base::StrCat("'texts' must hold texts, found ", JsonKind(entry)),
                        "invalid_type");
    }
    request->documents.push_back(*value);
  }
  request->write = version == 1 ? WriterOf<1>(types) : WriterOf<2>(types);
  return request;
}

}  // namespace heddle::server
