// Maps byte strings to values, walked byte by byte: it finds every string of a set that is a prefix
// of a text.
//
// It is a double array: a child's slot is its parent's `base` XOR the byte, and the slot names its
// parent. A step so costs one load, and the 12-byte slots of a vocabulary's common prefixes stay in
// the second-level cache.
// Source: Aoe, "An Efficient Digital Search Algorithm by Using a Double-Array Structure", 1989; the
// XOR is that of Yata's darts-clone.
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

  ByteTrie() = default;  // empty
  // Empty texts are ignored. Among entries with the same text the last one counts. REQUIRES: less
  // than 2^31 bytes of text in all.
  static ByteTrie Build(std::vector<Entry> entries);

  // The node below `node`, or kNoNode if no string continues with `byte`.
  uint32_t Child(uint32_t node, unsigned char byte) const {
    const uint32_t slot = slots_[node].base ^ byte;
    return slots_[slot].parent == node ? slot : kNoNode;
  }
  // The value of the string that ends at `node`, or kNoValue.
  int32_t Value(uint32_t node) const { return slots_[node].value; }

 private:
  friend class ByteTrieBuilder;

  // Slots come in blocks of 256, and `base` is within one: every byte leads to an existing slot.
  struct Slot {
    uint32_t base = 0;
    uint32_t parent = kNoNode;
    int32_t value = kNoValue;
  };
  static constexpr uint32_t kBlock = 256;

  std::vector<Slot> slots_ = std::vector<Slot>(kBlock);
};

}  // namespace heddle::engine::text
