// Remembers the ids of short words. Most text repeats a few thousand words, so the model runs only
// for rare words.
//
// Direct-mapped: a new word replaces the old one of its place. One entry is one cache line.
// Thread-safety: none; each encoding thread borrows its own (see ScratchPool).
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "engine/ids.h"

namespace heddle::engine::text {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 24;
  static constexpr size_t kMaxIds = 8;

  WordCache() : entries_(kEntries) {}

  struct Key {
    uint64_t words[3];
    uint32_t size;
    uint32_t slot;
  };

  // REQUIRES: 0 < word.size() <= kMaxBytes.
  static Key MakeKey(std::string_view word) {
    Key key{{0, 0, 0}, static_cast<uint32_t>(word.size()), 0};
    const char* data = word.data();
    const size_t size = word.size();
    if (size >= 8) {
      // The last eight bytes overlap the ones before: no loop, and no read past the end.
      std::memcpy(&key.words[0], data, 8);
      std::memcpy(&key.words[2], data + size - 8, 8);
      if (size > 16) std::memcpy(&key.words[1], data + 8, 8);
    } else if (size >= 4) {
      uint32_t low, high;
      std::memcpy(&low, data, 4);
      std::memcpy(&high, data + size - 4, 4);
      key.words[0] = uint64_t{high} << 32 | low;
    } else {
      key.words[0] = static_cast<unsigned char>(data[0]) |
                     static_cast<uint64_t>(static_cast<unsigned char>(data[size / 2])) << 8 |
                     static_cast<uint64_t>(static_cast<unsigned char>(data[size - 1])) << 16;
    }
    uint64_t hash = (key.words[0] ^ size) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32 ^ key.words[1]) * 0xD6E8FEB86659FD93u;
    hash = (hash ^ hash >> 32 ^ key.words[2]) * 0x9E3779B97F4A7C15u;
    key.slot = static_cast<uint32_t>(hash >> (64 - kEntriesLog2));
    return key;
  }

  // Empty if the word is not remembered. Valid until the next Put.
  std::span<const TokenId> Find(const Key& key) const {
    const Entry& entry = entries_[key.slot];
    const bool same = entry.size == key.size && entry.words[0] == key.words[0] &&
                      entry.words[1] == key.words[1] && entry.words[2] == key.words[2];
    return {entry.ids, same ? entry.num_ids : 0u};
  }

  // Words with no ids or too many are not remembered.
  void Put(const Key& key, std::span<const TokenId> ids) {
    if (ids.empty() || ids.size() > kMaxIds) return;
    Entry& entry = entries_[key.slot];
    std::memcpy(entry.words, key.words, sizeof(entry.words));
    entry.size = static_cast<uint16_t>(key.size);
    entry.num_ids = static_cast<uint16_t>(ids.size());
    std::memcpy(entry.ids, ids.data(), ids.size_bytes());
  }

 private:
  // 2^14 entries of 64 bytes: 1 MiB, the second-level cache of a server core.
  static constexpr int kEntriesLog2 = 14;
  static constexpr size_t kEntries = size_t{1} << kEntriesLog2;

  struct alignas(64) Entry {
    uint64_t words[3] = {0, 0, 0};
    TokenId ids[kMaxIds];
    uint16_t size = 0;
    uint16_t num_ids = 0;
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_;
};

}  // namespace heddle::engine::text
