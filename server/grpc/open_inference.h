// ModelInfer of the Open Inference Protocol in terms of `POST /v1/completions`.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/inference/open_inference.pb.h"

namespace heddle::server {

// The body of the HTTP request. INVALID_ARGUMENT unless there is one input "text_input" of datatype
// BYTES, whose content, given in one of the two ways, has the number of elements of its shape.
// `may_stream`: the parameter "stream" counts.
absl::StatusOr<std::string> ToCompletionJson(const inference::ModelInferRequest& request,
                                             bool may_stream = false);

// Whether a request's input, and so its output, is in raw contents: the form of Triton's clients.
inline bool IsRaw(const inference::ModelInferRequest& request) {
  return request.raw_input_contents_size() > 0;
}

// Fills "text_output" with the text of each choice.
absl::Status FromCompletionJson(std::string_view json, bool is_raw,
                                inference::ModelInferResponse* response);

// The same for a completion or a piece of a streamed one, with the request's id; false: the piece
// has no choices, and nothing is to be sent. A piece has the parameter "index", its choice's
// number.
absl::StatusOr<bool> FromCompletionChunk(std::string_view json, const std::string& id, bool is_raw,
                                         inference::ModelInferResponse* response);

}  // namespace heddle::server
