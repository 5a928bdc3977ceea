// Random numbers of a draw; CounterUniform (kernels/sample.h) on the device.
#pragma once

#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda::sample {

// Philox4x32-10, as kernels/philox.cc; the first word of the block.
HEDDLE_DEVICE float Uniform(uint64_t seed, uint64_t counter, uint32_t stream) {
  uint32_t c[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), stream, 0};
  uint32_t k[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t c0 = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0];
    const uint32_t c2 = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1];
    c[0] = c0;
    c[1] = static_cast<uint32_t>(p1);
    c[2] = c2;
    c[3] = static_cast<uint32_t>(p0);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return (static_cast<float>(c[0] >> 9) + 0.5f) * 1.1920929e-7f;  // 2^-23
}

}  // namespace heddle::kernels::cuda::sample
