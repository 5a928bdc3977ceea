// A weight matrix in panels (see kernel_table.h), and its making from checkpoint matrices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear/column_ranges.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"

namespace heddle::kernels::cpu {

class CpuWeight final : public PackedWeight {
 public:
  // One source, with its own format and its own panels, the last of them padded.
  struct Segment {
    const FormatKernels* format;
    int64_t row_begin;
    int64_t rows;
    int64_t panel_begin;  // index of the first panel
    int64_t num_panels;
    int64_t panel_bytes;
    uint8_t* data;
    std::vector<int64_t> range_bytes;  // [ranges()] where each begins in a panel
    // The input features in the order of the stored columns, by which Linear gathers x. nullptr:
    // the natural order. Segments with the same order share it.
    std::shared_ptr<const std::vector<int32_t>> column_order;
  };

  static absl::StatusOr<std::unique_ptr<CpuWeight>> Pack(std::span<const WeightSource> sources,
                                                         const LinearKernels& kernels,
                                                         ThreadPool& pool);

  // The matrix of segments [first, first + count) alone; borrows this one's memory.
  CpuWeight View(size_t first, size_t count) const;

  int64_t num_panels() const;
  const std::vector<Segment>& segments() const { return segments_; }
  // At least one; a panel holds them one behind the other.
  std::span<const ColumnRange> ranges() const { return ranges_; }
  // The segment that panel `panel` of the whole matrix belongs to.
  const Segment& SegmentOfPanel(int64_t panel) const;
  // Decodes row `row` to out [cols], in the order of input features.
  void UnpackRow(int64_t row, float* out) const;

 private:
  std::vector<Segment> segments_;
  std::vector<ColumnRange> ranges_;
  std::unique_ptr<Buffer> storage_;
  int32_t panel_rows_ = 0;
};

}  // namespace heddle::kernels::cpu
