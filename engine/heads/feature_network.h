// The forward of a FeatureDraft. Its layers run in a Decoder, on the same ops as the model's.
// Private to engine/heads.
// Thread-safety: none; owned by the model's executor.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/heads/feature_draft.h"
#include "engine/model/decoder.h"
#include "engine/model/draft_network.h"
#include "engine/model/weights.h"
#include "kernels/device.h"

namespace heddle::engine {

struct FeatureWeights {
  ModelWeights layers;                      // with the final norm, without embedding and head
  std::vector<DeviceVector> feature_norms;  // as FeatureDraft::feature_norms
  std::unique_ptr<kernels::PackedWeight> fuse;
  LinearWeights project;
  DeviceVector embedding_norm;
  DeviceVector state_norm;
  std::unique_ptr<kernels::PackedWeight> own_embedding;
  std::unique_ptr<kernels::PackedWeight> own_head;
};

class FeatureNetwork final : public DraftNetwork {
 public:
  // `model` has the embedding and the head that the network may share; it outlives the network.
  static absl::StatusOr<std::unique_ptr<FeatureNetwork>> Create(kernels::Device& device,
                                                                FeatureDraft draft,
                                                                FeatureWeights weights,
                                                                const ModelWeights& model,
                                                                int32_t max_batch_tokens);

  void Forward(kernels::Ops& ops, const DraftPass& pass) override;
  void Logits(kernels::Ops& ops, const DraftLogits& logits) override;

  // Bytes that Create takes for `max_batch_tokens` rows.
  static int64_t WorkspaceBytes(const FeatureDraft& draft, int32_t max_batch_tokens,
                                kernels::DType activations);

 private:
  FeatureNetwork(FeatureDraft draft, FeatureWeights weights, const ModelWeights& model)
      : draft_(std::move(draft)), weights_(std::move(weights)), model_(model) {}

  absl::Status Allocate(kernels::Device& device, int32_t max_batch_tokens);
  // The passes of a network that guesses a block at once.
  void WriteKeys(kernels::Ops& ops, const DraftPass& pass);
  void RunBlocks(kernels::Ops& ops, const DraftPass& pass);
  // Keeps the states of the batch's logit rows.
  void KeepStates(kernels::Ops& ops, const DraftPass& pass, int32_t n_rows);
  const kernels::PackedWeight& EmbeddingTable() const;
  // The states of a first pass's rows, [n, hidden].
  kernels::Tensor Fuse(kernels::Ops& ops, kernels::Tensor features);
  void WritePair(kernels::Ops& ops, kernels::Tensor state, kernels::Tensor pair);
  void WriteStream(kernels::Ops& ops, kernels::Tensor state, kernels::Tensor pair);
  kernels::NormArgs NormOf(const DeviceVector& weight, kernels::Tensor x,
                           kernels::Tensor out) const;
  kernels::Tensor View(kernels::Buffer& buffer, int64_t rows, int64_t cols) const;
  kernels::Tensor Columns(kernels::Tensor tensor, int64_t first, int64_t cols) const;

  const FeatureDraft draft_;
  const FeatureWeights weights_;
  const ModelWeights& model_;
  kernels::DType dtype_ = kernels::DType::kF32;  // of activations
  std::unique_ptr<Decoder> decoder_;
  std::vector<int32_t> guess_rows_;                   // of the last pass, if it was over blocks
  std::unique_ptr<kernels::Buffer> normed_features_;  // [max_batch_tokens, features * width]
  std::unique_ptr<kernels::Buffer> fused_;            // [max_batch_tokens, hidden]
  std::unique_ptr<kernels::Buffer> pair_;             // [max_batch_tokens, 2 hidden]
  std::unique_ptr<kernels::Buffer> kept_;    // [max_batch_tokens, hidden] streams of chains' ends
  std::unique_ptr<kernels::Buffer> normed_;  // [max_batch_tokens, hidden] the same, normed
};

}  // namespace heddle::engine
