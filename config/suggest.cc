#include "config/suggest.h"

#include <algorithm>

#include "base/message.h"
#include "base/strings.h"

namespace heddle::config {
namespace {

constexpr size_t kLongestName = 64;  // longer names are not typing mistakes

}  // namespace

std::string_view Nearest(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  size_t best_distance = kLongestName;
  if (name.size() > kLongestName) return best;
  for (std::string_view candidate : candidates) {
    size_t distance = base::EditDistance(name, candidate);
    if (distance > std::max<size_t>(2, candidate.size() / 3) || distance >= best_distance) continue;
    if (distance >= std::max(name.size(), candidate.size())) continue;  // nothing in common
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string DidYouMean(std::string_view name, std::span<const std::string_view> candidates,
                       std::string_view prefix) {
  std::string_view nearest = Nearest(name, candidates);
  return nearest.empty() ? "" : base::StrCat("; did you mean ", prefix, nearest, "?");
}

}  // namespace heddle::config
