// Turns a StepPlan into the batch that a device plans with: pages and offsets become slots, slices
// become offsets, for each group of layers. Keeps its memory from step to step.
// Thread-safety: none; owned by an executor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step.h"
#include "kernels/batch.h"

namespace heddle::engine {

class PlanBatch {
 public:
  // The batch of `plan`, with the logits of these rows; the caller fills in which draw each undrawn
  // row runs. The result views the plan, `logit_rows` and this object: it is valid while none of
  // them changes. Aborts if the plan's slices are not in row order.
  kernels::HostBatch Build(const StepPlan& plan, int32_t page_tokens,
                           std::span<const int32_t> logit_rows);

 private:
  // Spans and slots of one group.
  struct Group {
    std::vector<int64_t> kv_slot;
    std::vector<int32_t> span_begin, span_page, span_tokens, context_len;

    void Begin(std::span<const KvSlot> slots, std::span<const KvSpan> spans, int32_t page_tokens);
    void AddSequence(const GroupSpans::Range& range);
  };

  void SetAdapters(const SequenceSlice& slice);
  void SetMasks(const StepPlan& plan, const SequenceSlice& slice);
  void SetTypes(const SequenceSlice& slice);
  void SetSegments(const SequenceSlice& slice);
  void SetPieces(const StepPlan& plan, const SequenceSlice& slice);

  std::vector<int32_t> q_begin_;
  std::vector<int32_t> adapter_slot_;  // [n_tokens]; empty: no sequence has an adapter
  std::vector<uint64_t> tree_mask_;    // [n_tokens]; empty: no sequence's rows are a tree
  std::vector<int32_t> token_types_;
  std::vector<int32_t> segments_;
  std::vector<int32_t> piece_begin_;  // [n_seqs + 1]; empty: no sequence has pieces
  std::vector<kernels::ContextPiece> pieces_;
  std::vector<Group> groups_;
  std::vector<kernels::BatchSpans> more_groups_;  // all groups but the first
};

}  // namespace heddle::engine
