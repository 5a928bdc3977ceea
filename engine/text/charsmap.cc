#include "engine/text/charsmap.h"

#include <cstring>

#include "base/message.h"
#include "base/utf8.h"

namespace heddle::engine::text {
namespace {

// Published models' longest rules have a few code points.
constexpr size_t kMaxRuleBytes = 256;

// Fields of a Darts-clone unit.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) == 1; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Parse(std::string_view blob) {
  Charsmap map;
  if (blob.empty()) return map;
  uint32_t trie_bytes = 0;
  if (blob.size() < sizeof(trie_bytes)) {
    return absl::InvalidArgumentError("precompiled charsmap is shorter than its size field");
  }
  std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  blob.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes % sizeof(uint32_t) != 0 || trie_bytes == 0 || trie_bytes > blob.size()) {
    return absl::InvalidArgumentError(base::StrCat("precompiled charsmap claims a trie of ",
                                                   trie_bytes, " bytes, ", blob.size(),
                                                   " bytes are there"));
  }
  map.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(map.units_.data(), blob.data(), trie_bytes);
  map.replacements_ = blob.substr(trie_bytes);
  if (!map.replacements_.empty() && map.replacements_.back() != '\0')
    map.replacements_.push_back(0);
  if (!base::IsValidUtf8(map.replacements_)) {
    return absl::InvalidArgumentError("precompiled charsmap holds replacements that are not UTF-8");
  }
  return map;
}

bool Charsmap::LeavesAlone(unsigned char byte) const {
  const auto has_child = [this](size_t node, uint32_t label) {
    return node < units_.size() && Label(units_[node]) == label;
  };
  if (units_.empty() || byte == 0) return true;
  const size_t node = Offset(units_[0]) ^ byte;
  if (!has_child(node, byte)) return true;
  if (HasLeaf(units_[node])) return false;
  const size_t below = node ^ Offset(units_[node]);
  for (uint32_t next = 1; next < 0x80; ++next) {
    if (has_child(below ^ next, next)) return false;
  }
  return true;
}

std::optional<Charsmap::Match> Charsmap::Find(std::string_view text, bool longest) const {
  std::optional<Match> best;
  if (units_.empty()) return best;
  // A damaged trie may have cycles.
  text = text.substr(0, kMaxRuleBytes);
  size_t node = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || Label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size()) break;
    const uint32_t value = Value(units_[node]);
    // A rule ends between two code points, except in a damaged trie.
    const bool at_border =
        i + 1 == text.size() || (static_cast<unsigned char>(text[i + 1]) & 0xC0) != 0x80;
    if (value >= replacements_.size() || !at_border) continue;
    if ((static_cast<unsigned char>(replacements_[value]) & 0xC0) == 0x80) continue;
    best = Match{i + 1, std::string_view(replacements_.c_str() + value)};
    if (!longest) break;
  }
  return best;
}

size_t PlainPrefix(std::string_view text, const std::array<bool, 256>& plain) {
  size_t size = 0;
  while (size < text.size() && plain[static_cast<unsigned char>(text[size])]) ++size;
  const bool ascii_follows = size == text.size() || static_cast<unsigned char>(text[size]) < 0x80;
  return size > 0 && !ascii_follows ? size - 1 : size;
}

}  // namespace heddle::engine::text
