// Sizes of a rehearsal, for which HEDDLE_GPU_REHEARSAL is set: each command of gpu_check does all
// that it does, under the same names, with numbers so small that the emulated device ends in
// seconds. What it prints means nothing then.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "engine/model/model_spec.h"

namespace heddle::gpu {

inline bool IsRehearsal() {
  static const bool is = std::getenv("HEDDLE_GPU_REHEARSAL") != nullptr;
  return is;
}

// `size`; in a rehearsal at most `small`.
template <typename T>
T Sized(T size, std::type_identity_t<T> small) {
  return IsRehearsal() ? std::min(size, small) : size;
}

// The model; in a rehearsal its layers up to the first that attends, of a few hundred columns.
inline engine::ModelSpec Sized(engine::ModelSpec spec) {
  if (!IsRehearsal()) return spec;
  spec.hidden = 256;
  spec.vocab = 512;
  const auto attends = [](const engine::LayerSpec& layer) { return layer.attention.n_heads > 0; };
  const auto first = std::find_if(spec.layers.begin(), spec.layers.end(), attends);
  if (first != spec.layers.end()) spec.layers.erase(first + 1, spec.layers.end());
  for (engine::LayerSpec& layer : spec.layers) {
    layer.mlp.inter = 256;
    engine::AttentionSpec& attention = layer.attention;
    if (attention.conv.channels > 0) attention.conv.channels = spec.hidden;
    if (attention.recurrence.is_here()) {
      attention.recurrence.shape.n_heads = attention.recurrence.shape.n_key_heads = 1;
    }
    if (attention.n_heads == 0) continue;
    attention.n_heads = 4;
    attention.n_kv_heads = 2;
    attention.head_dim = attention.rope.rotary_dim = 64;
  }
  return spec;
}

}  // namespace heddle::gpu
