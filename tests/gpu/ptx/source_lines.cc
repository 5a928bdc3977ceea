#include "tests/gpu/ptx/source_lines.h"

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/operands.h"
#include "tests/gpu/ptx/statements.h"

namespace heddle::ptx {

int32_t SourceLines::Place(std::string_view text) {
  constexpr std::string_view kCaller = "inlined_at";
  const std::string own(TakeUntil(",", &text));
  int32_t caller = -1;
  if (const size_t at = text.find(kCaller); at != std::string_view::npos) {
    const auto found = last_.find(Trim(text.substr(at + kCaller.size())));
    if (found != last_.end()) caller = found->second;
  }
  std::string_view numbers = own;
  Line line = {0, 0, caller};
  if (!ReadNumber(TakeUntil(" \t", &numbers), &line.file) ||
      !ReadNumber(TakeUntil(" \t", &numbers), &line.line)) {
    return -1;
  }
  const auto [known, is_new] =
      known_.try_emplace({own, caller}, static_cast<int32_t>(places_.size()));
  if (is_new) places_.push_back(line);
  last_[own] = known->second;
  return known->second;
}

void SourceLines::Name(std::string_view text) {
  uint64_t number = 0;
  if (!ReadNumber(TakeUntil(" \t", &text), &number) || text.empty()) return;
  text.remove_prefix(1);
  const std::string_view path = text.substr(0, text.find('"'));
  names_[number] = std::string(path.substr(path.rfind('/') + 1));
}

std::vector<std::string> SourceLines::Shown() const {
  std::vector<std::string> shown;
  for (const Line& place : places_) {
    const auto name = names_.find(place.file);
    std::string& text = shown.emplace_back(
        absl::StrCat(name == names_.end() ? "?" : name->second, ":", place.line));
    // Callers have smaller numbers.
    if (place.caller >= 0)
      text = absl::StrCat(text, " < ", shown[static_cast<size_t>(place.caller)]);
  }
  return shown;
}

}  // namespace heddle::ptx
