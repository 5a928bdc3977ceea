#include "engine/heads/feature_network.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

// Elements per row of all buffers beside the decoder's.
int64_t WidthOf(const FeatureDraft& draft) {
  constexpr int64_t kHiddens = 5;  // fused, pair, kept, normed
  const auto features = static_cast<int64_t>(draft.features.size()) * draft.feature_width;
  return kHiddens * draft.model.spec.hidden + (draft.feature_norms.empty() ? 0 : features);
}

}  // namespace

int64_t FeatureNetwork::WorkspaceBytes(const FeatureDraft& draft, int32_t max_batch_tokens,
                                       kernels::DType activations) {
  return Decoder::ActivationBytes(draft.model.spec, max_batch_tokens, activations) +
         max_batch_tokens * kernels::RowBytes(activations, WidthOf(draft));
}

absl::StatusOr<std::unique_ptr<FeatureNetwork>> FeatureNetwork::Create(kernels::Device& device,
                                                                       FeatureDraft draft,
                                                                       FeatureWeights weights,
                                                                       const ModelWeights& model,
                                                                       int32_t max_batch_tokens) {
  std::unique_ptr<FeatureNetwork> network(
      new FeatureNetwork(std::move(draft), std::move(weights), model));
  HEDDLE_RETURN_IF_ERROR(network->Allocate(device, max_batch_tokens));
  return network;
}

absl::Status FeatureNetwork::Allocate(kernels::Device& device, int32_t max_batch_tokens) {
  dtype_ = device.activation_dtype();
  HEDDLE_ASSIGN_OR_RETURN(
      decoder_, Decoder::Create(device, draft_.model.spec, weights_.layers, max_batch_tokens));
  const auto allocate = [&](int64_t cols, std::unique_ptr<kernels::Buffer>* buffer) {
    auto allocated = device.Allocate(max_batch_tokens * kernels::RowBytes(dtype_, cols));
    if (!allocated.ok()) return allocated.status();
    *buffer = *std::move(allocated);
    return absl::OkStatus();
  };
  const int64_t hidden = draft_.model.spec.hidden;
  HEDDLE_RETURN_IF_ERROR(allocate(hidden, &fused_));
  HEDDLE_RETURN_IF_ERROR(allocate(2 * hidden, &pair_));
  HEDDLE_RETURN_IF_ERROR(allocate(hidden, &kept_));
  HEDDLE_RETURN_IF_ERROR(allocate(hidden, &normed_));
  if (draft_.feature_norms.empty()) return absl::OkStatus();
  return allocate(static_cast<int64_t>(draft_.features.size()) * draft_.feature_width,
                  &normed_features_);
}

Tensor FeatureNetwork::View(kernels::Buffer& buffer, int64_t rows, int64_t cols) const {
  return {buffer.data(), rows, cols, cols};
}

Tensor FeatureNetwork::Columns(Tensor tensor, int64_t first, int64_t cols) const {
  auto* data = static_cast<char*>(tensor.data) + kernels::RowBytes(dtype_, first);
  return {data, tensor.rows, cols, tensor.stride};
}

kernels::NormArgs FeatureNetwork::NormOf(const DeviceVector& weight, Tensor x, Tensor out) const {
  const ModelSpec& spec = draft_.model.spec;
  return {.kind = spec.norm,
          .x = x,
          .weight = weight.data(),
          .eps = spec.norm_eps,
          .weight_offset = spec.norm_weight_offset,
          .out = out};
}

Tensor FeatureNetwork::Fuse(kernels::Ops& ops, Tensor features) {
  const std::vector<DeviceVector>& norms = weights_.feature_norms;
  if (!norms.empty()) {
    const Tensor normed = View(*normed_features_, features.rows, features.cols);
    const int64_t width = features.cols / static_cast<int64_t>(norms.size());
    for (size_t i = 0; i < norms.size(); ++i) {
      const int64_t first = static_cast<int64_t>(i) * width;
      ops.Norm(NormOf(norms[i], Columns(features, first, width), Columns(normed, first, width)));
    }
    features = normed;
  }
  if (weights_.fuse == nullptr) return features;
  const Tensor fused = View(*fused_, features.rows, draft_.model.spec.hidden);
  ops.Linear({.x = features, .weight = weights_.fuse.get(), .out = fused});
  return fused;
}

const kernels::PackedWeight& FeatureNetwork::EmbeddingTable() const {
  return weights_.own_embedding == nullptr ? *model_.embedding : *weights_.own_embedding;
}

void FeatureNetwork::WritePair(kernels::Ops& ops, Tensor state, Tensor pair) {
  const ModelSpec& spec = draft_.model.spec;
  const Tensor embedding = Columns(pair, 0, spec.hidden);
  const Tensor right = Columns(pair, spec.hidden, spec.hidden);
  ops.Embed(EmbeddingTable(), spec.embedding_scale, embedding);
  if (weights_.embedding_norm.data() != nullptr) {
    ops.Norm(NormOf(weights_.embedding_norm, embedding, embedding));
  }
  if (weights_.state_norm.data() != nullptr) {
    ops.Norm(NormOf(weights_.state_norm, state, right));
  } else {
    ops.CopyRows(state, right);
  }
}

void FeatureNetwork::WriteStream(kernels::Ops& ops, Tensor state, Tensor pair) {
  const int64_t hidden = draft_.model.spec.hidden;
  const Tensor stream = decoder_->Stream(static_cast<int32_t>(state.rows));
  if (weights_.project.matrix != nullptr) {
    ops.Linear({.x = pair,
                .weight = weights_.project.matrix.get(),
                .bias = weights_.project.bias.data(),
                .out = stream});
  } else {
    ops.CopyRows(draft_.stream_is_normed ? Columns(pair, hidden, hidden) : state, stream);
  }
}

void FeatureNetwork::WriteKeys(kernels::Ops& ops, const DraftPass& pass) {
  const Tensor state = Fuse(ops, pass.features);
  const Tensor normed = View(*normed_, state.rows, state.cols);
  ops.Norm(NormOf(weights_.state_norm, state, normed));
  decoder_->WriteKeys(ops, normed, *pass.cache);
}

void FeatureNetwork::RunBlocks(kernels::Ops& ops, const DraftPass& pass) {
  guess_rows_.assign(pass.guess_rows.begin(), pass.guess_rows.end());
  ops.Embed(EmbeddingTable(), draft_.model.spec.embedding_scale, decoder_->Stream(pass.n_rows));
  decoder_->RunLayers(ops, pass.n_rows, *pass.cache, {});
  KeepStates(ops, pass, guess_rows_.back());
}

void FeatureNetwork::KeepStates(kernels::Ops& ops, const DraftPass& pass, int32_t n_rows) {
  const int64_t hidden = draft_.model.spec.hidden;
  const Tensor kept = View(*kept_, n_rows, hidden);
  ops.GatherLogitRows(decoder_->Stream(pass.n_rows), kept);
  const DeviceVector& norm = weights_.layers.final_norm.weight;
  if (norm.data() != nullptr) ops.Norm(NormOf(norm, kept, View(*normed_, n_rows, hidden)));
}

void FeatureNetwork::Forward(kernels::Ops& ops, const DraftPass& pass) {
  decoder_->SetFirstKvLayer(pass.first_kv_layer);
  if (draft_.block > 0) return pass.number == 0 ? WriteKeys(ops, pass) : RunBlocks(ops, pass);
  const int64_t hidden = draft_.model.spec.hidden;
  const Tensor pair = View(*pair_, pass.n_rows, 2 * hidden);
  kernels::Buffer& states = draft_.keeps_normed ? *normed_ : *kept_;
  const Tensor state =
      pass.number == 0 ? Fuse(ops, pass.features) : View(states, pass.n_rows, hidden);
  WritePair(ops, state, pair);
  WriteStream(ops, state, pair);
  decoder_->RunLayers(ops, pass.n_rows, *pass.cache, pair);
  if (pass.n_chains > 0) KeepStates(ops, pass, pass.n_chains);
}

void FeatureNetwork::Logits(kernels::Ops& ops, const DraftLogits& logits) {
  HEDDLE_CHECK(draft_.block > 0 || (logits.first_guess == 0 && logits.n_guesses == 1),
               "the network makes one guess per pass");
  const ModelSpec& spec = draft_.model.spec;
  const bool has_norm = weights_.layers.final_norm.weight.data() != nullptr;
  const int32_t guess_begin =
      draft_.block > 0 ? guess_rows_[static_cast<size_t>(logits.first_guess)] : 0;
  Tensor rows = View(has_norm ? *normed_ : *kept_, logits.n_chains * logits.n_guesses, spec.hidden);
  rows.data = static_cast<char*>(rows.data) +
              (guess_begin + logits.first_chain) * kernels::RowBytes(dtype_, spec.hidden);
  const kernels::PackedWeight& head =
      weights_.own_head == nullptr ? *model_.head() : *weights_.own_head;
  ops.Linear({.x = rows, .weight = &head, .out = logits.out, .out_f32 = true});
  if (spec.logit_scale != 1.0f || spec.logit_softcap > 0.0f) {
    ops.ScaleLogits(logits.out, spec.logit_scale, spec.logit_softcap);
  }
}

}  // namespace heddle::engine
