// Standard input and output of the one-shot commands.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace heddle::server {

// All of standard input. INVALID_ARGUMENT above `max_bytes`.
absl::StatusOr<std::string> ReadStandardInput(size_t max_bytes);

// Reads the next line of standard input, without its end, into `*line`; false at the end of the
// input. INVALID_ARGUMENT for a line of more than `max_bytes`.
absl::StatusOr<bool> ReadLine(size_t max_bytes, std::string* line);

// Writes to standard output, buffered; Flush reports a failure (a full disk). A closed pipe ends
// the program by SIGPIPE, as it does other filters.
absl::Status WriteOut(std::string_view text);
absl::Status FlushOut();

// The whole of a file. NOT_FOUND with path and reason if it cannot be read; INVALID_ARGUMENT above
// `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

}  // namespace heddle::server
