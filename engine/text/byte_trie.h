// Byte strings to values, walked byte by byte: finds every string of a set that a text begins with.
//
// A double array: a child's slot is its parent's `base` with the byte XORed in, and the slot names
// its parent; so a step costs one load, and the 12-byte slots of a vocabulary's common beginnings
// stay in the second-level cache.
// Source: Aoe, "An Efficient Digital Search Algorithm by Using a Double-Array Structure", 1989; the
// XOR as in Yata's darts-clone.
// Thread-safety: immutable after Build.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::engine::text {

class ByteTrie {
 public:
  static constexpr int32_t kNoValue = -1;
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNoNode = UINT32_MAX;

  struct Entry {
    std::string_view text;
    int32_t value;  // >= 0
  };

  ByteTrie() = default;  // of no strings
  // Empty texts are left out. Of several entries with one text the last counts.
  // REQUIRES: less than 2^31 bytes of text in all.
  static ByteTrie Build(std::vector<Entry> entries);

  // The node below `node`, kNoNode if no string goes on with `byte`.
  uint32_t Child(uint32_t node, unsigned char byte) const {
    const uint32_t slot = slots_[node].base ^ byte;
    return slots_[slot].parent == node ? slot : kNoNode;
  }
  // Of the string that ends at `node`; kNoValue if none does.
  int32_t Value(uint32_t node) const { return slots_[node].value; }

 private:
  friend class ByteTrieBuilder;

  // Slots come in blocks of 256, and `base` is in one: every byte leads to a slot that exists.
  struct Slot {
    uint32_t base = 0;
    uint32_t parent = kNoNode;
    int32_t value = kNoValue;
  };
  static constexpr uint32_t kBlock = 256;

  std::vector<Slot> slots_ = std::vector<Slot>(kBlock);
};

}  // namespace heddle::engine::text
