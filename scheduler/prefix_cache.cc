#include "scheduler/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace heddle::scheduler {

using engine::Index;
using engine::TokenId;

namespace {

// Limit on the children that a search for a partial page compares: comparing 8 pages of tokens
// costs less than the row that one common token saves.
constexpr int kMaxSiblings = 8;

// The finaliser of SplitMix64 (Steele et al., OOPSLA 2014). Not a secret: hits are verified.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

PrefixCache::PrefixCache(PageAllocator* pool, PageAllocator* host, int32_t num_groups)
    : pool_(*pool),
      host_(host),
      num_groups_(num_groups),
      nodes_(static_cast<size_t>(pool->num_pages()) + (host ? host->num_pages() : 0)),
      tokens_(nodes_.size() * static_cast<size_t>(pool->page_tokens())),
      companions_(nodes_.size() * static_cast<size_t>(num_groups - 1), kNone) {
  by_hash_.reserve(nodes_.size());
  newest_first_page_.reserve(nodes_.size());
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
    if (!IsInPool(child)) continue;  // otherwise part of one page would take two
    auto end = std::mismatch(tokens.begin(), tokens.end(), TokensOf(child).begin()).first;
    int32_t common = static_cast<int32_t>(end - tokens.begin());
    if (common <= *num_common) continue;
    *num_common = common;
    best = child;
  }
  return best;
}

bool PrefixCache::IsInPool(PageId node) const {
  for (int32_t group = 0; group < num_groups_; ++group) {
    const PageId page = PageOf(node, group);
    if (page == kNone || IsOnHost(page)) return false;
  }
  return true;
}

void PrefixCache::Attach(PageId node, int32_t group, PageId page) {
  companions_[CompanionAt(node, group)] = page;
  At(page) = {.depth = At(node).depth, .group = group, .parent = node};
  pool_.SetOwner(page, this);
}

bool PrefixCache::Insert(PageId page, uint64_t hash, uint64_t parent_hash, PageId parent,
                         std::span<const TokenId> tokens) {
  if (!by_hash_.emplace(hash, page).second) return false;
  PageId newest = NewestChild(parent_hash, parent);
  At(page) = {.hash = hash,
              .parent_hash = parent_hash,
              .depth = parent == kNone ? 0 : At(parent).depth + 1,
              .parent = parent,
              .older_sibling = newest};
  if (newest != kNone) At(newest).newer_sibling = page;
  SetNewestChild(parent_hash, parent, page);
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<ptrdiff_t>(Index(page)) * pool_.page_tokens());
  pool_.SetOwner(page, this);
  return true;
}

double PrefixCache::Credit(PageId page, double evicted_last) {
  const Node& node = At(page);
  const double worth = worth_ ? worth_(node.depth) : 1.0;
  const double credit = std::max(evicted_last + worth, node.child_credit);
  if (node.parent != kNone) {
    double& parents = At(node.parent).child_credit;
    parents = std::max(parents, credit);
  }
  return credit;
}

// Whether `node` still is in the cache, as a node or as a companion of one.
bool PrefixCache::Has(PageId node) const {
  if (At(node).group > 0) return PageOf(At(node).parent, At(node).group) == node;
  auto it = by_hash_.find(At(node).hash);
  return it != by_hash_.end() && it->second == node;
}

bool PrefixCache::IsWorthASlot(PageId page) const {
  const Node& node = At(page);
  if (keeps_ && !keeps_(node.depth)) return false;
  if (node.group == 0 || tails_.empty()) return true;
  int32_t behind = tails_[static_cast<size_t>(node.group) - 1];
  PageId next = node.parent;
  while (behind > 0 && next != kNone) {
    next = At(next).newest_child;
    --behind;
  }
  return next == kNone;
}

// The pool needs the page for other content. The evicted content goes to the second tier, if that
// has a free slot and the content is worth it.
void PrefixCache::Evicted(PageId page) {
  if (host_ == nullptr || host_->num_free() == 0 || !IsWorthASlot(page)) return Forget(page);
  PageId slot = host_->AllocateOne();  // the slot's old content and its descendants are forgotten
  held_slots_.push_back(slot);
  if (!Has(page)) return;
  host_->SetOwner(slot, &slot_owner_);
  Move(page, NodeOf(slot));
  swaps_out_.push_back({page, Index(slot)});
}

void PrefixCache::Hold(PageId node) {
  host_->Share(SlotOf(node));
  held_slots_.push_back(SlotOf(node));
}

void PrefixCache::Fetch(PageId node, PageId page) {
  Adopt(node, page);
  pool_.Share(page);
  held_pages_.push_back(page);
  swaps_in_.push_back({page, Index(SlotOf(node))});
}

void PrefixCache::Adopt(PageId node, PageId page) {
  host_->ClearOwner(SlotOf(node));  // freed once no step holds it
  Move(node, page);
  pool_.SetOwner(page, this);
}

void PrefixCache::BeginStep() {
  swaps_out_.clear();
  swaps_in_.clear();
  for (PageId slot : held_slots_) host_->Release(slot);
  held_slots_.clear();
}

void PrefixCache::EndStep() {
  for (PageId page : held_pages_) pool_.Release(page);
  held_pages_.clear();
}

// Gives the node another id and updates its neighbours.
void PrefixCache::Move(PageId from, PageId to) {
  const Node node = At(from);
  At(to) = node;
  if (node.group > 0) {
    companions_[CompanionAt(node.parent, node.group)] = to;
    return;
  }
  for (int32_t group = 1; group < num_groups_; ++group) {
    PageId& companion = companions_[CompanionAt(from, group)];
    if (companion != kNone) At(companion).parent = to;
    companions_[CompanionAt(to, group)] = std::exchange(companion, kNone);
  }
  by_hash_[node.hash] = to;
  const auto begin = tokens_.begin() + static_cast<ptrdiff_t>(Index(from)) * pool_.page_tokens();
  std::copy(begin, begin + pool_.page_tokens(),
            tokens_.begin() + static_cast<ptrdiff_t>(Index(to)) * pool_.page_tokens());
  if (node.older_sibling != kNone) At(node.older_sibling).newer_sibling = to;
  if (node.newer_sibling != kNone) {
    At(node.newer_sibling).older_sibling = to;
  } else {
    SetNewestChild(node.parent_hash, node.parent, to);
  }
  for (PageId child = node.newest_child; child != kNone; child = At(child).older_sibling) {
    At(child).parent = to;
  }
}

bool PrefixCache::IsOwned(PageId node) const {
  return IsOnHost(node) ? host_->is_owned(SlotOf(node)) : pool_.is_owned(node);
}

void PrefixCache::Uncache(PageId node) {
  IsOnHost(node) ? host_->ClearOwner(SlotOf(node)) : pool_.ClearOwner(node);
}

// Forgets the page and all its descendants.
void PrefixCache::Forget(PageId page) {
  if (At(page).group > 0) {
    companions_[CompanionAt(At(page).parent, At(page).group)] = kNone;
    return;
  }
  to_forget_.assign(1, page);
  while (!to_forget_.empty()) {
    PageId next = to_forget_.back();
    if (At(next).newest_child != kNone) {
      to_forget_.push_back(At(next).newest_child);
      continue;
    }
    to_forget_.pop_back();
    Unlink(next);
    if (next != page) Uncache(next);
  }
}

void PrefixCache::Clear() {
  while (!by_hash_.empty()) {
    PageId root = by_hash_.begin()->second;
    while (At(root).parent != kNone) root = At(root).parent;
    Forget(root);
    Uncache(root);
  }
}

void PrefixCache::DropCompanions(PageId node) {
  for (int32_t group = 1; group < num_groups_; ++group) {
    const PageId companion = std::exchange(companions_[CompanionAt(node, group)], kNone);
    if (companion != kNone) Uncache(companion);
  }
}

void PrefixCache::Unlink(PageId page) {
  DropCompanions(page);
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
    if (node.hash != hash || !has_parent || !IsOwned(page)) {
      return absl::InternalError(
          absl::StrCat("cached page ", Index(page), " lost its parent, its hash or its mark"));
    }
    if (absl::Status status = CheckCompanions(page); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status PrefixCache::CheckCompanions(PageId node) const {
  for (int32_t group = 1; group < num_groups_; ++group) {
    const PageId page = PageOf(node, group);
    if (page == kNone) continue;
    if (At(page).group != group || At(page).parent != node || !IsOwned(page)) {
      return absl::InternalError(absl::StrCat("companion ", Index(page), " of cached page ",
                                              Index(node), " hangs on another, or lost its mark"));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::scheduler
