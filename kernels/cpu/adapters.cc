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
  HEDDLE_CHECK(adapters.parts.size() <= kMaxAdapterParts, "adapters: too many parts of a weight");
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
  scratch_.segment_of.clear();
  scratch_.delta_of_row.assign(static_cast<size_t>(x.rows), -1);
  for (size_t s = 0; s < groups_.segments.size(); ++s) {
    const AdapterSegment& segment = groups_.segments[s];
    const bool has_factors = AddSegment(static_cast<int32_t>(s), x.cols);
    for (int32_t i = segment.begin; i < segment.begin + segment.count; ++i) {
      const int32_t t = groups_.rows[static_cast<size_t>(i)];
      scratch_.x_rows.push_back(x.row<float>(t));
      scratch_.segment_of.push_back(static_cast<int32_t>(s));
      if (has_factors) scratch_.delta_of_row[static_cast<size_t>(t)] = i;
    }
  }
  const auto rows = static_cast<int64_t>(groups_.rows.size());
  const auto parts = static_cast<int64_t>(adapters_.parts.size());
  const AdapterPart& last = adapters_.parts.back();
  delta_stride_ = (last.first_row + last.rows + 15) / 16 * 16;
  shrunk_ = static_cast<float*>(scratch_.shrunk.Get(rows * parts * shrunk_width_ * 4));
  delta_ = static_cast<float*>(scratch_.delta.Get(rows * delta_stride_ * 4));
}

// Returns whether the segment's adapter has factors for this weight. If so, parts without factors
// are expanded to zeros.
bool AdapterCall::AddSegment(int32_t segment, int64_t cols) {
  const int32_t slot = groups_.segments[static_cast<size_t>(segment)].slot;
  bool has_factors = false;
  for (size_t p = 0; p < adapters_.parts.size(); ++p) {
    const AdapterFactors& factors = FactorsOf(slot, p);
    has_factors =
        has_factors || factors.rank > 0 || factors.gain != nullptr || factors.bias != nullptr;
    has_gains_ = has_gains_ || factors.gain != nullptr;
    shrunk_width_ = std::max<int64_t>(shrunk_width_, factors.rank);
    scratch_.factors.push_back({scratch_.a_rows.size(), scratch_.b_rows.size(), factors});
    AppendRankRows(factors.b, factors, RowBytes(adapters_.dtype, adapters_.parts[p].rows),
                   &scratch_.b_rows);
    if (factors.a == nullptr) {
      if (factors.rank > 0) scratch_.shrink_tasks.push_back({segment, static_cast<int32_t>(p), 0});
      continue;
    }
    AppendRankRows(factors.a, factors, RowBytes(adapters_.dtype, cols), &scratch_.a_rows);
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
    ShrinkTask(scratch_.shrink_tasks[static_cast<size_t>(i)], cols);
  });
}

void AdapterCall::ShrinkTask(const AdapterScratch::Task& task, int64_t cols) const {
  const AdapterSegment& segment = groups_.segments[static_cast<size_t>(task.segment)];
  const AdapterScratch::Factors& factors = FactorsAt(task.segment, task.part);
  if (factors.has_identity()) {
    for (int32_t i = segment.begin; i < segment.begin + segment.count; ++i) {
      const float* x = scratch_.x_rows[static_cast<size_t>(i)];
      float* shrunk = ShrunkRow(i, task.part);
      for (int32_t j = 0; j < factors.own.rank; ++j) shrunk[j] = factors.own.scale * x[j];
    }
    return;
  }
  const auto first = static_cast<int32_t>(task.first);
  kernels_.adapter_shrink({
      .type = type_,
      .w = scratch_.a_rows.data() + factors.a_begin + first,
      .num_ranks = std::min(kTaskRanks, factors.own.rank - first),
      .x = scratch_.x_rows.data() + segment.begin,
      .num_rows = segment.count,
      .n = cols,
      .scale = factors.own.scale,
      .out = ShrunkRow(segment.begin, task.part) + first,
      .out_stride = shrunk_stride(),
  });
}

void AdapterCall::Expand(ThreadPool& pool) {
  const double macs = static_cast<double>(groups_.rows.size()) /
                      static_cast<double>(groups_.segments.size()) *
                      static_cast<double>(scratch_.b_rows.size()) /
                      static_cast<double>(scratch_.factors.size()) * kTaskColumns;
  pool.ForEach(
      static_cast<int64_t>(scratch_.expand_tasks.size()), macs / kMacsPerNs,
      [&](int64_t i, int32_t) { ExpandTask(scratch_.expand_tasks[static_cast<size_t>(i)]); });
}

void AdapterCall::ExpandTask(const AdapterScratch::Task& task) const {
  const AdapterSegment& segment = groups_.segments[static_cast<size_t>(task.segment)];
  const AdapterScratch::Factors& factors = FactorsAt(task.segment, task.part);
  const AdapterPart& part = adapters_.parts[static_cast<size_t>(task.part)];
  const auto n = static_cast<int32_t>(std::min(kTaskColumns, part.rows - task.first));
  float* out = delta_ + segment.begin * delta_stride_ + part.first_row + task.first;
  kernels_.adapter_expand({
      .type = type_,
      .w = scratch_.b_rows.data() + factors.b_begin,
      .num_ranks = factors.own.rank,
      .s = ShrunkRow(segment.begin, task.part),
      .s_stride = shrunk_stride(),
      .num_rows = segment.count,
      .column = task.first,
      .n = n,
      .out = out,
      .out_stride = delta_stride_,
  });
  if (factors.own.bias == nullptr) return;
  const float* bias = factors.own.bias + task.first;
  for (int32_t i = 0; i < segment.count; ++i) {
    float* row = out + i * delta_stride_;
    for (int32_t c = 0; c < n; ++c) row[c] += factors.own.vector_scale * bias[c];
  }
}

// Multiplies row `row` of the window by the gains.
void AdapterCall::Scale(const Window& window, int64_t row, int32_t segment) const {
  float* sums = window.sums + row * window.stride;
  for (size_t p = 0; p < adapters_.parts.size(); ++p) {
    const AdapterFactors& factors = FactorsAt(segment, static_cast<int32_t>(p)).own;
    if (factors.gain == nullptr) continue;
    const AdapterPart& part = adapters_.parts[p];
    const int64_t begin = std::max(part.first_row, window.first);
    const int64_t end = std::min(part.first_row + part.rows, window.first + window.cols);
    for (int64_t r = begin; r < end; ++r) {
      sums[r - window.first] *= 1.0f + factors.vector_scale * factors.gain[r - part.first_row];
    }
  }
}

void AdapterCall::Add(const Window& window) const {
  for (int64_t r = 0; r < window.rows; ++r) {
    const int32_t index = scratch_.delta_of_row[static_cast<size_t>(window.row + r)];
    if (index < 0) continue;
    const float* delta = delta_ + index * delta_stride_ + window.first;
    float* sums = window.sums + r * window.stride;
    if (has_gains_) Scale(window, r, scratch_.segment_of[static_cast<size_t>(index)]);
    for (int32_t c = 0; c < window.cols; ++c) sums[c] += delta[c];
  }
}

void AddGains(const AdapterFactors& added, const float* weight, float weight_offset, int64_t dim,
              float* out) {
  for (int64_t i = 0; i < dim; ++i) {
    out[i] = (weight ? weight[i] + weight_offset : 1.0f) + added.vector_scale * added.gain[i];
  }
}

void AddBiases(const AdapterFactors& added, const float* bias, int64_t dim, float* out) {
  for (int64_t i = 0; i < dim; ++i) {
    out[i] = (bias ? bias[i] : 0.0f) + added.vector_scale * added.bias[i];
  }
}

void AdaptEmbeddingRow(const AdapterMatrix& adapters, int32_t slot, int64_t token,
                       const RowKernels& kernels, Tensor x, int64_t row) {
  const AdapterFactors& factors = adapters.factors[int64_t{slot} * adapters.slot_stride];
  float* out = x.row<float>(row);
  if (factors.gain != nullptr) {
    for (int64_t i = 0; i < x.cols; ++i) out[i] *= 1.0f + factors.vector_scale * factors.gain[i];
  }
  if (factors.rank == 0) return;
  const int64_t row_bytes = RowBytes(adapters.dtype, factors.rank);
  const char* a = static_cast<const char*>(factors.a[token / factors.token_rows]) +
                  token % factors.token_rows * row_bytes;
  std::vector<float> gathered(static_cast<size_t>(factors.rank));
  DequantizeRow(adapters.dtype, a, factors.rank, gathered.data());
  if (factors.b == nullptr) {
    for (int64_t i = 0; i < x.cols; ++i) out[i] += factors.scale * gathered[static_cast<size_t>(i)];
    return;
  }
  for (float& value : gathered) value *= factors.scale;
  std::vector<const void*> b_rows;
  AppendRankRows(factors.b, factors, RowBytes(adapters.dtype, x.cols), &b_rows);
  std::vector<float> sums(static_cast<size_t>(x.cols));
  kernels.adapter_expand({.type = KvTypeOf(adapters.dtype),
                          .w = b_rows.data(),
                          .num_ranks = factors.rank,
                          .s = gathered.data(),
                          .s_stride = factors.rank,
                          .num_rows = 1,
                          .column = 0,
                          .n = static_cast<int32_t>(x.cols),
                          .out = sums.data(),
                          .out_stride = x.cols});
  for (int64_t i = 0; i < x.cols; ++i) out[i] += sums[static_cast<size_t>(i)];
}

}  // namespace heddle::kernels::cpu
