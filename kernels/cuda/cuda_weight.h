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

class CudaStack final : public PackedStack {
 public:
  std::unique_ptr<PackedWeight> all;  // a CudaWeight: the matrices one above the other
};

// The format that `sources` are kept in: F16, BF16, Q8_0 or Q4_0 if they agree on one of them
// (Q5_0 and IQ4_NL are Q8_0 here, without loss); otherwise F32, or BF16 for BF16 activations.
DType PackedFormat(std::span<const WeightSource> sources, DType activations);

// Shape and strides of a packed matrix; no pointers. See DeviceWeight.
DeviceWeight PackedLayout(DType format, int64_t rows, int64_t cols);

// Packs one row of `source`, given by SourceRows, into `data` [row_bytes] and `scales`
// [scales_stride], both zeroed before. The source's dtype is the layout's format, or is converted
// to it (to Q8_0, F32 or BF16).
void PackRow(const WeightSource& source, const uint8_t* from, const DeviceWeight& layout,
             uint8_t* data, uint16_t* scales);

// INVALID_ARGUMENT for shapes that CheckSources refuses, RESOURCE_EXHAUSTED without memory.
absl::StatusOr<std::unique_ptr<PackedWeight>> PackWeight(Runtime& runtime,
                                                         std::span<const WeightSource> sources,
                                                         DType activations);

}  // namespace heddle::kernels::cuda
