#include "server/kserve/infer_request.h"

#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"
#include "server/kserve/infer_fields.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr std::string_view kPath = "inputs[0]";

// The elements of a binary tensor, each behind its length: 4 bytes, little-endian.
absl::StatusOr<std::vector<std::string>> SplitBinary(std::string_view bytes) {
  constexpr size_t kLengthBytes = 4;
  std::vector<std::string> elements;
  while (!bytes.empty()) {
    uint32_t length = 0;
    for (size_t i = 0; i < kLengthBytes && i < bytes.size(); ++i) {
      length |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    }
    if (bytes.size() < kLengthBytes || bytes.size() - kLengthBytes < length) {
      return FieldError(kPath, "the binary data of 'inputs[0]' end within an element");
    }
    elements.emplace_back(bytes.substr(kLengthBytes, length));
    bytes.remove_prefix(kLengthBytes + length);
  }
  return elements;
}

// Adds the texts of `data`, which may be nested as its shape says.
absl::Status AddTexts(const Json& data, int depth, std::vector<std::string>* texts) {
  constexpr int kMaxDepth = 8;
  for (const Json& entry : data) {
    if (const std::string* text = TextOf(&entry)) {
      texts->push_back(*text);
    } else if (entry.is_array() && depth < kMaxDepth) {
      HEDDLE_RETURN_IF_ERROR(AddTexts(entry, depth + 1, texts));
    } else {
      return FieldError("inputs[0].data",
                        base::StrCat("'inputs[0].data' must hold strings, found ", JsonKind(entry)),
                        "invalid_type");
    }
  }
  return absl::OkStatus();
}

// The elements of a tensor in the two forms that they come in.
absl::StatusOr<std::vector<std::string>> Elements(const Json& input, std::string_view binary) {
  const Json* parameters = Find(input, "parameters");
  const Json* size = parameters == nullptr ? nullptr : Find(*parameters, "binary_data_size");
  const Json* data = Find(input, "data");
  if (size != nullptr) {
    if (data != nullptr || IntegerOf(*size) != static_cast<int64_t>(binary.size())) {
      return FieldError(kPath,
                        base::StrCat("'inputs[0]' must be given once, in 'data' or in as many "
                                     "bytes behind the JSON as 'binary_data_size' says; ",
                                     binary.size(), " follow it"));
    }
    return SplitBinary(binary);
  }
  if (data == nullptr || !data->is_array() || !binary.empty()) {
    return FieldError("inputs[0].data", "'inputs[0].data' must be an array", "invalid_type");
  }
  std::vector<std::string> texts;
  HEDDLE_RETURN_IF_ERROR(AddTexts(*data, 0, &texts));
  return texts;
}

// The number of elements that a shape has; -1: it is no shape.
int64_t Volume(const Json* shape) {
  constexpr int64_t kMost = int64_t{1} << 20;
  if (shape == nullptr || !shape->is_array()) return -1;
  int64_t volume = 1;
  for (const Json& entry : *shape) {
    const int64_t size = IntegerOf(entry).value_or(-1);
    if (size < 0 || size > kMost || volume * size > kMost) return -1;
    volume *= size;
  }
  return volume;
}

absl::StatusOr<std::vector<std::string>> Texts(const Json& input, std::string_view binary) {
  if (TextOr(input, "name", "") != "text_input" || TextOr(input, "datatype", "") != "BYTES") {
    return FieldError(kPath, "one input is expected: text_input, of datatype BYTES");
  }
  HEDDLE_ASSIGN_OR_RETURN(std::vector<std::string> texts, Elements(input, binary));
  if (texts.empty() || Volume(Find(input, "shape")) != static_cast<int64_t>(texts.size())) {
    return FieldError(
        "inputs[0].shape",
        base::StrCat("'inputs[0]' has ", texts.size(),
                     " elements; 'shape' must say so, and there must be one at least"));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    if (base::IsValidUtf8(texts[i])) continue;
    return FieldError(kPath, base::StrCat("'inputs[0]' must be UTF-8; its element ", i, " is not"));
  }
  return texts;
}

}  // namespace

absl::StatusOr<InferRequest> ParseInferRequest(std::string_view text,
                                               const RequestContext& context) {
  const size_t json_bytes = context.json_bytes.value_or(text.size());
  if (json_bytes > text.size()) {
    return FieldError("", base::StrCat("'Inference-Header-Content-Length' is ", json_bytes,
                                       ", and the body has ", text.size(), " bytes"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text.substr(0, json_bytes)));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kInfer> body,
                          CheckBody<fields::kInfer>(json, {}, context));
  HEDDLE_ASSIGN_OR_RETURN(std::vector<std::string> texts,
                          Texts(body.Value<"inputs">()->front(), text.substr(json_bytes)));
  Json completion = Json::object();
  if (const Json* parameters = body.Value<"parameters">()) completion = *parameters;
  for (const char* name : {"stream", "stream_options", "binary_data_output", "model"}) {
    completion.erase(name);  // the answer is one message of JSON; the model is in the path
  }
  completion["prompt"] = std::move(texts);
  InferRequest request;
  HEDDLE_ASSIGN_OR_RETURN(request.api, ReadRequest(Endpoint::kCompletion, completion, context));
  if (const std::string* id = body.Text<"id">()) request.id = *id;
  return request;
}

}  // namespace heddle::server
