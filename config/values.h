// Parses and writes values of options as text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"
#include "config/option.h"

namespace heddle::config {

absl::StatusOr<int64_t> ParseInteger(std::string_view text);
absl::StatusOr<double> ParseNumber(std::string_view text);
absl::StatusOr<bool> ParseBool(std::string_view text);        // true/false, yes/no, on/off, 1/0
absl::StatusOr<Bytes> ParseBytes(std::string_view text);      // 4096, 8MiB, 1.5 GB
absl::StatusOr<Seconds> ParseSeconds(std::string_view text);  // 30, 0.5, 500ms, 2m, 1h
absl::StatusOr<MemorySize> ParseMemorySize(std::string_view text);  // auto, 4GiB, 60%

// Sets the option's field of `*config` from texts (several for a list), checked against the
// option's range and choices. `origin` says where they came from ("--port", "HEDDLE_PORT",
// "heddle.yaml line 3: port") and begins the message.
absl::Status SetOption(const Option& option, std::span<const std::string> texts,
                       std::string_view origin, Config* config);

}  // namespace heddle::config
