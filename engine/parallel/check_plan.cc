#include "engine/parallel/check_plan.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "base/message.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

// A tree's masks have a bit for each row of the slice.
constexpr int32_t kMaxTreeRows = 64;

class PlanChecker {
 public:
  PlanChecker(const StepPlan& plan, const ExecutorLimits& limits, bool checks_spans)
      : plan_(plan), limits_(limits), checks_spans_(checks_spans) {}

  absl::Status Check() {
    HEDDLE_RETURN_IF_ERROR(CheckSizes());
    HEDDLE_RETURN_IF_ERROR(CheckRows());
    HEDDLE_RETURN_IF_ERROR(CheckSlices());
    HEDDLE_RETURN_IF_ERROR(CheckDraws());
    HEDDLE_RETURN_IF_ERROR(CheckPages());
    HEDDLE_RETURN_IF_ERROR(CheckAdapters());
    return CheckSampling();
  }

 private:
  absl::Status Wrong(std::string_view array, size_t entry) const {
    return absl::InvalidArgumentError(base::StrCat(
        "the step plan ", plan_.step, " has an impossible entry ", entry, " in ", array));
  }
  // OK if `is_right` holds for all entries of `array`. All are looked at without a branch on each,
  // and once more if one is wrong.
  template <typename T, typename IsRight>
  absl::Status All(const std::vector<T>& array, std::string_view name, IsRight&& is_right) const {
    bool are_right = true;
    for (const T& entry : array) are_right &= is_right(entry);
    if (are_right) return absl::OkStatus();
    const auto found = std::find_if_not(array.begin(), array.end(), is_right);
    return Wrong(name, static_cast<size_t>(found - array.begin()));
  }

  int64_t num_rows() const { return static_cast<int64_t>(plan_.token_ids.size()); }
  // Unsigned, so that one comparison sees both borders.
  static bool IsBelow(int32_t value, int32_t end) {
    return static_cast<uint32_t>(value) < static_cast<uint32_t>(std::max(end, 0));
  }
  bool IsPage(PageId page) const { return IsBelow(Index(page), limits_.num_pages); }
  bool IsToken(TokenId token) const { return IsBelow(token, limits_.vocab); }
  bool IsSlot(const KvSlot& slot) const {
    return IsPage(slot.page) && IsBelow(slot.offset, limits_.page_tokens);
  }
  bool IsSpan(const KvSpan& span) const {
    return IsPage(span.page) && span.num_tokens > 0 && span.num_tokens <= limits_.page_tokens;
  }
  // Whether [begin, begin + count) lies in [0, size).
  static bool IsRange(int64_t begin, int64_t count, int64_t size) {
    return begin >= 0 && count >= 0 && begin + count <= size;
  }

  absl::Status CheckSizes() const {
    const size_t rows = plan_.token_ids.size();
    const size_t slices = plan_.sequences.size();
    bool fits = num_rows() <= limits_.max_batch_tokens &&
                static_cast<int64_t>(slices) <= limits_.max_batch_seqs &&
                plan_.positions.size() == rows && plan_.kv_slots.size() == rows &&
                plan_.more_groups.size() + 1 == limits_.windows.size();
    for (const GroupSpans& group : plan_.more_groups) {
      fits = fits && group.kv_slots.size() == rows && group.ranges.size() == slices &&
             group.ahead_slots.size() == plan_.ahead_slots.size();
    }
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(
        base::StrCat("the step plan ", plan_.step, " has ", rows, " rows of ", slices,
                     " sequences, and arrays that do not fit them or the limits of ",
                     limits_.max_batch_tokens, " rows and ", limits_.max_batch_seqs, " sequences"));
  }

  // The first row without a token for which there is no entry in `undrawn` left. REQUIRES: there is
  // one.
  size_t FirstUnnamed() const {
    size_t named = plan_.undrawn.size();
    const auto found =
        std::find_if(plan_.token_ids.begin(), plan_.token_ids.end(),
                     [&](TokenId token) { return token == kNoToken && named-- == 0; });
    return static_cast<size_t>(found - plan_.token_ids.begin());
  }

  absl::Status CheckRows() const {
    HEDDLE_RETURN_IF_ERROR(All(plan_.positions, "positions", [this](Position position) {
      return IsBelow(position, limits_.max_context);
    }));
    int64_t last = -1;
    for (size_t i = 0; i < plan_.undrawn.size(); ++i) {
      const UndrawnRow& undrawn = plan_.undrawn[i];
      if (undrawn.row <= last || undrawn.row >= num_rows() || undrawn.sample < 0 ||
          undrawn.sample >= limits_.max_batch_tokens || undrawn.step >= plan_.step ||
          plan_.token_ids[static_cast<size_t>(undrawn.row)] != kNoToken) {
        return Wrong("undrawn", i);
      }
      last = undrawn.row;
    }
    HEDDLE_RETURN_IF_ERROR(All(plan_.token_ids, "token_ids", [this](TokenId token) {
      return token == kNoToken || IsToken(token);
    }));
    const auto num_unknown =
        static_cast<size_t>(std::count(plan_.token_ids.begin(), plan_.token_ids.end(), kNoToken));
    if (num_unknown < plan_.undrawn.size()) return Wrong("undrawn", num_unknown);
    if (num_unknown > plan_.undrawn.size()) return Wrong("token_ids", FirstUnnamed());
    const auto is_slot = [this](const KvSlot& slot) { return IsSlot(slot); };
    HEDDLE_RETURN_IF_ERROR(All(plan_.kv_slots, "kv_slots", is_slot));
    HEDDLE_RETURN_IF_ERROR(All(plan_.ahead_slots, "ahead_slots", is_slot));
    for (const GroupSpans& group : plan_.more_groups) {
      HEDDLE_RETURN_IF_ERROR(All(group.kv_slots, "kv_slots of a group", is_slot));
      HEDDLE_RETURN_IF_ERROR(All(group.ahead_slots, "ahead_slots of a group", is_slot));
    }
    return absl::OkStatus();
  }

  // Whether spans [begin, begin + count) of `spans` are possible and have `context` positions.
  bool AreSpans(const std::vector<KvSpan>& spans, const GroupSpans::Range& range) const {
    if (!IsRange(range.span_begin, range.num_spans, static_cast<int64_t>(spans.size()))) {
      return false;
    }
    if (!checks_spans_) return true;
    int64_t context = 0;
    for (const KvSpan& span : std::span(spans).subspan(static_cast<size_t>(range.span_begin),
                                                       static_cast<size_t>(range.num_spans))) {
      if (!IsSpan(span)) return false;
      context += span.num_tokens;
    }
    return context == range.context_tokens;
  }

  // Whether a slice's pieces have the positions of its spans in all groups, and its rows.
  bool ArePieces(const SequenceSlice& slice, size_t index) const {
    if (slice.num_pieces == 0) return true;
    if (!limits_.reads_pieces || slice.num_masks != 0 ||
        !IsRange(slice.piece_begin, slice.num_pieces, static_cast<int64_t>(plan_.pieces.size()))) {
      return false;
    }
    const auto pieces =
        std::span(plan_.pieces)
            .subspan(static_cast<size_t>(slice.piece_begin), static_cast<size_t>(slice.num_pieces));
    int64_t tokens = 0;
    for (const ContextPiece& piece : pieces) {
      const int64_t last = int64_t{piece.position} + piece.num_tokens - 1;
      if (piece.num_tokens <= 0 || piece.position < 0 || last >= limits_.max_context ||
          piece.turn < 0 || last + piece.turn >= limits_.max_context) {
        return false;
      }
      tokens += piece.num_tokens;
    }
    bool right = slice.context_tokens <= tokens && pieces.back().num_tokens >= slice.num_tokens;
    for (const GroupSpans& group : plan_.more_groups) {
      right = right && group.ranges[index].context_tokens <= tokens;
    }
    return right;
  }

  absl::Status CheckSlices() const {
    int64_t row = 0;
    for (size_t i = 0; i < plan_.sequences.size(); ++i) {
      const SequenceSlice& slice = plan_.sequences[i];
      bool right = slice.token_begin == row && slice.num_tokens > 0 &&
                   slice.kind <= SliceKind::kDraft && slice.num_tokens <= slice.context_tokens &&
                   slice.adapter_slot >= -1 &&
                   slice.adapter_slot < std::max(limits_.adapter_slots, 0) &&
                   (slice.next_token == kNoToken || IsToken(slice.next_token));
      right =
          right && AreSpans(plan_.spans, {slice.span_begin, slice.num_spans, slice.context_tokens});
      for (const GroupSpans& group : plan_.more_groups) {
        right = right && AreSpans(group.spans, group.ranges[i]) &&
                group.ranges[i].context_tokens >= slice.num_tokens;
      }
      right = right && slice.second_begin >= -1 && slice.second_begin < slice.num_tokens;
      right = right && ArePieces(slice, i);
      right = right && slice.segment >= 0 && slice.segment < std::max(limits_.segments, 1);
      if (slice.num_masks != 0) {
        right = right && slice.num_masks == slice.num_tokens && slice.num_masks <= kMaxTreeRows &&
                IsRange(slice.mask_begin, slice.num_masks,
                        static_cast<int64_t>(plan_.ancestor_masks.size()));
      }
      if (!right) return Wrong("sequences", i);
      row += slice.num_tokens;
    }
    if (row == num_rows()) return absl::OkStatus();
    return Wrong("sequences", plan_.sequences.size());
  }

  absl::Status CheckDraws() const {
    HEDDLE_RETURN_IF_ERROR(All(plan_.samples, "samples", [this](const SampleRow& sample) {
      return sample.num_rows > 0 && IsRange(sample.row, sample.num_rows, num_rows()) &&
             sample.position >= 0 && sample.position <= limits_.max_context;
    }));
    HEDDLE_RETURN_IF_ERROR(All(plan_.scores, "scores", [this](const ScoreRow& score) {
      return IsRange(score.row, 1, num_rows()) && IsToken(score.target) && score.num_top >= 0;
    }));
    HEDDLE_RETURN_IF_ERROR(All(plan_.pools, "pools", [this](const PoolRows& pool) {
      return IsRange(pool.row, pool.num_rows, num_rows());
    }));
    return All(plan_.drafts_ahead, "drafts_ahead", [this](const DraftAhead& draft) {
      return draft.sample >= 0 && static_cast<size_t>(draft.sample) < plan_.samples.size() &&
             draft.num_tokens > 0 && draft.num_tokens <= limits_.max_ahead_tokens &&
             draft.num_slots == draft.num_tokens + limits_.rows_beyond_guesses &&
             IsRange(draft.slot_begin, draft.num_slots,
                     static_cast<int64_t>(plan_.ahead_slots.size()));
    });
  }

  absl::Status CheckPages() const {
    const auto is_swap = [this](const PageSwap& swap) {
      return IsPage(swap.page) && swap.slot >= 0 && swap.slot < limits_.num_host_pages;
    };
    HEDDLE_RETURN_IF_ERROR(All(plan_.swaps_out, "swaps_out", is_swap));
    HEDDLE_RETURN_IF_ERROR(All(plan_.swaps_in, "swaps_in", is_swap));
    return All(plan_.page_copies, "page_copies", [this](const PageCopy& copy) {
      return IsPage(copy.from) && IsPage(copy.to) && copy.num_tokens > 0 &&
             copy.num_tokens <= limits_.page_tokens;
    });
  }

  absl::Status CheckAdapters() const {
    HEDDLE_RETURN_IF_ERROR(
        All(plan_.adapter_pages, "adapter_pages", [this](PageId page) { return IsPage(page); }));
    HEDDLE_RETURN_IF_ERROR(All(
        plan_.adapter_loads, "adapter_loads",
        [this](const AdapterPageLoad& load) { return load.image_page >= 0 && IsPage(load.page); }));
    return All(plan_.adapter_binds, "adapter_binds", [this](const AdapterBind& bind) {
      return bind.slot >= 0 && bind.slot < limits_.adapter_slots &&
             IsRange(bind.page_begin, bind.num_pages,
                     static_cast<int64_t>(plan_.adapter_pages.size()));
    });
  }

  absl::Status CheckSampling() const {
    const auto is_token = [this](TokenId token) { return IsToken(token); };
    return All(plan_.begun, "begun", [&](const SequenceBegin& begin) {
      const SamplingParams& sampling = begin.sampling;
      const auto are_tokens = [&](const std::vector<TokenId>& tokens) {
        return std::all_of(tokens.begin(), tokens.end(), is_token);
      };
      return are_tokens(begin.prompt) && are_tokens(sampling.min_tokens_banned) &&
             std::all_of(sampling.bad_words.begin(), sampling.bad_words.end(),
                         [&](const auto& word) { return !word.empty() && are_tokens(word); }) &&
             std::all_of(sampling.logit_bias.begin(), sampling.logit_bias.end(),
                         [&](const auto& bias) { return is_token(bias.first); }) &&
             std::all_of(sampling.dry_breakers.begin(), sampling.dry_breakers.end(),
                         [&](const DryBreaker& breaker) {
                           return are_tokens(breaker.heads) && are_tokens(breaker.tail);
                         });
    });
  }

  const StepPlan& plan_;
  const ExecutorLimits& limits_;
  bool checks_spans_;
};

}  // namespace

absl::Status CheckPlan(const StepPlan& plan, const ExecutorLimits& limits) {
  return PlanChecker(plan, limits, true).Check();
}

absl::Status CheckPlanBesideSpans(const StepPlan& plan, const ExecutorLimits& limits) {
  return PlanChecker(plan, limits, false).Check();
}

}  // namespace heddle::engine
