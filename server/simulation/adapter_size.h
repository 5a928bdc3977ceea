// Size of a LoRA adapter in the pool, from its rank and the base's shape alone.
// Pure arithmetic. Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "engine/model/model_spec.h"

namespace heddle::server {

struct AdapterSize {
  int64_t bytes = 0;
  int32_t pages = 0;
};

// Size of an adapter of the rank on every linear of attention and of the MLPs that all rows go
// through, which is what PEFT calls "all-linear" for models without experts. `element_bytes`: of a
// factor. Pages have a few per cent of room to spare, as the packer leaves it.
AdapterSize SizeOfAdapter(const engine::ModelSpec& spec, int32_t rank, int64_t element_bytes,
                          int64_t page_bytes);

}  // namespace heddle::server
