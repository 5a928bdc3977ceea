// The vocabulary as other code sees it: id to text, bytes and kind, and text to id.
// Unit: ids are dense in [0, size); a hole has an empty text and is never found.
// Thread-safety: immutable after Finish.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/ids.h"
#include "engine/text/string_map.h"

namespace heddle::engine::text {

struct TokenDecoder;

// Far above any model's vocabulary; a file that claims more is invalid.
inline constexpr int64_t kMaxVocabSize = 1 << 24;

class TokenTable {
 public:
  // Ids must be below `limit`, which bounds the memory that a file with one enormous id makes us
  // allocate.
  explicit TokenTable(int64_t limit) : limit_(limit) {}

  // INVALID_ARGUMENT for an id out of bounds, an id that another text has, or a text that has
  // another id.
  absl::Status Add(int64_t id, std::string_view text);
  // For vocabularies with duplicate texts (some GGUF files pad so): the first id is found.
  absl::Status AddPossiblyTwice(int64_t id, std::string_view text);
  void MarkSpecial(TokenId id) { special_[static_cast<size_t>(id)] = true; }
  // Computes the bytes of every token.
  void Finish(const TokenDecoder& decoder);

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  bool Contains(TokenId id) const { return id >= 0 && id < size(); }
  std::string_view Text(TokenId id) const {
    return Contains(id) ? std::string_view(texts_[static_cast<size_t>(id)]) : std::string_view();
  }
  std::string_view Bytes(TokenId id) const {
    return Contains(id) ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool IsSpecial(TokenId id) const { return Contains(id) && special_[static_cast<size_t>(id)]; }
  std::optional<TokenId> Find(std::string_view text) const;

 private:
  absl::Status Reserve(int64_t id, std::string_view text);

  int64_t limit_;
  std::vector<std::string> texts_;
  std::vector<std::string> bytes_;
  std::vector<bool> special_;
  StringMap<TokenId> id_of_;
};

}  // namespace heddle::engine::text
