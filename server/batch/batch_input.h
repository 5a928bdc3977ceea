// The input file of a batch: a JSON object per line, {"custom_id","method","url","body"}.
// Thread-safety: pure functions; CheckBatchInput blocks while it reads the file.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/batch/batch_record.h"

namespace heddle::server {

struct BatchLine {
  std::string custom_id;
  std::string body;  // JSON
};

struct BatchInputLimits {
  size_t max_line_bytes = size_t{8} << 20;
  int64_t max_lines = 50000;
  size_t max_faults = 100;  // that are reported
};

// The endpoints that lines can be for.
bool IsBatchEndpoint(std::string_view path);
std::string_view BatchEndpoints();  // for messages

// INVALID_ARGUMENT, with param and code: it is no line of a batch for that endpoint.
absl::StatusOr<BatchLine> ReadBatchLine(std::string_view text, std::string_view endpoint);

// Reads all of a file and fills in how many lines the batch has, and what is wrong with them. An
// error: it could not be read, or `stops` became true.
absl::Status CheckBatchInput(const std::string& path, const BatchInputLimits& limits,
                             const std::function<bool()>& stops, BatchRecord* batch);

}  // namespace heddle::server
