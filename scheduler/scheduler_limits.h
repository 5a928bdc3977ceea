// Limits derived from a scheduler's options: computed once, read by all its parts.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "scheduler/page_allocator.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/sequence.h"

namespace heddle::scheduler {

struct SchedulerLimits {
  // Aborts unless all options are positive.
  explicit SchedulerLimits(const SchedulerOptions& options);

  // The most positions that one sequence can have: the model's limit or the pool's. Where all
  // layers have windows, a pool that holds one window and one step's rows holds any context.
  // An adapter leaves fewer pages to its sequence, and windows pass no more than the first
  // `first_end` places (ContextLayout::first_end).
  static int32_t MaxContext(const SchedulerOptions& options, int32_t adapter_pages = 0,
                            int32_t first_end = std::numeric_limits<int32_t>::max());

  // Pages that `sequence` still needs until its tokens are computed. With a window it gives others
  // back meanwhile, and never holds more than PageRule says.
  int32_t PagesToRun(const Sequence& sequence, const PageAllocator& pool) const;

  // The multiple of positions that the group's window gives back.
  int32_t GrainOf(int32_t group) const { return options.page_rule().GrainOf(group, num_groups); }

  // Whether the first positions of a page of the group can be taken over without the others.
  bool HasPartsOfPages(int32_t group) const {
    return !options.state_is_snapshot || group < num_groups - options.state_groups;
  }

  // Whether `sequence` reaches its length limit with `more` further tokens.
  bool IsFull(const Sequence& sequence, int32_t more) const {
    return sequence.num_drawn() + more >= sequence.request->request.max_tokens ||
           sequence.num_tokens() + more >= sequence.request->max_context;
  }

  int32_t PagesOfBlocks(const RequestState& request) const;

  const SchedulerOptions options;
  const int32_t max_context;        // without an adapter
  const int32_t max_running;        // sequences
  const int32_t num_groups;         // of layers, each with a page table per sequence
  const bool has_windows;           // some group gives pages back
  const bool counts_positions;      // SchedulerOptions::counts_positions
  std::vector<int32_t> most_pages;  // [groups] pages that one sequence holds at most
};

}  // namespace heddle::scheduler
