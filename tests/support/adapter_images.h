// Images of adapters that tests make of plain factors, with blocks strewn over the pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/adapter/adapter_image.h"

namespace heddle::test {

struct PlainFactors {
  int32_t layer = 0;
  engine::AdapterSite site = engine::AdapterSite::kQkv;
  int32_t part = 0;
  int32_t rank = 1;
  float scale = 1.0f;
  std::vector<float> a;  // [rank, cols]
  std::vector<float> b;  // [rank, rows of the part]: B transposed
};

// Blocks of `block_rows` rank rows, in an order drawn with `seed`. Aborts if a block does not fit
// a page. The id is 0.
std::shared_ptr<engine::AdapterImage> MakeAdapterImage(std::span<const PlainFactors> factors,
                                                       kernels::DType dtype, int64_t page_bytes,
                                                       int32_t block_rows, uint64_t seed);

}  // namespace heddle::test
