// Shared parts of the tests of emulated CUDA ops: the device under test in both activation types,
// and matrices of its activation type.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

// Aborts the test if it cannot be made. With a small workspace, work is done in pieces.
std::unique_ptr<Device> EmulatedDevice(DType activations,
                                       int64_t workspace_bytes = int64_t{4} << 20);

// Fails the current test, with the findings, if the step does not succeed.
void MustRun(Device& device, const std::function<void(Ops&)>& body);

// A [rows, cols] matrix in `dtype` (kBF16 or kF32) whose rows lie `pad` elements apart, starting
// `shift` elements past a 16-byte boundary.
class Activations {
 public:
  // Rounds the values of `from` (and writes them back there, so that a reference sees the same).
  Activations(DType dtype, Matrix& from, int64_t pad = 0, int64_t shift = 0);
  Tensor tensor();
  float operator()(int64_t r, int64_t c) const;
  // True if the gaps between rows were not written.
  bool GapsIntact() const;

 private:
  int64_t Index(int64_t r, int64_t c) const { return shift_ + r * (cols_ + pad_) + c; }

  DType dtype_;
  int64_t rows_, cols_, pad_, shift_;
  std::vector<uint8_t> bytes_;
  uint8_t* base_;
};

// Half a unit in the last place of `value` in `dtype`: the largest error of one rounding.
double RoundingOf(DType dtype, double value);

}  // namespace heddle::kernels::test
