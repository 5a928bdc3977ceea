// Layout of the paged KV cache of one layer, as kernels see it. engine/memory owns the storage.
//
// Keys and values are two arrays of num_pages blocks, one in each page, at equal distances
// (page_stride). A block is contiguous, head by head: [n_kv_heads] of [page_tokens, head_dim]
// elements, so that attention streams whole blocks. Layers of different groups (batch.h) may share
// their arrays, because each page belongs to one group at a time.
//
// kInt8 has one F32 scale per position and KV head, after the head's elements in the same page:
// [page_tokens, head_dim] int8, [page_tokens] F32 (at any alignment). scale = max |x| / 127, and
// the value is scale * code. A row that holds an infinity or NaN gets the scale NaN; one smaller
// than 2^-100 becomes zero. kF8E4M3 has no scale: keys and values are of unit order, far below its
// largest magnitude, 448, where larger ones saturate; its error is relative, at most 2^-4 from 2^-6
// on. A position so takes one byte per element. Source: Kwon et al., "PagedAttention", SOSP 2023.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace heddle::kernels {

// Attention sums over a context in parts whose borders are at multiples of this from its first
// span. A context that loses whole multiples of it at the front, before every row's window, gives
// the same bits.
inline constexpr int32_t kContextGrain = 512;

constexpr int64_t KvElementBytes(DType dtype) {
  if (dtype == DType::kF32) return 4;
  return dtype == DType::kInt8 || dtype == DType::kF8E4M3 ? 1 : 2;
}

// Bytes beside the elements, per position and head of either array.
constexpr int64_t KvScaleBytes(DType dtype) { return dtype == DType::kInt8 ? 4 : 0; }

// Bytes of one position of one head in one array, scale included.
constexpr int64_t KvRowBytes(DType dtype, int32_t head_dim) {
  return head_dim * KvElementBytes(dtype) + KvScaleBytes(dtype);
}

struct KvCacheView {
  void* keys = nullptr;
  void* values = nullptr;     // == keys: the keys are the values too (latent attention)
  DType dtype = DType::kF16;  // kF32, kF16, kBF16, kInt8 or kF8E4M3: see Device::HasKvType
  int32_t num_pages = 0;
  int32_t page_tokens = 0;  // a power of two
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t group = 0;        // the batch's group of spans and slots for this layer
  int64_t page_stride = 0;  // bytes from a page's block to the next page's; 0: they are adjacent

  // Bytes of one head within a block, and of a block, in one array.
  constexpr int64_t head_bytes() const { return page_tokens * KvRowBytes(dtype, head_dim); }
  constexpr int64_t block_bytes() const { return n_kv_heads * head_bytes(); }
  // Rows of [head_dim] from the first page's block to the end of the last one's, if blocks begin at
  // whole rows. REQUIRES: a type without scales.
  constexpr int64_t rows() const {
    return (PageOffset(num_pages - 1) + block_bytes()) / KvRowBytes(dtype, head_dim);
  }
  // Byte offset of a page's block in either array.
  constexpr int64_t PageOffset(int64_t page) const {
    return page * (page_stride == 0 ? block_bytes() : page_stride);
  }
};

}  // namespace heddle::kernels
