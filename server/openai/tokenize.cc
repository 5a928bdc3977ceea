#include "server/openai/tokenize.h"

#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_error.h"
#include "server/openai/fields.h"
#include "server/openai/request_parts.h"

namespace heddle::server {
namespace {

void WriteModel(std::string_view name, const ServedModel& model, JsonWriter* json) {
  json->BeginObject().Member("id", name).Member("object", "model");
  json->Member("created", model.created).Member("owned_by", model.owned_by);
  json->Member("max_model_len", model.max_context).EndObject();
}

}  // namespace

absl::StatusOr<std::string> Tokenize(std::string_view text, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  HEDDLE_RETURN_IF_ERROR(CheckBody(body, TokenizeFields(), {}, context));
  HEDDLE_RETURN_IF_ERROR(CheckModel(body, *context.model));
  std::vector<TokenId> tokens;
  const Json* prompt = Find(body, "prompt");
  if (prompt == nullptr) prompt = Find(body, "content");
  if (prompt != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(tokens,
                            context.codec->Encode(prompt->get_ref<const std::string&>(),
                                                  GetBool(body, "add_special_tokens", true)));
  } else if (Find(body, "messages") != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(tokens, EncodeMessages(body, context));
  } else {
    return FieldError("prompt", "one of 'prompt' and 'messages' must be given",
                      "missing_required_parameter");
  }
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Key("tokens").BeginArray();
  for (TokenId token : tokens) json.Int(token);
  json.EndArray().Member("count", tokens.size());
  json.Member("max_model_len", context.model->max_context).EndObject();
  return out;
}

absl::StatusOr<std::string> Detokenize(std::string_view text, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  HEDDLE_RETURN_IF_ERROR(CheckBody(body, DetokenizeFields(), {}, context));
  HEDDLE_RETURN_IF_ERROR(CheckModel(body, *context.model));
  const Json* ids = Find(body, "tokens");
  if (ids == nullptr) {
    return FieldError("tokens", "'tokens' is missing", "missing_required_parameter");
  }
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                          ReadTokenIds(*ids, "tokens", context.codec->vocab()));
  std::string out;
  JsonWriter json(&out);
  json.BeginObject()
      .Member("prompt", context.codec->Decode(tokens, /*skip_special=*/false))
      .EndObject();
  return out;
}

std::string ModelList(const ServedModel& model) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("object", "list").Key("data").BeginArray();
  WriteModel(model.id, model, &json);
  for (const std::string& alias : model.aliases) WriteModel(alias, model, &json);
  json.EndArray().EndObject();
  return out;
}

absl::StatusOr<std::string> ModelCard(std::string_view name, const ServedModel& model) {
  if (!IsModelName(name, model)) return UnknownModel(name, model);
  std::string out;
  JsonWriter json(&out);
  WriteModel(name, model, &json);
  return out;
}

}  // namespace heddle::server
