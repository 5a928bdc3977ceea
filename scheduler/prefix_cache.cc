#include "scheduler/prefix_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace heddle::scheduler {

using engine::Index;
using engine::TokenId;

namespace {

// Children that a search for a partial page looks at: comparing 8 pages of tokens costs less than
// the row that one common token saves.
constexpr int kMaxSiblings = 8;

// The finaliser of SplitMix64 (Steele et al., OOPSLA 2014). Not a secret: hits are verified.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

PrefixCache::PrefixCache(PageAllocator* pool)
    : pool_(*pool),
      nodes_(pool->num_pages()),
      tokens_(static_cast<size_t>(pool->num_pages()) * pool->page_tokens()) {
  by_hash_.reserve(pool->num_pages());
  newest_first_page_.reserve(pool->num_pages());
  pool->set_on_evict([this](PageId page) { Forget(page); });
}

uint64_t PrefixCache::EmptyHash(uint64_t name_space) { return Mix(name_space); }

uint64_t PrefixCache::Extend(uint64_t previous, std::span<const TokenId> page_tokens) {
  uint64_t hash = Mix(previous);
  for (TokenId token : page_tokens) hash = Mix(hash ^ static_cast<uint32_t>(token));
  return hash;
}

std::span<const TokenId> PrefixCache::TokensOf(PageId page) const {
  size_t page_tokens = static_cast<size_t>(pool_.page_tokens());
  return {tokens_.data() + Index(page) * page_tokens, page_tokens};
}

PageId PrefixCache::NewestChild(uint64_t parent_hash, PageId parent) const {
  if (parent != kNone) return At(parent).newest_child;
  auto it = newest_first_page_.find(parent_hash);
  return it == newest_first_page_.end() ? kNone : it->second;
}

void PrefixCache::SetNewestChild(uint64_t parent_hash, PageId parent, PageId child) {
  if (parent != kNone) {
    At(parent).newest_child = child;
  } else if (child != kNone) {
    newest_first_page_[parent_hash] = child;
  } else {
    newest_first_page_.erase(parent_hash);
  }
}

PageId PrefixCache::Find(uint64_t hash, uint64_t parent_hash, PageId parent,
                         std::span<const TokenId> tokens) const {
  auto it = by_hash_.find(hash);
  if (it == by_hash_.end()) return kNone;
  const Node& node = At(it->second);
  if (node.parent != parent || node.parent_hash != parent_hash) return kNone;
  std::span<const TokenId> cached = TokensOf(it->second);
  bool is_same = std::equal(tokens.begin(), tokens.end(), cached.begin(), cached.end());
  return is_same ? it->second : kNone;
}

PageId PrefixCache::FindPartial(uint64_t parent_hash, PageId parent,
                                std::span<const TokenId> tokens, int32_t* num_common) const {
  *num_common = 0;
  PageId best = kNone;
  PageId child = NewestChild(parent_hash, parent);
  for (int i = 0; i < kMaxSiblings && child != kNone; ++i, child = At(child).older_sibling) {
    auto end = std::mismatch(tokens.begin(), tokens.end(), TokensOf(child).begin()).first;
    int32_t common = static_cast<int32_t>(end - tokens.begin());
    if (common <= *num_common) continue;
    *num_common = common;
    best = child;
  }
  return best;
}

bool PrefixCache::Insert(PageId page, uint64_t hash, uint64_t parent_hash, PageId parent,
                         std::span<const TokenId> tokens) {
  if (!by_hash_.emplace(hash, page).second) return false;
  PageId newest = NewestChild(parent_hash, parent);
  At(page) = {.hash = hash, .parent_hash = parent_hash, .parent = parent, .older_sibling = newest};
  if (newest != kNone) At(newest).newer_sibling = page;
  SetNewestChild(parent_hash, parent, page);
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<ptrdiff_t>(Index(page)) * pool_.page_tokens());
  return true;
}

// The page and all its descendants.
void PrefixCache::Forget(PageId page) {
  to_forget_.assign(1, page);
  while (!to_forget_.empty()) {
    PageId next = to_forget_.back();
    if (At(next).newest_child != kNone) {
      to_forget_.push_back(At(next).newest_child);
      continue;
    }
    to_forget_.pop_back();
    Unlink(next);
    if (next != page) pool_.SetUncached(next);
  }
}

void PrefixCache::Unlink(PageId page) {
  const Node node = At(page);
  by_hash_.erase(node.hash);
  if (node.older_sibling != kNone) At(node.older_sibling).newer_sibling = node.newer_sibling;
  if (node.newer_sibling != kNone) {
    At(node.newer_sibling).older_sibling = node.older_sibling;
  } else {
    SetNewestChild(node.parent_hash, node.parent, node.older_sibling);
  }
}

absl::Status PrefixCache::CheckIntegrity() const {
  for (const auto& [hash, page] : by_hash_) {
    const Node& node = At(page);
    auto parent = by_hash_.find(node.parent_hash);
    bool has_parent =
        node.parent == kNone || (parent != by_hash_.end() && parent->second == node.parent);
    if (node.hash != hash || !has_parent || !pool_.is_cached(page)) {
      return absl::InternalError(
          absl::StrCat("cached page ", Index(page), " lost its parent, its hash or its mark"));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::scheduler
