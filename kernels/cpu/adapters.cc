#include "kernels/cpu/adapters.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/dtype.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int32_t kTaskRanks = 4;
constexpr double kMacsPerNs = 10;  // of one core, approximately

// Row `rank` of a factor whose rows have `cols` elements.
const char* RankRow(const void* const* blocks, int32_t block_rows, int32_t rank, int64_t cols,
                    int64_t element_bytes) {
  return static_cast<const char*>(blocks[rank / block_rows]) +
         rank % block_rows * cols * element_bytes;
}

std::span<const int32_t> RowsOf(const AdapterGroups& groups, const AdapterSegment& segment) {
  return std::span(groups.rows)
      .subspan(static_cast<size_t>(segment.begin), static_cast<size_t>(segment.count));
}

}  // namespace

AdapterCall::AdapterCall(const AdapterMatrix& adapters, const AdapterGroups& groups,
                         const RowKernels& kernels)
    : adapters_(adapters),
      groups_(groups),
      kernels_(kernels),
      type_(KvTypeOf(adapters.dtype)),
      element_bytes_(RowBytes(adapters.dtype, 1)) {
  HEDDLE_CHECK(adapters.parts.size() <= kMaxAdapterParts && adapters.max_rank <= kMaxAdapterRank,
               "adapters: too many parts of a weight, or too high a rank");
}

// Prepares the tasks of Shrink, and the addresses of the rows of B: finding them for every panel
// would cost more than adding them.
void AdapterCall::Prepare(AdapterScratch& scratch) {
  scratch.tasks.clear();
  scratch.b_rows.clear();
  scratch.b_begin.clear();
  for (size_t s = 0; s < groups_.segments.size(); ++s) {
    for (size_t p = 0; p < adapters_.parts.size(); ++p) {
      const AdapterFactors& factors = FactorsOf(groups_.segments[s].slot, p);
      scratch.b_begin.push_back(scratch.b_rows.size());
      for (int32_t j = 0; j < factors.rank; ++j) {
        scratch.b_rows.push_back(
            RankRow(factors.b, factors.block_rows, j, adapters_.parts[p].rows, element_bytes_));
        if (j % kTaskRanks != 0) continue;
        scratch.tasks.push_back({static_cast<int32_t>(s), static_cast<int32_t>(p), j});
      }
    }
  }
  scratch_ = &scratch;
}

void AdapterCall::Shrink(const Tensor& x, ThreadPool& pool, AdapterScratch& scratch) {
  const auto parts = static_cast<int64_t>(adapters_.parts.size());
  shrunk_ = static_cast<float*>(scratch.shrunk.Get(x.rows * parts * adapters_.max_rank * 4));
  Prepare(scratch);
  const double rows = static_cast<double>(groups_.rows.size()) /
                      static_cast<double>(std::max<size_t>(1, groups_.segments.size()));
  const double cost = rows * kTaskRanks * static_cast<double>(x.cols) / kMacsPerNs;
  pool.ForEach(static_cast<int64_t>(scratch.tasks.size()), cost, [&](int64_t i, int32_t) {
    const AdapterScratch::Task& task = scratch.tasks[static_cast<size_t>(i)];
    const AdapterSegment& segment = groups_.segments[static_cast<size_t>(task.segment)];
    const auto part = static_cast<size_t>(task.part);
    const AdapterFactors& factors = FactorsOf(segment.slot, part);
    const int32_t end = std::min(task.first_rank + kTaskRanks, factors.rank);
    for (int32_t j = task.first_rank; j < end; ++j) {
      const char* a = RankRow(factors.a, factors.block_rows, j, x.cols, element_bytes_);
      for (const int32_t t : RowsOf(groups_, segment)) {
        ShrunkRow(t, part)[j] = factors.scale * kernels_.dot(type_, a, x.row<float>(t), x.cols);
      }
    }
  });
}

void AdapterCall::Add(const Window& window) const {
  for (size_t s = 0; s < groups_.segments.size(); ++s) {
    for (size_t p = 0; p < adapters_.parts.size(); ++p) {
      const AdapterPart& part = adapters_.parts[p];
      const int64_t begin = std::max(window.first, part.first_row);
      const int64_t end = std::min(window.first + window.cols, part.first_row + part.rows);
      if (begin >= end || FactorsOf(groups_.segments[s].slot, p).rank == 0) continue;
      Window within = window;
      within.first = begin;
      within.cols = static_cast<int32_t>(end - begin);
      within.sums += begin - window.first;
      AddPart(s, p, within);
    }
  }
}

void AdapterCall::AddPart(size_t segment, size_t part, const Window& window) const {
  const int32_t rank = FactorsOf(groups_.segments[segment].slot, part).rank;
  const size_t begin = scratch_->b_begin[segment * adapters_.parts.size() + part];
  const void* const* b = scratch_->b_rows.data() + begin;
  const int64_t column = window.first - adapters_.parts[part].first_row;
  for (const int64_t t : RowsOf(groups_, groups_.segments[segment])) {
    if (t < window.row || t >= window.row + window.rows) continue;
    kernels_.add_rows(type_, b, column, ShrunkRow(t, part), rank, window.cols,
                      window.sums + (t - window.row) * window.stride);
  }
}

}  // namespace heddle::kernels::cpu
