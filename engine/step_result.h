// The result of a step (step.h): tokens, scores, pooled states, guesses of the drafter beside the
// model, and how long it all took.
//
// Plain data, flat like a plan, and reused like one. Ownership: the engine loop's; an executor
// fills it within Wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/ids.h"

namespace heddle::engine {

struct TokenLogprob {
  TokenId token;
  float logprob;
};

// A token that was generated or scored. `logprob` is of the distribution before temperature and
// filters, as OpenAI reports it; `top` is sorted from likely to unlikely. A token that a grammar
// forced has neither.
struct SampledToken {
  TokenId token = kNoToken;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

// Why a sample ends its sequence with an error.
enum class DrawFailure : uint8_t {
  kNone,
  kNothingToDraw,  // the logits are NaN, or every token is banned
  kTooAmbiguous,   // the grammar's next tokens were not found in bounded work
  kNoTokenFits,    // the grammar demands a text that no token of the vocabulary begins
};

// The result of one sample: tokens [token_begin, token_begin + num_tokens) of the result, and how
// many of the sample's rows stay in the cache; the rest are forgotten.
//   a plain draw                  1 token, 1 row; the token is kNoToken if none can be drawn
//   with tokens that are forced   more tokens than rows: what follows the draw has no row yet
//   a draft                       as many tokens as rows, 1 to num_rows, and more where tokens are
//                                 forced behind the last one that was drawn
//   a draw behind a token that    0 tokens, 1 row: the step before brought the sequence more tokens
//   turned out not to be the last than this plan counted on
//   a draw that was left out      0 tokens, 0 rows: the row is run, and drawn from, another time
//   no draw is possible           0 tokens and `failure`; or one token, which is kNoToken
struct SequenceGain {
  SequenceId id;
  int32_t token_begin = 0;
  int32_t num_tokens = 0;
  int32_t rows_kept = 0;
  DrawFailure failure = DrawFailure::kNone;
};

// The mean of a sequence's pooled hidden states.
struct PooledState {
  SequenceId id;
  std::vector<float> values;  // [hidden]
};

// Guesses of the drafter beside the model of what follows a sequence's tokens, this step's
// included: guesses [guess_begin, guess_begin + num_guesses) of the result, each behind the one
// before.
struct GuessedTokens {
  SequenceId id;
  int32_t guess_begin = 0;
  int32_t num_guesses = 0;
};

struct GuessedToken {
  TokenId token = kNoToken;
  float probability = 0;  // by the drafter; of this token behind the ones before
};

// A pass of the drafter beside the model.
struct DraftPassTime {
  int32_t rows = 0;
  bool is_first = false;  // over the rows of the step; others have a row for each sequence
  int64_t ns = 0;
};

// Durations of a step. If the step runs while the host does other work, `forward_ns` is the
// device's time for it, counted from the end of the step before if that was later than its start,
// and `sample_ns` is the host's time for the tokens.
struct StepTiming {
  int64_t forward_ns = 0;
  int64_t sample_ns = 0;
  int64_t swap_ns = 0;
  int64_t idle_ns = -1;  // between the step before and this one; -1: unknown
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SequenceGain> gains;         // in the order of StepPlan::samples
  std::vector<SampledToken> tokens;        // tokens of all gains
  std::vector<SampledToken> scores;        // in the order of StepPlan::scores
  std::vector<PooledState> pooled;         // results of the last pools of sequences, in order
  std::vector<GuessedTokens> guessed;      // of StepPlan::drafts_ahead; some may be missing
  std::vector<GuessedToken> guesses;       // of all of these
  std::vector<DraftPassTime> draft_times;  // beside those of `timing`
  std::string
      draft_failure;  // why the drafter has turned itself off in this step; empty: it has not
  StepTiming timing;

  // Empties the result and keeps its capacity.
  void Clear() {
    gains.clear();
    tokens.clear();
    scores.clear();
    pooled.clear();
    guessed.clear();
    guesses.clear();
    draft_times.clear();
    draft_failure.clear();
    timing = {};
  }
};

}  // namespace heddle::engine
