// The contribution of adapters to a linear on the CPU, computed before the linear itself: one
// product with A and one with B for each row that has an adapter. The linear adds the result to its
// sums, before its epilogue. Factors are read once for each segment of rows; a row's result does
// not depend on other rows.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/adapters.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cpu {

// Rows of a segment, for which cache lines of the factors are read once: with their activations of
// some thousand columns they fit the second-level cache.
inline constexpr int32_t kAdapterSegmentRows = 32;

// Working memory that is kept between calls.
struct AdapterScratch {
  // Some rank rows of A, or some columns of B, of a part of a segment.
  struct Task {
    int32_t segment;
    int32_t part;
    int64_t first;
  };
  // The factors of a part of a segment, as addresses of rank rows.
  struct Factors {
    size_t begin = 0;  // in a_rows and b_rows
    int32_t rank = 0;
    float scale = 0;
  };
  std::vector<Task> shrink_tasks, expand_tasks;
  std::vector<Factors> factors;  // [segments, parts]
  std::vector<const void*> a_rows, b_rows;
  std::vector<const float*> x_rows;   // of the groups' rows
  std::vector<int32_t> delta_of_row;  // [rows of x] index into `delta`; -1: none
  Scratch shrunk;                     // [groups' rows, parts, max_rank] F32
  Scratch delta;                      // [groups' rows, delta_stride] F32
};

class AdapterCall {
 public:
  // Views its arguments. Computes scale * B A x for the rows of x, the rows of the batch, that have
  // an adapter.
  AdapterCall(const AdapterMatrix& adapters, const AdapterGroups& groups, const RowKernels& kernels,
              const Tensor& x, ThreadPool& pool, AdapterScratch& scratch);

  // Whether no row has factors for this weight.
  bool empty() const { return scratch_.shrink_tasks.empty(); }

  // The sums of rows [row, row + rows) of x times rows [first, first + cols) of the weight.
  struct Window {
    int64_t row = 0, rows = 0;
    int64_t first = 0;
    int32_t cols = 0;
    float* sums = nullptr;  // [rows, stride]
    int64_t stride = 0;
  };
  // Adds the window's part of the result to window.sums. May be called from any thread.
  void Add(const Window& window) const;

 private:
  const AdapterFactors& FactorsOf(int32_t slot, size_t part) const {
    return adapters_.factors[int64_t{slot} * adapters_.slot_stride + static_cast<int64_t>(part)];
  }
  const AdapterScratch::Factors& FactorsAt(int32_t segment, int32_t part) const {
    return scratch_
        .factors[static_cast<size_t>(segment) * adapters_.parts.size() + static_cast<size_t>(part)];
  }
  // The row of `shrunk` for the i-th of the groups' rows.
  float* ShrunkRow(int64_t i, int32_t part) const {
    const auto parts = static_cast<int64_t>(adapters_.parts.size());
    return shrunk_ + (i * parts + part) * adapters_.max_rank;
  }
  void Prepare(const Tensor& x);
  bool AddSegment(int32_t segment, int64_t cols);
  void Shrink(ThreadPool& pool, int64_t cols);
  void Expand(ThreadPool& pool);

  const AdapterMatrix& adapters_;
  const AdapterGroups& groups_;
  const RowKernels& kernels_;
  AdapterScratch& scratch_;
  KvType type_;
  float* shrunk_ = nullptr;
  float* delta_ = nullptr;
  int64_t delta_stride_ = 0;
};

}  // namespace heddle::kernels::cpu
