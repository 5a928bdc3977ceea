// The position of a text in a grammar: the set of all stacks that its bytes so far allow. Contexts
// are shared and never change: a further byte gives another context, and copying, keeping or
// restoring one copies a number. Steps are remembered, so that a pool is the part of the grammar's
// (infinite) deterministic automaton that texts have reached.
//
// A context is a node of a graph-structured stack: a set of (state, context to continue with when
// the state's rule has ended), one per state. Alternatives that call the same rule at the same byte
// share the frame below it, and paths that meet in one state become one item whose parent is the
// union of theirs. A set of stacks has one id, whichever text led to it.
//
// Work is bounded: LimitWork sets how many more items may be looked at. Beyond that the pool is
// exhausted: contexts that it would have to compute are kDeadContext and are not remembered, while
// known ones stay, so that a later call continues there.
// Sources: Tomita 1985 (graph-structured stacks); Scott and Johnstone, "GLL Parsing", 2010 (calls
// of one rule at one byte are one node; empty rules are skipped by sets); Dong et al., "XGrammar",
// 2024 (persistent stacks).
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "engine/grammar/automaton.h"

namespace heddle::engine::grammar {

using ContextId = uint32_t;

inline constexpr ContextId kDeadContext = 0;  // no text continues from here
inline constexpr ContextId kEndContext = 1;   // only the end of the text may follow
inline constexpr ContextId kOpenContext = 2;  // below a part that is looked at by itself

// Edges of one context: the states that a text may be in at once, each with its own stack.
inline constexpr size_t kMaxContextItems = size_t{1} << 14;
// Edges of all contexts that a context consists of, down to the end.
inline constexpr size_t kMaxStackItems = size_t{1} << 18;

class ContextPool {
 public:
  // `automaton` outlives the pool.
  explicit ContextPool(const Automaton* automaton);
  ContextPool(const ContextPool&) = delete;
  ContextPool& operator=(const ContextPool&) = delete;

  struct Item {
    int32_t state;     // < 0: kEndContext or kOpenContext is reached
    ContextId parent;  // context after the end of the state's rule
    auto operator<=>(const Item&) const = default;
  };

  ContextId Start() { return Of(automaton_->start(), kEndContext); }
  // A context of `state` by itself, followed by kOpenContext.
  ContextId Alone(int32_t state) { return Of(state, kOpenContext); }

  // The context after a byte of `byte_class`; kDeadContext if there is none.
  ContextId Step(ContextId context, uint8_t byte_class) {
    const Entry& entry = entries_[context];
    if (entry.next >= 0) {
      const ContextId known = next_[static_cast<size_t>(entry.next) + byte_class];
      if (known != kUnknown) return known;
    }
    return ComputeStep(context, byte_class);
  }

  // CanEnd: the text may end here. CanLeave: the part looked at by itself may end here.
  bool CanEnd(ContextId context) { return Closed(context).can_end; }
  bool CanLeave(ContextId context) { return Closed(context).can_leave; }
  // Whether any byte may follow; for a part looked at by itself, any byte of its own.
  bool ReadsOn(ContextId context) { return Closed(context).num_closed > 0; }
  // All states that read a byte here, each with its parent.
  std::span<const Item> Readers(ContextId context);

  // The states as they were reached, before calls are followed, each with its parent. A negative
  // state has nothing left to read.
  std::span<const Item> Kernel(ContextId context) const { return Items(context); }
  int32_t depth(ContextId context) const { return entries_[context].depth; }
  ContextId Of(int32_t state, ContextId parent);

  // The same context as in another pool of the same automaton. Returns kDeadContext, and exhausts
  // the pool, if it has more than kMaxStackItems edges.
  ContextId Import(const ContextPool& from, ContextId context);

  int32_t max_depth() const { return max_depth_; }  // largest depth of all contexts so far
  size_t bytes() const;                             // bytes on the heap
  // Items looked at since the pool was made: a measure of time, some 15 ns each.
  int64_t work() const { return work_; }
  // Allows `items` more items and a size of `max_bytes`; the pool is no longer exhausted.
  void LimitWork(int64_t items, size_t max_bytes) {
    max_work_ = work_ + items;
    max_bytes_ = max_bytes;
    exhausted_ = too_large_ = false;
  }
  bool exhausted() const { return exhausted_; }
  // The pool is exhausted by its size, not by work: a further search would end in the same way.
  bool too_large() const { return too_large_; }
  // Counts work that the pool's user did.
  void Spend(int64_t items) {
    work_ += items;
    if (work_ > max_work_) exhausted_ = true;
  }

 private:
  static constexpr ContextId kUnknown = ~ContextId{0};

  struct Entry {
    int64_t next = -1;  // into next_, [num_classes]; -1: none computed
    uint32_t begin = 0;
    uint32_t num_items = 0;
    uint32_t closed_begin = 0;
    uint32_t num_closed = 0;
    int32_t depth = 0;  // frames below the topmost
    bool closed = false;
    bool can_end = false;
    bool can_leave = false;
  };
  // A rule that is called at the current byte, and where its callers continue.
  struct Called {
    int32_t start;
    std::vector<Item> frames;
  };
  // An item of the current closure, and the previous one of the same state.
  struct Reached {
    Item item;
    uint32_t before;
  };
  struct Hash {
    using is_transparent = void;
    const ContextPool* pool;
    size_t operator()(ContextId id) const { return (*this)(pool->Items(id)); }
    size_t operator()(std::span<const Item> items) const;
  };
  struct Equal {
    using is_transparent = void;
    const ContextPool* pool;
    bool operator()(ContextId a, ContextId b) const { return a == b; }
    bool operator()(ContextId a, std::span<const Item> b) const;
    bool operator()(std::span<const Item> a, ContextId b) const { return (*this)(b, a); }
  };

  std::span<const Item> Items(ContextId id) const {
    return {items_.data() + entries_[id].begin, entries_[id].num_items};
  }
  const Entry& Closed(ContextId context) {
    if (!entries_[context].closed) Close(context);
    return entries_[context];
  }
  bool TooDeep(int32_t state, ContextId parent) const {
    return entries_[parent].depth + automaton_->height(state) > kMaxStackDepth;
  }
  ContextId Intern(std::span<const Item> items);
  ContextId InternMerged(std::vector<Item>* items);
  ContextId Union(std::vector<ContextId>* contexts);
  void AppendItem(int32_t state, ContextId parent, std::vector<Item>* items) const;
  ContextId ComputeStep(ContextId context, uint8_t byte_class);
  void Close(ContextId context);
  void Reach(int32_t state, ContextId parent);
  void FollowEnds();
  void MergeReached();
  void CallRules(int32_t state, ContextId parent);
  void EnterRule(size_t called);
  void KeepReaders(ContextId context);

  const Automaton* automaton_;
  std::vector<Entry> entries_;
  std::vector<Item> items_;
  std::vector<ContextId> next_;
  absl::flat_hash_set<ContextId, Hash, Equal> ids_;
  absl::flat_hash_map<std::vector<ContextId>, ContextId> unions_;  // by the sorted contexts
  size_t union_ids_ = 0;                                           // ids in all keys of unions_
  int64_t work_ = 0;
  int64_t max_work_ = std::numeric_limits<int64_t>::max();
  size_t max_bytes_ = std::numeric_limits<size_t>::max();
  bool exhausted_ = false;
  bool too_large_ = false;
  int32_t max_depth_ = 0;

  // The state of the closure being computed.
  static constexpr uint32_t kNone = ~uint32_t{0};
  std::vector<Reached> reached_;
  std::vector<uint32_t> last_of_;   // [states]: in reached_, if stamped
  std::vector<uint32_t> stamp_of_;  // [states]
  std::vector<Called> called_;      // the first num_called_; capacity is kept
  size_t num_called_ = 0;
  std::vector<uint32_t> called_as_;                     // [states]: in called_, if stamped
  std::vector<uint32_t> called_when_;                   // [states]
  std::vector<std::pair<int32_t, uint32_t>> to_enter_;  // a heap: rank, in called_
  uint32_t stamp_ = 0;
  bool can_end_ = false;
  bool can_leave_ = false;
};

}  // namespace heddle::engine::grammar
