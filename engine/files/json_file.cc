#include "engine/files/json_file.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/mapped_file.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// Deepest nesting of brackets outside of strings. Over text that is not JSON the count may be off,
// which is harmless: the parser refuses such text.
int NestingDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

std::string_view ExceptionText(std::string_view what) {
  const size_t end = what.starts_with('[') ? what.find("] ") : std::string_view::npos;
  return end == std::string_view::npos ? what : what.substr(end + 2);
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name) {
  if (int depth = NestingDepth(text); depth > kMaxJsonDepth) {
    return absl::InvalidArgumentError(base::StrCat(
        name, ": nested ", depth, " levels deep, at most ", kMaxJsonDepth, " are accepted"));
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
