#include "server/adapters/adapter_names.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/message.h"

namespace heddle::server {

bool IsAdapterName(std::string_view name) {
  constexpr std::string_view kForbidden = "\"'\\,=";
  return !name.empty() && name.size() <= kMaxAdapterName &&
         std::all_of(name.begin(), name.end(), [&](char c) {
           return c > ' ' && c < '\x7f' && kForbidden.find(c) == std::string_view::npos;
         });
}

bool IsFolderAdapterName(std::string_view name) {
  return IsAdapterName(name) && name.front() != '.' && name.find('/') == std::string_view::npos;
}

absl::StatusOr<std::vector<NamedAdapterPath>> ParseAdapterOptions(
    std::span<const std::string> entries) {
  std::vector<NamedAdapterPath> adapters;
  std::set<std::string, std::less<>> names;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == entry.size()) {
      return absl::InvalidArgumentError(
          base::StrCat("--lora needs NAME=PATH, found ", base::Quote(entry)));
    }
    NamedAdapterPath adapter{entry.substr(0, equals), entry.substr(equals + 1), std::nullopt};
    const size_t at = adapter.path.rfind('@');
    double scale = 0;
    if (at != std::string::npos && at > 0 &&
        absl::SimpleAtod(adapter.path.substr(at + 1), &scale)) {
      if (!(std::abs(scale) <= kMaxAdapterScale)) {
        return absl::InvalidArgumentError(base::StrCat("--lora: the scale of ", base::Quote(entry),
                                                       " must be from -", kMaxAdapterScale, " to ",
                                                       kMaxAdapterScale));
      }
      adapter.scale = static_cast<float>(scale);
      adapter.path.resize(at);
    }
    if (!IsAdapterName(adapter.name)) {
      return absl::InvalidArgumentError(base::StrCat(
          "--lora: ", base::Quote(adapter.name), " cannot be a name: at most ", kMaxAdapterName,
          " printable ASCII characters without spaces, quotes, backslashes, commas and equals "
          "signs"));
    }
    if (!names.insert(adapter.name).second) {
      return absl::InvalidArgumentError(
          base::StrCat("--lora: the name ", base::Quote(adapter.name), " stands twice"));
    }
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

}  // namespace heddle::server
