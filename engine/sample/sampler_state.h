// What sampling must remember of each live sequence between steps: its parameters, the tokens that
// penalties count, and where it stands in its grammar. Turns the sample rows of a plan into the
// kernel's row parameters.
//
// Penalties: repetition over prompt and generated tokens (Keskar et al. 2019, as transformers);
// presence and frequency over generated tokens only (as OpenAI documents them).
//
// Grammars: after each token the mask for the next is looked for at once, on a thread of its own
// where it is not known; and where the grammar forces tokens, Accept takes them too and says which.
// Not so where log-probabilities are wanted, which take a row each: the same tokens are then drawn
// one by one. Sequences with bad words may write forced texts in any way.
// Thread-safety: none; owned by the executor.
#pragma once

#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/grammar/compiled_grammar.h"
#include "engine/sample/mask_ahead.h"
#include "engine/step.h"
#include "kernels/sample.h"

namespace heddle::engine {

class SamplerState {
 public:
  // Starts to remember a sequence. Ids are unique among live sequences.
  void Begin(const SequenceBegin& begin);

  // Forgets a sequence; unknown ids are ignored.
  void End(SequenceId id);

  // Fills in what the kernel needs to draw one token for `sample`, whose logits are in
  // `logit_row`, but for `allowed`. The edits it points to stay valid until the next ResetEdits.
  // REQUIRES: the sequence is live.
  kernels::SampleRowParams Row(const SampleRow& sample, int32_t logit_row);

  // Whether what Row and Allowed say of the next draw but one depends on the next, which was not
  // accepted yet. REQUIRES: the sequence is live.
  bool NeedsDraw(SequenceId id) const;

  // The mask of tokens that the sequence's grammar allows, or null: all. Waits for it, so that it
  // is best asked for late. Valid until Accept or End. Where a grammar allows nothing, nothing is
  // drawn (-1). REQUIRES: the sequence is live.
  const uint32_t* Allowed(SequenceId id);

  // Call before the rows of a step are built.
  void ResetEdits() { edits_used_ = 0; }

  // Counts a drawn token, and goes on in the grammar with it. Overwrites *forced with the tokens
  // that the grammar has follow it, which count as well.
  void Accept(SequenceId id, TokenId token, std::vector<TokenId>* forced);

  // Begins to look for the masks of sequences that have accepted since. Call behind a step's last
  // Accept: a search holds up those that take tokens of the same grammar.
  void FindMasks();

  size_t num_live() const { return sequences_.size(); }

 private:
  struct Sequence {
    SamplingParams params;
    int32_t num_generated = 0;
    bool has_edits = false;      // any bias, penalty or ban is in force
    bool counts_tokens = false;  // any penalty is in force
    // Times each token was generated; 0 for tokens that only the prompt has.
    absl::flat_hash_map<TokenId, int32_t> counts;
    // The last tokens generated: as many as the longest bad word needs before its last.
    std::vector<TokenId> recent;
    size_t recent_limit = 0;
    std::optional<grammar::Matcher> matcher;
    bool jumps = false;  // over forced tokens
    // For the next draw, one of them at most.
    std::shared_ptr<const grammar::TokenMask> mask;
    std::future<MaskAhead::Mask> mask_to_come;
  };

  static void BanBadWords(const Sequence& sequence, std::vector<kernels::LogitEdit>* edits);
  std::span<const kernels::LogitEdit> BuildEdits(const Sequence& sequence);
  static void Count(TokenId token, Sequence* sequence);
  static void Jump(Sequence* sequence, std::vector<TokenId>* forced);

  absl::flat_hash_map<SequenceId, Sequence> sequences_;
  std::deque<std::vector<kernels::LogitEdit>> edits_;  // reused from step to step
  size_t edits_used_ = 0;
  grammar::TokenMask nothing_;            // allows no token
  std::vector<SequenceId> without_mask_;  // have accepted since FindMasks
  MaskAhead ahead_;
};

}  // namespace heddle::engine
