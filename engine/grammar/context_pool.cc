#include "engine/grammar/context_pool.h"

#include <algorithm>

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
      position_of_(static_cast<size_t>(automaton->num_states())),
      stamp_of_(static_cast<size_t>(automaton->num_states()), 0) {
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

// Adds what (state, parent) stands for: where nothing of the rule is left, that is its parent.
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

ContextId ContextPool::InternMerged(std::vector<Item>* items) {
  std::sort(items->begin(), items->end());
  size_t kept = 0;
  for (size_t i = 0; i < items->size(); ++i) {
    const Item item = (*items)[i];
    if (kept > 0 && (*items)[kept - 1].state == item.state) {
      (*items)[kept - 1].parent = Merge((*items)[kept - 1].parent, item.parent);
    } else {
      (*items)[kept++] = item;
    }
  }
  items->resize(kept);
  return Intern(*items);
}

ContextId ContextPool::Merge(ContextId a, ContextId b) {
  if (a == b) return a;
  if (a > b) std::swap(a, b);
  if (auto it = merged_.find({a, b}); it != merged_.end()) return it->second;
  std::vector<Item> items(Items(a).begin(), Items(a).end());
  items.insert(items.end(), Items(b).begin(), Items(b).end());
  work_ += static_cast<int64_t>(items.size());
  const ContextId merged = InternMerged(&items);
  merged_[{a, b}] = merged;
  return merged;
}

ContextId ContextPool::ComputeStep(ContextId context, uint8_t byte_class) {
  Closed(context);
  if (entries_[context].next < 0) {
    entries_[context].next = static_cast<int64_t>(next_.size());
    next_.resize(next_.size() + static_cast<size_t>(automaton_->num_classes()), kUnknown);
  }
  const uint8_t byte = automaton_->class_byte(byte_class);
  std::vector<Item> items;
  const Entry& entry = entries_[context];
  work_ += entry.num_closed;
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
  next_[static_cast<size_t>(entries_[context].next) + byte_class] = result;
  return result;
}

void ContextPool::AddToClosure(Item item) {
  if (item.state < 0) {
    (item.state == kEndMark ? can_end_ : can_leave_) = true;
    return;
  }
  const auto state = static_cast<size_t>(item.state);
  if (stamp_of_[state] != stamp_) {
    stamp_of_[state] = stamp_;
    position_of_[state] = static_cast<uint32_t>(closure_.size());
    to_visit_.push_back(position_of_[state]);
    closure_.push_back(item);
    return;
  }
  Item& known = closure_[position_of_[state]];
  const ContextId merged = Merge(known.parent, item.parent);
  if (merged == known.parent) return;
  known.parent = merged;
  to_visit_.push_back(position_of_[state]);
}

// Follows calls and ends of rules until all that is left is to read.
void ContextPool::Close(ContextId context) {
  closure_.clear();
  to_visit_.clear();
  ++stamp_;
  can_end_ = can_leave_ = false;
  const std::vector<Item> kernel(Items(context).begin(), Items(context).end());
  for (const Item& item : kernel) AddToClosure(item);
  std::vector<Item> below;
  while (!to_visit_.empty()) {
    const Item item = closure_[to_visit_.back()];
    to_visit_.pop_back();
    ++work_;
    if (automaton_->accepting(item.state)) {
      below.assign(Items(item.parent).begin(), Items(item.parent).end());
      for (const Item& next : below) AddToClosure(next);
    }
    for (const Call& call : automaton_->calls(item.state)) {
      if (TooDeep(call.target, item.parent)) continue;
      const ContextId parent = Of(call.target, item.parent);
      if (!TooDeep(call.start, parent)) AddToClosure({call.start, parent});
    }
  }
  std::erase_if(closure_,
                [this](const Item& item) { return automaton_->bytes(item.state).empty(); });
  std::sort(closure_.begin(), closure_.end());
  Entry& entry = entries_[context];
  entry.closed = true;
  entry.can_end = can_end_;
  entry.can_leave = can_leave_;
  entry.closed_begin = static_cast<uint32_t>(items_.size());
  entry.num_closed = static_cast<uint32_t>(closure_.size());
  items_.insert(items_.end(), closure_.begin(), closure_.end());
}

std::span<const ContextPool::Item> ContextPool::Readers(ContextId context) {
  const Entry& entry = Closed(context);
  return {items_.data() + entry.closed_begin, entry.num_closed};
}

ContextId ContextPool::Import(const ContextPool& from, ContextId context) {
  // Parents have lower numbers than what stands on them.
  absl::flat_hash_map<ContextId, ContextId> known = {
      {kDeadContext, kDeadContext}, {kEndContext, kEndContext}, {kOpenContext, kOpenContext}};
  std::vector<ContextId> needed = {context};
  absl::flat_hash_set<ContextId> seen = {context};
  for (size_t i = 0; i < needed.size(); ++i) {
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
  return entries_.size() * (sizeof(Entry) + 2 * sizeof(ContextId)) + items_.size() * sizeof(Item) +
         next_.size() * sizeof(ContextId) + merged_.size() * 4 * sizeof(ContextId);
}

}  // namespace heddle::engine::grammar
