// Arguments of the ops for mixtures of experts: routing of rows to experts, and the experts' MLPs.
// Sources: Shazeer et al. 2017 (sparsely gated mixture), Jiang et al. 2024 (Mixtral), DeepSeek-AI
// 2024 (DeepSeek-V2: group-limited routing; V3: sigmoid scores with a bias for choosing).
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace heddle::kernels {

enum class Activation : uint8_t;
struct AdapterMatrix;

// `count` matrices of one shape [rows, cols], one after the other in the backend's layout: the
// experts of a layer, or the heads of a projection. Made by Device::PackStack.
class PackedStack {
 public:
  virtual ~PackedStack() = default;
  int32_t count = 0;
  int64_t rows = 0;   // output features of each
  int64_t cols = 0;   // input features
  int64_t bytes = 0;  // resident, of all matrices
};

enum class RouteScore : uint8_t { kSoftmax, kSigmoid };

// Experts are in n_groups groups of equal size, in order. Only experts of the top_groups best
// groups can be chosen; a group's score is the sum of its best `group_best` experts. Ties go to the
// lower index.
inline constexpr int32_t kMaxExperts = 1024;
inline constexpr int32_t kMaxExpertGroups = 64;
struct RouteRule {
  RouteScore score = RouteScore::kSoftmax;
  int32_t top_k = 0;
  int32_t n_groups = 1;      // divides the number of experts
  int32_t top_groups = 1;    // top_k <= top_groups * group size
  int32_t group_best = 1;    // <= group size
  bool renormalise = false;  // weights of a row are divided by their sum and sum_offset
  // Keeps sums of scores that are all zero from dividing; larger where a model says so.
  float sum_offset = 1e-20f;
  float scale = 1.0f;  // then multiplied by this

  bool operator==(const RouteRule&) const = default;
};

// For each row the top_k experts with the best score + choice_bias, best first, and their weights:
// the scores (without the bias), renormalised and scaled. Without a bias and groups the logits
// choose, which have the same order and stay apart where scores round to the same number.
struct RouteArgs {
  Tensor logits;                       // [n, n_experts] F32; n_experts <= kMaxExperts
  const float* choice_bias = nullptr;  // [n_experts] F32 or nullptr
  // [n_experts] F32 or nullptr: factors of an expert's weights behind the rule's own scale.
  const float* expert_scale = nullptr;
  RouteRule rule;
  int32_t* experts = nullptr;  // [n, top_k]
  float* weights = nullptr;    // [n, top_k]
};

// out[t] += sum over i of weights[t, i] * mlp_e(x[t]), e = experts[t, i], in the order of i, where
// mlp_e(x) = down_e(act(gate_e(x)) * up_e(x)), or down_e(act(up_e(x))) without `gated`. A row's
// result does not depend on which other rows share its experts.
struct ExpertMixArgs {
  Tensor x;                          // [n, hidden]
  const int32_t* experts = nullptr;  // [n, top_k]
  const float* weights = nullptr;    // [n, top_k]
  int32_t top_k = 0;
  // The first of the experts that `up` and `down` hold; what rows chose of others is left out.
  // Other than 0, or fewer than rows may choose: only on devices in groups of ranks.
  int32_t first_expert = 0;
  const PackedStack* up = nullptr;    // [inter, hidden] each; gated: gate [inter] over up [inter]
  const PackedStack* down = nullptr;  // [hidden, inter] each
  const float* up_bias = nullptr;     // [count, up->rows] or nullptr
  const float* down_bias = nullptr;   // [count, hidden] or nullptr
  bool gated = true;
  Activation activation{};
  Tensor inner;      // [n * top_k, inter] working memory
  Tensor rows;       // [n * top_k, hidden] working memory
  Tensor out;        // [n, hidden]; aliases nothing
  bool adds = true;  // false: out counts as zero before
  // A row's weight multiplies the experts' input instead of their output: mlp_e(weight * x).
  bool weighs_inputs = false;
  // Adapters of the experts' layers, which are its members; nullptr: no row has an adapter.
  // Otherwise x's rows are those of the batch.
  const AdapterMatrix* up_adapters = nullptr;
  const AdapterMatrix* down_adapters = nullptr;
};

// One matrix per head, the first dimensions of an absorbed projection: for every head h
//   out[:, h * out_step + carried, + rows] = x[:, h * x_step, + cols] * W_h^T,
// and the `carried` columns of x after those are copied to the front of the head's output.
// Source: DeepSeek-AI 2024 (multi-head latent attention, with the up-projections absorbed).
struct HeadLinearArgs {
  Tensor x;  // [n, >= (count - 1) * x_step + heads->cols + carried]
  int64_t x_step = 0;
  const PackedStack* heads = nullptr;
  int64_t carried = 0;
  Tensor out;  // [n, >= (count - 1) * out_step + carried + heads->rows]; aliases nothing
  int64_t out_step = 0;
  const AdapterMatrix* adapters = nullptr;  // as in ExpertMixArgs, of the heads; no gains
};

}  // namespace heddle::kernels
