#include "engine/files/json_file.h"

#include <limits>
#include <span>
#include <utility>

#include "base/json_shape.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/mapped_file.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {

std::string_view ExceptionText(std::string_view what) {
  const size_t end = what.starts_with('[') ? what.find("] ") : std::string_view::npos;
  return end == std::string_view::npos ? what : what.substr(end + 2);
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name) {
  constexpr int kAnyNumber = std::numeric_limits<int>::max();  // a vocabulary is an object
  if (base::FindExcess(text, kMaxJsonDepth, kAnyNumber).excess != base::JsonShape::Excess::kNone) {
    return absl::InvalidArgumentError(
        base::StrCat(name, " is nested more than ", kMaxJsonDepth, " levels deep"));
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        base::StrCat(name, " is not valid JSON: ", ExceptionText(error.what())));
  }
}

absl::StatusOr<nlohmann::json> ReadJsonFile(const std::filesystem::path& path, int64_t max_bytes) {
  HEDDLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > static_cast<size_t>(max_bytes)) {
    return absl::InvalidArgumentError(base::StrCat(path.string(), " has ", bytes.size(),
                                                   " bytes, at most ", max_bytes, " are accepted"));
  }
  return ParseJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace heddle::engine
