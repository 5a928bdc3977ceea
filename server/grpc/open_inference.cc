#include "server/grpc/open_inference.h"

#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

using Json = nlohmann::ordered_json;
using InputTensor = inference::ModelInferRequest::InferInputTensor;

// Splits elements that follow their lengths: 4 bytes, little-endian.
absl::StatusOr<std::vector<std::string>> SplitRaw(std::string_view raw) {
  std::vector<std::string> elements;
  constexpr size_t kLengthBytes = 4;
  while (!raw.empty()) {
    uint32_t length = 0;
    for (size_t i = 0; i < kLengthBytes && i < raw.size(); ++i) {
      length |= static_cast<uint32_t>(static_cast<unsigned char>(raw[i])) << (8 * i);
    }
    if (raw.size() < kLengthBytes || raw.size() - kLengthBytes < length) {
      return absl::InvalidArgumentError("raw_input_contents[0] ends within an element");
    }
    elements.emplace_back(raw.substr(kLengthBytes, length));
    raw.remove_prefix(kLengthBytes + length);
  }
  return elements;
}

void AppendRaw(std::string_view element, std::string* raw) {
  const auto length = static_cast<uint32_t>(element.size());
  for (int shift = 0; shift < 32; shift += 8) {
    raw->push_back(static_cast<char>((length >> shift) & 0xFF));
  }
  raw->append(element);
}

absl::StatusOr<std::vector<std::string>> Texts(const inference::ModelInferRequest& request) {
  const InputTensor& input = request.inputs(0);
  std::vector<std::string> texts(input.contents().bytes_contents().begin(),
                                 input.contents().bytes_contents().end());
  if (request.raw_input_contents_size() > 0) {
    if (!texts.empty() || request.raw_input_contents_size() > 1) {
      return absl::InvalidArgumentError(
          "an input's content is given once: in contents.bytes_contents or raw_input_contents");
    }
    HEDDLE_ASSIGN_OR_RETURN(texts, SplitRaw(request.raw_input_contents(0)));
  }
  int64_t elements = 1;
  for (const int64_t size : input.shape()) {
    if (size < 0 || size > int64_t{1} << 20) elements = -1;
    elements = elements < 0 || elements > int64_t{1} << 20 ? -1 : elements * size;
  }
  if (elements != static_cast<int64_t>(texts.size()) || texts.empty()) {
    return absl::InvalidArgumentError(base::StrCat("text_input has ", texts.size(),
                                                   " elements; its shape must say so, and there "
                                                   "must be one at least"));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    if (base::IsValidUtf8(texts[i])) continue;
    return absl::InvalidArgumentError(
        base::StrCat("text_input must be UTF-8; its element ", i, " is not"));
  }
  return texts;
}

Json ToJson(const inference::InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam:
      return parameter.bool_param();
    case inference::InferParameter::kInt64Param:
      return parameter.int64_param();
    case inference::InferParameter::kStringParam:
      return parameter.string_param();
    case inference::InferParameter::kDoubleParam:
      return parameter.double_param();
    case inference::InferParameter::kUint64Param:
      return parameter.uint64_param();
    case inference::InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::string> ToCompletionJson(const inference::ModelInferRequest& request,
                                             bool may_stream) {
  if (request.inputs_size() != 1 || request.inputs(0).name() != "text_input" ||
      request.inputs(0).datatype() != "BYTES") {
    return absl::InvalidArgumentError("one input is expected: text_input, of datatype BYTES");
  }
  if (request.parameters_size() > kMaxJsonMembers) {
    return absl::InvalidArgumentError(base::StrCat("there may be at most ", kMaxJsonMembers,
                                                   " parameters, found ",
                                                   request.parameters_size()));
  }
  HEDDLE_ASSIGN_OR_RETURN(std::vector<std::string> texts, Texts(request));
  Json body = {{"model", request.model_name()}, {"prompt", std::move(texts)}};
  for (const auto& [name, parameter] : request.parameters()) body[name] = ToJson(parameter);
  if (!may_stream) body.erase("stream");             // the answer is one message
  body.erase("triton_enable_empty_final_response");  // about messages, not about the answer
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status FromCompletionJson(std::string_view json, bool is_raw,
                                inference::ModelInferResponse* response) {
  const Json body = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const Json* choices = Find(body, "choices");
  if (choices == nullptr) return absl::InternalError("a completion without choices");
  response->set_model_name(TextOr(body, "model", ""));
  inference::ModelInferResponse::InferOutputTensor* output = response->add_outputs();
  output->set_name("text_output");
  output->set_datatype("BYTES");
  output->add_shape(static_cast<int64_t>(choices->size()));
  std::string* raw = is_raw ? response->add_raw_output_contents() : nullptr;
  for (const Json& choice : *choices) {
    const std::string text = TextOr(choice, "text", "");
    if (is_raw) {
      AppendRaw(text, raw);
    } else {
      output->mutable_contents()->add_bytes_contents(text);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> FromCompletionChunk(std::string_view json, const std::string& id, bool is_raw,
                                         inference::ModelInferResponse* response) {
  HEDDLE_RETURN_IF_ERROR(FromCompletionJson(json, is_raw, response));
  response->set_id(id);
  const Json body = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const Json* choices = Find(body, "choices");
  if (choices == nullptr || choices->empty()) return false;
  if (TextOr(body, "object", "") != "text_completion" || choices->size() != 1) return true;
  const Json* index = Find(choices->front(), "index");
  (*response->mutable_parameters())["index"].set_int64_param(
      index == nullptr ? 0 : IntegerOf(*index).value_or(0));
  return true;
}

}  // namespace heddle::server
