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
absl::StatusOr<std::string> ToCompletionJson(const inference::ModelInferRequest& request);

// Fills "text_output" with the text of each choice.
absl::Status FromCompletionJson(std::string_view json, inference::ModelInferResponse* response);

}  // namespace heddle::server
