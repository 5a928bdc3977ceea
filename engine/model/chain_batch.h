// Chains of guesses, and the batches of a drafter's passes over them: some positions at the end of
// each chain, in the pages of its slice of the step's plan and in the slots that the plan gives it
// ahead.
//
// An index counts the positions of a sequence that group 0 has, from its first span on.
// Thread-safety: none; owned by a DraftRunner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step.h"
#include "kernels/batch.h"

namespace heddle::engine {

// The guesses behind one sample.
struct Chain {
  int32_t slice = 0;  // of the plan
  SampleRow next{};   // where the model draws next: the sequence, and the position of guess 0
  int32_t slot_begin = 0;
  int32_t num_slots = 0;
  int32_t num_wanted = 0;
  float min_survival = 0;
  int32_t max_catch_up = 0;
  int32_t end = 0;      // index of the last row of the first pass, from which guess 0 is drawn
  TokenId pending = 0;  // the token that the model has drawn and not run
  std::vector<TokenId> guesses;
  std::vector<float> probabilities;
  bool keeps_shares = false;
  std::vector<std::vector<float>> shares;  // of the guesses, if they are kept (guess_shares.h)
  float survival = 1;
  bool is_over = false;
};

// The pages of a slice in one group of layers.
struct SlicePages {
  std::span<const KvSpan> spans;
  std::span<const KvSlot> ahead;
  int32_t context_tokens = 0;
  // Positions that group 0 has in front of this group's first.
  int32_t missing = 0;
};
SlicePages PagesOfSlice(const StepPlan& plan, int32_t slice, int32_t slot_begin, int32_t num_ahead,
                        int32_t group);

// Positions in front that some group has given back: no row can be run there.
int32_t MissingInFront(const StepPlan& plan, int32_t slice);

class ChainBatch {
 public:
  void Begin(const StepPlan& plan, int32_t page_tokens);

  // Adds the rows of indices [begin, begin + tokens.size()) of a chain.
  void Add(const StepPlan& plan, const Chain& chain, int32_t begin,
           std::span<const TokenId> tokens);
  // The same rows, which attend to each other, later ones included. A batch has either these or
  // those of Add. REQUIRES: tokens.size() <= kernels::kMaxTreeRows.
  void AddBlock(const StepPlan& plan, const Chain& chain, int32_t begin,
                std::span<const TokenId> tokens);

  int32_t n_rows() const { return static_cast<int32_t>(token_ids_.size()); }
  // Views this object and `logit_rows`.
  kernels::HostBatch View(std::span<const int32_t> logit_rows);

 private:
  struct Group {
    std::vector<int64_t> kv_slot;
    std::vector<int32_t> span_begin, span_page, span_tokens, context_len;
  };

  static void AddSpans(const SlicePages& pages, int32_t context, Group* group);

  int32_t page_tokens_ = 0;
  std::vector<TokenId> token_ids_;
  std::vector<Position> positions_;
  std::vector<uint64_t> masks_;  // [rows] of blocks
  std::vector<int32_t> q_begin_;
  std::vector<Group> groups_;
  std::vector<kernels::BatchSpans> more_groups_;
};

// Calls visit(index, slot) for the slots of indices [begin, end), in order.
template <typename Visit>
void ForEachSlot(const SlicePages& pages, int32_t begin, int32_t end, Visit&& visit) {
  int32_t at = 0;
  for (const KvSpan& span : pages.spans) {
    for (int32_t i = begin > at ? begin - at : 0; i < span.num_tokens && at + i < end; ++i) {
      visit(at + i, KvSlot{span.page, i});
    }
    at += span.num_tokens;
    if (at >= end) return;
  }
  for (const KvSlot& slot : pages.ahead) {
    if (at >= end) return;
    if (at >= begin) visit(at, slot);
    ++at;
  }
}

}  // namespace heddle::engine
