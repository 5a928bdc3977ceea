// The executor's record of the positions in the pool's pages on behalf of a drafter: which token
// each holds, and how many positions from a page's beginning on the drafter has computed as well.
//
// The model's step makes a position stale, unless the drafter has computed it for the same sequence
// with the same token (its guess was right); the drafter's pass makes it known. Copies and swaps
// carry both along. So a sequence whose pages came from the prefix cache, from a fork or back
// from the host's tier, or for which drafting paused, is drafted from what is known of its pages,
// and what is not known is computed again, or keeps the drafter away from it. Pages are those of
// group 0; the other groups' have the same positions.
// Thread-safety: none; owned by the executor.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/step.h"

namespace heddle::engine {

class DraftPages {
 public:
  DraftPages(int32_t num_pages, int32_t num_host_pages, int32_t page_tokens);

  // The swaps and copies of a step, and the rows that it writes. Undrawn rows have no token yet.
  void TakeStep(const StepPlan& plan);

  // The drafter has computed the position at `slot` for sequence `id`, with `token`, which may be a
  // guess. Counts if it has the positions before it in the page.
  void SetKnown(KvSlot slot, SequenceId id, TokenId token);

  TokenId token(KvSlot slot) const { return tokens_[At(slot)]; }
  // Positions from the page's beginning on that the drafter has computed.
  int32_t known(PageId page) const { return known_[Index(page)]; }

 private:
  size_t At(KvSlot slot) const {
    return static_cast<size_t>(Index(slot.page)) * page_tokens_ + static_cast<size_t>(slot.offset);
  }
  // The model computes a position.
  void Write(KvSlot slot, SequenceId id, TokenId token);
  // Copies the first `positions` of one page's record to another's.
  void Copy(size_t from, size_t to, int32_t positions);

  size_t page_tokens_;
  size_t num_pages_;
  // Pages of the pool, then those of the host's tier.
  std::vector<TokenId> tokens_;           // [pages * page_tokens]
  std::vector<int32_t> known_;            // [pages]
  std::vector<SequenceId> computed_for_;  // [pages] the sequence of the last known position
};

}  // namespace heddle::engine
