#include "server/openai/tokenize.h"

#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_fields.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

void WriteModel(std::string_view name, const ServedModel& model, JsonWriter* json) {
  json->BeginObject().Member("id", name).Member("object", "model");
  json->Member("created", model.created).Member("owned_by", model.owned_by);
  json->Member("max_model_len", model.max_context).EndObject();
}

}  // namespace

absl::StatusOr<std::string> Tokenize(std::string_view text, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kTokenize> body,
                          CheckBody<fields::kTokenize>(json, {}, context));
  HEDDLE_RETURN_IF_ERROR(CheckModel(body, *context.model));
  std::vector<TokenId> tokens;
  const std::string* prompt = body.Text<"prompt">();
  const char* name = prompt == nullptr ? "content" : "prompt";
  if (prompt == nullptr) prompt = body.Text<"content">();
  if (prompt != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(
        tokens, EncodeField(*prompt, name, body.Bool<"add_special_tokens">(true), *context.codec));
  } else if (body.Has<"messages">()) {
    HEDDLE_ASSIGN_OR_RETURN(tokens, EncodeMessages(body, context));
  } else {
    return FieldError("prompt", "one of 'prompt' and 'messages' must be given",
                      "missing_required_parameter");
  }
  std::string out;
  JsonWriter writer(&out);
  writer.BeginObject().Key("tokens").BeginArray();
  for (TokenId token : tokens) writer.Int(token);
  writer.EndArray().Member("count", tokens.size());
  writer.Member("max_model_len", context.model->max_context).EndObject();
  return out;
}

absl::StatusOr<std::string> Detokenize(std::string_view text, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kDetokenize> body,
                          CheckBody<fields::kDetokenize>(json, {}, context));
  HEDDLE_RETURN_IF_ERROR(CheckModel(body, *context.model));
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                          ReadTokenIds(*body.Value<"tokens">(), "tokens", context.codec->vocab()));
  std::string out;
  JsonWriter(&out)
      .BeginObject()
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
