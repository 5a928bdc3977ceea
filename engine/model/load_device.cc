#include "engine/model/load_device.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/experts.h"

namespace heddle::engine {
namespace {

// Whether a BF16 cache costs a model no quality: its weights are BF16, or so coarse that the cache
// does not show (the divergence from F32 grows by 0.2 % with 4-bit weights and by a tenth with
// 8-bit ones; quality_bench).
bool Bf16CacheIsFree(kernels::DType weights) {
  constexpr int64_t kCols = 256;
  constexpr int64_t kCoarseBits = 6;
  return weights == kernels::DType::kBF16 ||
         kernels::RowBytes(weights, kCols) * 8 < kCoarseBits * kCols;
}

// Refuses dimensions beyond those that ops take.
absl::Status CheckDimensions(const ModelSpec& spec, const kernels::Device& device) {
  const auto refuse = [&](const char* what, int32_t found, int32_t most) {
    return absl::UnimplementedError(absl::StrCat("family ", spec.family, " has ", found, " ", what,
                                                 "; ", device.description(), " takes up to ",
                                                 most));
  };
  const kernels::StateSizes states = device.max_states();
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    const int32_t rotated = std::max(attention.rope.rotary_dim, attention.mla.rope_dim);
    if (attention.cached_dim() > device.max_head_dim()) {
      return refuse("dimensions of a head", attention.cached_dim(), device.max_head_dim());
    }
    if (rotated > device.max_rotary_dim()) {
      return refuse("rotated dimensions of a head", rotated, device.max_rotary_dim());
    }
    if (const auto& shape = attention.recurrence.shape; shape.taps > 0) {
      const bool selects = shape.is_selective();
      const int32_t most = selects ? states.selected : states.key_dim;
      if (shape.key_dim > most) {
        return refuse(selects ? "states of a channel" : "elements of a recurrence's key",
                      shape.key_dim, most);
      }
    }
    if (attention.wkv.is_here() && attention.wkv.head_dim > states.mix_dim) {
      return refuse("elements of a time mix's head", attention.wkv.head_dim, states.mix_dim);
    }
    if (layer.moe.n_experts > kernels::kMaxExperts) {
      return refuse("experts", layer.moe.n_experts, kernels::kMaxExperts);
    }
    if (layer.moe.rule.n_groups > kernels::kMaxExpertGroups) {
      return refuse("groups of experts", layer.moe.rule.n_groups, kernels::kMaxExpertGroups);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<kernels::DType> KvType(const LoadOptions& options, kernels::DType weights,
                                      const kernels::Device* device) {
  const std::string& name = options.kv_type;
  if (name == "f32") return kernels::DType::kF32;
  if (name == "f16") return kernels::DType::kF16;
  if (name == "bf16") return kernels::DType::kBF16;
  if (name == "fp8") return kernels::DType::kF8E4M3;
  if (name == "int8") return kernels::DType::kInt8;
  if (name != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("kv-type is \"", name, "\"; valid are auto, f32, f16, bf16, fp8 and int8"));
  }
  if (weights == kernels::DType::kF32) return kernels::DType::kF32;
  if (!Bf16CacheIsFree(weights)) return kernels::DType::kF16;
  return device == nullptr ? options.preferred_kv_type : device->preferred_kv_type();
}

void FillStepSize(const kernels::Device* device, CapacityOptions* capacity) {
  const kernels::StepSize step = device == nullptr ? kernels::StepSize() : device->preferred_step();
  if (capacity->max_batch_tokens == 0) {
    capacity->max_batch_tokens = std::max(step.tokens, capacity->max_batch_seqs);
  }
  if (capacity->max_batch_seqs == 0) {
    capacity->max_batch_seqs = std::min(step.seqs, capacity->max_batch_tokens);
  }
}

kernels::DType PackedAs(kernels::DType dtype, bool has_order, const kernels::Device* device) {
  const bool unpacks = has_order && device != nullptr && device->memory().has_value();
  return unpacks ? device->activation_dtype() : dtype;
}

absl::Status CheckOpsFor(const ModelSpec& spec, const kernels::Device* device) {
  return device == nullptr ? absl::OkStatus() : CheckDimensions(spec, *device);
}

}  // namespace heddle::engine
