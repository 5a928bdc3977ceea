// Reads JSON files of a model folder (config.json, tokenizer.json, ...). They are untrusted: size
// and nesting are checked before anything is built, and no exception leaves. Infinity, which is no
// JSON and which Python writes, is read as the largest number.
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

// NOT_FOUND if there is no such file; INVALID_ARGUMENT with the position of the first error if it
// is not JSON, is larger than `max_bytes` or nests deeper than kMaxJsonDepth. Messages name the
// path.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::filesystem::path& path,
                                            int64_t max_bytes = kMaxJsonFileBytes);

// The message of a JSON library's exception, without the exception's name before it.
std::string_view ExceptionText(std::string_view what);

// The same for text in memory; messages name it `name`.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name);

}  // namespace heddle::engine
