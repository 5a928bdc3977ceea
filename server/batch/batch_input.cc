#include "server/batch/batch_input.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/batch/disk.h"
#include "server/request/api_error.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxIdBytes = 512;
constexpr std::string_view kEndpoints[] = {"/v1/chat/completions", "/v1/completions",
                                           "/v1/responses", "/v1/embeddings"};

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

absl::Status IsTrue(const Json& body, std::string_view name, std::string_view why) {
  const Json* value = Find(body, name);
  if (value == nullptr || !value->is_boolean() || !value->get<bool>()) return absl::OkStatus();
  return FieldError(base::StrCat("body.", name), why, "invalid_request");
}

BatchFault FaultOf(const absl::Status& status, int64_t line) {
  ApiError error = ToApiError(status);
  if (error.code.empty()) error.code = "invalid_json_line";
  return {std::move(error.code), std::move(error.message), std::move(error.param), line};
}

}  // namespace

bool IsBatchEndpoint(std::string_view path) {
  return std::find(std::begin(kEndpoints), std::end(kEndpoints), path) != std::end(kEndpoints);
}

std::string_view BatchEndpoints() {
  return "/v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings";
}

absl::StatusOr<BatchLine> ReadBatchLine(std::string_view text, std::string_view endpoint) {
  absl::StatusOr<Json> json = ParseJsonObject(text);
  if (!json.ok()) return WithCode(json.status(), "invalid_json_line");
  BatchLine line;
  line.custom_id = TextOr(*json, "custom_id", "");
  if (line.custom_id.empty() || line.custom_id.size() > kMaxIdBytes) {
    return FieldError("custom_id", "'custom_id' must be a text of 1 to 512 bytes",
                      "missing_required_parameter");
  }
  const std::string method = TextOr(*json, "method", "");
  if (method != "POST") {
    return FieldError("method",
                      base::StrCat("'method' must be \"POST\", found ", base::Quote(method)),
                      "invalid_method");
  }
  const std::string url = TextOr(*json, "url", "");
  if (url != endpoint) {
    return FieldError("url",
                      base::StrCat("'url' must be the batch's endpoint, ", base::Quote(endpoint),
                                   ", found ", base::Quote(url)),
                      "mismatched_endpoint");
  }
  Json* body = json->contains("body") ? &(*json)["body"] : nullptr;
  if (body == nullptr || !body->is_object()) {
    return FieldError("body", "'body' must be an object: the request",
                      "missing_required_parameter");
  }
  HEDDLE_RETURN_IF_ERROR(IsTrue(*body, "stream", "a line of a batch is answered whole"));
  HEDDLE_RETURN_IF_ERROR(
      IsTrue(*body, "background", "a line of a batch runs in the background anyway"));
  // Thousands of answers that nobody goes on from would push out those that are kept.
  if (endpoint == "/v1/responses" && !body->contains("store")) (*body)["store"] = false;
  line.body = body->dump();
  return line;
}

absl::Status CheckBatchInput(const std::string& path, const BatchInputLimits& limits,
                             const std::function<bool()>& stops, BatchRecord* batch) {
  HEDDLE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(path, limits.max_line_bytes));
  std::unordered_set<std::string> ids;
  batch->total = 0;
  batch->faults.clear();
  const auto add = [batch](const absl::Status& status, int64_t line) {
    batch->faults.push_back(FaultOf(status, line));
  };
  while (batch->faults.size() < limits.max_faults) {
    if (stops()) return absl::CancelledError("the server is shutting down");
    absl::StatusOr<std::optional<std::string>> text = reader.Next();
    if (!text.ok() && !absl::IsOutOfRange(text.status())) return text.status();
    if (text.ok() && !text->has_value()) break;
    if (text.ok() && IsBlank(**text)) continue;
    ++batch->total;
    if (batch->total > limits.max_lines) {
      add(WithCode(absl::InvalidArgumentError(
                       base::StrCat("a batch may have ", limits.max_lines, " lines")),
                   "too_many_requests"),
          reader.line());
      break;
    }
    absl::StatusOr<BatchLine> line =
        text.ok() ? ReadBatchLine(**text, batch->endpoint)
                  : WithCode(absl::InvalidArgumentError(text.status().message()), "line_too_long");
    if (!line.ok()) {
      add(line.status(), reader.line());
    } else if (!ids.insert(std::move(line->custom_id)).second) {
      add(FieldError("custom_id", "another line has the same 'custom_id'", "duplicate_custom_id"),
          reader.line());
    }
  }
  if (batch->total == 0 && batch->faults.empty()) {
    add(WithCode(absl::InvalidArgumentError("the input file has no lines"), "empty_file"), 0);
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
