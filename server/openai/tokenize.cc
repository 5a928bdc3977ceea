#include "server/openai/tokenize.h"

#include "base/status.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_fields.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

// The model's capabilities, as Mistral's API says them: their client demands it of each model.
void WriteCapabilities(const RequestContext& context, JsonWriter* json) {
  const TextCodec& codec = *context.codec;
  const bool writes = context.model->head == nullptr;
  json->Member("type", "base").Key("capabilities").BeginObject();
  json->Key("completion_chat").Bool(writes && codec.has_chat_template());
  json->Key("completion_fim").Bool(writes && codec.fill_tokens().has_value());
  json->Key("function_calling").Bool(writes && codec.knows_tools());
  json->Key("reasoning").Bool(writes && codec.syntax().reasoning != nullptr);
  json->Key("vision").Bool(false).EndObject();
}

// `adapter`: the one that the name stands for, or nullptr.
void WriteModel(std::string_view name, const RequestContext& context, const AdapterInfo* adapter,
                JsonWriter* json) {
  const ServedModel& model = *context.model;
  json->BeginObject().Member("id", name).Member("object", "model");
  json->Member("created", model.created).Member("owned_by", model.owned_by);
  if (adapter != nullptr) json->Member("root", adapter->path).Member("parent", model.id);
  json->Member("max_model_len", model.max_context);
  json->Member("max_context_length", model.max_context);
  WriteCapabilities(context, json);
  json->EndObject();
}

// As llama.cpp does: a piece that is no text by itself is a list of bytes.
void WritePiece(TokenId token, const TextCodec& codec, JsonWriter* json) {
  const std::string bytes = codec.TokenBytes(token);
  json->BeginObject().Member("id", token).Key("piece");
  if (base::IsValidUtf8(bytes)) {
    json->String(bytes);
  } else {
    json->BeginArray();
    for (const char byte : bytes) json->Int(static_cast<unsigned char>(byte));
    json->EndArray();
  }
  json->EndObject();
}

}  // namespace

absl::StatusOr<std::string> Tokenize(std::string_view text, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kTokenize> body,
                          CheckBody<fields::kTokenize>(json, {}, context));
  HEDDLE_RETURN_IF_ERROR(CheckModel(body, context).status());
  std::vector<TokenId> tokens;
  const std::string* prompt = body.Text<"prompt">();
  const char* name = prompt == nullptr ? "content" : "prompt";
  if (prompt == nullptr) prompt = body.Text<"content">();
  if (prompt != nullptr) {
    const bool is_llamas = name == std::string_view("content");
    const bool add_special =
        body.Bool<"add_special_tokens">(!is_llamas || body.Bool<"add_special">(false));
    HEDDLE_ASSIGN_OR_RETURN(tokens, EncodeField(*prompt, name, add_special, *context.codec));
  } else if (body.Has<"messages">()) {
    HEDDLE_ASSIGN_OR_RETURN(tokens, EncodeMessages(body, context));
  } else {
    return FieldError("prompt", "one of 'prompt' and 'messages' must be given",
                      "missing_required_parameter");
  }
  std::string out;
  JsonWriter writer(&out);
  writer.BeginObject().Key("tokens").BeginArray();
  const bool with_pieces = body.Bool<"with_pieces">(false);
  for (TokenId token : tokens) {
    with_pieces ? WritePiece(token, *context.codec, &writer) : void(writer.Int(token));
  }
  writer.EndArray().Member("count", tokens.size());
  if (body.Bool<"return_token_strs">(false)) {
    writer.Key("token_strs").BeginArray();
    for (TokenId token : tokens) {
      writer.String(base::ReplaceInvalidUtf8(context.codec->TokenBytes(token)));
    }
    writer.EndArray();
  }
  writer.Member("max_model_len", context.model->max_context).EndObject();
  return out;
}

absl::StatusOr<std::string> Detokenize(std::string_view text, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kDetokenize> body,
                          CheckBody<fields::kDetokenize>(json, {}, context));
  HEDDLE_RETURN_IF_ERROR(CheckModel(body, context).status());
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                          ReadTokenIds(*body.Value<"tokens">(), "tokens", context.codec->vocab()));
  std::string out;
  const std::string decoded = context.codec->Decode(tokens, /*skip_special=*/false);
  // vLLM's name, and llama.cpp's.
  JsonWriter(&out).BeginObject().Member("prompt", decoded).Member("content", decoded).EndObject();
  return out;
}

absl::StatusOr<std::string> ModelList(const RequestContext& context) {
  const ServedModel& model = *context.model;
  HEDDLE_ASSIGN_OR_RETURN(const ListedAdapters adapters, ListAdapters(context));
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("object", "list").Key("data").BeginArray();
  WriteModel(model.id, context, nullptr, &json);
  for (const std::string& alias : model.aliases) WriteModel(alias, context, nullptr, &json);
  for (const AdapterInfo& info : adapters.infos) WriteModel(info.name, context, &info, &json);
  json.EndArray();
  if (adapters.cut) json.Key("truncated").Bool(true);  // there are more adapters than are listed
  json.EndObject();
  return out;
}

absl::StatusOr<std::string> ModelCard(const std::string& name, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const ModelChoice choice, ChooseModel(&name, nullptr, context));
  std::string out;
  JsonWriter json(&out);
  if (IsModelName(name, *context.model)) {
    WriteModel(name, context, nullptr, &json);
    return out;
  }
  const absl::StatusOr<AdapterInfo> info =
      context.adapters.registry->Info(choice.adapters.front().name);
  if (!info.ok()) return UnknownModel(name, context);
  WriteModel(name, context, &*info, &json);
  return out;
}

}  // namespace heddle::server
