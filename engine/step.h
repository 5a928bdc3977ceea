// The interface between scheduler and engine: the work of one iteration. Its result is in
// step_result.h.
//
// Plain data. A plan is flat: one array per quantity over all rows (tokens) of all sequences, and
// slices into these arrays. A plan that is reused for the next step so allocates nothing, and it
// can be sent to another process array by array (StepPlan::ForEachArray). Data that exists only in
// this process is kept beside the plan, by sequence: StepLocals.
// Ownership: the engine loop owns plan and result; an executor only reads the plan, and only
// between Submit and the end of Wait.
// Source: Kwon et al., "PagedAttention", SOSP 2023 (pages); Agrawal et al., "SARATHI", 2023 (mixed
// prefill and decode rows in one batch); Cai et al., "Medusa", 2024 (trees of drafts in one batch).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/ids.h"
#include "engine/kv_spans.h"
#include "engine/sampling_params.h"
#include "engine/step_result.h"

namespace heddle::engine::grammar {
class CompiledGrammar;  // engine/grammar/; opaque to everything above the engine
}

namespace heddle::engine {

class AdapterImage;  // engine/adapter/; opaque to everything above the engine

// Announces a new sequence to the executor, which keeps what sampling needs until the sequence is
// in `StepPlan::ended`; preemption does not end a sequence.
struct SequenceBegin {
  SequenceId id;
  SamplingParams sampling;
  std::vector<TokenId> prompt;  // for the penalties; empty without them
};

enum class SliceKind : uint8_t {
  kPrompt,  // known tokens: a chunk of a prompt, what preemption dropped, forced tokens
  kDecode,  // the token that was drawn last
  kDraft,   // the last drawn token, followed by proposed ones
};

// One sequence's part of the batch. Its spans include this step's own rows, as their last
// num_tokens positions. Without ancestor masks, row i (i < num_tokens) attends to all positions of
// the spans but the last num_tokens - 1 - i. With masks, one per row, a row attends to all
// positions before the slice's own and to those own rows whose bit is set: rows are a tree of at
// most 64 drafts, in order of depth, and each has its own bit set.
//
// A row's position is given by StepPlan::positions only: in a tree, or behind joined branches, it
// is not the row's place in the list of spans. Where every layer of a group has a sliding window,
// whole pages that no row sees any more are missing at the front. Spans and slots here are those of
// group 0.
struct SequenceSlice {
  SequenceId id;
  SliceKind kind = SliceKind::kPrompt;
  int32_t token_begin = 0;  // rows [token_begin, token_begin + num_tokens) of the plan
  int32_t num_tokens = 0;
  int32_t span_begin = 0;  // spans [span_begin, span_begin + num_spans) of the plan
  int32_t num_spans = 0;
  int32_t context_tokens = 0;     // sum over its spans
  int32_t adapter_slot = -1;      // -1: the base model
  int32_t mask_begin = 0;         // masks [mask_begin, mask_begin + num_masks) of the plan
  int32_t num_masks = 0;          // 0, or num_tokens
  TokenId next_token = kNoToken;  // behind its last row, if it is known
  int32_t second_begin = -1;      // the first of its rows whose token has the type 1; -1: none
  // The row that models with segment embeddings add to keys and values of its rows.
  int32_t segment = 0;
  // Pieces [piece_begin, piece_begin + num_pieces) of the plan: all positions of the spans, those
  // included that are missing at the front of a group, and in the last piece its rows. 0 pieces:
  // the positions are 0, 1, 2 and so on, or no layer needs to know them
  // (ExecutorLimits::reads_pieces).
  int32_t piece_begin = 0;
  int32_t num_pieces = 0;
  // While a sequence's list of spans has the same version in two plans, their spans are the same up
  // to the last one of the shorter list, so that nobody has to compare them. 0: unknown.
  uint64_t list_version = 0;
};

// A row whose token is not drawn yet: it is the first token of a sample of a step in flight
// (docs/decisions/0022). If that sample brings no token, the results of this row and of what
// depends on it are dropped.
struct UndrawnRow {
  int32_t row;
  int32_t sample;  // index into the samples of that step
  uint64_t step;
};

// Draws for `id` from the logits of rows [row, row + num_rows). One row gives one token; the rows
// of a draft give its accepted tokens and one more: `row` is then the first of its slice, and the
// token of each later row is kept if it is the one that is drawn from the row before. Several
// samples may name one row (n > 1).
struct SampleRow {
  SequenceId id;
  int32_t row;        // index into the plan's token rows
  Position position;  // of the first token to be drawn: the counter of its random number
  int32_t num_rows = 1;
};

// Asks the drafter that runs beside the model (engine/model/draft_network.h) to guess, when the
// sample is drawn, up to `num_tokens` tokens behind it. Its keys and values of these positions go
// to the rows of the slice that are dropped, and then to slots [slot_begin, slot_begin + num_slots)
// of StepPlan::ahead_slots, which are free again when the step is done.
// REQUIRES: no other sequence has the last page of the slice; num_slots is num_tokens +
// ExecutorLimits::rows_beyond_guesses.
struct DraftAhead {
  int32_t sample;  // index into the plan's samples
  int32_t num_tokens;
  int32_t slot_begin;
  int32_t num_slots;
  float min_survival;  // guessing ends when all guesses so far are right with less probability
  // A drafter that has not computed more positions of the sequence than this leaves it out.
  int32_t max_catch_up;
};

// Reports the log-probability of `target` at `row` (prompt logprobs), with `num_top` alternatives.
struct ScoreRow {
  SequenceId id;
  int32_t row;
  TokenId target;
  int32_t num_top;
};

// The final hidden states of a prompt that make its embedding.
enum class Pooling : uint8_t { kNone, kLast, kMean, kFirst };

// Adds the final normed hidden states of rows [row, row + num_rows) to what is pooled of `id`. A
// prompt that comes in chunks has several of these; the one with `last` reports the mean.
struct PoolRows {
  SequenceId id;
  int32_t row;
  int32_t num_rows;
  bool last;
};

// Copies page `image_page` of an adapter's image (engine/adapter/adapter_image.h) to a page of the
// pool, which is the adapter's until the scheduler gives it to others.
struct AdapterPageLoad {
  AdapterId adapter;
  int32_t image_page;
  PageId page;
};

// From this step on rows with `slot` have the adapter, whose products are multiplied by `scale`
// beside its own scale. Its pages, in the order of the image, are adapter_pages [page_begin,
// page_begin + num_pages) of the plan; all of them are loaded, by this step or earlier ones.
// REQUIRES: no step in flight has rows with this slot.
struct AdapterBind {
  AdapterId adapter;
  int32_t slot;
  float scale;
  int32_t page_begin;
  int32_t num_pages;
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<SequenceBegin> begun;
  std::vector<PageSwap> swaps_out;             // first of all, in any order
  std::vector<PageSwap> swaps_in;              // then these, in any order
  std::vector<AdapterPageLoad> adapter_loads;  // then these, in any order
  std::vector<AdapterBind> adapter_binds;      // then these
  std::vector<PageId> adapter_pages;           // [sum of num_pages of adapter_binds]
  std::vector<PageCopy> page_copies;           // then these, in any order; then the forward
  std::vector<TokenId> token_ids;              // [n_tokens]; kNoToken for the rows of `undrawn`
  std::vector<UndrawnRow> undrawn;       // in row order; only for executors that take two plans
  std::vector<Position> positions;       // [n_tokens]
  std::vector<KvSlot> kv_slots;          // [n_tokens]
  std::vector<KvSpan> spans;             // [sum of num_spans]
  std::vector<uint64_t> ancestor_masks;  // [sum of num_masks]
  std::vector<ContextPiece> pieces;      // [sum of num_pieces]
  std::vector<SequenceSlice> sequences;  // [n_seqs], in row order
  std::vector<SampleRow> samples;        // [n_samples]
  std::vector<ScoreRow> scores;          // [n_scores]
  std::vector<PoolRows> pools;           // [n_pools]
  std::vector<DraftAhead> drafts_ahead;  // at most one for each sample, in any order
  std::vector<KvSlot> ahead_slots;       // [sum of num_slots of drafts_ahead]
  std::vector<SequenceId> ended;         // forget these, after the forward
  std::vector<GroupSpans> more_groups;   // [groups - 1]
  // The drafter beside the model sees all rows of this step, if it reads the model's hidden states.
  // Without them it cannot go on with a sequence later.
  bool feeds_drafter = false;

  bool empty() const {
    return token_ids.empty() && begun.empty() && page_copies.empty() && ended.empty() &&
           swaps_out.empty() && swaps_in.empty() && adapter_loads.empty() && adapter_binds.empty();
  }

  // Calls `visit` with every array of `plan` but more_groups. All elements are flat values, except
  // those of `begun`, which hold what sampling needs once per sequence.
  template <typename Plan, typename Visit>
  static void ForEachArray(Plan& plan, Visit&& visit) {
    visit(plan.begun);
    visit(plan.swaps_out);
    visit(plan.swaps_in);
    visit(plan.adapter_loads);
    visit(plan.adapter_binds);
    visit(plan.adapter_pages);
    visit(plan.page_copies);
    visit(plan.token_ids);
    visit(plan.undrawn);
    visit(plan.positions);
    visit(plan.kv_slots);
    visit(plan.spans);
    visit(plan.ancestor_masks);
    visit(plan.pieces);
    visit(plan.sequences);
    visit(plan.samples);
    visit(plan.scores);
    visit(plan.pools);
    visit(plan.drafts_ahead);
    visit(plan.ahead_slots);
    visit(plan.ended);
  }

  // Empties the plan; keeps the capacity and the number of groups.
  void Clear() {
    ForEachArray(*this, [](auto& array) { array.clear(); });
    for (GroupSpans& group : more_groups) group.Clear();
    feeds_drafter = false;
  }
};

// Data of a plan that exists only in this process. It is handed to Submit beside the plan, and is
// used only by the rank that draws.
struct StepLocals {
  // The grammar from which the generated tokens of a sequence in StepPlan::begun must derive. Each
  // branch of a request has its own state in it. A sequence without a grammar has no entry.
  struct Grammar {
    SequenceId id;
    std::shared_ptr<grammar::CompiledGrammar> grammar;
  };
  std::vector<Grammar> grammars;
  // The images of all adapters in adapter_loads and adapter_binds, each once.
  std::vector<std::shared_ptr<const AdapterImage>> adapters;
};

}  // namespace heddle::engine
