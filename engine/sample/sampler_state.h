// State of sampling for each live sequence between steps: its parameters, the tokens that
// penalties count, and where it stands in its grammar. Turns the sample rows of a plan into the
// kernel's row parameters.
//
// Penalties: repetition over prompt and generated tokens (Keskar et al. 2019, as transformers);
// presence and frequency over generated tokens only (as OpenAI documents them); DRY over both
// (dry.h).
//
// Grammars: after each token the mask for the next is looked for at once, on a thread of its own
// where it is not known; a token that takes long to go on with is taken there too. Nothing here
// waits for a grammar, but for as long as the caller says. Where the grammar forces tokens, Accept
// takes them too and says which, as far as they are found at once: the mask allows these alone.
// Not so where log-probabilities are wanted, which take a row each: the same tokens are then drawn
// one by one. Sequences with bad words may write forced texts in any way.
// Thread-safety: none; owned by the executor.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/grammar/compiled_grammar.h"
#include "engine/sample/dry.h"
#include "engine/sample/mask_ahead.h"
#include "engine/step.h"
#include "kernels/sample.h"

namespace heddle::engine {

class SamplerState {
 public:
  // Starts to remember a sequence, which derives from `grammar` (null: from none). Ids are unique
  // among live sequences.
  void Begin(const SequenceBegin& begin, std::shared_ptr<grammar::CompiledGrammar> grammar);

  // Forgets a sequence; unknown ids are ignored.
  void End(SequenceId id);

  // Fills in what the kernel needs to draw one token for `sample`, whose logits are in
  // `logit_row`, but for `allowed`. The edits it points to stay valid until the next ResetEdits.
  // REQUIRES: the sequence is live.
  kernels::SampleRowParams Row(const SampleRow& sample, int32_t logit_row);

  // As Row, for row i >= 1 of a draft, whose proposed tokens up to that row are `drafted` [i]: as
  // if the sequence had drawn them. Call it for each row of a sample in order.
  kernels::SampleRowParams DraftRow(const SampleRow& sample, std::span<const TokenId> drafted,
                                    int32_t logit_row);

  // The draw of a guess that follows `guessed` behind the next position of the sequence, `next`: as
  // the model would draw there. Empty if the grammar has no use for `guessed`, or takes long. What
  // it points to stays valid until the next ResetEdits. REQUIRES: the sequence is live.
  std::optional<kernels::SampleRowParams> GuessRow(const SampleRow& next,
                                                   std::span<const TokenId> guessed,
                                                   int32_t logit_row);

  // Whether guesses of the sequence are verified by rejection sampling. REQUIRES: it is live.
  bool RejectsGuesses(SequenceId id) const;

  // Whether what Row and Allowed say of the next draw but one depends on the next, which was not
  // accepted yet. REQUIRES: the sequence is live.
  bool NeedsDraw(SequenceId id) const;

  // Whether the sequence has a token at the sample's position already: forced tokens stand there.
  // REQUIRES: the sequence is live.
  bool HasPassed(const SampleRow& sample) const;

  // Whether the sample counts on a token that its sequence has not got: the draw before was left
  // out. REQUIRES: the sequence is live.
  bool IsAhead(const SampleRow& sample) const;

  // The tokens that the sequence's grammar allows. Valid until Accept or End.
  struct Allowance {
    bool is_known = true;            // false: it is still looked for
    const uint32_t* mask = nullptr;  // null: all tokens
    DrawFailure failure = DrawFailure::kNone;
  };
  // Waits until `deadline` for what is not known. REQUIRES: the sequence is live.
  Allowance Allowed(SequenceId id, std::chrono::steady_clock::time_point deadline);

  // Finds the masks of a draft's rows behind the first: `masks` [n + 1] for the proposed tokens
  // `drafted` [n], where masks[0] is that of the first row and n of the returned rows are known.
  // Returns how many rows can be drawn from, at least 1: the draft ends where the grammar forbids
  // its next token, and where the next mask takes long. Without a grammar nothing is written. The
  // masks stay valid until the next ResetEdits. REQUIRES: Allowed knows the first row's mask.
  int32_t DraftMasks(SequenceId id, std::span<const TokenId> drafted,
                     std::vector<const uint32_t*>* masks);

  // The sample's token is drawn another time.
  void LeaveOut(const SampleRow& sample);

  // Call before the rows of a step are built.
  void ResetEdits() {
    edits_used_ = 0;
    draft_masks_.clear();
  }

  // Counts the token that was drawn for `sample`, and goes on in the grammar with it. Returns the
  // tokens that the grammar has follow it, which count as well; valid until the next call.
  std::span<const TokenId> Accept(const SampleRow& sample, TokenId token);

  // Begins to look for the masks of sequences that have accepted since. Call after a step's last
  // Accept: a search holds up those that take tokens of the same grammar.
  void FindMasks();

  size_t num_live() const { return sequences_.size(); }

 private:
  // The part of a sequence's history on which edits of logits depend.
  struct History {
    int32_t num_generated = 0;
    // Times each token was generated; 0 for tokens that only the prompt has.
    absl::flat_hash_map<TokenId, int32_t> counts;
    std::optional<Dry> dry;
    // The last tokens generated: as many as the longest bad word needs before its last.
    std::vector<TokenId> recent;
  };
  struct Sequence {
    SamplingParams params;
    Position next_position = 0;  // behind its last token; 0: it has drawn none
    bool has_edits = false;      // any bias, penalty or ban is in force
    bool counts_tokens = false;  // any penalty by counts is in force
    size_t recent_limit = 0;     // of History::recent
    History history;
    std::optional<grammar::Matcher> matcher;
    bool jumps = false;  // over forced tokens
    // For the next draw, one of them at most; the search knows better where the matcher stands.
    std::shared_ptr<const grammar::TokenMask> mask;
    std::shared_ptr<MaskAhead::Search> search;
    std::vector<TokenId> untaken;  // accepted, and not yet taken by the matcher
    DrawFailure failure = DrawFailure::kNone;
  };

  kernels::SampleRowParams RowOf(const Sequence& sequence, const History& history,
                                 Position position, int32_t logit_row);
  static void BanBadWords(const Sequence& sequence, const History& history,
                          std::vector<kernels::LogitEdit>* edits);
  std::span<const kernels::LogitEdit> BuildEdits(const Sequence& sequence, const History& history);
  static void Count(TokenId token, const Sequence& sequence, History* history);
  const Sequence& At(SequenceId id) const;
  void Jump(Sequence* sequence);
  void Search(Sequence* sequence);
  static void TakeFound(Sequence* sequence);

  absl::flat_hash_map<SequenceId, Sequence> sequences_;
  std::deque<std::vector<kernels::LogitEdit>> edits_;  // reused from step to step
  size_t edits_used_ = 0;
  History draft_;  // of the draft's row that DraftRow was called for last
  std::vector<std::shared_ptr<const grammar::TokenMask>> draft_masks_;
  std::vector<const uint32_t*> guess_masks_;
  std::vector<SequenceId> without_mask_;  // have accepted since FindMasks
  std::vector<TokenId> forced_;           // by the last Accept
  MaskAhead ahead_;
};

}  // namespace heddle::engine
