// Keys, queries and lists for tests of attention over chosen positions (kernels/selection.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/device.h"
#include "kernels/kv_element.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

inline constexpr int32_t kUnwritten = -7;  // what lists hold before they are made

inline TestCache KeysAlone(DType dtype, const TestBatch& batch, int32_t page_tokens, int32_t dim) {
  TestCache cache(dtype, batch.num_pages, page_tokens, 1, dim, 5);
  cache.view.values = cache.view.keys;
  return cache;
}

// Small integers, of which every device makes the very same sums, and many equal ones.
inline void FillWithIntegers(Random& random, const TestBatch& batch, TestCache* cache) {
  std::vector<float> row(static_cast<size_t>(cache->view.head_dim));
  for (int64_t slot = 0; slot < int64_t{batch.num_pages} * cache->view.page_tokens; ++slot) {
    for (float& x : row) x = static_cast<float>(random.Below(5) - 2);
    StoreKvRow(cache->view, cache->view.keys, slot, 0, row.data());
  }
}

inline Matrix Integers(Random& random, int64_t rows, int64_t cols, int64_t pad) {
  Matrix matrix(rows, cols, pad, 1);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) *matrix.at(r, c) = static_cast<float>(random.Below(5) - 2);
  }
  return matrix;
}

// Random lists of up to `top_k` places: a row that sees more has one, and all rows of trees.
inline std::vector<int32_t> RandomLists(Random& random, const TestBatch& batch, int32_t top_k) {
  std::vector<int32_t> lists(batch.token_ids.size() * (1 + static_cast<size_t>(top_k)), kUnwritten);
  for (size_t s = 0; s < batch.context_len.size(); ++s) {
    const int32_t n = batch.q_begin[s + 1] - batch.q_begin[s];
    const bool is_tree =
        !batch.tree_mask.empty() && batch.tree_mask[static_cast<size_t>(batch.q_begin[s])] != 0;
    for (int32_t i = 0; i < n; ++i) {
      const auto t = static_cast<size_t>(batch.q_begin[s] + i);
      int32_t* row = lists.data() + t * (1 + static_cast<size_t>(top_k));
      const int32_t sees = batch.context_len[s] - n + i + 1;
      *row = 0;
      if (!is_tree && sees <= top_k) continue;
      std::vector<int32_t> places(static_cast<size_t>(sees));
      for (int32_t p = 0; p < sees; ++p) places[static_cast<size_t>(p)] = p;
      while (static_cast<int32_t>(places.size()) > top_k) {
        places.erase(places.begin() + random.Below(static_cast<int32_t>(places.size())));
      }
      *row = static_cast<int32_t>(places.size());
      std::copy(places.begin(), places.end(), row + 1);
    }
  }
  return lists;
}

}  // namespace heddle::kernels::test
