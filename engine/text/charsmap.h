// SentencePiece's precompiled normalisation rules: a double-array trie from byte strings to
// replacements.
// Source: sentencepiece `src/normalizer.cc`, `precompiled_charsmap`: u32 size of the trie in bytes,
// the trie's units (Darts-clone), the replacements as NUL-terminated strings.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::engine::text {

class Charsmap {
 public:
  Charsmap() = default;  // no rules

  // INVALID_ARGUMENT if sizes do not fit.
  static absl::StatusOr<Charsmap> Parse(std::string_view blob);

  struct Match {
    size_t size;                   // bytes of the text
    std::string_view replacement;  // lives as long as the map
  };
  std::optional<Match> Longest(std::string_view text) const { return Find(text, true); }
  std::optional<Match> Shortest(std::string_view text) const { return Find(text, false); }
  // Whether no rule begins with the ASCII byte `byte` if another ASCII byte or the end follows.
  bool LeavesAlone(unsigned char byte) const;
  bool empty() const { return units_.empty(); }

 private:
  std::optional<Match> Find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

// The number of leading bytes of `text` that are `plain`, which means ASCII that no rule touches if
// ASCII follows: most bytes of most texts. The last one does not count if more than ASCII follows
// it.
size_t PlainPrefix(std::string_view text, const std::array<bool, 256>& plain);

}  // namespace heddle::engine::text
