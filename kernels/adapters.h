// The contribution of low-rank adapters to a linear: y[t] += scale * B (A x[t]) for each row t of a
// batch whose adapter (HostBatch::adapter_slot) has factors for that matrix. Rows of many adapters
// with different ranks mix freely in a step. An adapter may also scale the product's outputs and
// add to them:
//   y[t] = W x[t] + scale * B (A x[t]) + vector_scale * (gain * (W x[t]) + bias)
// (DoRA's magnitudes are gains), and the same holds for members of a stack, for a norm's weight and
// bias, which have no product, and for rows of an embedding, where A is gathered by token.
//
// It is an argument of Ops::Linear and not a separate op: it is added before the epilogue, so that
// the gate of an MLP sees adapted products, and it follows the weight's rows, so that q, k and v
// stay one product. Tensor parallelism needs nothing more: A is split by columns as W is, B by
// rows, and sums over ranks of partial outputs include the adapters' part.
//
// Factors are blocks of whole rank rows, in any pages of a pool, at multiples of 16 bytes. B is
// transposed, so that row i of both belongs to rank i. Tables of pointers are in the device's
// memory at fixed addresses: loading or removing an adapter changes tables, and nothing that a
// recorded step refers to.
// Sources: Hu et al. 2021 (LoRA); Chen et al. 2023 (Punica: gathered products); Sheng et al. 2023
// (S-LoRA: mixed ranks, factors in the pages of the KV pool).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/dtype.h"

namespace heddle::kernels {

inline constexpr int32_t kMaxAdapterRank = 512;

// Consecutive rows of a weight that have separate factors: q, k or v of a stacked weight.
struct AdapterPart {
  int64_t first_row = 0;
  int64_t rows = 0;
};

// One adapter's factors for one part.
struct AdapterFactors {
  const void* const* a = nullptr;  // blocks [block_rows, W.cols]; nullptr with a rank: the identity
  const void* const* b = nullptr;  // blocks [block_rows, part rows]; as above
  const float* gain = nullptr;     // [part rows] or nullptr
  const float* bias = nullptr;     // [part rows] or nullptr
  int32_t rank = 0;           // 0: no product; <= kMaxAdapterRank unless A or B is the identity
  int32_t block_rows = 0;     // rank rows of a block; the last one may have fewer
  int32_t token_rows = 0;     // of an embedding: tokens of a block of A [token_rows, rank]
  float scale = 1.0f;         // alpha / rank, or alpha / sqrt(rank)
  float vector_scale = 1.0f;  // of gain and bias
};

// The factors of all adapters for one weight, or for all members of a stack.
struct AdapterMatrix {
  DType dtype = DType::kBF16;               // of the factors: kF32, kF16 or kBF16
  std::span<const AdapterPart> parts;       // on the host; in order, all rows of the weight
  const AdapterFactors* factors = nullptr;  // those of slot s and member m begin at
                                            // [s * slot_stride + m * parts.size()], one for each
                                            // part; in the device's memory
  int32_t n_slots = 0;                      // the batch's slots are below this
  int32_t slot_stride = 0;                  // >= members * parts.size()
  int32_t max_rank = 0;                     // no rank in `factors` is larger
  int64_t num_tokens = 0;                   // of an embedding: columns of A
  int64_t first_token = 0;  // of these columns; rows of other tokens stay as they are
  bool has_gains = false;   // some gain in `factors` is not nullptr
};
inline constexpr int32_t kMaxAdapterParts = 4;

// The rows that x holds: those of the batch, or from `first` on those of its logit rows.
struct AdapterRows {
  bool of_logits = false;
  int64_t first = 0;
};

// The rows of a batch that have adapters, in the order of the adapters, cut into segments, so that
// a block of threads reads an adapter's factors once for several rows.
struct AdapterSegment {
  int32_t slot;
  int32_t begin;  // in AdapterGroups::rows
  int32_t count;
};
struct AdapterGroups {
  std::vector<int32_t> rows;
  std::vector<AdapterSegment> segments;  // of at most max_rows rows

  // Keeps its memory between calls. O(n log n).
  void Assign(std::span<const int32_t> adapter_slot, int32_t max_rows);
};

}  // namespace heddle::kernels
