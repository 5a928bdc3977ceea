// A LoRA adapter's factors in host memory, converted and cut into pages of the pool's size, so that
// loading it is copying pages, and any page can be dropped and copied again by itself.
//
// Blocks are whole rank rows: rank row i of A, and column i of B, are contiguous. Places are
// relative to the image; pointers are written by AdapterTables when the pages' places in the pool
// are known, into tables that are part of the image's pages as well.
// Immutable once made, so any thread may read it.
// Sources: Hu et al. 2021 (LoRA); Sheng et al. 2023 (S-LoRA: factors in the KV pool's pages).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/ids.h"
#include "kernels/dtype.h"

namespace heddle::engine {

// The linears of a layer that an adapter may change, as the decoder calls them (weights.h).
enum class AdapterSite : uint8_t {
  kQkv,  // parts: q, k, v
  kOut,  // also the one matrix in place of attention
  kUp,   // parts: gate, up; or up alone without a gate
  kDown,
  kRouter,
  kRowGate,
  kQueryA,  // latent attention: MlaWeights::q_a, q and kv_a
  kQueryB,
  kKvA,
};
inline constexpr int32_t kNumAdapterSites = 9;

// A place in an image. Blocks begin at multiples of 16 bytes and lie within one page.
struct ImagePlace {
  int32_t page = 0;
  int32_t offset = 0;  // bytes
};

// The factors of one part of one linear.
struct ImageFactors {
  int32_t layer = 0;
  AdapterSite site = AdapterSite::kQkv;
  int32_t part = 0;
  int32_t rank = 0;           // > 0
  int32_t block_rows = 0;     // rank rows of a block; the last one may have fewer
  float scale = 1.0f;         // of the product B A
  std::vector<ImagePlace> a;  // blocks [block_rows, cols of the weight]
  std::vector<ImagePlace> b;  // blocks [block_rows, rows of the part]
  ImagePlace a_table;         // room for one pointer per block
  ImagePlace b_table;
};

class AdapterImage {
 public:
  AdapterId id{};
  kernels::DType dtype = kernels::DType::kBF16;  // of the factors
  int32_t max_rank = 0;
  int64_t page_bytes = 0;
  int32_t num_pages = 0;
  std::vector<ImageFactors> factors;
  std::shared_ptr<std::byte[]> content;  // [num_pages, page_bytes]

  std::span<const std::byte> page(int32_t index) const {
    return {content.get() + index * page_bytes, static_cast<size_t>(page_bytes)};
  }
  int64_t bytes() const { return num_pages * page_bytes; }
};

}  // namespace heddle::engine
