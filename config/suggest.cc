#include "config/suggest.h"

#include <algorithm>
#include <vector>

#include "base/message.h"

namespace heddle::config {
namespace {

constexpr size_t kLongestName = 64;  // a longer one is no typing mistake

}  // namespace

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t substitution = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, substitution});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string_view Nearest(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  size_t best_distance = kLongestName;
  if (name.size() > kLongestName) return best;
  for (std::string_view candidate : candidates) {
    size_t distance = EditDistance(name, candidate);
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
