// Finds stop strings in text that comes in pieces, and holds back text that may become one.
// The result does not depend on how the text is cut into pieces: of several stop strings the first
// that is complete wins; of those that end at the same byte, the longest.
// Text and stop strings are UTF-8 and pieces are whole code points, so that comparing bytes never
// cuts one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace heddle::server {

class StopScanner {
 public:
  // `stops` are not empty strings and must outlive the scanner. `keep`: the one that is found is
  // part of the text.
  explicit StopScanner(std::span<const std::string> stops, bool keep = false)
      : stops_(stops), keep_(keep) {}

  // Appends to *out what can no longer be part of a stop string. Returns true if one was found;
  // *out then ends where it began (or ended, if it is kept), and the scanner must not be used
  // again.
  bool Push(std::string_view piece, std::string* out);

  // The stop string that Push found; empty before.
  std::string_view found() const { return found_; }

  // The text ends here: appends the text that was held back.
  void Flush(std::string* out);

 private:
  size_t HoldBack() const;  // bytes at the end of held_ that begin a stop string

  std::span<const std::string> stops_;
  bool keep_;
  std::string held_;
  std::string_view found_;
};

}  // namespace heddle::server
