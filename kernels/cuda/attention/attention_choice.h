// Chooses the kernel that computes attention: one table of device properties and arguments.
// Includes neither CUDA nor Abseil.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_params.h"

namespace heddle::kernels::cuda {

enum class AttentionKernel : uint8_t {
  kPlain,
  kFlash,
  kHopper,
  kHopperWide,  // on a 16-bit copy of the cache, or of its values, if that pays; else kFlash
  kLatent,
  kWideHeads,
};

struct AttentionChoice {
  AttentionKernel prefill = AttentionKernel::kPlain;
  AttentionKernel decode = AttentionKernel::kPlain;
  int32_t prefill_rows = kPrefillTileRows;  // per tile
};

// `has_hopper_code` and `max_shared_bytes`: see DeviceInfo.
AttentionChoice ChooseAttention(const AttentionArgs& args, DType activations, bool has_hopper_code,
                                int32_t max_shared_bytes);

}  // namespace heddle::kernels::cuda
