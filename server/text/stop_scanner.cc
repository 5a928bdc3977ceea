#include "server/text/stop_scanner.h"

#include <algorithm>

namespace heddle::server {

bool StopScanner::Push(std::string_view piece, std::string* out) {
  if (stops_.empty()) {
    out->append(piece);
    return false;
  }
  held_.append(piece);
  size_t best_begin = std::string::npos;
  size_t best_end = std::string::npos;
  for (const std::string& stop : stops_) {
    size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    size_t end = begin + stop.size();
    if (best_begin == std::string::npos || end < best_end ||
        (end == best_end && begin < best_begin)) {
      best_begin = begin;
      best_end = end;
      found_ = stop;
    }
  }
  if (best_begin != std::string::npos) {
    out->append(held_, 0, keep_ ? best_end : best_begin);
    held_.clear();
    return true;
  }
  size_t safe = held_.size() - HoldBack();
  out->append(held_, 0, safe);
  held_.erase(0, safe);
  return false;
}

void StopScanner::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
}

size_t StopScanner::HoldBack() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    size_t length = std::min(stop.size() - 1, held_.size());
    while (length > longest && held_.compare(held_.size() - length, length, stop, 0, length) != 0) {
      --length;
    }
    longest = std::max(longest, length);
  }
  return longest;
}

}  // namespace heddle::server
