#include "kernels/owned_batch.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace heddle::kernels {
namespace {

absl::Status CheckSize(const char* name, size_t found, size_t expected) {
  if (found == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("batch: ", name, " has ", found, " entries, expected ", expected));
}

// `begin` must rise from 0 to `total`.
absl::Status CheckOffsets(const char* name, std::span<const int32_t> begin, size_t total) {
  bool good = begin.front() == 0 && begin.back() == static_cast<int64_t>(total);
  for (size_t i = 1; i < begin.size(); ++i) good = good && begin[i - 1] <= begin[i];
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("batch: ", name, " does not rise from 0 to ", total));
}

absl::Status CheckSequence(const HostBatch& batch, size_t s) {
  int64_t tokens = 0;
  for (int32_t i = batch.span_begin[s]; i < batch.span_begin[s + 1]; ++i) {
    if (batch.span_tokens[i] < 1 || batch.span_page[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("batch: span ", i, " is page ",
                                                     batch.span_page[i], " with ",
                                                     batch.span_tokens[i], " tokens"));
    }
    tokens += batch.span_tokens[i];
  }
  int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
  if (tokens != batch.context_len[s] || rows > tokens) {
    return absl::InvalidArgumentError(absl::StrCat("batch: sequence ", s, " has ", rows,
                                                   " rows and context_len ", batch.context_len[s],
                                                   ", but its spans hold ", tokens));
  }
  return absl::OkStatus();
}

absl::Status Check(const HostBatch& batch) {
  size_t n_tokens = batch.token_ids.size();
  size_t n_seqs = batch.context_len.size();
  HEDDLE_RETURN_IF_ERROR(CheckSize("positions", batch.positions.size(), n_tokens));
  HEDDLE_RETURN_IF_ERROR(CheckSize("kv_slot", batch.kv_slot.size(), n_tokens));
  HEDDLE_RETURN_IF_ERROR(CheckSize("q_begin", batch.q_begin.size(), n_seqs + 1));
  HEDDLE_RETURN_IF_ERROR(CheckSize("span_begin", batch.span_begin.size(), n_seqs + 1));
  HEDDLE_RETURN_IF_ERROR(
      CheckSize("span_tokens", batch.span_tokens.size(), batch.span_page.size()));
  HEDDLE_RETURN_IF_ERROR(CheckOffsets("q_begin", batch.q_begin, n_tokens));
  HEDDLE_RETURN_IF_ERROR(CheckOffsets("span_begin", batch.span_begin, batch.span_page.size()));
  for (size_t s = 0; s < n_seqs; ++s) HEDDLE_RETURN_IF_ERROR(CheckSequence(batch, s));
  for (int32_t row : batch.logit_rows) {
    if (row < 0 || row >= batch.n_tokens()) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch: logit row ", row, " of ", n_tokens, " rows"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OwnedBatch::Assign(const HostBatch& batch) {
  HEDDLE_RETURN_IF_ERROR(Check(batch));
  std::span<const int32_t> HostBatch::*const arrays[] = {
      &HostBatch::token_ids,   &HostBatch::positions, &HostBatch::q_begin,
      &HostBatch::span_begin,  &HostBatch::span_page, &HostBatch::span_tokens,
      &HostBatch::context_len, &HostBatch::logit_rows};
  size_t total = 0;
  for (auto array : arrays) total += (batch.*array).size();
  int32s_.clear();
  int32s_.reserve(total);  // the spans below must not move
  for (auto array : arrays) {
    std::span<const int32_t> source = batch.*array;
    int32s_.insert(int32s_.end(), source.begin(), source.end());
    view_.*array = std::span<const int32_t>(int32s_).last(source.size());
  }
  kv_slot_.assign(batch.kv_slot.begin(), batch.kv_slot.end());
  view_.kv_slot = kv_slot_;
  return absl::OkStatus();
}

}  // namespace heddle::kernels
