#include "server/openai/adapter_updates.h"

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/adapters/adapter_names.h"
#include "server/json_writer.h"
#include "server/openai/api_fields.h"
#include "server/openai/model_choice.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

absl::Status CheckRegistry(const RequestContext& context) {
  if (context.adapters.registry != nullptr) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "this server was started without --lora-dir and --lora, and has no adapters");
}

absl::Status CheckNewName(const std::string& name, const RequestContext& context) {
  if (IsModelName(name, *context.model)) {
    return FieldError("lora_name", base::StrCat("'lora_name' ", base::Quote(name),
                                                " is the name of the base model"));
  }
  if (IsAdapterName(name)) return absl::OkStatus();
  return FieldError(
      "lora_name",
      base::StrCat("'lora_name' must have at most ", kMaxAdapterName,
                   " printable ASCII characters without spaces, quotes, backslashes, commas and "
                   "equals signs"));
}

// The adapters that operators and the command line have named, as SGLang tells them.
void WriteLoaded(const RequestContext& context, JsonWriter* json) {
  constexpr size_t kMaxTold = 1000;
  json->Key("loaded_adapters").BeginObject();
  size_t told = 0;
  for (const AdapterInfo& info : context.adapters.registry->Known()) {
    if (!(info.added || info.fixed) || ++told > kMaxTold) continue;
    json->Member(info.name, info.path);
  }
  json->EndObject();
}

std::string SglangAnswer(bool success, std::string_view error, const RequestContext& context) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Key("success").Bool(success).Member("error_message", error);
  WriteLoaded(context, &json);
  json.EndObject();
  return out;
}

// An entry of llama.cpp's list.
absl::Status ReadScale(const Json& entry, std::string_view path,
                       const std::map<int64_t, std::string>& names,
                       std::map<std::string, float>* scales) {
  if (!entry.is_object()) {
    return FieldError(path, base::StrCat("'", path, "' must be an object with 'id' and 'scale'"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kBaseAdapter> fields,
                          RequestFields<fields::kBaseAdapter>::Check(entry, path));
  const auto name = names.find(fields.Int<"id">(-1));
  if (name == names.end()) {
    return FieldError(base::StrCat(path, ".id"),
                      base::StrCat("'", path, ".id' must be the number of an adapter that was ",
                                   "given with --lora, see GET /lora-adapters"));
  }
  const double scale = fields.Number<"scale">(0);
  if (!(std::abs(scale) <= kMaxAdapterScale)) {
    return FieldError(base::StrCat(path, ".scale"),
                      base::StrCat("'", path, ".scale' must be a number from -", kMaxAdapterScale,
                                   " to ", kMaxAdapterScale));
  }
  (*scales)[name->second] = static_cast<float>(scale);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdapterLoad> ParseAdapterLoad(std::string_view text, const RequestContext& context) {
  HEDDLE_RETURN_IF_ERROR(CheckRegistry(context));
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kLoadAdapter> body,
                          CheckBody<fields::kLoadAdapter>(json, {}, context));
  AdapterLoad load = {.name = *body.Text<"lora_name">(),
                      .path = *body.Text<"lora_path">(),
                      .replace = body.Bool<"load_inplace">(false),
                      .pinned = body.Bool<"pinned">(false)};
  HEDDLE_RETURN_IF_ERROR(CheckNewName(load.name, context));
  if (load.path.find('\0') != std::string::npos) {
    return FieldError("lora_path", "'lora_path' must not have zero bytes");
  }
  if (context.patience.short_only && !context.patience.ask) return TakesLong();
  return load;
}

absl::StatusOr<std::string> ParseAdapterUnload(std::string_view text,
                                               const RequestContext& context) {
  HEDDLE_RETURN_IF_ERROR(CheckRegistry(context));
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kUnloadAdapter> body,
                          CheckBody<fields::kUnloadAdapter>(json, {}, context));
  if (context.patience.short_only && !context.patience.ask) return TakesLong();
  return *body.Text<"lora_name">();
}

absl::Status AdapterUpdateError(const absl::Status& status) {
  std::string_view code = "adapter_failed";
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      break;
    case absl::StatusCode::kAlreadyExists:
      code = "adapter_exists";
      break;
    case absl::StatusCode::kResourceExhausted:
      code = "adapter_too_large";
      break;
    default:
      return status;
  }
  return WithCode(absl::InvalidArgumentError(status.message()), code);
}

std::string AdapterUpdateAnswer(UpdateForm form, std::string_view name, std::string_view done,
                                const RequestContext& context) {
  if (form == UpdateForm::kSglang) return SglangAnswer(true, "", context);
  return base::StrCat("Success: LoRA adapter '", name, "' ", done, " successfully.");
}

std::string FailedUpdateAnswer(const absl::Status& status, const RequestContext& context) {
  return SglangAnswer(false, MessageOf(status), context);
}

std::string BaseAdapterList(const RequestContext& context) {
  std::string out;
  JsonWriter json(&out);
  json.BeginArray();
  if (context.adapters.registry != nullptr) {
    std::map<std::string, float> scales;
    for (ScaledAdapter& adapter : context.adapters.registry->base_adapters()) {
      scales[std::move(adapter.name)] = adapter.scale;
    }
    std::map<int32_t, AdapterInfo> fixed;
    for (AdapterInfo& info : context.adapters.registry->Known()) {
      if (info.fixed && context.adapters.Allows(info.name)) fixed[info.index] = std::move(info);
    }
    for (const auto& [index, info] : fixed) {
      const auto scale = scales.find(info.name);
      json.BeginObject().Key("id").Int(index).Member("name", info.name).Member("path", info.path);
      json.Key("scale").Number(scale == scales.end() ? 0.0f : scale->second).EndObject();
    }
  }
  json.EndArray();
  return out;
}

absl::StatusOr<std::string> SetBaseAdapters(std::string_view text, const RequestContext& context) {
  HEDDLE_RETURN_IF_ERROR(CheckRegistry(context));
  HEDDLE_ASSIGN_OR_RETURN(const Json list, ParseJsonArray(text));
  std::map<int64_t, std::string> names;
  for (AdapterInfo& info : context.adapters.registry->Known()) {
    if (info.fixed) names[info.index] = std::move(info.name);
  }
  std::map<std::string, float> scales;
  for (size_t i = 0; i < list.size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(ReadScale(list[i], base::StrCat("[", i, "]"), names, &scales));
  }
  std::vector<ScaledAdapter> adapters;
  adapters.reserve(scales.size());
  for (const auto& [name, scale] : scales) adapters.push_back({name, scale});
  HEDDLE_RETURN_IF_ERROR(context.adapters.registry->SetBaseAdapters(std::move(adapters)));
  return R"({"success":true})";
}

}  // namespace heddle::server
