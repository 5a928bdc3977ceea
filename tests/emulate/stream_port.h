// The thing that a library in the place of one of NVIDIA's finds behind a stream of an emulated
// device.
#pragma once

namespace heddle::kernels::cuda::emulate {

struct StreamPort {
  // Performs work(argument) in the stream's order, on whatever thread is the device then. It may
  // block, as a kernel that waits for another device does.
  void (*enqueue)(StreamPort* self, void (*work)(void* argument), void* argument) = nullptr;
};

}  // namespace heddle::kernels::cuda::emulate
