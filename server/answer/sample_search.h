// Several answers to one prompt, of which one is given: which are drawn, which are cut before their
// end, and which one it is. Self-consistency takes the answer on which most samples agree, and ends
// when that is settled; best-of-n takes the likeliest one, and drops the others half by half.
//
// Samples are begun in waves. A sample votes with what an expression finds last in its text (its
// slot), with a value of its JSON, or with all of its text. The vote is settled when the leading
// answer cannot be caught by the samples that are left, or when it will win with the wished
// probability: with v votes for the leader and w for the next one, the probability that the
// leader's share of both is more than a half, by the posterior Beta(v + 1, w + 1).
// Sources: Wang et al., "Self-Consistency", ICLR 2023; Aggarwal et al., "Let's Sample Step by
// Step", EMNLP 2023 (the stop); "DeepPrune", 2025 (cutting what will end equal).
// Pure. Thread-safety: none; belongs to one exchange.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ids.h"

namespace heddle::server {

enum class SearchKind : uint8_t { kSelfConsistency, kBestOfN };

struct SearchOptions {
  SearchKind kind = SearchKind::kSelfConsistency;
  int32_t samples = 0;  // at most; 0: no search
  int32_t wave = 4;     // that are begun at a time
  std::string answer;   // expression of the slot; empty: the whole text votes
  // In its place, where answers are JSON: the pointer of the slot (json_slot.h).
  std::optional<std::string> answer_at;
  double confidence = 0.95;  // of the settled vote; 1: only where the leader cannot be caught
  // Tokens between two looks at which samples are cut; 0: none is. Self-consistency compares as
  // many, the last ones, and cuts a sample for one to which they are as similar as this.
  int32_t prune_tokens = 0;
  double similarity = 0.9;
  // kBestOfN: by a reward model's scores of what the samples answer to `question`.
  bool by_reward = false;
  std::string question;
};

class SampleSearch {
 public:
  // INVALID_ARGUMENT: `answer` is no expression, or `answer_at` no pointer.
  static absl::StatusOr<std::unique_ptr<SampleSearch>> Make(const SearchOptions& options);
  ~SampleSearch();

  // The number of samples to begin now: a wave, where the last one has ended without a result.
  int32_t NextWave() const;
  void Begin(int32_t count);

  // Tokens of a sample. Appends the samples that end with this, cut, to *cut.
  void Take(size_t sample, std::span<const engine::TokenId> tokens, double sum_logprob,
            std::vector<size_t>* cut);
  // A sample has ended by itself.
  void End(size_t sample, std::string_view text);

  bool done() const;
  // The samples that have ended by themselves, in order.
  std::vector<size_t> finished() const;
  // kBestOfN: `rewards[i]`, of the sample `samples[i]`, is what is compared in place of
  // likelihoods.
  void SetRewards(std::span<const size_t> samples, std::span<const double> rewards);
  // The sample whose text is the answer. REQUIRES: done(), and no rewards or those of all
  // finished().
  size_t best() const;

  int32_t num_begun() const { return static_cast<int32_t>(samples_.size()); }
  int32_t num_finished() const { return num_finished_; }
  int32_t num_pruned() const { return num_pruned_; }
  int64_t votes_of_best() const;
  std::optional<double> reward_of_best() const { return samples_[best()].reward; }
  // An estimate of the tokens that all samples would have taken beyond those that were drawn: as
  // many for each as those that ended had in the mean.
  int64_t saved_tokens() const;

 private:
  struct Slot;
  struct Sample {
    std::vector<engine::TokenId> tokens;
    double sum_logprob = 0;
    size_t looked_at = 0;  // tokens at the last look
    bool is_open = true;
    bool is_finished = false;  // by itself
    std::string vote;
    std::optional<double> reward;
    size_t follows = SIZE_MAX;  // the sample that it was cut for
  };
  // The votes for an answer, and its first sample.
  struct Votes {
    int64_t count = 0;
    size_t first = 0;
  };

  explicit SampleSearch(const SearchOptions& options);

  std::map<std::string, Votes> Count() const;
  bool IsSettled() const;
  void CutSimilar(size_t sample, std::vector<size_t>* cut);
  void CutUnlikely(std::vector<size_t>* cut);
  void Cut(size_t sample, std::vector<size_t>* cut);
  double MeanLogprob(const Sample& sample) const;
  double Worth(const Sample& sample) const;

  const SearchOptions options_;
  std::unique_ptr<Slot> slot_;
  std::vector<Sample> samples_;
  int32_t num_open_ = 0;
  int32_t num_finished_ = 0;
  int32_t num_pruned_ = 0;
  size_t next_halving_ = 0;  // tokens that each open sample has then
};

// The share of token pairs that two texts have in common (Jaccard), in [0, 1].
double PairSimilarity(std::span<const engine::TokenId> a, std::span<const engine::TokenId> b);

// The probability that a share with the posterior Beta(wins + 1, losses + 1) is more than a half.
double ProbabilityOfMajority(int64_t wins, int64_t losses);

}  // namespace heddle::server
