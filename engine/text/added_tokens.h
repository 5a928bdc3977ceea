// Finds added tokens in text: the leftmost first, and among those the longest.
// Source: AddedVocabulary of the Hugging Face `tokenizers` library.
// Thread-safety: immutable after construction.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/text/tokenizer.h"

namespace heddle::engine::text {

class AddedTokenFinder {
 public:
  struct Pattern {
    std::string text;  // searched text: the token's content, possibly normalised
    AddedToken token;
  };
  // Patterns without text are ignored.
  explicit AddedTokenFinder(const std::vector<Pattern>& patterns);

  bool empty() const { return patterns_.empty(); }

  // Calls `on_text(begin, end)` for the text between tokens (never empty) and `on_token(id)` for
  // tokens, from left to right. Special tokens are plain text unless `parse_special`. O(size of the
  // text) as long as few bytes of the text begin a token.
  absl::Status Split(std::string_view text, bool parse_special,
                     absl::FunctionRef<absl::Status(size_t, size_t)> on_text,
                     absl::FunctionRef<void(TokenId)> on_token) const;

 private:
  struct Node {
    int32_t pattern = -1;  // the pattern that ends here
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    char byte = 0;
  };
  int32_t Child(int32_t node, char byte) const;
  int32_t LongestAt(std::string_view text, size_t at) const;

  std::vector<Pattern> patterns_;
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};
};

}  // namespace heddle::engine::text
