// The steps of a warm-up as an executor sees them: within its limits, of all sizes, and as a
// scheduler could have planned them.
#include "engine/model/warm_up.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::engine {
namespace {

struct Size {
  int32_t rows, sequences, context;
  friend auto operator<=>(const Size&, const Size&) = default;
};

// Checks plans instead of running them.
class CheckingExecutor final : public Executor {
 public:
  explicit CheckingExecutor(ExecutorLimits limits) : limits_(std::move(limits)) {}

  const ExecutorLimits& limits() const override { return limits_; }

  absl::Status Submit(const StepPlan& plan, const StepLocals&) override {
    plan_ = &plan;
    CheckRows(plan);
    std::vector<GroupSpans::Range> first;
    for (const SequenceSlice& slice : plan.sequences) {
      first.push_back({slice.span_begin, slice.num_spans, slice.context_tokens});
    }
    CheckGroup(0, plan.kv_slots, plan.spans, first);
    for (size_t g = 0; g < plan.more_groups.size(); ++g) {
      const GroupSpans& group = plan.more_groups[g];
      CheckGroup(g + 1, group.kv_slots, group.spans, group.ranges);
    }
    Size size = {.rows = static_cast<int32_t>(plan.token_ids.size()),
                 .sequences = static_cast<int32_t>(plan.sequences.size()),
                 .context = 0};
    for (const auto& range : first) size.context = std::max(size.context, range.context_tokens);
    sizes_.push_back(size);
    return answer_;
  }

  absl::Status Wait(StepResult* result) override {
    result->gains.resize(plan_->samples.size());
    plan_ = nullptr;
    return absl::OkStatus();
  }

  void FailWith(absl::Status status) { answer_ = std::move(status); }
  const std::vector<Size>& sizes() const { return sizes_; }

 private:
  void CheckRows(const StepPlan& plan) {
    REQUIRE_FALSE(plan.token_ids.empty());
    REQUIRE(plan.token_ids.size() <= static_cast<size_t>(limits_.max_batch_tokens));
    REQUIRE(plan.sequences.size() <= static_cast<size_t>(limits_.max_batch_seqs));
    REQUIRE(plan.more_groups.size() + 1 == limits_.windows.size());
    REQUIRE(plan.positions.size() == plan.token_ids.size());
    bool good = true;
    for (TokenId token : plan.token_ids) good = good && token >= 0 && token < limits_.vocab;
    int32_t next = 0;
    for (const SequenceSlice& slice : plan.sequences) {
      good = good && slice.token_begin == next && slice.num_tokens > 0 &&
             slice.context_tokens <= limits_.max_context;
      for (int32_t i = 0; i < slice.num_tokens; ++i) {
        good = good && plan.positions[static_cast<size_t>(next + i)] ==
                           slice.context_tokens - slice.num_tokens + i;
      }
      next += slice.num_tokens;
    }
    CHECK(good);
    CHECK(next == static_cast<int32_t>(plan.token_ids.size()));
    std::set<SequenceId> begun, ended(plan.ended.begin(), plan.ended.end());
    for (const SequenceBegin& begin : plan.begun) begun.insert(begin.id);
    CHECK(begun == ended);  // nothing is left behind
    CHECK(begun.size() == plan.sequences.size());
    for (SequenceId id : begun) CHECK(met_.insert(id).second);
    for (const SampleRow& sample : plan.samples) CHECK(sample.row < next);
  }

  // Pages of the pool and of no other group; slots that are written once and read by their
  // sequence.
  void CheckGroup(size_t group, const std::vector<KvSlot>& slots, const std::vector<KvSpan>& spans,
                  const std::vector<GroupSpans::Range>& ranges) {
    REQUIRE(slots.size() == plan_->token_ids.size());
    REQUIRE(ranges.size() == plan_->sequences.size());
    std::set<std::pair<int32_t, int32_t>> written;
    bool good = true;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const SequenceSlice& slice = plan_->sequences[i];
      std::vector<std::pair<int32_t, int32_t>> places;  // of the sequence's positions
      for (int32_t s = 0; s < ranges[i].num_spans; ++s) {
        const KvSpan& span = spans[static_cast<size_t>(ranges[i].span_begin + s)];
        const int32_t page = Index(span.page);
        good = good && page >= 0 && page < limits_.num_pages && span.num_tokens > 0 &&
               span.num_tokens <= limits_.page_tokens;
        const auto owner = owners_.emplace(page, group);
        good = good && owner.first->second == group;
        for (int32_t t = 0; t < span.num_tokens; ++t) places.emplace_back(page, t);
      }
      REQUIRE(static_cast<int32_t>(places.size()) == ranges[i].context_tokens);
      for (int32_t row = 0; row < slice.num_tokens; ++row) {
        const KvSlot& slot = slots[static_cast<size_t>(slice.token_begin + row)];
        const std::pair<int32_t, int32_t> place = {Index(slot.page), slot.offset};
        good = good && written.insert(place).second &&
               places[places.size() - static_cast<size_t>(slice.num_tokens - row)] == place;
      }
    }
    CHECK(good);
  }

  ExecutorLimits limits_;
  absl::Status answer_;
  const StepPlan* plan_ = nullptr;
  std::vector<Size> sizes_;
  std::set<SequenceId> met_;
  std::map<int32_t, size_t> owners_;  // groups of pages
};

ExecutorLimits Limits(int32_t pages) {
  return {.num_pages = pages,
          .page_tokens = 16,
          .max_context = 4096,
          .max_batch_tokens = 512,
          .max_batch_seqs = 100,
          .vocab = 300};
}

constexpr int32_t kRows[] = {1, 2, 16, 32, 48, 80, 256};

TEST_CASE("A warm-up runs steps of all sizes", "[model][unit]") {
  CheckingExecutor executor(WarmUpLimits(Limits(100'000)));
  CHECK(executor.limits().num_pages < 1000);
  REQUIRE(WarmUp(executor, kRows).ok());
  const std::set<Size> sizes(executor.sizes().begin(), executor.sizes().end());
  for (int32_t rows : {1, 2, 32, 48, 80, 256, 512}) CHECK(sizes.contains({rows, 1, rows}));
  for (int32_t sequences : {1, 2, 16, 32, 48, 80, 100}) {
    CHECK(sizes.contains({sequences, sequences, 1}));
    CHECK(sizes.contains({sequences, sequences, 2033}));  // 127 pages and one token
  }
  CHECK(sizes.contains({512, 100, 2033}));  // both kinds together
}

TEST_CASE("Beyond the sizes that a device asks for they double", "[model][unit]") {
  constexpr int32_t kFew[] = {1, 48};
  CheckingExecutor executor(WarmUpLimits(Limits(100'000)));
  REQUIRE(WarmUp(executor, kFew).ok());
  std::set<int32_t> rows;
  for (const Size& size : executor.sizes()) {
    if (size.sequences == 1) rows.insert(size.rows);
  }
  CHECK(rows == std::set<int32_t>{1, 48, 96, 192, 384, 512});
}

TEST_CASE("Steps that become graphs when they come again come again", "[model][unit]") {
  CheckingExecutor executor(WarmUpLimits(Limits(100'000)));
  REQUIRE(WarmUp(executor, kRows).ok());
  for (const Size& size : executor.sizes()) {
    const auto times = std::count(executor.sizes().begin(), executor.sizes().end(), size);
    CHECK(times >= (size.rows <= 32 ? 2 : 1));
  }
}

TEST_CASE("A warm-up keeps to small limits and small pools", "[model][unit]") {
  for (int32_t pages : {1, 2, 3, 7, 40, 200}) {
    for (int32_t groups : {1, 2}) {
      if (pages < groups) continue;
      for (int32_t page_tokens : {1, 16, 4096}) {
        for (int32_t rows : {1, 2, 33, 512}) {
          ExecutorLimits limits = Limits(pages);
          limits.page_tokens = page_tokens;
          limits.max_batch_tokens = rows;
          limits.max_batch_seqs = std::min(rows, 100);
          limits.max_context = std::min(4096, pages / groups * page_tokens);
          limits.vocab = 5;
          limits.num_host_pages = 10;
          if (groups == 2) limits.windows = {0, 64};
          const ExecutorLimits warm = WarmUpLimits(limits);
          CHECK(warm.num_pages <= pages);
          CHECK(warm.num_host_pages == 0);
          CheckingExecutor executor(warm);
          REQUIRE(WarmUp(executor, kRows).ok());
          CHECK_FALSE(executor.sizes().empty());
        }
      }
    }
  }
}

TEST_CASE("A warm-up ends with the first failure", "[model][unit]") {
  CheckingExecutor executor(WarmUpLimits(Limits(1000)));
  executor.FailWith(absl::UnavailableError("cuda:0 failed"));
  CHECK(WarmUp(executor, kRows).message() == "cuda:0 failed");
  CHECK(executor.sizes().size() == 1);
}

}  // namespace
}  // namespace heddle::engine
