#include "engine/grammar/context_pool.h"

#include <algorithm>
#include <functional>

#include "absl/hash/hash.h"

namespace heddle::engine::grammar {
namespace {

constexpr int32_t kEndMark = -2;
constexpr int32_t kOpenMark = -1;

}  // namespace

size_t ContextPool::Hash::operator()(std::span<const Item> items) const {
  size_t hash = items.size();
  for (const Item& item : items) hash = absl::HashOf(hash, item.state, item.parent);
  return hash;
}

bool ContextPool::Equal::operator()(ContextId a, std::span<const Item> b) const {
  const std::span<const Item> items = pool->Items(a);
  return std::equal(items.begin(), items.end(), b.begin(), b.end());
}

ContextPool::ContextPool(const Automaton* automaton)
    : automaton_(automaton),
      ids_(0, Hash{this}, Equal{this}),
      last_of_(static_cast<size_t>(automaton->num_states())),
      stamp_of_(static_cast<size_t>(automaton->num_states()), 0),
      called_as_(static_cast<size_t>(automaton->num_states())),
      called_when_(static_cast<size_t>(automaton->num_states()), 0) {
  Intern({});
  const Item end{kEndMark, kDeadContext};
  Intern({&end, 1});
  const Item open{kOpenMark, kDeadContext};
  Intern({&open, 1});
}

ContextId ContextPool::Intern(std::span<const Item> items) {
  if (auto it = ids_.find(items); it != ids_.end()) return *it;
  const auto id = static_cast<ContextId>(entries_.size());
  Entry& entry = entries_.emplace_back();
  entry.begin = static_cast<uint32_t>(items_.size());
  entry.num_items = static_cast<uint32_t>(items.size());
  for (const Item& item : items) {
    if (item.state >= 0) entry.depth = std::max(entry.depth, entries_[item.parent].depth + 1);
  }
  max_depth_ = std::max(max_depth_, entry.depth);
  items_.insert(items_.end(), items.begin(), items.end());
  ids_.insert(id);
  return id;
}

// Adds the item (state, parent), or its parent if nothing of the rule is left to read.
void ContextPool::AppendItem(int32_t state, ContextId parent, std::vector<Item>* items) const {
  const bool is_over = automaton_->accepting(state) && automaton_->bytes(state).empty() &&
                       automaton_->calls(state).empty();
  if (!is_over) {
    items->push_back({state, parent});
    return;
  }
  const std::span<const Item> below = Items(parent);
  items->insert(items->end(), below.begin(), below.end());
}

ContextId ContextPool::Of(int32_t state, ContextId parent) {
  std::vector<Item> items;
  AppendItem(state, parent, &items);
  return Intern(items);
}

// Merges items of one state into one, above the union of their parents.
ContextId ContextPool::InternMerged(std::vector<Item>* items) {
  Spend(static_cast<int64_t>(items->size()));
  if (exhausted_) return kDeadContext;
  std::sort(items->begin(), items->end());
  std::vector<ContextId> parents;
  size_t kept = 0;
  for (size_t i = 0; i < items->size();) {
    const int32_t state = (*items)[i].state;
    parents.clear();
    for (; i < items->size() && (*items)[i].state == state; ++i) {
      const ContextId parent = (*items)[i].parent;
      if (parents.empty() || parents.back() != parent) parents.push_back(parent);
    }
    (*items)[kept++] = {state, Union(&parents)};
    if (exhausted_) return kDeadContext;
  }
  items->resize(kept);
  if (kept > kMaxContextItems) {
    exhausted_ = too_large_ = true;
    return kDeadContext;
  }
  return Intern(*items);
}

// `contexts` are sorted, unique, and not empty. The recursion is as deep as the stacks, which have
// at most kMaxStackDepth frames.
ContextId ContextPool::Union(std::vector<ContextId>* contexts) {
  if (contexts->size() == 1) return contexts->front();
  if (auto it = unions_.find(*contexts); it != unions_.end()) return it->second;
  std::vector<Item> items;
  for (ContextId context : *contexts) {
    const std::span<const Item> more = Items(context);
    items.insert(items.end(), more.begin(), more.end());
  }
  const ContextId whole = InternMerged(&items);
  if (exhausted_) return kDeadContext;
  union_ids_ += contexts->size();
  unions_.emplace(*contexts, whole);
  return whole;
}

ContextId ContextPool::ComputeStep(ContextId context, uint8_t byte_class) {
  Closed(context);
  if (exhausted_) return kDeadContext;
  const uint8_t byte = automaton_->class_byte(byte_class);
  std::vector<Item> items;
  const Entry& entry = entries_[context];
  Spend(entry.num_closed);
  for (uint32_t i = 0; i < entry.num_closed; ++i) {
    const Item& item = items_[entry.closed_begin + i];
    const std::span<const ByteEdge> edges = automaton_->bytes(item.state);
    auto edge = std::partition_point(edges.begin(), edges.end(),
                                     [byte](const ByteEdge& e) { return e.last < byte; });
    if (edge == edges.end() || edge->first > byte) continue;
    if (TooDeep(edge->target, item.parent)) continue;
    AppendItem(edge->target, item.parent, &items);
  }
  const ContextId result = InternMerged(&items);
  if (exhausted_) return kDeadContext;
  if (entries_[context].next < 0) {
    Spend(automaton_->num_classes() / 16);
    if (bytes() > max_bytes_) exhausted_ = too_large_ = true;
    entries_[context].next = static_cast<int64_t>(next_.size());
    next_.resize(next_.size() + static_cast<size_t>(automaton_->num_classes()), kUnknown);
  }
  next_[static_cast<size_t>(entries_[context].next) + byte_class] = result;
  return result;
}

// Adds an item to the closure, unless it is there already.
void ContextPool::Reach(int32_t state, ContextId parent) {
  if (state < 0) {
    (state == kEndMark ? can_end_ : can_leave_) = true;
    return;
  }
  const auto s = static_cast<size_t>(state);
  const bool is_first = stamp_of_[s] != stamp_;
  for (uint32_t i = is_first ? kNone : last_of_[s]; i != kNone; i = reached_[i].before) {
    Spend(1);
    if (reached_[i].item.parent == parent) return;
  }
  const uint32_t before = is_first ? kNone : last_of_[s];
  stamp_of_[s] = stamp_;
  last_of_[s] = static_cast<uint32_t>(reached_.size());
  reached_.push_back({{state, parent}, before});
}

// Follows the items of rules that began at an earlier byte: at the end of a rule its parents
// continue, and calls of rules that may be empty are skipped. Each pair of a state and its parent
// is looked at once, so this is polynomial for any grammar.
void ContextPool::FollowEnds() {
  std::vector<Item> behind;
  for (size_t i = 0; i < reached_.size() && !exhausted_; ++i) {
    const Item item = reached_[i].item;
    Spend(1);
    if (automaton_->accepting(item.state)) {
      for (const Item& next : Items(item.parent)) Reach(next.state, next.parent);
    }
    for (const Call& call : automaton_->calls(item.state)) {
      Spend(1);
      if (!call.may_be_empty || TooDeep(call.target, item.parent)) continue;
      behind.clear();
      AppendItem(call.target, item.parent, &behind);
      for (const Item& next : behind) Reach(next.state, next.parent);
    }
  }
}

// Leaves one item for each state that was reached.
void ContextPool::MergeReached() {
  const bool is_merged = std::all_of(reached_.begin(), reached_.end(),
                                     [](const Reached& r) { return r.before == kNone; });
  if (is_merged) return;
  const std::vector<Reached> all = std::move(reached_);
  reached_.clear();
  std::vector<ContextId> parents;
  for (size_t i = 0; i < all.size() && !exhausted_; ++i) {
    const auto s = static_cast<size_t>(all[i].item.state);
    if (last_of_[s] != i || stamp_of_[s] != stamp_) continue;  // a later item has the state
    ContextId parent = all[i].item.parent;
    if (all[i].before != kNone) {
      parents.clear();
      for (auto at = static_cast<uint32_t>(i); at != kNone; at = all[at].before) {
        parents.push_back(all[at].item.parent);
      }
      std::sort(parents.begin(), parents.end());
      parent = Union(&parents);
    }
    reached_.push_back({{all[i].item.state, parent}, kNone});
  }
  for (size_t i = 0; i < reached_.size(); ++i) {
    last_of_[static_cast<size_t>(reached_[i].item.state)] = static_cast<uint32_t>(i);
  }
}

// Notes which rules `state` calls, and where it continues behind each.
void ContextPool::CallRules(int32_t state, ContextId parent) {
  for (const Call& call : automaton_->calls(state)) {
    Spend(1);
    if (TooDeep(call.target, parent)) continue;
    const auto start = static_cast<size_t>(call.start);
    if (called_when_[start] != stamp_) {
      called_when_[start] = stamp_;
      called_as_[start] = static_cast<uint32_t>(num_called_);
      if (num_called_ == called_.size()) called_.emplace_back();
      called_[num_called_].start = call.start;
      called_[num_called_].frames.clear();
      to_enter_.emplace_back(call.rank, static_cast<uint32_t>(num_called_++));
      std::push_heap(to_enter_.begin(), to_enter_.end(), std::greater<>());
    }
    std::vector<Item>& frames = called_[called_as_[start]].frames;
    const size_t before = frames.size();
    AppendItem(call.target, parent, &frames);
    Spend(static_cast<int64_t>(frames.size() - before));
  }
}

// Enters a rule whose callers at this byte are all known: adds its states from the start, before it
// reads.
void ContextPool::EnterRule(size_t called) {
  const int32_t start = called_[called].start;
  const ContextId parent = InternMerged(&called_[called].frames);
  if (exhausted_ || TooDeep(start, parent)) return;
  // Items that are already there above the same context have been followed.
  const size_t begin = reached_.size();
  Reach(start, parent);
  for (size_t i = begin; i < reached_.size() && !exhausted_; ++i) {
    const int32_t state = reached_[i].item.state;
    CallRules(state, parent);
    for (const Call& call : automaton_->calls(state)) {
      Spend(1);
      if (call.may_be_empty && !TooDeep(call.target, parent)) Reach(call.target, parent);
    }
  }
}

// Keeps the items that read a byte, merged by state, as the context's closure.
void ContextPool::KeepReaders(ContextId context) {
  std::erase_if(reached_, [this](const Reached& reached) {
    return automaton_->bytes(reached.item.state).empty();
  });
  std::sort(reached_.begin(), reached_.end(),
            [](const Reached& a, const Reached& b) { return a.item < b.item; });
  std::vector<Item> closed;
  std::vector<ContextId> parents;
  for (size_t i = 0; i < reached_.size();) {
    const int32_t state = reached_[i].item.state;
    parents.clear();
    for (; i < reached_.size() && reached_[i].item.state == state; ++i) {
      parents.push_back(reached_[i].item.parent);
    }
    closed.push_back({state, Union(&parents)});
  }
  if (exhausted_) return;
  Entry& entry = entries_[context];
  entry.closed = true;
  entry.can_end = can_end_;
  entry.can_leave = can_leave_;
  entry.closed_begin = static_cast<uint32_t>(items_.size());
  entry.num_closed = static_cast<uint32_t>(closed.size());
  items_.insert(items_.end(), closed.begin(), closed.end());
}

// Follows calls and ends of rules until only items that read are left. A rule is entered when all
// its callers at this byte are known; the order of ranks ensures this, since no rule reaches itself
// without a byte.
void ContextPool::Close(ContextId context) {
  reached_.clear();
  num_called_ = 0;
  to_enter_.clear();
  ++stamp_;
  can_end_ = can_leave_ = false;
  const std::vector<Item> kernel(Items(context).begin(), Items(context).end());
  for (const Item& item : kernel) Reach(item.state, item.parent);
  FollowEnds();
  MergeReached();
  const size_t num_begun = reached_.size();
  for (size_t i = 0; i < num_begun && !exhausted_; ++i) {
    CallRules(reached_[i].item.state, reached_[i].item.parent);
  }
  while (!to_enter_.empty() && !exhausted_) {
    std::pop_heap(to_enter_.begin(), to_enter_.end(), std::greater<>());
    const size_t next = to_enter_.back().second;
    to_enter_.pop_back();
    EnterRule(next);
  }
  if (!exhausted_) KeepReaders(context);
}

std::span<const ContextPool::Item> ContextPool::Readers(ContextId context) {
  const Entry& entry = Closed(context);
  return {items_.data() + entry.closed_begin, entry.num_closed};
}

ContextId ContextPool::Import(const ContextPool& from, ContextId context) {
  // Parents have lower numbers than the contexts above them.
  absl::flat_hash_map<ContextId, ContextId> known = {
      {kDeadContext, kDeadContext}, {kEndContext, kEndContext}, {kOpenContext, kOpenContext}};
  std::vector<ContextId> needed = {context};
  absl::flat_hash_set<ContextId> seen = {context};
  size_t num_items = 0;
  for (size_t i = 0; i < needed.size(); ++i) {
    num_items += from.Items(needed[i]).size();
    if (num_items > kMaxStackItems) {
      exhausted_ = too_large_ = true;
      return kDeadContext;
    }
    for (const Item& item : from.Items(needed[i])) {
      if (seen.insert(item.parent).second) needed.push_back(item.parent);
    }
  }
  std::sort(needed.begin(), needed.end());
  for (ContextId old : needed) {
    if (known.contains(old)) continue;
    std::vector<Item> items;
    for (const Item& item : from.Items(old)) items.push_back({item.state, known.at(item.parent)});
    known[old] = Intern(items);
  }
  return known.at(context);
}

size_t ContextPool::bytes() const {
  const size_t per_state = last_of_.size() * 4 * sizeof(uint32_t);
  return per_state + entries_.capacity() * sizeof(Entry) + items_.capacity() * sizeof(Item) +
         next_.capacity() * sizeof(ContextId) + ids_.capacity() * (sizeof(ContextId) + 1) +
         union_ids_ * sizeof(ContextId) +
         unions_.capacity() * (sizeof(std::vector<ContextId>) + sizeof(ContextId) + 1);
}

}  // namespace heddle::engine::grammar
