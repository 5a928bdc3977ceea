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
  const int64_t row_bytes = cache.head_dim * KvElementBytes(cache.dtype);
  const int64_t scales_at = cache.page_tokens * row_bytes;
  const auto used = static_cast<size_t>(num_tokens * row_bytes);
  const auto used_scales = static_cast<size_t>(num_tokens * KvScaleBytes(cache.dtype));
  void* const arrays[] = {cache.keys, cache.values};
  for (void* base : std::span(arrays, cache.keys == cache.values ? 1 : 2)) {
    char* source = static_cast<char*>(base) + cache.PageOffset(from);
    char* target = static_cast<char*>(base) + cache.PageOffset(to);
    for (int32_t h = 0; h < cache.n_kv_heads; ++h) {
      const int64_t at = h * cache.head_bytes();
      std::memcpy(target + at, source + at, used);
      std::memcpy(target + at + scales_at, source + at + scales_at, used_scales);
    }
  }
}

}  // namespace heddle::kernels
