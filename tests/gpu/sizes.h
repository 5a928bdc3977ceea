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

// The model; in a rehearsal one layer of it, of a few hundred columns.
inline engine::ModelSpec Sized(engine::ModelSpec spec) {
  if (!IsRehearsal()) return spec;
  spec.hidden = 256;
  spec.vocab = 512;
  spec.layers.resize(1);
  for (engine::LayerSpec& layer : spec.layers) {
    layer.attention.n_heads = 4;
    layer.attention.n_kv_heads = 2;
    layer.attention.head_dim = layer.attention.rope.rotary_dim = 64;
    layer.mlp.inter = 256;
  }
  return spec;
}

}  // namespace heddle::gpu
