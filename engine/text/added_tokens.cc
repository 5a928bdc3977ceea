#include "engine/text/added_tokens.h"

#include <algorithm>

#include "base/status.h"
#include "base/utf8.h"
#include "engine/text/unicode.h"

namespace heddle::engine::text {
namespace {

uint8_t ClassAt(std::string_view text, size_t at) {
  return CharClassTable::Get()[base::DecodeUtf8(text.data() + at)];
}

size_t BeginOfLast(std::string_view text) {
  size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool IsWordChar(std::string_view text, size_t at) {
  return (ClassAt(text, at) & (kLetter | kNumber | kMark)) != 0 || text[at] == '_';
}

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordChar(text, BeginOfLast(text.substr(0, begin)))) return false;
  return end == text.size() || !IsWordChar(text, end);
}

size_t WithSpaceBefore(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    const size_t last = BeginOfLast(text.substr(0, begin));
    if ((ClassAt(text, last) & kWhiteSpace) == 0) break;
    begin = last;
  }
  return std::max(begin, limit);
}

size_t WithSpaceAfter(std::string_view text, size_t end) {
  while (end < text.size() && (ClassAt(text, end) & kWhiteSpace) != 0)
    end += base::Utf8Size(text[end]);
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<Pattern>& patterns) {
  nodes_.emplace_back();
  for (const Pattern& pattern : patterns) {
    if (pattern.text.empty()) continue;
    int32_t node = 0;
    for (const char byte : pattern.text) {
      int32_t child = Child(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_.push_back({-1, -1, nodes_[static_cast<size_t>(node)].first_child, byte});
        nodes_[static_cast<size_t>(node)].first_child = child;
      }
      node = child;
    }
    begins_[static_cast<unsigned char>(pattern.text[0])] = true;
    nodes_[static_cast<size_t>(node)].pattern = static_cast<int32_t>(patterns_.size());
    patterns_.push_back(pattern);
  }
}

int32_t AddedTokenFinder::Child(int32_t node, char byte) const {
  int32_t child = nodes_[static_cast<size_t>(node)].first_child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
    child = nodes_[static_cast<size_t>(child)].next_sibling;
  }
  return child;
}

int32_t AddedTokenFinder::LongestAt(std::string_view text, size_t at) const {
  int32_t best = -1;
  int32_t node = 0;
  for (; at < text.size(); ++at) {
    node = Child(node, text[at]);
    if (node < 0) break;
    const int32_t pattern = nodes_[static_cast<size_t>(node)].pattern;
    if (pattern >= 0) best = pattern;
  }
  return best;
}

absl::Status AddedTokenFinder::Split(std::string_view text, bool parse_special,
                                     absl::FunctionRef<absl::Status(size_t, size_t)> on_text,
                                     absl::FunctionRef<void(TokenId)> on_token) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const int32_t found = begins_[static_cast<unsigned char>(text[at])] ? LongestAt(text, at) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    const Pattern& pattern = patterns_[static_cast<size_t>(found)];
    size_t begin = at;
    size_t end = at + pattern.text.size();
    at = end;
    if (pattern.token.special && !parse_special) continue;
    if (pattern.token.single_word && !StandsAlone(text, begin, end)) continue;
    begin = pattern.token.lstrip ? WithSpaceBefore(text, begin, done) : std::max(begin, done);
    if (pattern.token.rstrip) end = WithSpaceAfter(text, end);
    if (begin > done) HEDDLE_RETURN_IF_ERROR(on_text(done, begin));
    on_token(pattern.token.id);
    done = std::max(done, end);
  }
  return done < text.size() ? on_text(done, text.size()) : absl::OkStatus();
}

}  // namespace heddle::engine::text
