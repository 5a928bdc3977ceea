// Finds where a step is cut into two halves, if its profile says that it should be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/batch.h"
#include "kernels/nano_batch.h"

namespace heddle::kernels::cuda {

struct NanoSplit {
  int32_t sequences = 0;  // of the first half
  int32_t rows = 0;       // of the first half; both halves have some
  int32_t attention_multiprocessors = 0;
  bool is_within = false;  // the first half's last sequence goes on in the second one (CutBatch)
};

// Cuts where the halves' rows differ least: between two sequences or, if the rule and
// `may_cut_within` allow it, within one whose rows follow each other. Empty if no rule holds, or if
// there is no such place.
std::optional<NanoSplit> SplitOf(const HostBatch& batch, const NanoBatchProfile& profile,
                                 bool may_cut_within);

// A batch in which the sequence that a split cuts is two: its first rows, which see the context up
// to the last of them, and its other rows, which see all of it. Both read the same pages, so a
// device that has written the first rows' keys before it attends to the others computes what it
// does for one sequence. REQUIRES: each row sees those before it and itself.
class CutBatch {
 public:
  // The view is valid until the next call, and as long as `batch` is.
  HostBatch Cut(const HostBatch& batch, const NanoSplit& split);

 private:
  struct Spans {
    std::vector<int32_t> span_begin, span_page, span_tokens, context_len;
  };
  // Cuts the spans of one group of layers. `later`: rows of the sequence in the second half.
  static void CutSpans(const HostBatch& batch, int32_t sequence, int32_t later, Spans* spans);

  std::vector<int32_t> q_begin_;
  std::vector<Spans> groups_;
  std::vector<BatchSpans> more_groups_;
};

// FAILED_PRECONDITION if it was measured on another device; INVALID_ARGUMENT, naming the rule, for
// ranges that are empty or more multiprocessors than there are.
absl::Status CheckProfile(const NanoBatchProfile& profile, const std::string& device_name,
                          int32_t num_multiprocessors);

}  // namespace heddle::kernels::cuda
