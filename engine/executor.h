// Runs step plans on a model. The engine loop owns one executor and knows nothing else of the
// model, the device or the ranks.
//
// Thread-safety: none; Submit and Wait are called by the engine loop's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/step.h"
#include "kernels/dtype.h"

namespace heddle::engine {

// Capacities and sizes that the scheduler and the front end must know before the first plan.
struct ExecutorLimits {
  int32_t num_pages = 0;         // pages of the KV pool
  int32_t page_tokens = 0;       // positions per page, a power of two
  int32_t max_context = 0;       // positions per sequence, from the model or --max-context
  int32_t max_batch_tokens = 0;  // rows per plan
  int32_t max_batch_seqs = 0;    // sequences per plan
  int32_t num_host_pages = 0;    // slots of the host's tier for pages, beside the pool; 0: none
  int32_t vocab = 0;
  // Per group of layers, the positions that a row sees, itself included, in the layer with the
  // longest window; 0: all. Group 0 sees furthest. Pages before every row's window may be missing
  // from a sequence's spans of that group.
  std::vector<int32_t> windows = {0};
  // Missing positions come in multiples of this (a multiple of page_tokens), so that sums over the
  // rest are the same bit for bit.
  int32_t window_grain = 1;
  // The last groups, which have state in place of keys (engine/memory/kv_layout.h): there missing
  // positions come in whole pages.
  int32_t state_groups = 0;
  // Their pages have one state each, that behind the last of their positions: what is in the middle
  // of such a page cannot be taken over.
  bool state_is_snapshot = false;
  // Rows of the model's tables of segments: SequenceSlice::segment is below this; 0: it has none,
  // and does not read them.
  int32_t segments = 0;
  // Some layer has a window, also where the others of its group see more. It counts positions:
  // where these are not places in the list of spans, plans have to say so (StepPlan::pieces).
  bool layers_have_windows = false;
  bool reads_pieces = false;   // the model's attention reads StepPlan::pieces
  bool turns_queries = false;  // and rotates the queries of all layers further by a piece's turn
  // Rows see what is behind them: a prompt is planned whole, and nothing of it is kept for others.
  bool whole_prompts = false;
  // Proposed tokens that one sample verifies behind its sequence's last token; 0: the executor
  // takes no drafts. Drafts are chains: their slices have no masks.
  int32_t max_draft_tokens = 0;
  // Tokens that the drafter beside the model guesses at most (StepPlan::drafts_ahead); 0: there is
  // none.
  int32_t max_ahead_tokens = 0;
  // Rows that it runs for a sequence beside one for each of these tokens (DraftAhead::num_slots).
  int32_t rows_beyond_guesses = 0;
  bool drafter_reads_features = false;  // StepPlan::feeds_drafter matters to it
  // The hidden states that the drafter reads (DraftTraits::features), which ranks that have them
  // give the head.
  std::vector<int32_t> drafter_features;
  // Stages of a pipeline. With more than one, plans in flight have no undrawn rows, and steps that
  // share out the sequences let all stages work at a time.
  int32_t pipeline_stages = 1;
  // LoRA adapters; see engine/adapter/.
  int64_t page_bytes = 0;     // of a page of the pool
  int32_t adapter_slots = 0;  // AdapterBind::slot is below this; 0: the executor runs no adapters
  int32_t adapter_max_rank = 0;
  kernels::DType adapter_dtype = kernels::DType::kBF16;  // of the factors
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ExecutorLimits& limits() const = 0;

  // The number of plans that may be submitted and not yet waited for. They run one after the other;
  // with two, the device need not stand still between steps.
  virtual int32_t max_in_flight() const { return 1; }

  // Starts `plan`, which must stay unchanged until Wait has returned its result; what is needed of
  // `locals` is copied. REQUIRES: no plan with pools is in flight, because this one would overwrite
  // its hidden states. Plans within limits() never fail for want of memory. An error, from here or
  // from Wait, means that the device is gone: the loop waits for no other plan, and fails all
  // requests unless Abandon says that the device may come back.
  virtual absl::Status Submit(const StepPlan& plan, const StepLocals& locals) = 0;

  // Blocks until the oldest submitted plan is done; overwrites *result (reusing its capacity).
  virtual absl::Status Wait(StepResult* result) = 0;

  // Whether the executor can still run steps, as far as it knows without running one.
  virtual absl::Status status() const { return absl::OkStatus(); }
  // Behind an error, of a plan or of status(): gives up all plans in flight. Sequences that they
  // begin and end have begun and ended then, and their samples have drawn nothing. False: the error
  // is final. True: Recover may make the executor work again.
  virtual bool Abandon() { return false; }
  // Tries to go on behind Abandon, without blocking for long. OK: plans are taken again, and the
  // content of all pages is lost. UNAVAILABLE: not yet; call it again soon. Other errors are final.
  virtual absl::Status Recover() { return absl::FailedPreconditionError("nothing was abandoned"); }
};

}  // namespace heddle::engine
