// The fields of the Open Inference Protocol's /v2/models/NAME/infer.
// Source: KServe's "Open Inference Protocol (V2)", REST; Triton's binary tensor data extension.
#pragma once

#include "server/openai/chat_fields.h"

namespace heddle::server::fields {

inline constexpr Field kInfer[] = {
    {"inputs", kArray, 1, 1, "",
     "one tensor: {\"name\": \"text_input\", \"datatype\": \"BYTES\", \"shape\", \"data\"}", true},
    {"outputs", kArray, 0, 1, "[]", "text_output, which is sent in any case"},
    {"parameters", kObject, 0, kMaxJsonMembers, "{}", "fields of /v1/completions"},
    {"id", kString, 0, 512, "", "given back"},
};

}  // namespace heddle::server::fields
