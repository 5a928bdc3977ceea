#include "server/kserve/kserve_models.h"

#include "base/status.h"
#include "server/json_writer.h"
#include "server/openai/model_choice.h"

namespace heddle::server {
namespace {

void WriteTensor(std::string_view list, std::string_view name, JsonWriter* json) {
  json->Key(list).BeginArray().BeginObject().Member("name", name).Member("datatype", "BYTES");
  json->Key("shape").BeginArray().Int(-1).EndArray().EndObject().EndArray();
}

}  // namespace

std::string KserveServer(std::string_view version) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("name", "heddle").Member("version", version);
  json.Key("extensions").BeginArray().String("binary_tensor_data").EndArray().EndObject();
  return out;
}

absl::StatusOr<std::string> KserveModel(const std::string& name, const RequestContext& context) {
  HEDDLE_RETURN_IF_ERROR(ChooseModel(&name, nullptr, context).status());
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("name", name).Key("versions").BeginArray().String("1").EndArray();
  json.Member("platform", "heddle");
  WriteTensor("inputs", "text_input", &json);
  WriteTensor("outputs", "text_output", &json);
  json.EndObject();
  return out;
}

absl::StatusOr<std::string> KserveModelReady(const std::string& name,
                                             const RequestContext& context) {
  HEDDLE_RETURN_IF_ERROR(ChooseModel(&name, nullptr, context).status());
  std::string out;
  JsonWriter(&out).BeginObject().Member("name", name).Key("ready").Bool(true).EndObject();
  return out;
}

}  // namespace heddle::server
