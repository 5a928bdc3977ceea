#include "engine/text/byte_trie.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

namespace heddle::engine::text {

// Places the nodes level by level. Blocks are filled from the front; a block that stays nearly full
// is given up, so that the work is linear.
class ByteTrieBuilder {
 public:
  explicit ByteTrieBuilder(std::vector<ByteTrie::Entry> entries) : entries_(std::move(entries)) {}

  ByteTrie Build() {
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const auto& a, const auto& b) { return a.text < b.text; });
    open_.push_back({0, Block()});
    Take(ByteTrie::kRoot, ByteTrie::kNoNode);
    ranges_.push_back({0, entries_.size(), 0, ByteTrie::kRoot});
    while (!ranges_.empty()) {
      const Range range = ranges_.front();
      ranges_.pop_front();
      AddChildren(range);
    }
    return std::move(trie_);
  }

 private:
  // Entries [begin, end) share their first `depth` bytes, which lead to `node`.
  struct Range {
    size_t begin;
    size_t end;
    size_t depth;
    uint32_t node;
  };
  struct Block {
    std::array<bool, ByteTrie::kBlock> taken{};
    uint32_t num_free = ByteTrie::kBlock;
  };
  // Limit on the blocks with room that are searched.
  static constexpr size_t kMaxOpen = 16;

  void Take(uint32_t slot, uint32_t parent) {
    for (auto& [index, block] : open_) {
      if (index != slot / ByteTrie::kBlock) continue;
      block.taken[slot % ByteTrie::kBlock] = true;
      --block.num_free;
    }
    trie_.slots_[slot].parent = parent;
  }

  void AddChildren(Range range) {
    for (; range.begin < range.end && entries_[range.begin].text.size() == range.depth;
         ++range.begin) {
      if (range.depth > 0) trie_.slots_[range.node].value = entries_[range.begin].value;
    }
    if (range.begin == range.end) return;
    bytes_.clear();
    std::vector<size_t> begins;
    for (size_t i = range.begin; i < range.end; ++i) {
      const auto byte = static_cast<unsigned char>(entries_[i].text[range.depth]);
      if (!bytes_.empty() && bytes_.back() == byte) continue;
      bytes_.push_back(byte);
      begins.push_back(i);
    }
    begins.push_back(range.end);
    const uint32_t base = FindBase();
    trie_.slots_[range.node].base = base;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      Take(base ^ bytes_[i], range.node);
      ranges_.push_back({begins[i], begins[i + 1], range.depth + 1, base ^ bytes_[i]});
    }
  }

  // Finds a base whose slots for all of bytes_ are free.
  uint32_t FindBase() {
    for (const auto& [index, block] : open_) {
      if (block.num_free < bytes_.size()) continue;
      for (uint32_t low = 0; low < ByteTrie::kBlock; ++low) {
        if (Fits(block, low)) return index * ByteTrie::kBlock + low;
      }
    }
    if (open_.size() == kMaxOpen) open_.pop_front();
    const auto index = static_cast<uint32_t>(trie_.slots_.size() / ByteTrie::kBlock);
    trie_.slots_.resize(trie_.slots_.size() + ByteTrie::kBlock);
    open_.push_back({index, Block()});
    return index * ByteTrie::kBlock;
  }

  bool Fits(const Block& block, uint32_t low) const {
    return std::none_of(bytes_.begin(), bytes_.end(),
                        [&](unsigned char byte) { return block.taken[low ^ byte]; });
  }

  std::vector<ByteTrie::Entry> entries_;
  std::deque<Range> ranges_;
  std::deque<std::pair<uint32_t, Block>> open_;  // index of the block
  std::vector<unsigned char> bytes_;             // of the node's children
  ByteTrie trie_;
};

ByteTrie ByteTrie::Build(std::vector<Entry> entries) {
  return ByteTrieBuilder(std::move(entries)).Build();
}

}  // namespace heddle::engine::text
