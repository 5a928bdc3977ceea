// What low-rank adapters add to a linear: y[t] += scale * B (A x[t]) for each row t of a batch
// whose adapter (HostBatch::adapter_slot) has factors for that matrix. Rows of many adapters of
// unequal ranks mix freely in a step.
//
// An argument of Ops::Linear and not an op of its own: it comes before the epilogue, so that the
// gate of an MLP sees adapted products, and it follows the weight's rows, so that q, k and v stay
// one product. Where a model's matrices are split over ranks it needs nothing more: A is split as W
// is by columns, B by rows, and sums over ranks of partial outputs include what adapters add.
//
// Factors lie in blocks of whole rank rows, in whatever pages a pool has, from multiples of 16
// bytes on: B transposed, so that row i of both belongs to rank i. Tables of pointers are in the
// device's memory at fixed addresses: an adapter that comes or goes changes tables, and nothing
// that a recorded step has. Sources: Hu et al. 2021 (LoRA); Chen et al. 2023 (Punica: gathered
// products); Sheng et al. 2023 (S-LoRA: mixed ranks, factors in the pages of the KV pool).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/dtype.h"

namespace heddle::kernels {

inline constexpr int32_t kMaxAdapterRank = 256;

// Some consecutive rows of a weight that have factors of their own: q, or k, or v of a stack.
struct AdapterPart {
  int64_t first_row = 0;
  int64_t rows = 0;
};

// One adapter's factors for one part.
struct AdapterFactors {
  const void* const* a = nullptr;  // blocks [block_rows, W.cols]
  const void* const* b = nullptr;  // blocks [block_rows, part rows]
  int32_t rank = 0;                // 0: it adds nothing here; <= kMaxAdapterRank
  int32_t block_rows = 0;          // rank rows of a block; the last one may have fewer
  float scale = 1.0f;              // alpha / rank, or alpha / sqrt(rank)
};

// What all adapters have for one weight.
struct AdapterMatrix {
  DType dtype = DType::kBF16;               // of factors: kF32, kF16 or kBF16
  std::span<const AdapterPart> parts;       // on the host; in order, all rows of the weight
  const AdapterFactors* factors = nullptr;  // [n_slots, parts] in the device's memory
  int32_t n_slots = 0;                      // slots of the batch are below
  int32_t max_rank = 0;                     // of any of `factors`
};
inline constexpr int32_t kMaxAdapterParts = 4;

// The rows of a batch that have adapters, in the order of those; cut into segments, so that a
// block of threads reads an adapter's factors once for several rows.
struct AdapterSegment {
  int32_t slot;
  int32_t begin;  // in AdapterGroups::rows
  int32_t count;
};
struct AdapterGroups {
  std::vector<int32_t> rows;
  std::vector<AdapterSegment> segments;  // of max_rows rows at most

  // Keeps its memory from call to call. O(n log n).
  void Assign(std::span<const int32_t> adapter_slot, int32_t max_rows);
};

}  // namespace heddle::kernels
