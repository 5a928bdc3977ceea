// The hidden states that a decoder keeps for a drafter beside the model.
#include <algorithm>

#include "base/status.h"
#include "engine/model/decoder.h"
#include "engine/model/draft_network.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

}  // namespace

absl::Status Decoder::KeepFeatures(kernels::Device& device, std::span<const int32_t> features,
                                   int32_t max_batch_tokens) {
  if (features.empty() || spec_.rank > 0) return absl::OkStatus();
  features_.assign(features.begin(), features.end());
  const int64_t bytes = max_batch_tokens * kernels::RowBytes(dtype_, spec_.hidden);
  if (spec_.stage == 0) {
    HEDDLE_ASSIGN_OR_RETURN(kept_, device.Allocate(static_cast<int64_t>(features.size()) * bytes));
  }
  if (spec_.n_stages == 1) return absl::OkStatus();
  int64_t n_here = 0;
  for (size_t i = 0; i < features_.size(); ++i) n_here += IsHere(i) ? 1 : 0;
  kept_rows_ = max_batch_tokens;
  kept_here_.resize(static_cast<size_t>(spec_.steps_in_flight()));
  for (auto& buffer : kept_here_) {
    HEDDLE_ASSIGN_OR_RETURN(buffer, device.Allocate(std::max<int64_t>(n_here * bytes, 1)));
  }
  return absl::OkStatus();
}

int64_t Decoder::FeatureBytes(const ModelSpec& spec, size_t features, int32_t n_stages,
                              int32_t max_batch_tokens, kernels::DType dtype) {
  const int64_t copies = n_stages == 1 ? 1 : n_stages + 2;  // one, and those of steps in flight
  return copies * max_batch_tokens *
         kernels::RowBytes(dtype, static_cast<int64_t>(features) * spec.hidden);
}

Tensor Decoder::Features(int32_t n_tokens) const {
  if (kept_ == nullptr) return {};
  return View(*kept_, n_tokens, static_cast<int32_t>(features_.size()) * spec_.hidden);
}

Tensor Decoder::FeatureColumns(size_t feature, int32_t n_tokens) const {
  return Columns(Features(n_tokens), static_cast<int64_t>(feature) * spec_.hidden, spec_.hidden);
}

Tensor Decoder::KeptHere(size_t feature, size_t place, int32_t n_tokens) const {
  int64_t before = 0;
  for (size_t i = 0; i < feature; ++i) before += IsHere(i) ? 1 : 0;
  Tensor rows = View(*kept_here_[place], n_tokens, spec_.hidden);
  rows.data =
      static_cast<char*>(rows.data) + before * kept_rows_ * kernels::RowBytes(dtype_, spec_.hidden);
  return rows;
}

void Decoder::KeepStream(kernels::Ops& ops, int32_t layer, Tensor x) {
  if (!keeps_features_) return;
  const auto n_tokens = static_cast<int32_t>(x.rows);
  for (size_t i = 0; i < features_.size(); ++i) {
    if (features_[i] != layer || !IsHere(i)) continue;
    ops.CopyRows(
        x, spec_.n_stages == 1 ? FeatureColumns(i, n_tokens) : KeptHere(i, kept_place_, n_tokens));
  }
}

// The final norm is stage 0's, which norms these rows when they come.
void Decoder::KeepFinal(kernels::Ops& ops, Tensor x) {
  KeepStream(ops, spec_.n_layers(), x);
  if (spec_.n_stages > 1) return KeepStream(ops, DraftTraits::kFinalNormed, x);
  for (size_t i = 0; i < features_.size(); ++i) {
    if (features_[i] != DraftTraits::kFinalNormed || !keeps_features_) continue;
    ops.Norm(NormOf(weights_.final_norm, x, FeatureColumns(i, static_cast<int32_t>(x.rows))));
  }
}

// Like all rows between stages, they stay until a step that is submitted when this one is done.
void Decoder::PostFeatures(kernels::Ops& ops, int32_t n_tokens) {
  if (!keeps_features_ || spec_.stage == 0) return;
  for (size_t i = 0; i < features_.size(); ++i) {
    if (IsHere(i)) ops.SendRows(KeptHere(i, kept_place_, n_tokens), 0);
  }
}

void Decoder::CollectFeatures(kernels::Ops& ops, int32_t n_tokens, size_t place) {
  for (size_t i = 0; i < features_.size(); ++i) {
    const Tensor out = FeatureColumns(i, n_tokens);
    if (IsHere(i)) {
      ops.CopyRows(KeptHere(i, place, n_tokens), out);
      continue;
    }
    // Nobody reads the stream's buffer: the stage behind this one has sent on its rows of the step
    // that had the buffer.
    const Tensor rows = Stream(n_tokens);
    ops.RecvRows(rows, spec_.StageOf(features_[i]));
    if (features_[i] == DraftTraits::kFinalNormed) {
      ops.Norm(NormOf(weights_.final_norm, rows, out));
    } else {
      ops.CopyRows(rows, out);
    }
  }
}

}  // namespace heddle::engine
