#include "kernels/cpu/adapters.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/dtype.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int32_t kTaskRanks = 8;
constexpr int64_t kTaskColumns = 512;
constexpr double kMacsPerNs = 10;  // of one core, approximately

// Appends the addresses of the rank rows of a factor whose rows take `row_bytes`.
void AppendRankRows(const void* const* blocks, const AdapterFactors& factors, int64_t row_bytes,
                    std::vector<const void*>* rows) {
  for (int32_t j = 0; j < factors.rank; ++j) {
    rows->push_back(static_cast<const char*>(blocks[j / factors.block_rows]) +
                    j % factors.block_rows * row_bytes);
  }
}

}  // namespace

AdapterCall::AdapterCall(const AdapterMatrix& adapters, const AdapterGroups& groups,
                         const RowKernels& kernels, const Tensor& x, ThreadPool& pool,
                         AdapterScratch& scratch)
    : adapters_(adapters),
      groups_(groups),
      kernels_(kernels),
      scratch_(scratch),
      type_(KvTypeOf(adapters.dtype)) {
  HEDDLE_CHECK(adapters.parts.size() <= kMaxAdapterParts && adapters.max_rank <= kMaxAdapterRank,
               "adapters: too many parts of a weight, or too high a rank");
  Prepare(x);
  if (empty()) return;
  Shrink(pool, x.cols);
  Expand(pool);
}

// Lists the tasks, and the addresses of all rank rows.
void AdapterCall::Prepare(const Tensor& x) {
  scratch_.shrink_tasks.clear();
  scratch_.expand_tasks.clear();
  scratch_.factors.clear();
  scratch_.a_rows.clear();
  scratch_.b_rows.clear();
  scratch_.x_rows.clear();
  scratch_.delta_of_row.assign(static_cast<size_t>(x.rows), -1);
  for (size_t s = 0; s < groups_.segments.size(); ++s) {
    const AdapterSegment& segment = groups_.segments[s];
    const bool has_factors = AddSegment(static_cast<int32_t>(s), x.cols);
    for (int32_t i = segment.begin; i < segment.begin + segment.count; ++i) {
      const int32_t t = groups_.rows[static_cast<size_t>(i)];
      scratch_.x_rows.push_back(x.row<float>(t));
      if (has_factors) scratch_.delta_of_row[static_cast<size_t>(t)] = i;
    }
  }
  const auto rows = static_cast<int64_t>(groups_.rows.size());
  const auto parts = static_cast<int64_t>(adapters_.parts.size());
  const AdapterPart& last = adapters_.parts.back();
  delta_stride_ = (last.first_row + last.rows + 15) / 16 * 16;
  shrunk_ = static_cast<float*>(scratch_.shrunk.Get(rows * parts * adapters_.max_rank * 4));
  delta_ = static_cast<float*>(scratch_.delta.Get(rows * delta_stride_ * 4));
}

// Returns whether the segment's adapter has factors for this weight. If so, parts without factors
// are expanded to zeros.
bool AdapterCall::AddSegment(int32_t segment, int64_t cols) {
  const int32_t slot = groups_.segments[static_cast<size_t>(segment)].slot;
  bool has_factors = false;
  for (size_t p = 0; p < adapters_.parts.size(); ++p) {
    const AdapterFactors& factors = FactorsOf(slot, p);
    has_factors = has_factors || factors.rank > 0;
    scratch_.factors.push_back({scratch_.a_rows.size(), factors.rank, factors.scale});
    AppendRankRows(factors.a, factors, RowBytes(adapters_.dtype, cols), &scratch_.a_rows);
    AppendRankRows(factors.b, factors, RowBytes(adapters_.dtype, adapters_.parts[p].rows),
                   &scratch_.b_rows);
    for (int32_t j = 0; j < factors.rank; j += kTaskRanks) {
      scratch_.shrink_tasks.push_back({segment, static_cast<int32_t>(p), j});
    }
  }
  if (!has_factors) return false;
  for (size_t p = 0; p < adapters_.parts.size(); ++p) {
    for (int64_t c = 0; c < adapters_.parts[p].rows; c += kTaskColumns) {
      scratch_.expand_tasks.push_back({segment, static_cast<int32_t>(p), c});
    }
  }
  return true;
}

void AdapterCall::Shrink(ThreadPool& pool, int64_t cols) {
  const double rows =
      static_cast<double>(groups_.rows.size()) / static_cast<double>(groups_.segments.size());
  const double cost = rows * kTaskRanks * static_cast<double>(cols) / kMacsPerNs;
  pool.ForEach(static_cast<int64_t>(scratch_.shrink_tasks.size()), cost, [&](int64_t i, int32_t) {
    const AdapterScratch::Task& task = scratch_.shrink_tasks[static_cast<size_t>(i)];
    const AdapterSegment& segment = groups_.segments[static_cast<size_t>(task.segment)];
    const AdapterScratch::Factors& factors = FactorsAt(task.segment, task.part);
    const auto first = static_cast<int32_t>(task.first);
    kernels_.adapter_shrink({
        .type = type_,
        .w = scratch_.a_rows.data() + factors.begin + first,
        .num_ranks = std::min(kTaskRanks, factors.rank - first),
        .x = scratch_.x_rows.data() + segment.begin,
        .num_rows = segment.count,
        .n = cols,
        .scale = factors.scale,
        .out = ShrunkRow(segment.begin, task.part) + first,
        .out_stride = static_cast<int64_t>(adapters_.parts.size()) * adapters_.max_rank,
    });
  });
}

void AdapterCall::Expand(ThreadPool& pool) {
  const double macs = static_cast<double>(groups_.rows.size()) /
                      static_cast<double>(groups_.segments.size()) *
                      static_cast<double>(scratch_.b_rows.size()) /
                      static_cast<double>(scratch_.factors.size()) * kTaskColumns;
  pool.ForEach(static_cast<int64_t>(scratch_.expand_tasks.size()), macs / kMacsPerNs,
               [&](int64_t i, int32_t) {
                 const AdapterScratch::Task& task = scratch_.expand_tasks[static_cast<size_t>(i)];
                 const AdapterSegment& segment =
                     groups_.segments[static_cast<size_t>(task.segment)];
                 const AdapterScratch::Factors& factors = FactorsAt(task.segment, task.part);
                 const AdapterPart& part = adapters_.parts[static_cast<size_t>(task.part)];
                 kernels_.adapter_expand({
                     .type = type_,
                     .w = scratch_.b_rows.data() + factors.begin,
                     .num_ranks = factors.rank,
                     .s = ShrunkRow(segment.begin, task.part),
                     .s_stride = static_cast<int64_t>(adapters_.parts.size()) * adapters_.max_rank,
                     .num_rows = segment.count,
                     .column = task.first,
                     .n = static_cast<int32_t>(std::min(kTaskColumns, part.rows - task.first)),
                     .out = delta_ + segment.begin * delta_stride_ + part.first_row + task.first,
                     .out_stride = delta_stride_,
                 });
               });
}

void AdapterCall::Add(const Window& window) const {
  for (int64_t r = 0; r < window.rows; ++r) {
    const int32_t index = scratch_.delta_of_row[static_cast<size_t>(window.row + r)];
    if (index < 0) continue;
    const float* delta = delta_ + index * delta_stride_ + window.first;
    float* sums = window.sums + r * window.stride;
    for (int32_t c = 0; c < window.cols; ++c) sums[c] += delta[c];
  }
}

}  // namespace heddle::kernels::cpu
