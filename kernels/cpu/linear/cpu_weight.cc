#include "kernels/cpu/linear/cpu_weight.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "kernels/block_codes.h"
#include "kernels/host_memory.h"
#include "kernels/weight_sources.h"

namespace heddle::kernels::cpu {
namespace {

const FormatKernels& FormatOf(DType dtype, const LinearKernels& kernels) {
  if (std::optional<BlockFormat> format = BlockFormatOf(dtype)) {
    return kernels.blocks->formats[static_cast<size_t>(*format)];
  }
  return kernels.formats[static_cast<size_t>(dtype)];
}

// Shares the order with one of the last few segments if it is equal, as within a layer.
std::shared_ptr<const std::vector<int32_t>> OrderOf(const WeightSource& source,
                                                    std::span<const CpuWeight::Segment> segments) {
  constexpr size_t kCompared = 4;
  if (source.column_order.empty()) return nullptr;
  for (const CpuWeight::Segment& segment :
       segments.last(std::min<size_t>(kCompared, segments.size()))) {
    if (segment.column_order != nullptr &&
        std::equal(source.column_order.begin(), source.column_order.end(),
                   segment.column_order->begin(), segment.column_order->end())) {
      return segment.column_order;
    }
  }
  return std::make_shared<const std::vector<int32_t>>(source.column_order.begin(),
                                                      source.column_order.end());
}

// Rows [rows, range.cols] of one range, for `pack`, out of whole rows.
const uint8_t* RowsOfRange(const WeightSource& source, const uint8_t* whole, int32_t rows,
                           const ColumnRange& range, std::vector<uint8_t>* buffer) {
  if (range.cols == source.cols) return whole;
  const int64_t row_bytes = RowBytes(source.dtype, range.cols);
  buffer->resize(static_cast<size_t>(rows * row_bytes));
  const uint8_t* from = whole + RowBytes(source.dtype, range.begin);
  for (int32_t r = 0; r < rows; ++r, from += RowBytes(source.dtype, source.cols)) {
    std::memcpy(buffer->data() + r * row_bytes, from, static_cast<size_t>(row_bytes));
  }
  return buffer->data();
}

// Packs panels [begin, end) of one source.
void PackPanels(const WeightSource& source, const CpuWeight::Segment& segment,
                std::span<const ColumnRange> ranges, int32_t panel_rows, int64_t begin,
                int64_t end) {
  std::vector<uint8_t> buffer;
  std::vector<uint8_t> part;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t row = p * panel_rows;
    const auto rows = static_cast<int32_t>(std::min<int64_t>(panel_rows, source.rows - row));
    const uint8_t* whole = SourceRows(source, row, rows, &buffer);
    for (size_t i = 0; i < ranges.size(); ++i) {
      segment.format->pack(RowsOfRange(source, whole, rows, ranges[i], &part),
                           RowBytes(source.dtype, ranges[i].cols), rows, ranges[i].cols,
                           segment.data + p * segment.panel_bytes + segment.range_bytes[i]);
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuWeight>> CpuWeight::Pack(std::span<const WeightSource> sources,
                                                           const LinearKernels& kernels,
                                                           ThreadPool& pool) {
  HEDDLE_ASSIGN_OR_RETURN(StackedShape shape, CheckSources(sources));
  auto weight = std::make_unique<CpuWeight>();
  weight->rows = shape.rows;
  weight->cols = shape.cols;
  weight->panel_rows_ = kernels.panel_rows;
  weight->ranges_ = ColumnRangesOf(sources[0].sum_borders, shape.cols);
  int64_t row = 0;
  int64_t panel = 0;
  for (const WeightSource& source : sources) {
    const FormatKernels& format = FormatOf(source.dtype, kernels);
    int64_t num_panels = (source.rows + kernels.panel_rows - 1) / kernels.panel_rows;
    std::vector<int64_t> range_bytes;
    int64_t panel_bytes = 0;
    for (const ColumnRange& range : weight->ranges_) {
      range_bytes.push_back(panel_bytes);
      panel_bytes += format.panel_bytes(range.cols);
    }
    weight->segments_.push_back({&format, row, source.rows, panel, num_panels, panel_bytes, nullptr,
                                 std::move(range_bytes), OrderOf(source, weight->segments_)});
    row += source.rows;
    panel += num_panels;
    weight->bytes += num_panels * panel_bytes;
  }
  HEDDLE_ASSIGN_OR_RETURN(weight->storage_, AllocateHost(weight->bytes, sources[0].name.c_str()));
  auto* data = static_cast<uint8_t*>(weight->storage_->data());
  for (size_t i = 0; i < sources.size(); ++i) {
    Segment& segment = weight->segments_[i];
    segment.data = data;
    data += segment.num_panels * segment.panel_bytes;
    // Copying a panel runs at about a byte per nanosecond and thread.
    pool.ForRange(segment.num_panels, static_cast<double>(segment.panel_bytes),
                  [&](int64_t begin, int64_t end, int32_t) {
                    PackPanels(sources[i], segment, weight->ranges_, kernels.panel_rows, begin,
                               end);
                  });
  }
  return weight;
}

CpuWeight CpuWeight::View(size_t first, size_t count) const {
  CpuWeight view;
  view.cols = cols;
  view.panel_rows_ = panel_rows_;
  view.ranges_ = ranges_;
  int64_t panel = 0;
  for (size_t i = first; i < first + count; ++i) {
    Segment segment = segments_[i];
    segment.row_begin = view.rows;
    segment.panel_begin = panel;
    view.rows += segment.rows;
    panel += segment.num_panels;
    view.segments_.push_back(segment);
  }
  return view;
}

int64_t CpuWeight::num_panels() const {
  return segments_.back().panel_begin + segments_.back().num_panels;
}

const CpuWeight::Segment& CpuWeight::SegmentOfPanel(int64_t panel) const {
  size_t i = 0;
  while (panel >= segments_[i].panel_begin + segments_[i].num_panels) ++i;
  return segments_[i];
}

void CpuWeight::UnpackRow(int64_t row, float* out) const {
  HEDDLE_CHECK(row >= 0 && row < rows, "row outside the weight");
  size_t i = 0;
  while (row >= segments_[i].row_begin + segments_[i].rows) ++i;
  const Segment& segment = segments_[i];
  int64_t local = row - segment.row_begin;
  const uint8_t* panel = segment.data + local / panel_rows_ * segment.panel_bytes;
  auto panel_row = static_cast<int32_t>(local % panel_rows_);
  if (segment.column_order == nullptr) {
    for (size_t r = 0; r < ranges_.size(); ++r) {
      segment.format->unpack(panel + segment.range_bytes[r], panel_row, ranges_[r].cols,
                             out + ranges_[r].begin);
    }
    return;
  }
  std::vector<float> stored(static_cast<size_t>(cols));
  segment.format->unpack(panel, panel_row, cols, stored.data());
  for (size_t c = 0; c < stored.size(); ++c) out[(*segment.column_order)[c]] = stored[c];
}

}  // namespace heddle::kernels::cpu
