// The narrow waist: what the scheduler asks of the engine for one iteration, and what it gets back.
// Plain data that depends on nothing of ours, so that the scheduler builds without kernels and a
// plan can be serialised to other ranks as it stands.
//
// A plan is flat: one array per quantity over all rows (tokens) of all sequences, and slices into
// them, so that a plan reused for the next step allocates nothing.
// Ownership: the engine loop owns plan and result; an executor only reads the plan, and only
// between Submit and the end of Wait.
// Source: Kwon et al., "PagedAttention", SOSP 2023 (pages); Agrawal et al., "SARATHI", 2023 (mixed
// prefill and decode rows in one batch).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::engine::grammar {
class CompiledGrammar;  // engine/grammar/; opaque to everything above the engine
}

namespace heddle::engine {

// Index into the vocabulary. An alias and not a class: it is read from and written to arrays of
// int32 on devices. Valid ids are in [0, vocab).
using TokenId = int32_t;
// Position of a token in its sequence as RoPE sees it; from 0.
using Position = int32_t;
// Identity of one branch of one request; never reused during the life of the process.
enum class SequenceId : uint64_t {};
// Page of the KV pool, dense in [0, num_pages).
enum class PageId : int32_t {};

inline int32_t Index(PageId page) { return static_cast<int32_t>(page); }

// `num_tokens` valid positions at the start of `page`. A sequence's context is a list of these.
struct KvSpan {
  PageId page;
  int32_t num_tokens;
};

// Where the key and value of one new token go.
struct KvSlot {
  PageId page;
  int32_t offset;  // in [0, page_tokens)
};

// Slots and spans of one more group of layers than the first. The layers of a model are in groups
// by how far their rows see, each with a list of spans of its own per sequence: a page holds
// page_tokens positions of one group. Group 0 sees furthest, and is what the slices of a plan say.
struct GroupSpans {
  struct Range {
    int32_t span_begin = 0;  // spans [span_begin, span_begin + num_spans) of the group
    int32_t num_spans = 0;
    int32_t context_tokens = 0;  // sum over its spans
  };
  std::vector<KvSlot> kv_slots;  // [n_tokens]
  std::vector<KvSpan> spans;     // [sum of num_spans]
  std::vector<Range> ranges;     // [n_seqs]

  // Keeps the capacity.
  void Clear() {
    kv_slots.clear();
    spans.clear();
    ranges.clear();
  }
};

// How many pages a sequence needs: what the scheduler keeps to, and capacity planning counts on.
struct PageRule {
  int32_t page_tokens = 0;   // a power of two
  int32_t window_grain = 1;  // windows give back so many positions at a time
  int32_t step_tokens = 0;   // rows of a step, at most

  // The most positions of which a group's pages are held at a time by a sequence of `tokens`. With
  // a window no more than that, the grain, a step, the pages at either end and the copy of one.
  int64_t MostHeld(int64_t tokens, int32_t window) const {
    if (window == 0) return tokens;
    return std::min(tokens,
                    int64_t{window} + window_grain + step_tokens + 3 * int64_t{page_tokens});
  }

  // The most pages of all groups; `windows` has one entry for each (0: none).
  int64_t MostPages(int64_t tokens, std::span<const int32_t> windows) const {
    int64_t pages = 0;
    for (int32_t window : windows) {
      pages += (MostHeld(tokens, window) + page_tokens - 1) / page_tokens;
    }
    return pages;
  }

  // The longest sequence, up to `limit`, that holds at most `num_pages`.
  int32_t LongestWithin(int64_t num_pages, std::span<const int32_t> windows, int32_t limit) const {
    int32_t fits = 0;
    for (int32_t beyond = limit; fits < beyond;) {  // MostPages does not fall
      const int32_t middle = beyond - (beyond - fits) / 2;
      if (MostPages(middle, windows) <= num_pages) {
        fits = middle;
      } else {
        beyond = middle - 1;
      }
    }
    return fits;
  }
};

// Copies the first `num_tokens` positions of a page, before the step's forward.
struct PageCopy {
  PageId from;
  PageId to;
  int32_t num_tokens;
};

// The whole content of a page goes to a slot of the host's tier, or comes back from one. Slots are
// dense in [0, ExecutorLimits::num_host_pages).
struct PageSwap {
  PageId page;
  int32_t slot;
};

// How tokens of one sequence are drawn. Filters apply in this order: logit_bias, repetition,
// presence and frequency penalties, temperature, top_k, top_p, min_p, typical_p (the order of
// transformers' logits processors). Ranges are validated by server/; the engine takes them as
// given.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy (argmax; the lowest id wins a tie)
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  float typical_p = 1.0f;    // 1: off
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;          // with the position, the only input of the random number
  int32_t num_logprobs = -1;  // -1: none; 0: of the sampled token; n: of the n best as well
  std::vector<std::pair<TokenId, float>> logit_bias;
  int32_t min_tokens = 0;                  // none of min_tokens_banned is drawn before so many
  std::vector<TokenId> min_tokens_banned;  // end-of-sequence and stop ids
  // Sequences that are not generated: the last token of one is banned where the others stand just
  // before it. None is empty.
  std::vector<std::vector<TokenId>> bad_words;
  // What the generated tokens must derive from; null: anything. Each branch stands in it for
  // itself.
  std::shared_ptr<grammar::CompiledGrammar> grammar;

  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
  // Whether the draw that follows `num_drawn` others depends on the last of them, but for what the
  // model makes of it: then it is prepared when that one is known.
  bool NeedsLastDraw(int32_t num_drawn) const {
    if (grammar != nullptr || has_penalties()) return true;
    if (num_drawn == min_tokens && !min_tokens_banned.empty()) return true;
    return std::any_of(bad_words.begin(), bad_words.end(),
                       [](const std::vector<TokenId>& word) { return word.size() > 1; });
  }
};

// A sequence that the executor hears of for the first time. It keeps what sampling needs until
// the sequence is in `StepPlan::ended`; preemption does not end a sequence.
struct SequenceBegin {
  SequenceId id;
  SamplingParams sampling;
  std::vector<TokenId> prompt;  // for the penalties; empty where they are off
};

// One sequence's part of the batch. Row i of it (i < num_tokens) attends to all positions of its
// spans but the last num_tokens - 1 - i: the spans already count this step's own tokens. Where
// every layer of a group has a sliding window, whole pages that no row sees any more are missing at
// the front. Spans and slots here are those of group 0.
struct SequenceSlice {
  SequenceId id;
  int32_t token_begin = 0;  // rows [token_begin, token_begin + num_tokens) of the plan
  int32_t num_tokens = 0;
  int32_t span_begin = 0;  // spans [span_begin, span_begin + num_spans) of the plan
  int32_t num_spans = 0;
  int32_t context_tokens = 0;  // sum over its spans
  int32_t adapter_slot = -1;   // -1: the base model
};

// Draw one token for `id` from the logits of `row`. Several samples may name one row (n > 1).
struct SampleRow {
  SequenceId id;
  int32_t row;        // index into the plan's token rows
  Position position;  // of the token to be drawn: the counter of the random number
};

// Report the log-probability of `target` at `row` (prompt logprobs), with `num_top` alternatives.
struct ScoreRow {
  SequenceId id;
  int32_t row;
  TokenId target;
  int32_t num_top;
};

// Which final hidden states of a prompt make its embedding.
enum class Pooling : uint8_t { kNone, kLast, kMean, kFirst };

// Add the final normed hidden states of rows [row, row + num_rows) to what is pooled of `id`. A
// prompt that comes in chunks has several of these; with the `last` one the mean is reported.
struct PoolRows {
  SequenceId id;
  int32_t row;
  int32_t num_rows;
  bool last;
};

struct StepPlan {
  uint64_t step = 0;  // the step before is that of the plan that was submitted before
  std::vector<SequenceBegin> begun;
  std::vector<PageSwap> swaps_out;    // first of all, in any order
  std::vector<PageSwap> swaps_in;     // then these, in any order
  std::vector<PageCopy> page_copies;  // then these, in any order; then the forward
  // [n_tokens]. ~i, which is negative: the token that sample i of the step before draws, which is
  // not known yet (docs/decisions/0022); only for executors that take two plans. What is drawn
  // behind a sample that drew nothing (-1) is of no use to anybody.
  std::vector<TokenId> token_ids;
  std::vector<Position> positions;       // [n_tokens]
  std::vector<KvSlot> kv_slots;          // [n_tokens]
  std::vector<KvSpan> spans;             // [sum of num_spans]
  std::vector<SequenceSlice> sequences;  // [n_seqs], in row order
  std::vector<SampleRow> samples;        // [n_samples]
  std::vector<ScoreRow> scores;          // [n_scores]
  std::vector<PoolRows> pools;           // [n_pools]
  std::vector<SequenceId> ended;         // forget these, after the forward
  std::vector<GroupSpans> more_groups;   // [groups - 1]

  bool empty() const {
    return token_ids.empty() && begun.empty() && page_copies.empty() && ended.empty() &&
           swaps_out.empty() && swaps_in.empty();
  }
  // Keeps the capacity, and the number of groups.
  void Clear() {
    begun.clear();
    swaps_out.clear();
    swaps_in.clear();
    page_copies.clear();
    token_ids.clear();
    positions.clear();
    kv_slots.clear();
    spans.clear();
    sequences.clear();
    samples.clear();
    scores.clear();
    pools.clear();
    ended.clear();
    for (GroupSpans& group : more_groups) group.Clear();
  }
};

struct TokenLogprob {
  TokenId token;
  float logprob;
};

// A drawn (or scored) token. `logprob` is of the distribution before temperature and filters, as
// OpenAI reports it; `top` is sorted from likely to unlikely.
struct SampledToken {
  SequenceId id;
  TokenId token = -1;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
  // Of a drawn token: those that its grammar has follow it, without a row of their own. The
  // sequence has them too, from now on; none of them has a log-probability, so that there are none
  // where these are asked for. Its sample in a step that is in flight behind this one is void then:
  // that brings no token (-1), and counts for nothing.
  std::vector<TokenId> forced;
};

// The mean of a sequence's pooled hidden states.
struct PooledState {
  SequenceId id;
  std::vector<float> values;  // [hidden]
};

// Where a step runs while the host does other things, `forward` is the time that the device took
// for it, from the end of the step before if that was later than its start, and `sample` what the
// host did with the tokens.
struct StepTiming {
  int64_t forward_ns = 0;
  int64_t sample_ns = 0;
  int64_t swap_ns = 0;
  // That the device stood still between the step before and this one; -1: it cannot tell.
  int64_t idle_ns = -1;
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SampledToken> samples;  // in the order of StepPlan::samples
  std::vector<SampledToken> scores;   // in the order of StepPlan::scores
  std::vector<PooledState> pooled;    // of the pools that were the last of their sequence, in order
  StepTiming timing;
};

}  // namespace heddle::engine
