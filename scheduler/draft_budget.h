// Decides how many rows of drafts each sequence gets in a step, so that speculation pays or is not
// done: rows are given where the estimated survival buys most tokens per microsecond over all
// sequences, by measured step times (step_times.h).
//
// Regret is bounded: a shadow account (regret_account.h) says what the plain steps would have
// taken, and how much time drafts have won or lost against them. Questions to drafters that bring
// no rows are losses too: beside steps of a small model for many streams they are some per cent.
//
// Order of calls between steps, for every step: wants_drafts, then (if it is true) Choose; when the
// step is done, CountDraft for each draft in it, then CountStep.
// Unit: microseconds. Thread-safety: none; owned by the engine loop.
// Source: Liu et al., "TurboSpec", 2024 (goodput); the account is ours.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/fading_tally.h"
#include "engine/ids.h"
#include "engine/step.h"
#include "scheduler/regret_account.h"
#include "scheduler/step_times.h"

namespace heddle::scheduler {

// A chain that a drafter proposes for a sequence.
struct DraftOffer {
  engine::SequenceId id{};
  std::span<const float> survival;  // [nodes] in order of depth; never rises
  int32_t rows = 0;                 // out: how many of its nodes to verify, from the first
};

// Rows of a step apart from drafts.
struct PlainRows {
  int32_t decodes = 0;  // >= 1
  int32_t prompts = 0;
};

// A step that is done.
struct DraftedStep {
  PlainRows rows;
  int32_t drafted = 0;   // rows of drafts
  int32_t accepted = 0;  // of these, tokens that were right
  double us = 0;         // its time; 0: not known
  double asked_us = 0;   // of it, what drafters took to be asked for this step
};

// The rows of a plan; what became of them is still to be filled in.
DraftedStep RowsOf(const engine::StepPlan& plan);

// The worth of a step, by the times that were known before it.
struct BookedStep {
  double plain_us = 0;  // what it takes without drafts; 0: not known
  double token_us = 0;  // a token's share of a plain step of the decodes
  double us = 0;        // what it took, apart from what others held it up; 0: not known

  // The time that `accepted` tokens saved, less what the step took beyond a plain one.
  double GainedUs(int32_t accepted) const { return accepted * token_us - (us - plain_us); }
};

struct DraftBudgetStats {
  int64_t drafts = 0;  // sequences' drafts in all steps
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
  std::array<int64_t, 16> accepted_at{};  // by place in the draft; the last counts all behind it
  double gained_seconds = 0;  // time that drafts won against plain steps; negative: lost
  int64_t times_off = 0;      // how often it turned itself off
  bool is_off = false;
};

class DraftBudget {
 public:
  struct Options {
    int32_t max_step_rows = 0;  // of a step in all; 0: no bound but the offers
    // A step with drafts may take so long, if a plain one does not take longer; 0: no bound.
    double target_us = 0;
  };
  explicit DraftBudget(const Options& options) : options_(options) {}

  // Whether drafters need to be asked for the next step. Asked in vain for long, they are asked in
  // one of four steps: what they take matters where steps are short.
  bool wants_drafts() const { return !is_paused() && skip_ == 0 && !is_plain_turn_; }
  bool is_paused() const { return account_.is_paused(); }
  const StepTimes& times() const { return times_; }

  // Sets `rows` of every offer. O(rows of all offers * log(offers)).
  void Choose(const PlainRows& plain, std::span<DraftOffer> offers);

  // `id` had `drafted` rows of its last offer verified. `accepted` <= `drafted`.
  void CountDraft(engine::SequenceId id, int32_t drafted, int32_t accepted);
  BookedStep CountStep(const DraftedStep& step);
  // The sequence has ended.
  void Forget(engine::SequenceId id) { offered_.erase(id); }

  DraftBudgetStats stats() const;

 private:
  static constexpr int kPlaces = 8;  // of calibration: 1, 2, 3, 4, 5-6, 7-8, 9-12, more
  static int PlaceOf(size_t index);
  double Calibrated(size_t index, double survival) const;
  size_t GiveRows(const PlainRows& plain, std::span<const DraftOffer> offers);
  void Book(double gained_us, double plain_us);
  void Learn(std::span<const float> survival, int32_t drafted, int32_t accepted);

  Options options_;
  StepTimes times_;
  std::array<base::FadingTally, kPlaces> calibration_{};  // expected and accepted tokens
  absl::flat_hash_map<engine::SequenceId, std::vector<float>> offered_;  // survivals of rows given

  RegretAccount account_{{.first_steps = 1}};
  bool is_plain_turn_ = false;
  int32_t vain_ = 0;         // times in a row that Choose gave no rows
  int32_t skip_ = 0;         // steps until Choose is asked again
  int32_t plain_steps_ = 0;  // without drafts; counted up to the few that come before the first
  int64_t since_plain_ = 0;  // steps with drafts since the last one without
  DraftBudgetStats stats_;

  // Scratch of GiveRows: (offer, node) in the order in which rows are given, and the heap.
  struct Node {
    double survival;
    uint32_t offer;
    uint32_t index;
    bool operator<(const Node& other) const { return survival < other.survival; }
  };
  std::vector<Node> heap_;
  std::vector<uint32_t> given_;
};

}  // namespace heddle::scheduler
