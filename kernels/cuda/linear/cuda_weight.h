// Packing of checkpoint matrices for the CUDA kernels: on the host, row by row, then uploaded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/weight_layout.h"
#include "kernels/cuda/runtime/runtime.h"
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

inline const DeviceWeight& ViewOf(const PackedWeight& weight) {
  return static_cast<const CudaWeight&>(weight).view;
}

class CudaStack final : public PackedStack {
 public:
  std::unique_ptr<PackedWeight> all;  // a CudaWeight: the matrices stacked
};

inline const DeviceWeight& ViewOf(const PackedStack& stack) {
  return ViewOf(*static_cast<const CudaStack&>(stack).all);
}

// The layout that `sources` are kept in. Several integer formats are joined in the narrowest layout
// of 8-bit codes that holds them all; other mixtures, and matrices whose columns must be reordered,
// are kept in BF16. With F32 activations it is a layout that keeps every value exactly. PackWeight
// then uses a layout with one scale per row, or per tile of rows and columns, if that keeps the
// same values.
WeightLayout LayoutOf(std::span<const WeightSource> sources, DType activations);

// Device memory of one row of a separate matrix of `dtype`, at most: one scale per row or tile
// needs less than one per block.
int64_t PackedRowBytes(DType dtype, int64_t cols, DType activations);

// INVALID_ARGUMENT for shapes that CheckSources refuses, RESOURCE_EXHAUSTED without memory.
absl::StatusOr<std::unique_ptr<PackedWeight>> PackWeight(Runtime& runtime,
                                                         std::span<const WeightSource> sources,
                                                         DType activations);

}  // namespace heddle::kernels::cuda
