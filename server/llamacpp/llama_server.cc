#include "server/llamacpp/llama_server.h"

#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/llamacpp/llama_fields.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

// The names of the tokens with which texts begin, and of the first that ends answers; empty: none.
struct EdgeTokens {
  std::string begin;
  std::string end;
};

EdgeTokens EdgesOf(const TextCodec& codec) {
  EdgeTokens edges;
  const absl::StatusOr<std::vector<TokenId>> begin = codec.Encode("", /*add_special=*/true);
  if (begin.ok() && !begin->empty()) edges.begin = codec.TokenBytes(begin->front());
  if (!codec.end_tokens().empty()) edges.end = codec.TokenBytes(codec.end_tokens().front());
  return edges;
}

void WriteDefaults(const ServedModel& model, JsonWriter* json) {
  const engine::SamplingParams& defaults = model.defaults;
  json->Key("default_generation_settings").BeginObject().Member("n_ctx", model.max_context);
  json->Key("params").BeginObject().Member("n_predict", -1);
  json->Key("temperature").Number(defaults.temperature).Member("top_k", defaults.top_k);
  json->Key("top_p").Number(defaults.top_p).Key("min_p").Number(defaults.min_p);
  json->Key("typical_p").Number(defaults.typical_p);
  json->Key("repeat_penalty").Number(defaults.repetition_penalty).EndObject().EndObject();
}

}  // namespace

std::string LlamaProps(const RequestContext& context) {
  const ServedModel& model = *context.model;
  const EdgeTokens edges = EdgesOf(*context.codec);
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  WriteDefaults(model, &json);
  json.Member("total_slots", model.max_sequences).Member("model_alias", model.id);
  json.Member("model_path", model.id).Member("chat_template", context.codec->chat_template());
  json.Member("bos_token", edges.begin).Member("eos_token", edges.end);
  json.Key("modalities").BeginObject().Key("vision").Bool(false).Key("audio").Bool(false);
  json.EndObject().Member("build_info", model.fingerprint).Key("is_sleeping").Bool(false);
  json.EndObject();
  return out;
}

absl::StatusOr<std::string> LlamaSlots(const EngineStats& stats, const ServedModel& model,
                                       std::span<const QueryParameter> query) {
  for (const auto& [name, value] : query) {
    if (name != "fail_on_no_slot") continue;
    if (value != "0" && value != "1") {
      return FieldError(name,
                        base::StrCat("'", name, "' must be 0 or 1, found ", base::Quote(value)));
    }
    if (value == "1" && stats.running_sequences >= model.max_sequences) {
      return absl::UnavailableError("every sequence that may run at once is taken");
    }
  }
  std::string out;
  JsonWriter json(&out);
  json.BeginArray();
  for (int32_t id = 0; id < model.max_sequences; ++id) {
    json.BeginObject().Member("id", id).Member("n_ctx", model.max_context);
    json.Key("is_processing").Bool(id < stats.running_sequences).EndObject();
  }
  json.EndArray();
  return out;
}

absl::StatusOr<std::string> ApplyTemplate(std::string_view text, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kApplyTemplate> body,
                          CheckBody<fields::kApplyTemplate>(json, {}, context));
  HEDDLE_ASSIGN_OR_RETURN(const std::string prompt, RenderMessages(body, context));
  std::string out;
  JsonWriter(&out).BeginObject().Member("prompt", prompt).EndObject();
  return out;
}

std::string TokenizerInfo(const RequestContext& context) {
  const TextCodec& codec = *context.codec;
  const EdgeTokens edges = EdgesOf(codec);
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("model", context.model->id).Member("vocab_size", codec.vocab());
  json.Member("model_max_length", context.model->max_context);
  json.Member("bos_token", edges.begin).Member("eos_token", edges.end);
  json.Key("eos_token_ids").BeginArray();
  for (TokenId end : codec.end_tokens()) json.Int(end);
  json.EndArray().Member("chat_template", codec.chat_template()).EndObject();
  return out;
}

}  // namespace heddle::server
