#include "engine/model/draft_pages.h"

#include <algorithm>

namespace heddle::engine {

DraftPages::DraftPages(int32_t num_pages, int32_t num_host_pages, int32_t page_tokens)
    : page_tokens_(static_cast<size_t>(page_tokens)),
      num_pages_(static_cast<size_t>(num_pages)),
      tokens_((num_pages_ + static_cast<size_t>(num_host_pages)) * page_tokens_, kNoToken),
      known_(num_pages_ + static_cast<size_t>(num_host_pages)),
      computed_for_(known_.size()) {}

void DraftPages::Copy(size_t from, size_t to, int32_t positions) {
  std::copy_n(tokens_.begin() + static_cast<std::ptrdiff_t>(from * page_tokens_), positions,
              tokens_.begin() + static_cast<std::ptrdiff_t>(to * page_tokens_));
  known_[to] = std::min(known_[from], positions);
  computed_for_[to] = computed_for_[from];
}

void DraftPages::SetKnown(KvSlot slot, SequenceId id, TokenId token) {
  const auto page = static_cast<size_t>(Index(slot.page));
  if (known_[page] < slot.offset) return;
  known_[page] = slot.offset + 1;
  computed_for_[page] = id;
  tokens_[At(slot)] = token;
}

void DraftPages::TakeStep(const StepPlan& plan) {
  const auto whole = static_cast<int32_t>(page_tokens_);
  for (const PageSwap& swap : plan.swaps_out) {
    Copy(static_cast<size_t>(Index(swap.page)), num_pages_ + static_cast<size_t>(swap.slot), whole);
  }
  for (const PageSwap& swap : plan.swaps_in) {
    Copy(num_pages_ + static_cast<size_t>(swap.slot), static_cast<size_t>(Index(swap.page)), whole);
  }
  for (const AdapterPageLoad& load : plan.adapter_loads) known_[Index(load.page)] = 0;
  for (const PageCopy& copy : plan.page_copies) {
    Copy(static_cast<size_t>(Index(copy.from)), static_cast<size_t>(Index(copy.to)),
         copy.num_tokens);
  }
  for (const SequenceSlice& slice : plan.sequences) {
    for (int32_t i = 0; i < slice.num_tokens; ++i) {
      const int32_t row = slice.token_begin + i;
      const auto at = static_cast<size_t>(row);
      Write(plan.kv_slots[at], slice.id, plan.token_ids[at]);
    }
  }
}

void DraftPages::Write(KvSlot slot, SequenceId id, TokenId token) {
  const auto page = static_cast<size_t>(Index(slot.page));
  const bool was_guessed = slot.offset < known_[page] && computed_for_[page] == id;
  if (was_guessed && tokens_[At(slot)] == token) return;
  known_[page] = std::min(known_[page], slot.offset);
  tokens_[At(slot)] = token;
}

}  // namespace heddle::engine
