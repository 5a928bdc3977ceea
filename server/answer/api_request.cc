#include "server/answer/api_request.h"

namespace heddle::server {

void ApiRequest::Warn(std::string_view text) {
  constexpr std::string_view kBetween = "; ";
  std::string shown;
  for (char c : text) shown.push_back(c >= ' ' && c <= '~' ? c : '?');
  const bool is_told = warning.find(shown) != std::string::npos;
  if (is_told || warning.size() + kBetween.size() + shown.size() > kMaxWarningBytes) return;
  if (!warning.empty()) warning += kBetween;
  warning += shown;
}

}  // namespace heddle::server
