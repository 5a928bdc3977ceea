#include "kernels/cuda/nano_split.h"

#include <algorithm>
#include <cstdlib>
#include <span>

#include "absl/strings/str_cat.h"

namespace heddle::kernels::cuda {
namespace {

int32_t RowsOf(const HostBatch& batch, int32_t sequence) {
  return batch.q_begin[sequence + 1] - batch.q_begin[sequence];
}

bool IsOfPrompts(const HostBatch& batch) {
  int64_t rows = 0;  // of chunks
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    if (RowsOf(batch, s) > kMaxTreeRows) rows += RowsOf(batch, s);
  }
  return 2 * rows > batch.n_tokens();
}

const NanoBatchRule* RuleFor(const HostBatch& batch, const NanoBatchProfile& profile) {
  int64_t context = 0;
  for (const int32_t length : batch.context_len) context += length;
  const StepKind kind = IsOfPrompts(batch) ? StepKind::kPrompts : StepKind::kDecodes;
  for (const NanoBatchRule& rule : profile.rules) {
    if ((rule.steps == StepKind::kAny || rule.steps == kind) && batch.n_tokens() >= rule.min_rows &&
        batch.n_tokens() <= rule.max_rows &&
        context >= int64_t{rule.min_context} * batch.n_seqs()) {
      return &rule;
    }
  }
  return nullptr;
}

// Finds the cut with the least difference of the halves' rows; the first one, if there are several.
class CutFinder {
 public:
  CutFinder(const HostBatch& batch, int32_t attention_multiprocessors) : batch_(batch) {
    best_.attention_multiprocessors = attention_multiprocessors;
  }

  void TryBetween() {
    for (int32_t s = 1; s < batch_.n_seqs(); ++s) Try(s, batch_.q_begin[s], /*is_within=*/false);
  }

  void TryWithin(int32_t cut_rows) {
    for (int32_t s = 0; s < batch_.n_seqs(); ++s) {
      const int32_t begin = batch_.q_begin[s], most = (RowsOf(batch_, s) - 1) / cut_rows;
      if (most < 1 || batch_.IsTree(s)) continue;
      const int32_t middle = std::clamp((batch_.n_tokens() / 2 - begin) / cut_rows, 1, most);
      for (const int32_t cut : {middle, std::min(middle + 1, most)}) {
        Try(s + 1, begin + cut * cut_rows, /*is_within=*/true);
      }
    }
  }

  std::optional<NanoSplit> best() const {
    if (best_.rows == 0) return std::nullopt;
    return best_;
  }

 private:
  int32_t Imbalance(int32_t rows) const { return std::abs(batch_.n_tokens() - 2 * rows); }

  void Try(int32_t sequences, int32_t rows, bool is_within) {
    if (rows == 0 || rows == batch_.n_tokens()) return;
    if (best_.rows != 0 && Imbalance(rows) >= Imbalance(best_.rows)) return;
    best_.sequences = sequences;
    best_.rows = rows;
    best_.is_within = is_within;
  }

  const HostBatch& batch_;
  NanoSplit best_;
};

}  // namespace

std::optional<NanoSplit> SplitOf(const HostBatch& batch, const NanoBatchProfile& profile,
                                 bool may_cut_within) {
  if (profile.rules.empty()) return std::nullopt;
  const NanoBatchRule* rule = RuleFor(batch, profile);
  if (rule == nullptr || !rule->split) return std::nullopt;
  CutFinder finder(batch, rule->attention_multiprocessors);
  finder.TryBetween();
  if (may_cut_within && rule->cut_rows > 0 && batch.piece_begin.empty()) {
    finder.TryWithin(rule->cut_rows);
  }
  return finder.best();
}

HostBatch CutBatch::Cut(const HostBatch& batch, const NanoSplit& split) {
  const int32_t sequence = split.sequences - 1;
  q_begin_.assign(batch.q_begin.begin(), batch.q_begin.end());
  q_begin_.insert(q_begin_.begin() + split.sequences, split.rows);
  const int32_t later = batch.q_begin[split.sequences] - split.rows;
  groups_.resize(static_cast<size_t>(batch.n_groups()));
  more_groups_.clear();
  more_groups_.reserve(batch.more_groups.size());
  HostBatch cut = batch;
  cut.q_begin = q_begin_;
  for (int32_t group = 0; group < batch.n_groups(); ++group) {
    const HostBatch own = batch.OfGroup(group);
    Spans& spans = groups_[static_cast<size_t>(group)];
    CutSpans(own, sequence, later, &spans);
    const BatchSpans view = {own.kv_slot, spans.span_begin, spans.span_page, spans.span_tokens,
                             spans.context_len};
    if (group > 0) {
      more_groups_.push_back(view);
      continue;
    }
    cut.span_begin = view.span_begin;
    cut.span_page = view.span_page;
    cut.span_tokens = view.span_tokens;
    cut.context_len = view.context_len;
  }
  cut.more_groups = more_groups_;
  return cut;
}

void CutBatch::CutSpans(const HostBatch& batch, int32_t sequence, int32_t later, Spans* spans) {
  const int32_t begin = batch.span_begin[sequence];
  int32_t end = batch.span_begin[sequence + 1];
  int32_t left = later;  // positions to drop
  while (left >= batch.span_tokens[end - 1]) left -= batch.span_tokens[--end];
  spans->context_len.assign(batch.context_len.begin(), batch.context_len.end());
  spans->context_len.insert(spans->context_len.begin() + sequence,
                            batch.context_len[sequence] - later);
  const int32_t added = end - begin;  // spans of the first rows, in front of those of the others
  const auto insert = [&](std::span<const int32_t> from, std::vector<int32_t>* to) {
    to->assign(from.begin(), from.begin() + end);
    to->insert(to->end(), from.begin() + begin, from.end());
  };
  insert(batch.span_page, &spans->span_page);
  insert(batch.span_tokens, &spans->span_tokens);
  spans->span_tokens[static_cast<size_t>(end) - 1] -= left;
  spans->span_begin.assign(batch.span_begin.begin(), batch.span_begin.end());
  spans->span_begin.insert(spans->span_begin.begin() + sequence + 1, end);
  for (size_t i = static_cast<size_t>(sequence) + 2; i < spans->span_begin.size(); ++i) {
    spans->span_begin[i] += added;
  }
}

absl::Status CheckProfile(const NanoBatchProfile& profile, const std::string& device_name,
                          int32_t num_multiprocessors) {
  if (!profile.device_name.empty() && profile.device_name != device_name) {
    return absl::FailedPreconditionError(
        absl::StrCat("the tune profile was measured on \"", profile.device_name,
                     "\", and this device is \"", device_name, "\"; run heddle tune on this one"));
  }
  for (size_t i = 0; i < profile.rules.size(); ++i) {
    const NanoBatchRule& rule = profile.rules[i];
    if (rule.min_rows > rule.max_rows) {
      return absl::InvalidArgumentError(absl::StrCat("rule ", i, " of the tune profile holds from ",
                                                     rule.min_rows, " rows to ", rule.max_rows,
                                                     ": never"));
    }
    if (rule.cut_rows < 0) {
      return absl::InvalidArgumentError(absl::StrCat("rule ", i, " of the tune profile cuts at ",
                                                     rule.cut_rows,
                                                     " rows; 0 stands for between sequences"));
    }
    if (rule.attention_multiprocessors < 0 ||
        rule.attention_multiprocessors >= num_multiprocessors) {
      return absl::InvalidArgumentError(
          absl::StrCat("rule ", i, " of the tune profile gives attention ",
                       rule.attention_multiprocessors, " multiprocessors; the device has ",
                       num_multiprocessors, ", and some must be left for the rest"));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::kernels::cuda
