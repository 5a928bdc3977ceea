#include "server/ollama/ollama_models.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/model/pooled_head.h"
#include "nlohmann/json.hpp"
#include "server/answer/timestamp.h"
#include "server/json_writer.h"
#include "server/ollama/ollama_fields.h"
#include "server/ollama/ollama_options.h"
#include "server/openai/model_choice.h"
#include "server/openai/request_parts.h"

namespace heddle::server {
namespace {

constexpr int64_t kYearSeconds = int64_t{365} * 24 * 3600;

// As Ollama writes it: "7.6B", "494.0M".
std::string SizeText(int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  if (count >= 1e9) return absl::StrFormat("%.1fB", count / 1e9);
  if (count >= 1e6) return absl::StrFormat("%.1fM", count / 1e6);
  return absl::StrFormat("%.1fK", count / 1e3);
}

// Clients compare digests and show their beginning; this one changes when the fingerprint does.
std::string Digest(std::string_view name, const ServedModel& model) {
  const std::string text = base::StrCat(model.fingerprint, "/", name);
  std::string digest;
  for (const char* part : {"0", "1", "2", "3"}) {
    digest += absl::StrFormat("%016x", std::hash<std::string>()(base::StrCat(text, part)));
  }
  return digest;
}

// `parent`: the base model of an adapter, or empty.
void WriteDetails(std::string_view parent, const ServedModel& model, JsonWriter* json) {
  std::string level = model.weight_format;
  std::transform(level.begin(), level.end(), level.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  json->Key("details").BeginObject().Member("parent_model", parent).Member("format", "");
  json->Member("family", model.family).Key("families").BeginArray().String(model.family).EndArray();
  json->Member("parameter_size", SizeText(model.num_parameters));
  json->Member("quantization_level", level).EndObject();
}

void WriteModel(std::string_view name, std::string_view parent, const ServedModel& model,
                JsonWriter* json) {
  json->Member("name", name).Member("model", name);
  json->Member("modified_at", Rfc3339(model.created)).Member("size", model.weight_bytes);
  json->Member("digest", Digest(name, model));
  WriteDetails(parent, model, json);
}

void WriteCapabilities(const ServedModel& model, const TextCodec& codec, JsonWriter* json) {
  json->Key("capabilities").BeginArray();
  if (model.head == nullptr) {
    json->String("completion");
    if (codec.knows_tools()) json->String("tools");
    if (codec.fill_tokens().has_value()) json->String("insert");
    if (codec.syntax().reasoning != nullptr) json->String("thinking");
  }
  if (model.head == nullptr || !model.head->output().is_classifier()) json->String("embedding");
  json->EndArray();
}

void WriteModelInfo(const ServedModel& model, const TextCodec& codec, JsonWriter* json) {
  json->Key("model_info").BeginObject();
  json->Member("general.architecture", model.family);
  json->Member("general.parameter_count", model.num_parameters);
  json->Member(base::StrCat(model.family, ".context_length"), model.max_context);
  json->Member(base::StrCat(model.family, ".embedding_length"), model.embedding_size);
  json->Member(base::StrCat(model.family, ".vocab_size"), codec.vocab()).EndObject();
}

// The defaults of sampling, as lines of a Modelfile.
std::string ParameterLines(const engine::SamplingParams& defaults) {
  return base::StrCat("temperature ", defaults.temperature, "\ntop_k ", defaults.top_k, "\ntop_p ",
                      defaults.top_p, "\nmin_p ", defaults.min_p, "\nrepeat_penalty ",
                      defaults.repetition_penalty, "\n");
}

}  // namespace

absl::StatusOr<std::string> OllamaTags(const RequestContext& context) {
  const ServedModel& model = *context.model;
  HEDDLE_ASSIGN_OR_RETURN(const ListedAdapters adapters, ListAdapters(context));
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Key("models").BeginArray();
  const auto write = [&](std::string_view name, std::string_view parent) {
    json.BeginObject();
    WriteModel(name, parent, model, &json);
    json.EndObject();
  };
  write(model.id, "");
  for (const std::string& alias : model.aliases) write(alias, "");
  for (const AdapterInfo& info : adapters.infos) write(info.name, model.id);
  json.EndArray().EndObject();
  return out;
}

std::string OllamaRunning(const RequestContext& context) {
  const ServedModel& model = *context.model;
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Key("models").BeginArray().BeginObject();
  WriteModel(model.id, "", model, &json);
  json.Member("expires_at", Rfc3339(model.created + 100 * kYearSeconds));
  json.Member("size_vram", model.weight_bytes);
  json.Member("context_length", model.max_context).EndObject().EndArray().EndObject();
  return out;
}

absl::StatusOr<std::string> OllamaShow(std::string_view text, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kOllamaShow> fields,
                          CheckBody<fields::kOllamaShow>(body, {}, context));
  const ServedModel& model = *context.model;
  const std::string* name = fields.Text<"model">();
  if (name == nullptr) name = fields.Text<"name">();
  const std::string asked = name == nullptr ? model.id : WithoutLatest(*name, model);
  HEDDLE_ASSIGN_OR_RETURN(const ModelChoice choice, ChooseModel(&asked, nullptr, context));
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("license", "").Member("modelfile", base::StrCat("FROM ", asked, "\n"));
  json.Member("parameters", ParameterLines(model.defaults));
  json.Member("template", context.codec->chat_template());
  WriteDetails(choice.adapters.empty() ? "" : std::string_view(model.id), model, &json);
  WriteModelInfo(model, *context.codec, &json);
  WriteCapabilities(model, *context.codec, &json);
  json.Member("modified_at", Rfc3339(model.created)).EndObject();
  return out;
}

std::string OllamaVersionBody(std::string_view version) {
  std::string out;
  JsonWriter(&out)
      .BeginObject()
      .Member("version", kOllamaVersion)
      .Member("heddle", version)
      .EndObject();
  return out;
}

}  // namespace heddle::server
