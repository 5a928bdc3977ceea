// Parts of cuda_device.cc that need none of its state: a buffer on the device, and the library in
// words. Owned by the device, on its thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/linear/library_matmul.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device.h"

namespace heddle::kernels::cuda {

// Frees the memory that it was given.
class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(Runtime& runtime, void* data, int64_t bytes)
      : runtime_(runtime), data_(data), bytes_(bytes) {}
  ~CudaBuffer() override { runtime_.FreeDevice(data_, bytes_); }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  void* data() override { return data_; }
  int64_t bytes() const override { return bytes_; }

 private:
  Runtime& runtime_;
  void* data_;
  int64_t bytes_;
};

// Text like ", cuBLASLt 13.0.2 with FP8 and its blocks"; "" for nullptr.
inline std::string DescribeLibrary(const LibraryMatmul* library) {
  if (library == nullptr) return "";
  const auto takes = [&](WeightLayout layout) {
    return library->TakesCodes(PackedLayout(layout, 16, 64));
  };
  std::string text = absl::StrCat(", ", library->name());
  if (takes(WeightLayout::kF8Row)) absl::StrAppend(&text, " with FP8");
  if (takes(WeightLayout::kF8Block)) absl::StrAppend(&text, " and its blocks");
  return text;
}

}  // namespace heddle::kernels::cuda
