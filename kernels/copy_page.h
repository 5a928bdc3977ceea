// Page copies in host memory, shared by the backends that use it.
#pragma once

#include <cstdint>

#include "kernels/kv_cache.h"

namespace heddle::kernels {

// REQUIRES: pages within the cache, 0 <= num_tokens <= page_tokens. from == to does nothing.
void CopyHostPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens);

}  // namespace heddle::kernels
