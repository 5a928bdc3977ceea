#include "server/grpc/json_mapping.h"

#include <cstdint>
#include <new>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/message.h"
#include "base/status.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

using Json = nlohmann::ordered_json;
namespace util = google::protobuf::util;

constexpr std::string_view kJsonSuffix = "_json";

// Parses `text`, bounded as bodies over HTTP are. `name` is for error messages.
absl::StatusOr<Json> ParseBounded(std::string_view name, std::string_view text) {
  if (const absl::Status shape = CheckJsonShape(text); !shape.ok()) {
    return absl::InvalidArgumentError(base::StrCat(name, ": ", shape.message()));
  }
  Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded()) return parsed;
  return absl::InvalidArgumentError(base::StrCat(name, " is not JSON"));
}

// Turns "parameters_json": "{...}" into "parameters": {...}, at any depth of the message.
absl::StatusOr<Json> ExpandTexts(Json value) {
  if (value.is_array()) {
    for (Json& element : value) {
      HEDDLE_ASSIGN_OR_RETURN(element, ExpandTexts(std::move(element)));
    }
    return value;
  }
  if (!value.is_object()) return value;
  Json expanded = Json::object();
  for (auto& [key, member] : value.items()) {
    const std::string_view name = key;
    if (name.ends_with(kJsonSuffix) && member.is_string()) {
      HEDDLE_ASSIGN_OR_RETURN(
          expanded[std::string(name.substr(0, name.size() - kJsonSuffix.size()))],
          ParseBounded(name, *TextOf(&member)));
    } else {
      HEDDLE_ASSIGN_OR_RETURN(expanded[key], ExpandTexts(std::move(member)));
    }
  }
  return expanded;
}

// Converts the fields whose form differs over HTTP.
void Adapt(Json* body) {
  if (auto seed = body->find("seed"); seed != body->end() && seed->is_string()) {
    uint64_t number = 0;
    const std::string text = TextOr(*body, "seed", "");
    if (absl::SimpleAtoi(text, &number)) *seed = number;
  }
  if (auto ids = body->find("prompt_token_ids"); ids != body->end()) {
    const Json* given = Find(*ids, "ids");
    Json list = given == nullptr ? Json::array() : *given;
    body->erase("prompt_token_ids");
    (*body)["prompt"] = std::move(list);
  }
}

absl::Status ToStatus(const util::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto message = status.message();
  return absl::InternalError(std::string(message.data(), message.size()));
}

absl::StatusOr<std::string> MakeRequestJson(const google::protobuf::Message& request,
                                            JsonForm form) {
  util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  if (const util::Status printed = util::MessageToJsonString(request, &text, options);
      !printed.ok()) {
    return absl::InvalidArgumentError(ToStatus(printed).message());
  }
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseBounded("the message", text));
  Json extra = Json::object();
  if (auto found = body.find("extra"); found != body.end()) {
    extra = std::move(*found);
    body.erase("extra");
  }
  HEDDLE_ASSIGN_OR_RETURN(body, ExpandTexts(std::move(body)));
  Adapt(&body);
  body.update(extra);
  if (form == JsonForm::kStreaming) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<std::string> ToRequestJson(const google::protobuf::Message& request, JsonForm form) {
  try {
    return MakeRequestJson(request, form);
  } catch (const std::bad_alloc&) {
    return absl::UnavailableError("the server has no memory for this request now");
  } catch (const std::exception&) {
    return absl::InternalError("the server failed at this request");
  }
}

absl::Status FromResponseJson(std::string_view json, google::protobuf::Message* response) {
  util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  return ToStatus(util::JsonStringToMessage({json.data(), json.size()}, response, options));
}

}  // namespace heddle::server
