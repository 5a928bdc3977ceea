// The contribution of adapters to a linear on the CPU: one product with A for each row that has
// one, and rows of B added to the sums of each panel before its epilogue. Factors are read once for
// each segment of rows; a row's result does not depend on other rows.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/adapters.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cpu {

// Rows of a segment, for which the second factor's cache lines are read once.
inline constexpr int32_t kAdapterSegmentRows = 16;

// Working memory that is kept between calls.
struct AdapterScratch {
  struct Task {
    int32_t segment;
    int32_t part;
    int32_t first_rank;
  };
  std::vector<Task> tasks;
  std::vector<const void*> b_rows;  // for each segment and part, rank after rank
  std::vector<size_t> b_begin;      // [segments, parts] into b_rows
  Scratch shrunk;
};

// The adapters of one linear. It views its arguments; Add may be called from any thread after
// Shrink.
class AdapterCall {
 public:
  AdapterCall(const AdapterMatrix& adapters, const AdapterGroups& groups,
              const RowKernels& kernels);

  // Computes scale * A x for all rows that have an adapter. x: the rows of the batch.
  void Shrink(const Tensor& x, ThreadPool& pool, AdapterScratch& scratch);

  // The sums of rows [row, row + rows) of x times rows [first, first + cols) of the weight.
  struct Window {
    int64_t row = 0, rows = 0;
    int64_t first = 0;
    int32_t cols = 0;
    float* sums = nullptr;  // [rows, stride]
    int64_t stride = 0;
  };
  // Adds the deltas of the window's rows to window.sums.
  void Add(const Window& window) const;

 private:
  const AdapterFactors& FactorsOf(int32_t slot, size_t part) const {
    return adapters_.factors[int64_t{slot} * adapters_.slot_stride + static_cast<int64_t>(part)];
  }
  float* ShrunkRow(int64_t t, size_t part) const {
    const auto parts = static_cast<int64_t>(adapters_.parts.size());
    return shrunk_ + (t * parts + static_cast<int64_t>(part)) * adapters_.max_rank;
  }
  // REQUIRES: the window lies within the part.
  void AddPart(size_t segment, size_t part, const Window& window) const;
  void Prepare(AdapterScratch& scratch);

  const AdapterMatrix& adapters_;
  const AdapterGroups& groups_;
  const RowKernels& kernels_;
  KvType type_;
  int64_t element_bytes_;
  float* shrunk_ = nullptr;  // [rows of x, parts, max_rank]
  const AdapterScratch* scratch_ = nullptr;
};

}  // namespace heddle::kernels::cpu
