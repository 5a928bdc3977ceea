// Reads JSON files of a model folder (config.json, tokenizer.json, ...): untrusted, so that size
// and nesting are bounded before anything is built, and no exception leaves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

// The largest published tokenizer.json has 33 MB, the largest config.json under 1 MB.
inline constexpr int64_t kMaxJsonFileBytes = 256 << 20;
inline constexpr int kMaxJsonDepth = 64;

// NOT_FOUND if there is no such file; INVALID_ARGUMENT with the place of the first error if it is
// not JSON, is larger than `max_bytes` or nests deeper than kMaxJsonDepth. Messages name the path.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::filesystem::path& path,
                                            int64_t max_bytes = kMaxJsonFileBytes);

// What an exception of the JSON library says, without the exception's name before it.
std::string_view ExceptionText(std::string_view what);

// The same for text in memory; `name` stands for the path in messages.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name);

}  // namespace heddle::engine
