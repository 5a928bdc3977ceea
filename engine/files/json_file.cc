#include "engine/files/json_file.h"

#include <limits>
#include <span>
#include <string>
#include <utility>

#include "base/json_shape.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/mapped_file.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {

namespace {

// The text with the largest number in place of Infinity, which Python writes though JSON has no
// such number; empty if there is none outside strings.
std::string WithFiniteNumbers(std::string_view text) {
  constexpr std::string_view kInfinity = "Infinity";
  constexpr std::string_view kLargest = "1.7976931348623157e308";
  if (text.find(kInfinity) == std::string_view::npos) return "";
  std::string finite;
  size_t begin = 0;  // of what is not copied yet
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (in_string && text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      in_string = !in_string;
    } else if (!in_string && text.substr(at).starts_with(kInfinity)) {
      finite.append(text.substr(begin, at - begin)).append(kLargest);
      at += kInfinity.size() - 1;
      begin = at + 1;
    }
  }
  if (begin == 0) return "";
  return finite.append(text.substr(begin));
}

}  // namespace

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
    if (const std::string finite = WithFiniteNumbers(text); !finite.empty()) {
      return nlohmann::json::parse(finite);
    }
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
