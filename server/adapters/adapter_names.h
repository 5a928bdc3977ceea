// Names of adapters as clients and operators write them.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::server {

inline constexpr size_t kMaxAdapterName = 200;  // bytes: a folder's name has 255 at most

inline constexpr std::string_view kGgufEnd = ".gguf";  // of a file's name; the rest is an adapter's

// Whether a name may be given to an adapter: printable ASCII without white space, quotes,
// backslash, comma (which separates names in metrics) and equals sign.
bool IsAdapterName(std::string_view name);

// Whether it may also name something in a folder: no slash, and no dot at the beginning.
bool IsFolderAdapterName(std::string_view name);

// An adapter that a request asks for, at a scale beside its own.
struct ScaledAdapter {
  std::string name;
  float scale = 1.0f;

  bool operator==(const ScaledAdapter&) const = default;
};

struct NamedAdapterPath {
  std::string name;
  std::string path;
  std::optional<float> scale;
};

// Scales beyond it leave no model able to speak.
inline constexpr double kMaxAdapterScale = 1000;

// Parses entries of --lora: NAME=PATH, or NAME=PATH@SCALE, where the SCALE is what follows the last
// @ if that is a number. INVALID_ARGUMENT: an entry has another form, a name is not allowed or
// stands twice, a scale is out of range.
absl::StatusOr<std::vector<NamedAdapterPath>> ParseAdapterOptions(
    std::span<const std::string> entries);

}  // namespace heddle::server
