// A list whose copies share its memory: copying takes time for each block of items and not for each
// item. A block that somebody else has, too, is copied before it is changed.
//
// A block has a mark, which belongs to the list's user and is for notes such as "these items are
// counted already". A marked block is never changed: it is copied first, and the copy has no mark.
// All blocks but the last one are full.
// Thread-safety: none; lists that share blocks belong to one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace heddle::scheduler {

template <typename T, size_t kBlockItems>
class SharedList {
 public:
  struct Block {
    size_t size = 0;
    bool mark = false;
    std::array<T, kBlockItems> items;
  };
  using Blocks = std::vector<std::shared_ptr<Block>>;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& operator[](size_t i) const { return blocks_[i / kBlockItems]->items[i % kBlockItems]; }
  const T& back() const { return (*this)[size_ - 1]; }
  // The marks may be set in them; items may not.
  const Blocks& blocks() const { return blocks_; }

  // An item to be changed.
  T& Edit(size_t i) { return Own(i / kBlockItems)->items[i % kBlockItems]; }

  void push_back(const T& item) { Append(std::span(&item, 1)); }

  void Append(std::span<const T> items) {
    while (!items.empty()) {
      const size_t at = size_ % kBlockItems;
      if (at == 0) blocks_.push_back(NewBlock());
      Block* block = Own(blocks_.size() - 1);
      const auto part = items.first(std::min(items.size(), kBlockItems - at));
      std::copy(part.begin(), part.end(), block->items.begin() + static_cast<ptrdiff_t>(at));
      block->size += part.size();
      size_ += part.size();
      items = items.subspan(part.size());
    }
  }

  // Forgets all items from `size` on. REQUIRES: size <= size().
  void Cut(size_t size) {
    blocks_.resize((size + kBlockItems - 1) / kBlockItems);
    size_ = size;
    const size_t in_last = size % kBlockItems;
    if (in_last != 0 && blocks_.back()->size != in_last) Own(blocks_.size() - 1)->size = in_last;
  }

  // How many of `items` are the ones from `begin` on, up to the first that differs or is missing.
  size_t NumSame(size_t begin, std::span<const T> items) const {
    size_t same = 0;
    while (same < items.size() && begin + same < size_) {
      const size_t at = (begin + same) % kBlockItems;
      const Block& block = *blocks_[(begin + same) / kBlockItems];
      const size_t most = std::min(block.size - at, items.size() - same);
      // Equal blocks are the rule, and comparing them as memory is several times faster.
      const T* const from = items.data() + same;
      const T* const there = block.items.data() + at;
      if (!std::equal(from, from + most, there)) {
        return same + static_cast<size_t>(std::mismatch(from, from + most, there).first - from);
      }
      same += most;
    }
    return same;
  }

 private:
  // Items that nobody reads are not initialized.
  static std::shared_ptr<Block> NewBlock() { return std::make_shared_for_overwrite<Block>(); }

  Block* Own(size_t index) {
    std::shared_ptr<Block>& block = blocks_[index];
    if (block.use_count() > 1 || block->mark) {
      std::shared_ptr<Block> copy = NewBlock();
      copy->size = block->size;
      std::copy_n(block->items.begin(), block->size, copy->items.begin());
      block = std::move(copy);
    }
    return block.get();
  }

  Blocks blocks_;
  size_t size_ = 0;
};

}  // namespace heddle::scheduler
