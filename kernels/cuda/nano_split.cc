#include "kernels/cuda/nano_split.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace heddle::kernels::cuda {
namespace {

const NanoBatchRule* RuleFor(const HostBatch& batch, const NanoBatchProfile& profile) {
  int64_t context = 0;
  for (const int32_t length : batch.context_len) context += length;
  for (const NanoBatchRule& rule : profile.rules) {
    if (batch.n_tokens() >= rule.min_rows && batch.n_tokens() <= rule.max_rows &&
        context >= int64_t{rule.min_context} * batch.n_seqs()) {
      return &rule;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<NanoSplit> SplitOf(const HostBatch& batch, const NanoBatchProfile& profile) {
  const NanoBatchRule* rule = RuleFor(batch, profile);
  if (rule == nullptr || !rule->split) return std::nullopt;
  NanoSplit best;
  const auto imbalance = [&](int32_t rows) { return std::abs(batch.n_tokens() - 2 * rows); };
  for (int32_t s = 1; s < batch.n_seqs(); ++s) {
    const int32_t rows = batch.q_begin[s];
    if (rows == 0 || rows == batch.n_tokens()) continue;
    if (best.rows == 0 || imbalance(rows) < imbalance(best.rows)) {
      best = {s, rows, rule->attention_multiprocessors};
    }
  }
  if (best.rows == 0) return std::nullopt;
  return best;
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
