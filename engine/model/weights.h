// A model's weights on a device: packed matrices, and vectors (norms, biases) in F32.
//
// They are loaded once from a checkpoint that stays mapped only while loading; immutable
// afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/model/quantize.h"
#include "engine/parallel/shard.h"
#include "kernels/device.h"

namespace heddle::engine {

// [n] F32 on the device; data() is nullptr where the model has no such vector.
class DeviceVector {
 public:
  DeviceVector() = default;
  explicit DeviceVector(std::unique_ptr<kernels::Buffer> buffer) : buffer_(std::move(buffer)) {}
  const float* data() const {
    return buffer_ == nullptr ? nullptr : static_cast<const float*>(buffer_->data());
  }

 private:
  std::unique_ptr<kernels::Buffer> buffer_;
};

struct NormWeights {
  DeviceVector weight;  // [dim]
  DeviceVector bias;    // [dim], LayerNorm only
};

struct LinearWeights {
  std::unique_ptr<kernels::PackedWeight> matrix;
  DeviceVector bias;  // [matrix->rows]
};

// Weights of a mixture of experts; null where the layer has none.
struct MoeWeights {
  LinearWeights router;       // [n_experts, hidden]
  DeviceVector choice_bias;   // [n_experts]
  DeviceVector expert_scale;  // [n_experts]
  DeviceVector router_norm;   // [hidden], and so on; see MoeSpec::apart
  DeviceVector norm;
  DeviceVector post_norm;
  DeviceVector mlp_norm;
  std::unique_ptr<kernels::PackedStack> up;    // gated: each gate [inter] over up [inter]
  std::unique_ptr<kernels::PackedStack> down;  // each [hidden, inter]
  DeviceVector up_bias;                        // [n_experts, rows of up]
  DeviceVector down_bias;                      // [n_experts, hidden]
};

// Weights of an indexer; see IndexerSpec. All ranks have them.
struct IndexerWeights {
  LinearWeights q;        // [n_heads * head_dim, q_rank]
  LinearWeights k;        // [head_dim, hidden]
  NormWeights k_norm;     // [head_dim]
  LinearWeights weights;  // [n_heads, hidden]
};

// Weights of latent attention; see MlaSpec.
struct MlaWeights {
  LinearWeights q_a;                           // [q_rank, hidden]
  DeviceVector q_a_norm;                       // [q_rank]
  LinearWeights q;                             // [n_heads * (nope + rope), q_rank or hidden]
  LinearWeights kv_a;                          // rows: rope, then latent
  DeviceVector kv_a_norm;                      // [kv_rank]
  std::unique_ptr<kernels::PackedStack> k_up;  // per head [kv_rank, nope]
  std::unique_ptr<kernels::PackedStack> v_up;  // per head [v, kv_rank]
  IndexerWeights indexer;
};

// Weights of a recurrence beside its two products and its convolution, [n_heads] each; those of
// RecurrenceRule::kSelective are as kernels::RecurrenceArgs says.
struct RecurrenceWeights {
  DeviceVector decay;
  DeviceVector step_bias;
  DeviceVector skip;
  DeviceVector norm;        // [norm_width], or [values]
  LinearWeights factors;    // [RecurrenceSpec::n_factors(), values]
  LinearWeights steps;      // [values, step_rank]
  DeviceVector step_norm;   // [step_rank]
  DeviceVector key_norm;    // [key_dim]
  DeviceVector query_norm;  // [key_dim]
};

// Weights of RWKV-7's time mix; see kernels::WkvArgs. Products with a narrow waist are two.
struct WkvWeights {
  DeviceVector shift;  // [6, hidden]: for r, w, k, v, a and the gate
  LinearWeights r;     // [n_heads * head_dim, hidden]
  LinearWeights k;
  LinearWeights v;
  LinearWeights w1;
  LinearWeights w2;
  LinearWeights a1;
  LinearWeights a2;
  LinearWeights v1;  // not in the first layer
  LinearWeights v2;
  LinearWeights g1;
  LinearWeights g2;
  DeviceVector key_scale;
  DeviceVector key_mix;
  DeviceVector bonus;
  DeviceVector norm;
  DeviceVector norm_bias;
  DeviceVector mlp_shift;  // [hidden], MlpSpec::token_shift
};

// Weights of alternating updates in a layer; see AltUpSpec.
struct AltUpWeights {
  DeviceVector router_norm;  // [hidden]
  LinearWeights router;      // [count, hidden]
  LinearWeights predict;     // [count * count, count]
  LinearWeights correct;     // [count, count]
  DeviceVector scale;        // [hidden]
};

struct LayerWeights {
  NormWeights attention_norm;
  NormWeights attention_post_norm;
  LinearWeights qkv;       // rows: q [n_heads * head_dim], k and v [n_kv_heads * head_dim] each
  DeviceVector q_norm;     // [head_dim] or [n_heads * head_dim]
  DeviceVector k_norm;     // [head_dim] or [n_kv_heads * head_dim]
  DeviceVector sinks;      // [n_heads]
  float lambda = 0.0f;     // DifferentialSpec
  DeviceVector pair_norm;  // [2 * head_dim], times 1 - DifferentialSpec::first
  DeviceVector segments;   // [segments, head_dim]
  MlaWeights mla;          // in place of qkv
  DeviceVector conv;       // [taps, channels], ConvSpec; then the rows of qkv are b, c and x
                           // or RecurrenceSpec; then they are those of kernels::RecurrenceArgs
  DeviceVector conv_bias;  // [channels]
  RecurrenceWeights recurrence;
  WkvWeights wkv;
  LinearWeights out;  // [hidden, n_heads * head_dim or channels]
  NormWeights mlp_norm;
  NormWeights mlp_post_norm;
  LinearWeights up;        // gated: rows gate [inter] over up [inter]
  LinearWeights down;      // [hidden, inter]
  LinearWeights row_gate;  // [1, hidden], MlpSpec::row_gate
  MoeWeights moe;
  kernels::XieluArgs xielu;  // XieluSpec, without x
  float stream_scale = 1.0f;
  LinearWeights input_gate;  // [layer_input_dim, hidden]
  LinearWeights input_out;   // [hidden, layer_input_dim]
  DeviceVector input_post_norm;
  AltUpWeights altup;
  LinearWeights laurel_in;   // [laurel_rank, hidden]
  LinearWeights laurel_out;  // [hidden, laurel_rank]
  DeviceVector laurel_norm;  // [hidden]
};

struct ModelWeights {
  std::unique_ptr<kernels::PackedWeight> embedding;     // [vocab, hidden]; null: it has none
  std::unique_ptr<kernels::PackedWeight> positions;     // [max_context, hidden], learned positions
  std::unique_ptr<kernels::PackedWeight> token_types;   // [types, hidden]
  std::unique_ptr<kernels::PackedWeight> layer_inputs;  // [its vocab, layers * layer_input_dim]
  std::unique_ptr<kernels::PackedWeight> layer_inputs_in;  // [layers * layer_input_dim, hidden]
  DeviceVector distances;  // kernels::DistanceBias::table of this rank's heads
  int32_t distance_reach = 0;
  DeviceVector layer_inputs_norm;                                 // [layer_input_dim]
  std::unique_ptr<kernels::PackedWeight> altup_in;                // [(count - 1) * hidden, hidden]
  std::vector<std::unique_ptr<kernels::PackedWeight>> altup_out;  // count - 1 of [hidden, hidden]
  NormWeights embedding_norm;
  std::vector<LayerWeights> layers;  // of the model; those of other stages have nothing
  NormWeights final_norm;
  std::unique_ptr<kernels::PackedWeight> separate_head;  // [vocab, hidden] unless tied
  DeviceVector head_bias;                                // [vocab] or empty

  // nullptr: a rank without a share of the vocabulary.
  const kernels::PackedWeight* head() const {
    return separate_head == nullptr ? embedding.get() : separate_head.get();
  }
};

// The weights that a forward reads, for shares of a machine's limits: all matrices except the
// embedding, whose rows are only looked up (unless it is the head as well).
struct WeightTraffic {
  int64_t bytes = 0;  // read once per step, with the head, without experts
  // Multiply-adds, with the experts of a row's choice, of the layers before NarrowingLayer.
  int64_t macs_per_token = 0;
  int64_t macs_per_logit_row = 0;  // of the head, and of the other layers
  // The experts of one layer: a step reads those that some row has chosen.
  struct Experts {
    int64_t bytes = 0;  // all experts together
    int32_t count = 0;
    int32_t top_k = 0;
  };
  std::vector<Experts> experts;

  // Expected bytes that a step of `rows` rows reads if the rows' choices are independent and even.
  double StepBytes(double rows) const;
};
WeightTraffic TrafficOf(const ModelSpec& spec, const ModelWeights& weights);

// Packs what `share` has of every tensor that `model.spec`, the whole model's, asks for; matrices
// of which it has nothing are null. REQUIRES: ValidateTensors(checkpoint, model) is OK.
// RESOURCE_EXHAUSTED if the device lacks the memory.
absl::StatusOr<ModelWeights> LoadWeights(kernels::Device& device, const Checkpoint& checkpoint,
                                         const ModelDescription& model, const WeightPolicy& policy,
                                         const Share& share);
// The whole embedding, the whole head, or both, and nothing else.
absl::StatusOr<ModelWeights> LoadVocabulary(kernels::Device& device, const Checkpoint& checkpoint,
                                            const ModelDescription& model,
                                            const WeightPolicy& policy,
                                            std::span<const std::string> tensors);
// All of it.
absl::StatusOr<ModelWeights> LoadWeights(kernels::Device& device, const Checkpoint& checkpoint,
                                         const ModelDescription& model,
                                         const WeightPolicy& policy = {});

}  // namespace heddle::engine
