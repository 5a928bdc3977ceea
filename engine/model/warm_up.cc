#include "engine/model/warm_up.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "engine/step.h"

namespace heddle::engine {
namespace {

// This context is long enough to be read in several parts.
constexpr int32_t kLongContext = 2048;
// Steps of few rows become graphs when they are repeated.
constexpr int32_t kRepeatedRows = 32;
// No request has such an id.
constexpr uint64_t kFirstId = uint64_t{1} << 63;

int32_t PagesOf(int64_t tokens, int32_t page_tokens) {
  return static_cast<int32_t>((tokens + page_tokens - 1) / page_tokens);
}

// Decoding sequences, all with the same `shared_pages` and a page of their own, and one with a
// prompt of `prompt_rows`.
struct WarmStep {
  int32_t decodes = 0;
  int32_t shared_pages = 0;
  int32_t prompt_rows = 0;
  int32_t rows() const { return decodes + prompt_rows; }
};

// Shrinks the step to what a pool with so many pages for each group of layers holds.
WarmStep Within(WarmStep step, int32_t pages, const ExecutorLimits& limits) {
  step.shared_pages = std::min(step.shared_pages, pages / 2);
  step.decodes = std::min(step.decodes, pages - step.shared_pages);
  const int64_t left = pages - step.shared_pages - step.decodes;
  step.prompt_rows = static_cast<int32_t>(
      std::min<int64_t>({step.prompt_rows, left * limits.page_tokens, limits.max_context,
                         limits.max_batch_tokens - step.decodes}));
  return step;
}

// The sizes of `rows` below `most`, doublings of the largest of them, and `most`.
std::vector<int32_t> SizesUpTo(int32_t most, std::span<const int32_t> rows) {
  std::vector<int32_t> sizes;
  for (const int32_t size : rows) {
    if (size < most) sizes.push_back(size);
  }
  for (int64_t size = int64_t{2} * rows.back(); size < most; size *= 2) {
    sizes.push_back(static_cast<int32_t>(size));
  }
  sizes.push_back(most);
  return sizes;
}

std::vector<WarmStep> StepsFor(const ExecutorLimits& limits, std::span<const int32_t> sizes) {
  const int32_t pages = limits.num_pages / static_cast<int32_t>(limits.windows.size());
  const int32_t long_context = std::min(kLongContext, limits.max_context);
  const int32_t shared_pages = (long_context - 1) / limits.page_tokens;
  std::vector<WarmStep> steps;
  const auto add = [&](const WarmStep& wanted) {
    const WarmStep step = Within(wanted, pages, limits);
    const int times = step.rows() == 0 ? 0 : step.rows() <= kRepeatedRows ? 2 : 1;
    steps.insert(steps.end(), static_cast<size_t>(times), step);
  };
  for (int32_t rows : SizesUpTo(limits.max_batch_tokens, sizes)) add({.prompt_rows = rows});
  for (int32_t decodes : SizesUpTo(limits.max_batch_seqs, sizes)) {
    add({.decodes = decodes});
    add({.decodes = decodes, .shared_pages = shared_pages});
  }
  const int32_t most = std::min(limits.max_batch_seqs - 1, limits.max_batch_tokens / 2);
  add({.decodes = most, .shared_pages = shared_pages, .prompt_rows = limits.max_batch_tokens});
  return steps;
}

// The kinds of draws in turn.
SamplingParams SamplingOf(int32_t i) {
  SamplingParams sampling;
  switch (i % 4) {
    case 0:
      sampling.temperature = 0.0f;
      break;
    case 1:
      sampling.top_p = 0.9f;
      break;
    case 2:
      sampling.top_k = 40;
      sampling.num_logprobs = 5;
      break;
    default:
      sampling.presence_penalty = 0.5f;
      break;
  }
  return sampling;
}

class WarmPlan {
 public:
  explicit WarmPlan(const ExecutorLimits& limits)
      : limits_(limits), pages_(limits.num_pages / static_cast<int32_t>(limits.windows.size())) {
    plan_.more_groups.resize(limits.windows.size() - 1);
  }

  const StepPlan& Build(const WarmStep& step) {
    ++plan_.step;
    plan_.Clear();
    for (int32_t i = 0; i < step.decodes; ++i) {
      const int32_t position = step.shared_pages * limits_.page_tokens;
      BeginSequence(i, 1);
      AddPages(0, step.shared_pages, position);
      AddPages(step.shared_pages + i, 1, 1);
      AddRows(step.shared_pages + i, position, 1);
    }
    if (step.prompt_rows > 0) {
      const int32_t first = step.shared_pages + step.decodes;
      BeginSequence(step.decodes, step.prompt_rows);
      AddPages(first, PagesOf(step.prompt_rows, limits_.page_tokens), step.prompt_rows);
      AddRows(first, 0, step.prompt_rows);
    }
    return plan_;
  }

 private:
  PageId PageOf(size_t group, int32_t page) const {
    return PageId{static_cast<int32_t>(group) * pages_ + page};
  }

  void BeginSequence(int32_t i, int32_t rows) {
    const auto id = SequenceId{next_id_++};
    plan_.begun.push_back({.id = id, .sampling = SamplingOf(i), .prompt = {}});
    plan_.ended.push_back(id);
    plan_.sequences.push_back({.id = id,
                               .token_begin = static_cast<int32_t>(plan_.token_ids.size()),
                               .num_tokens = rows,
                               .span_begin = static_cast<int32_t>(plan_.spans.size())});
    for (GroupSpans& group : plan_.more_groups) {
      group.ranges.push_back({.span_begin = static_cast<int32_t>(group.spans.size())});
    }
  }

  // Appends pages [first, first + count) of every group, which hold `tokens` positions of the
  // sequence.
  void AddPages(int32_t first, int32_t count, int32_t tokens) {
    SequenceSlice& slice = plan_.sequences.back();
    slice.num_spans += count;
    slice.context_tokens += tokens;
    for (GroupSpans& group : plan_.more_groups) {
      group.ranges.back().num_spans += count;
      group.ranges.back().context_tokens += tokens;
    }
    for (int32_t page = 0; page < count; ++page) {
      const int32_t valid = std::min(limits_.page_tokens, tokens - page * limits_.page_tokens);
      plan_.spans.push_back({PageOf(0, first + page), valid});
      for (size_t g = 0; g < plan_.more_groups.size(); ++g) {
        plan_.more_groups[g].spans.push_back({PageOf(g + 1, first + page), valid});
      }
    }
  }

  // Appends rows from `position` on, whose keys go to page `first` and those behind it, and a draw
  // from the last row.
  void AddRows(int32_t first, int32_t position, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      const int32_t page = first + i / limits_.page_tokens, offset = i % limits_.page_tokens;
      plan_.token_ids.push_back(i % limits_.vocab);
      plan_.positions.push_back(position + i);
      plan_.kv_slots.push_back({PageOf(0, page), offset});
      for (size_t g = 0; g < plan_.more_groups.size(); ++g) {
        plan_.more_groups[g].kv_slots.push_back({PageOf(g + 1, page), offset});
      }
    }
    plan_.samples.push_back({.id = plan_.sequences.back().id,
                             .row = static_cast<int32_t>(plan_.token_ids.size()) - 1,
                             .position = position + count});
  }

  const ExecutorLimits& limits_;
  const int32_t pages_;  // per group of layers
  uint64_t next_id_ = kFirstId;
  StepPlan plan_;
};

}  // namespace

ExecutorLimits WarmUpLimits(ExecutorLimits limits) {
  const int64_t rows = PagesOf(limits.max_batch_tokens, limits.page_tokens);
  const int64_t shared = PagesOf(kLongContext, limits.page_tokens);
  // Twice `shared`, because Within gives it at most half of the pool.
  const int64_t pages = std::max(2 * shared, shared + limits.max_batch_seqs + rows);
  limits.num_pages = static_cast<int32_t>(
      std::min<int64_t>(limits.num_pages, pages * static_cast<int64_t>(limits.windows.size())));
  limits.num_host_pages = 0;
  return limits;
}

absl::Status WarmUp(Executor& executor, std::span<const int32_t> rows) {
  HEDDLE_CHECK(!rows.empty(), "warm-up: no sizes");
  WarmPlan plan(executor.limits());
  StepResult result;
  for (const WarmStep& step : StepsFor(executor.limits(), rows)) {
    HEDDLE_RETURN_IF_ERROR(executor.Submit(plan.Build(step), {}));
    HEDDLE_RETURN_IF_ERROR(executor.Wait(&result));
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
