#include "kernels/cuda/cuda_device.h"

namespace heddle::kernels {

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceOptions&) {
  return absl::UnimplementedError(
      "this heddle was built without CUDA; build with -DHEDDLE_CUDA=ON on a machine that has nvcc, "
      "or run with --device cpu");
}

}  // namespace heddle::kernels
