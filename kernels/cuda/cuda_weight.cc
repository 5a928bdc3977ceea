#include "kernels/cuda/cuda_weight.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/block_codes.h"
#include "kernels/weight_sources.h"

namespace heddle::kernels::cuda {
namespace {

// Host memory that a weight passes through on its way up.
constexpr int64_t kChunkBytes = int64_t{32} << 20;

constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

bool IsQuantised(DType dtype) { return dtype == DType::kQ8_0 || dtype == DType::kQ4_0; }

int64_t BlocksPerGroup(DType dtype) { return dtype == DType::kQ8_0 ? 2 : 4; }

void PackQ8Row(const uint8_t* blocks, int64_t n_blocks, uint8_t* data, uint16_t* scales) {
  for (int64_t b = 0; b < n_blocks; ++b) {
    const uint8_t* block = blocks + b * 34;
    std::memcpy(&scales[b], block, 2);
    uint8_t* group = data + b / 2 * 64 + b % 2 * 8;
    for (int t = 0; t < 4; ++t) std::memcpy(group + 16 * t, block + 2 + 8 * t, 8);
  }
}

void PackQ4Row(const uint8_t* blocks, int64_t n_blocks, uint8_t* data, uint16_t* scales) {
  for (int64_t b = 0; b < n_blocks; ++b) {
    const uint8_t* block = blocks + b * 18;
    std::memcpy(&scales[b], block, 2);
    uint8_t* group = data + b / 4 * 64 + b % 4 * 4;
    for (int t = 0; t < 4; ++t) {
      uint32_t word = 0;
      for (int e = 0; e < 8; ++e) {
        const int k = 8 * t + e;
        const uint32_t nibble = (block[2 + k % 16] >> (k < 16 ? 0 : 4)) & 15u;
        word |= nibble << (4 * (e / 2) + 16 * (e % 2));
      }
      std::memcpy(group + 16 * t, &word, 4);
    }
  }
}

// Formats whose codes are bytes and whose scales are F16 become Q8_0 without loss.
bool IsExactAsQ8(DType dtype) { return dtype == DType::kQ5_0 || dtype == DType::kIQ4_NL; }

// What the kernels compute a lone matrix of `dtype` with.
DType KeptAs(DType dtype, DType plain) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
      return dtype;
    default:
      return IsExactAsQ8(dtype) ? DType::kQ8_0 : plain;
  }
}

void ConvertRowToQ8(const WeightSource& source, const uint8_t* row, uint8_t* data,
                    uint16_t* scales) {
  const BlockFormat format = *BlockFormatOf(source.dtype);
  std::vector<uint8_t> blocks(static_cast<size_t>(source.cols / 32 * 34));
  uint8_t* to = blocks.data();
  for (int64_t b = 0; b < source.cols / 32; ++b, to += 34) {
    BlockCodes block;
    ReadBlock(format, row + b * Info(source.dtype).block_bytes, &block);
    const uint16_t scale = F32ToF16(block.scale);
    std::memcpy(to, &scale, 2);
    for (int k = 0; k < 32; ++k) {
      to[2 + k] = static_cast<uint8_t>(CodeValue(Traits(format), block.codes[k]));
    }
  }
  PackQ8Row(blocks.data(), source.cols / 32, data, scales);
}

void ConvertRow(const WeightSource& source, const uint8_t* row, DType format, uint8_t* data) {
  std::vector<float> values(static_cast<size_t>(source.cols));
  DecodeSourceRow(source, row, values.data());
  if (format == DType::kF32) {
    std::memcpy(data, values.data(), values.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = F32ToBF16(values[i]);
    std::memcpy(data + 2 * i, &bits, 2);
  }
}

// Packs and uploads all rows, a chunk at a time.
absl::Status Upload(Runtime& runtime, std::span<const WeightSource> sources,
                    const DeviceWeight& layout) {
  const int64_t chunk_rows = std::max<int64_t>(1, kChunkBytes / layout.row_bytes);
  std::vector<uint8_t> data;
  std::vector<uint16_t> scales;
  std::vector<uint8_t> buffer;
  int64_t done = 0;
  for (const WeightSource& source : sources) {
    for (int64_t first = 0; first < source.rows; first += chunk_rows) {
      const int64_t count = std::min(chunk_rows, source.rows - first);
      data.assign(static_cast<size_t>(count * layout.row_bytes), 0);
      scales.assign(static_cast<size_t>(count * layout.scales_stride), 0);
      const uint8_t* rows = SourceRows(source, first, count, &buffer);
      const int64_t source_bytes = RowBytes(source.dtype, source.cols);
      for (int64_t r = 0; r < count; ++r) {
        PackRow(source, rows + r * source_bytes, layout, data.data() + r * layout.row_bytes,
                scales.data() + r * layout.scales_stride);
      }
      auto* to = const_cast<uint8_t*>(layout.data) + done * layout.row_bytes;
      auto* to_scales = const_cast<uint16_t*>(layout.scales) + done * layout.scales_stride;
      HEDDLE_RETURN_IF_ERROR(
          runtime.CopyToDevice(to, data.data(), static_cast<int64_t>(data.size())));
      if (!scales.empty()) {
        HEDDLE_RETURN_IF_ERROR(runtime.CopyToDevice(to_scales, scales.data(),
                                                    static_cast<int64_t>(scales.size()) * 2));
      }
      HEDDLE_RETURN_IF_ERROR(runtime.Synchronize());
      done += count;
    }
  }
  return absl::OkStatus();
}

}  // namespace

DType PackedFormat(std::span<const WeightSource> sources, DType activations) {
  const DType plain = activations == DType::kF32 ? DType::kF32 : DType::kBF16;
  const DType first = KeptAs(sources[0].dtype, plain);
  for (const WeightSource& source : sources) {
    // Other orders of columns are brought into the natural one.
    if (!source.column_order.empty() || KeptAs(source.dtype, plain) != first) return plain;
  }
  return first;
}

DeviceWeight PackedLayout(DType format, int64_t rows, int64_t cols) {
  DeviceWeight layout;
  layout.rows = rows;
  layout.cols = cols;
  layout.format = format;
  if (IsQuantised(format)) {
    const int64_t blocks = BlocksPerGroup(format);
    const int64_t groups = (cols + 32 * blocks - 1) / (32 * blocks);
    layout.row_bytes = groups * 64;
    layout.scales_stride = groups * blocks;
  } else if (format == DType::kF32) {
    layout.row_bytes = RoundUp(cols * 4, 16);
  } else {
    layout.row_bytes = RoundUp(cols, 32) * 2;
  }
  return layout;
}

void PackRow(const WeightSource& source, const uint8_t* from, const DeviceWeight& layout,
             uint8_t* data, uint16_t* scales) {
  if (IsExactAsQ8(source.dtype) && layout.format == DType::kQ8_0) {
    ConvertRowToQ8(source, from, data, scales);
  } else if (source.dtype != layout.format) {
    ConvertRow(source, from, layout.format, data);
  } else if (source.dtype == DType::kQ8_0) {
    PackQ8Row(from, source.cols / 32, data, scales);
  } else if (source.dtype == DType::kQ4_0) {
    PackQ4Row(from, source.cols / 32, data, scales);
  } else {
    std::memcpy(data, from, static_cast<size_t>(RowBytes(source.dtype, source.cols)));
  }
}

absl::StatusOr<std::unique_ptr<PackedWeight>> PackWeight(Runtime& runtime,
                                                         std::span<const WeightSource> sources,
                                                         DType activations) {
  HEDDLE_ASSIGN_OR_RETURN(const StackedShape shape, CheckSources(sources));
  auto weight = std::make_unique<CudaWeight>(runtime);
  weight->view = PackedLayout(PackedFormat(sources, activations), shape.rows, shape.cols);
  const int64_t data_bytes = RoundUp(shape.rows * weight->view.row_bytes, 256);
  const int64_t bytes = data_bytes + shape.rows * weight->view.scales_stride * 2;
  HEDDLE_ASSIGN_OR_RETURN(weight->memory, runtime.AllocateDevice(bytes));
  weight->rows = shape.rows;
  weight->cols = shape.cols;
  weight->bytes = bytes;
  weight->view.data = static_cast<const uint8_t*>(weight->memory);
  weight->view.scales =
      reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(weight->memory) + data_bytes);
  HEDDLE_RETURN_IF_ERROR(Upload(runtime, sources, weight->view));
  return std::unique_ptr<PackedWeight>(std::move(weight));
}

}  // namespace heddle::kernels::cuda
