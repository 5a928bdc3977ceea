// Packing of checkpoint matrices for the CUDA kernels: on the host, row by row, then uploaded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cuda/params.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

class CudaWeight final : public PackedWeight {
 public:
  explicit CudaWeight(Runtime& runtime) : runtime_(runtime) {}
  ~CudaWeight() override { runtime_.FreeDevice(memory, bytes); }
  CudaWeight(const CudaWeight&) = delete;
  CudaWeight& operator=(const CudaWeight&) = delete;

  DeviceWeight view;
  void* memory = nullptr;

 private:
  Runtime& runtime_;
};

// The format that `sources` are kept in: their own if they agree, F32 or (for BF16 activations)
// BF16 otherwise and in place of F32.
DType PackedFormat(std::span<const WeightSource> sources, DType activations);

// Shape and strides of a packed matrix; no pointers. See DeviceWeight.
DeviceWeight PackedLayout(DType format, int64_t rows, int64_t cols);

// Packs one row of `source` into `data` [row_bytes] and `scales` [scales_stride], both zeroed
// before. The source's dtype is the layout's format, or is converted to it (to F32 or BF16 only).
void PackRow(const WeightSource& source, int64_t row, const DeviceWeight& layout, uint8_t* data,
             uint16_t* scales);

// INVALID_ARGUMENT for shapes that CheckSources refuses, RESOURCE_EXHAUSTED without memory.
absl::StatusOr<std::unique_ptr<PackedWeight>> PackWeight(Runtime& runtime,
                                                         std::span<const WeightSource> sources,
                                                         DType activations);

}  // namespace heddle::kernels::cuda
