// Where a text stands in a grammar: the set of all stacks that its bytes so far allow. Contexts are
// shared and never change: to go on with a byte gives another context, and to copy, keep or return
// to one is to copy a number. What a byte leads to is remembered, so that a pool is the part of the
// grammar's (infinite) deterministic automaton that texts have met.
//
// A context is a set of (state, context to go on with when the state's rule has ended), one per
// state: alternatives that call the same rule at the same byte share the frame below it, so that
// ambiguous grammars stay polynomial. Sources: Tomita 1985 (graph-structured stacks); Dong et al.,
// "XGrammar", 2024 (persistent stacks).
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "engine/grammar/automaton.h"

namespace heddle::engine::grammar {

using ContextId = uint32_t;

inline constexpr ContextId kDeadContext = 0;  // no text goes on from here
inline constexpr ContextId kEndContext = 1;   // only the end of the text does
inline constexpr ContextId kOpenContext = 2;  // below a part that is looked at by itself

class ContextPool {
 public:
  // `automaton` outlives the pool.
  explicit ContextPool(const Automaton* automaton);
  ContextPool(const ContextPool&) = delete;
  ContextPool& operator=(const ContextPool&) = delete;

  struct Item {
    int32_t state;     // < 0: kEndContext or kOpenContext is reached
    ContextId parent;  // for when the state's rule has ended
    auto operator<=>(const Item&) const = default;
  };

  ContextId Start() { return Of(automaton_->start(), kEndContext); }
  // What `state` reads by itself; then kOpenContext.
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

  // The text may end here. / What was looked at by itself may end here.
  bool CanEnd(ContextId context) { return Closed(context).can_end; }
  bool CanLeave(ContextId context) { return Closed(context).can_leave; }
  // Whether any byte may follow; of what is looked at by itself, any of its own.
  bool ReadsOn(ContextId context) { return Closed(context).num_closed > 0; }
  // All states that read a byte here, each with what is below it.
  std::span<const Item> Readers(ContextId context);

  // The states as they were reached, calls not yet followed; each with what is below it. Of a
  // negative state nothing is left to read.
  std::span<const Item> Kernel(ContextId context) const { return Items(context); }
  int32_t depth(ContextId context) const { return entries_[context].depth; }
  ContextId Of(int32_t state, ContextId parent);

  // The same context of another pool of the same automaton.
  ContextId Import(const ContextPool& from, ContextId context);

  int32_t max_depth() const { return max_depth_; }  // of all contexts so far
  size_t bytes() const;
  // Items looked at since the pool was made: a measure of time.
  int64_t work() const { return work_; }

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
  ContextId Merge(ContextId a, ContextId b);
  void AppendItem(int32_t state, ContextId parent, std::vector<Item>* items) const;
  ContextId ComputeStep(ContextId context, uint8_t byte_class);
  void Close(ContextId context);
  void AddToClosure(Item item);

  const Automaton* automaton_;
  std::vector<Entry> entries_;
  std::vector<Item> items_;
  std::vector<ContextId> next_;
  absl::flat_hash_set<ContextId, Hash, Equal> ids_;
  absl::flat_hash_map<std::pair<ContextId, ContextId>, ContextId> merged_;
  int64_t work_ = 0;
  int32_t max_depth_ = 0;

  // The closure under way.
  std::vector<Item> closure_;
  std::vector<uint32_t> to_visit_;
  std::vector<uint32_t> position_of_;  // [states]: in closure_, if stamped
  std::vector<uint32_t> stamp_of_;     // [states]
  uint32_t stamp_ = 0;
  bool can_end_ = false;
  bool can_leave_ = false;
};

}  // namespace heddle::engine::grammar
