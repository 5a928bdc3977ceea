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
    size_t a_begin = 0;  // in a_rows; without any rows there: A is the identity
    size_t b_begin = 0;  // in b_rows
    AdapterFactors own;

    bool has_identity() const { return own.rank > 0 && own.a == nullptr; }
  };
  std::vector<Task> shrink_tasks, expand_tasks;
  std::vector<Factors> factors;  // [segments, parts]
  std::vector<const void*> a_rows, b_rows;
  std::vector<const float*> x_rows;   // of the groups' rows
  std::vector<int32_t> delta_of_row;  // [rows of x] index into `delta`; -1: none
  std::vector<int32_t> segment_of;    // [groups' rows]
  Scratch shrunk;                     // [groups' rows, parts, highest rank] F32
  Scratch delta;                      // [groups' rows, delta_stride] F32
};

class AdapterCall {
 public:
  // Views its arguments. Computes what is added to the products of the rows of x that have an
  // adapter, of which `groups` has the indices. The factors are those of the stack's first member:
  // for another, `adapters` is a copy with moved factors.
  AdapterCall(const AdapterMatrix& adapters, const AdapterGroups& groups, const RowKernels& kernels,
              const Tensor& x, ThreadPool& pool, AdapterScratch& scratch);

  // Whether no row has factors for this weight.
  bool empty() const { return scratch_.expand_tasks.empty(); }

  // The sums of rows [row, row + rows) of x times rows [first, first + cols) of the weight.
  struct Window {
    int64_t row = 0, rows = 0;
    int64_t first = 0;
    int32_t cols = 0;
    float* sums = nullptr;  // [rows, stride]
    int64_t stride = 0;
  };
  // Scales and adds to window.sums what the adapters of its rows do. May be called from any thread.
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
    return shrunk_ + (i * parts + part) * shrunk_width_;
  }
  int64_t shrunk_stride() const {
    return static_cast<int64_t>(adapters_.parts.size()) * shrunk_width_;
  }
  void Prepare(const Tensor& x);
  bool AddSegment(int32_t segment, int64_t cols);
  void Shrink(ThreadPool& pool, int64_t cols);
  void ShrinkTask(const AdapterScratch::Task& task, int64_t cols) const;
  void Expand(ThreadPool& pool);
  void ExpandTask(const AdapterScratch::Task& task) const;
  void Scale(const Window& window, int64_t row, int32_t segment) const;

  const AdapterMatrix& adapters_;
  const AdapterGroups& groups_;
  const RowKernels& kernels_;
  AdapterScratch& scratch_;
  KvType type_;
  float* shrunk_ = nullptr;
  float* delta_ = nullptr;
  int64_t delta_stride_ = 0;
  int64_t shrunk_width_ = 0;  // the highest rank
  bool has_gains_ = false;
};

// Ops::AdaptEmbedding for one row of the residual stream, of the token in column `token` of A.
// The weights [dim] of a norm with an adapter's gains, and its biases with the adapter's; `weight`
// and `bias` may be nullptr. REQUIRES: `added` has gains, or biases.
void AddGains(const AdapterFactors& added, const float* weight, float weight_offset, int64_t dim,
              float* out);
void AddBiases(const AdapterFactors& added, const float* bias, int64_t dim, float* out);

void AdaptEmbeddingRow(const AdapterMatrix& adapters, int32_t slot, int64_t token,
                       const RowKernels& kernels, Tensor x, int64_t row);

}  // namespace heddle::kernels::cpu
