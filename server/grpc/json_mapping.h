// Converts between the messages of proto/heddle/v1 and the JSON of the HTTP API. Both directions
// use protobuf's own JSON form, so that only fields of another form need code here:
//   "x_json": TEXT          -> "x": the JSON in TEXT
//   "extra": {...}          -> its members, in the message
//   "prompt_token_ids"      -> "prompt": [ids]
//   "seed" (64 bits, which protobuf writes as text) -> a number
//
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace heddle::server {

enum class JsonForm : uint8_t {
  kPlain,
  kStreaming,  // with "stream": true, and the usage at the end
};

// The body of the HTTP request for `request`. INVALID_ARGUMENT names a "_json" field that is not
// JSON.
absl::StatusOr<std::string> ToRequestJson(const google::protobuf::Message& request, JsonForm form);

// Fills `response` from an answer of the HTTP API; members without a field are ignored.
absl::Status FromResponseJson(std::string_view json, google::protobuf::Message* response);

}  // namespace heddle::server
