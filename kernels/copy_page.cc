#include "kernels/copy_page.h"

#include <cstring>
#include <span>

#include "base/check.h"

namespace heddle::kernels {

void CopyHostPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens) {
  HEDDLE_CHECK(from >= 0 && from < cache.num_pages && to >= 0 && to < cache.num_pages,
               "copy_page: page outside the cache");
  HEDDLE_CHECK(num_tokens >= 0 && num_tokens <= cache.page_tokens, "copy_page: too many tokens");
  if (from == to) return;
  int64_t element = Info(cache.dtype).block_bytes;
  int64_t head_bytes = static_cast<int64_t>(cache.page_tokens) * cache.head_dim * element;
  int64_t page_bytes = cache.page_elements() * element;
  auto used = static_cast<size_t>(num_tokens * cache.head_dim * element);
  void* const arrays[] = {cache.keys, cache.values};
  for (void* base : std::span(arrays, cache.keys == cache.values ? 1 : 2)) {
    char* source = static_cast<char*>(base) + from * page_bytes;
    char* target = static_cast<char*>(base) + to * page_bytes;
    for (int32_t h = 0; h < cache.n_kv_heads; ++h) {
      std::memcpy(target + h * head_bytes, source + h * head_bytes, used);
    }
  }
}

}  // namespace heddle::kernels
