#include "server/kserve/infer_format.h"

#include "server/json_writer.h"

namespace heddle::server {

std::string InferFormat::Body(std::span<const ChoiceResult> choices, const Usage&) const {
  std::string body;
  JsonWriter json(&body);
  json.BeginObject().Member("model_name", request_->model.shown).Member("model_version", "1");
  if (!id_.empty()) json.Member("id", id_);
  json.Key("outputs").BeginArray().BeginObject();
  json.Member("name", "text_output").Member("datatype", "BYTES");
  json.Key("shape").BeginArray().Int(choices.size()).EndArray().Key("data").BeginArray();
  for (const ChoiceResult& choice : choices) {
    json.String(choice.Text(OutputPiece::Kind::kContent));
  }
  json.EndArray().EndObject().EndArray().EndObject();
  return body;
}

std::string InferFormat::ErrorBody(const ApiError& error) const { return InferErrorJson(error); }

std::string InferErrorJson(const ApiError& error) {
  std::string out;
  JsonWriter(&out).BeginObject().Member("error", error.message).EndObject();
  return out;
}

}  // namespace heddle::server
