// An executor without a model, for tests of the scheduler, the loop and the front end. It keeps a
// simulated KV store: every slot remembers which token was written there, at which position, after
// which history, for which group of layers. A sequence's tokens are a hash of the history that is
// read back through the spans and slots of the plan, so that a wrong page, a missing copy or a lost
// token changes the text; and a plan that breaks a rule of engine/step.h is reported by the error
// of Submit.
//
// Thread-safety: none, except for the counters that say so.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/executor.h"
#include "engine/step.h"
#include "scheduler/context_layout.h"

namespace heddle::test {

class FakeExecutor final : public engine::Executor {
 public:
  explicit FakeExecutor(const engine::ExecutorLimits& limits, int32_t max_in_flight = 1);

  const engine::ExecutorLimits& limits() const override { return limits_; }
  int32_t max_in_flight() const override { return max_in_flight_; }

  // INTERNAL names the broken rule and the sequence.
  absl::Status Submit(const engine::StepPlan& plan, const engine::StepLocals& locals) override;
  absl::Status Wait(engine::StepResult* result) override;

  // Loses the steps in flight, and all that was written to pages.
  absl::Status status() const override {
    return is_lost_ ? absl::UnavailableError("a rank is lost") : absl::OkStatus();
  }
  void set_lost(bool is_lost) { is_lost_ = is_lost; }  // what status() says; any thread
  bool Abandon() override;
  absl::Status Recover() override { return recover_ ? recover_() : absl::OkStatus(); }
  // Called in Recover for its answer. Without it Abandon refuses: errors are final.
  void set_recover(std::function<absl::Status()> hook) { recover_ = std::move(hook); }

  // Sets the idle time that results report. Call it before the first Submit.
  void set_idle_ns(int64_t idle_ns) { idle_ns_ = idle_ns; }

  // From now on contexts may have parts that were computed side by side (context_layout.h), of
  // which a plan says which spans rows see, and with windows at which positions. A part's histories
  // become part of those of the rows that see it, with its position.
  void set_sees_parts() { sees_parts_ = true; }

  // Called in Wait before the result is given: to sleep, to hold the loop, or to fail the step.
  void set_before_result(std::function<absl::Status()> hook) { before_result_ = std::move(hook); }

  // Draws of one row for which it says so are left out, as where a grammar's mask is late: the row
  // is to be run again. REQUIRES: no plan counts on one (one step in flight).
  void set_leaves_out(std::function<bool(engine::SequenceId)> leaves_out) {
    leaves_out_ = std::move(leaves_out);
  }

  // Sequences begun and not ended. Any thread.
  int64_t num_live() const { return num_live_.load(); }
  int64_t num_rows() const { return num_rows_.load(); }  // over all steps; any thread
  // Plans that were submitted while another was in flight. Any thread.
  int64_t num_ahead() const { return num_ahead_.load(); }

  // The answer to `prompt` alone: `count` tokens, drawn with `seed`, forced ones among them if the
  // sequence is constrained. `adapter` is the AdapterKey of its adapter.
  static std::vector<engine::TokenId> Answer(const std::vector<engine::TokenId>& prompt,
                                             uint64_t seed, int32_t count, int32_t vocab,
                                             bool constrained = false, uint64_t adapter = 0);
  // The same for a prompt with parts.
  static std::vector<engine::TokenId> AnswerParts(const std::vector<engine::TokenId>& prompt,
                                                  const scheduler::ContextParts& parts,
                                                  uint64_t seed, int32_t count, int32_t vocab);
  // Those of workers that see each other (scheduler/workers.h), which draw max_tokens[i] tokens, or
  // all as many.
  static std::vector<std::vector<engine::TokenId>> AnswerWorkers(
      const std::vector<engine::TokenId>& prompt,
      const std::vector<std::vector<engine::TokenId>>& given, uint64_t seed,
      const std::vector<int32_t>& max_tokens, int32_t vocab);
  static std::vector<std::vector<engine::TokenId>> AnswerWorkers(
      const std::vector<engine::TokenId>& prompt,
      const std::vector<std::vector<engine::TokenId>>& given, uint64_t seed, int32_t max_tokens,
      int32_t vocab) {
    return AnswerWorkers(prompt, given, seed, std::vector<int32_t>(given.size(), max_tokens),
                         vocab);
  }
  // The change that an adapter at a scale makes to every token's history; 0 for the base model.
  static uint64_t AdapterKey(engine::AdapterId id, float scale);
  // These replace a grammar: which sequences are constrained, and what is forced behind a token.
  static bool IsConstrained(const engine::SamplingParams& sampling) {
    return sampling.presence_penalty > 0;
  }
  static std::vector<engine::TokenId> Forced(engine::TokenId token, int32_t vocab);

  // The log-probability that is reported for `token` after `history`.
  static float Logprob(const std::vector<engine::TokenId>& history, engine::TokenId token);

 private:
  static absl::Status Broken(engine::SequenceId id, const char* rule);
  struct Cell {
    bool written = false;
    engine::TokenId token = -1;
    engine::Position position = -1;
    uint64_t history = 0;  // hash of all tokens up to and including this one
    int32_t group = 0;     // of layers
    // In a page's first cell, if the page is a snapshot: the offsets that rows may go on from.
    int32_t next_first = 0;
    int32_t next_last = 0;
  };
  // The page of an adapter's image that a page of the pool holds.
  struct FactorPage {
    engine::AdapterId adapter{};
    int32_t image_page = 0;
  };
  struct Slot {
    engine::AdapterId adapter{};
    float scale = 1.0f;
    std::vector<engine::PageId> pages;
    uint64_t last_step = 0;  // that had rows of it
  };
  // The part of a plan for one group of layers and one sequence.
  struct GroupView {
    int32_t group = 0;
    const std::vector<engine::KvSlot>& slots;  // of all rows
    const engine::KvSpan* spans = nullptr;
    engine::GroupSpans::Range range;
  };

  absl::Status CheckShape(const engine::StepPlan& plan) const;
  absl::Status ResolveTokens(const engine::StepPlan& plan);
  absl::Status SwapPages(const engine::StepPlan& plan);
  absl::Status LoadAdapters(const engine::StepPlan& plan);
  absl::Status BindAdapters(const engine::StepPlan& plan);
  absl::Status CheckAdapters(const engine::StepPlan& plan);
  absl::Status CopyPages(const engine::StepPlan& plan);
  absl::Status CheckGroup(const engine::StepPlan& plan, const engine::GroupSpans& group) const;
  absl::Status RunSequence(const engine::StepPlan& plan, size_t index);
  absl::Status WriteSlots(const engine::StepPlan& plan, const engine::SequenceSlice& slice,
                          const GroupView& view);
  // The positions of a slice's context, those included that its groups lack, as its rows see them.
  struct SeenPosition {
    engine::Position position = 0;
    int32_t turn = 0;
  };
  std::vector<SeenPosition> PositionsOf(const engine::StepPlan& plan,
                                        const engine::SequenceSlice& slice) const;
  absl::Status ReadParts(const engine::StepPlan& plan, const engine::SequenceSlice& slice,
                         const GroupView& view);
  absl::Status ReadContext(const engine::StepPlan& plan, const engine::SequenceSlice& slice,
                           const GroupView& view);
  struct Live {
    engine::SamplingParams sampling;
    engine::Position next_position = 0;  // behind its last token
  };
  absl::Status Draw(const engine::StepPlan& plan, engine::StepResult* result);
  absl::Status DrawDraft(const engine::StepPlan& plan, const engine::SampleRow& sample, Live* live,
                         engine::StepResult* result);
  absl::Status Score(const engine::StepPlan& plan, engine::StepResult* result) const;
  Cell& At(engine::PageId page, int32_t offset);
  bool IsSnapshot(int32_t group) const {
    return limits_.state_is_snapshot &&
           group >= static_cast<int32_t>(limits_.windows.size()) - limits_.state_groups;
  }

  engine::ExecutorLimits limits_;
  bool sees_parts_ = false;
  const int32_t max_in_flight_;
  std::vector<Cell> cells_;               // [num_pages, page_tokens]
  std::vector<Cell> host_cells_;          // [num_host_pages, page_tokens]
  std::vector<engine::TokenId> tokens_;   // [rows of the plan], with undrawn ones filled in
  std::vector<uint64_t> row_history_;     // [rows of the plan]
  std::vector<char> page_is_written_;     // [num_pages]: 1 by a copy of this step
  std::vector<FactorPage> factor_pages_;  // [num_pages]; adapter 0: keys and values, or nothing
  std::vector<Slot> slots_;               // [adapter_slots]
  absl::flat_hash_map<engine::SequenceId, Live> live_;
  std::deque<engine::StepResult> results_;  // not waited for, the oldest first
  std::function<absl::Status()> before_result_;
  std::function<bool(engine::SequenceId)> leaves_out_;
  std::function<absl::Status()> recover_;
  std::atomic<bool> is_lost_{false};
  int64_t idle_ns_ = -1;
  bool last_has_pools_ = false;  // the plan that was submitted last
  std::atomic<int64_t> num_live_{0};
  std::atomic<int64_t> num_ahead_{0};
  std::atomic<int64_t> num_rows_{0};
};

}  // namespace heddle::test
