#include "tests/kernels/cuda/emulated.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "catch2/catch.hpp"
#include "kernels/dtype.h"

namespace heddle::kernels::test {
namespace {

constexpr uint8_t kGapByte = 0xC3;

}  // namespace

std::unique_ptr<Device> EmulatedDevice(DType activations, int64_t workspace_bytes) {
  auto device = CreateCudaDevice({.activations = activations, .workspace_bytes = workspace_bytes});
  REQUIRE(device.ok());
  return std::move(device).value();
}

void MustRun(Device& device, const std::function<void(Ops&)>& body) {
  absl::Status status = device.Run(body);
  INFO(status.ToString());
  REQUIRE(status.ok());
}

Activations::Activations(DType dtype, Matrix& from, int64_t pad, int64_t shift)
    : dtype_(dtype), rows_(from.num_rows()), cols_(from.num_cols()), pad_(pad), shift_(shift) {
  const int64_t size = Info(dtype).block_bytes;
  bytes_.assign(static_cast<size_t>((Index(rows_, 0)) * size + 16), kGapByte);
  base_ = bytes_.data() + (16 - reinterpret_cast<uintptr_t>(bytes_.data()) % 16) % 16;
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = 0; c < cols_; ++c) {
      float& value = *from.at(r, c);
      if (dtype == DType::kBF16) {
        uint16_t bits = F32ToBF16(value);
        value = BF16ToF32(bits);
        std::memcpy(base_ + Index(r, c) * 2, &bits, 2);
      } else {
        std::memcpy(base_ + Index(r, c) * 4, &value, 4);
      }
    }
  }
}

Tensor Activations::tensor() {
  return {base_ + shift_ * Info(dtype_).block_bytes, rows_, cols_, cols_ + pad_};
}

float Activations::operator()(int64_t r, int64_t c) const {
  if (dtype_ == DType::kBF16) {
    uint16_t bits;
    std::memcpy(&bits, base_ + Index(r, c) * 2, 2);
    return BF16ToF32(bits);
  }
  float value;
  std::memcpy(&value, base_ + Index(r, c) * 4, 4);
  return value;
}

bool Activations::GapsIntact() const {
  const int64_t size = Info(dtype_).block_bytes;
  auto intact = [&](int64_t begin, int64_t end) {
    return std::all_of(base_ + begin * size, base_ + end * size,
                       [](uint8_t byte) { return byte == kGapByte; });
  };
  bool good = intact(0, shift_);
  for (int64_t r = 0; r < rows_; ++r) good = good && intact(Index(r, cols_), Index(r + 1, 0));
  return good;
}

double RoundingOf(DType dtype, double value) {
  return std::fabs(value) * (dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24);
}

}  // namespace heddle::kernels::test
