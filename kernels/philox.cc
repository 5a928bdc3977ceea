#include "kernels/philox.h"

#include "kernels/sample.h"

namespace heddle::kernels {
namespace {

// Multipliers and Weyl constants of Philox4x32 (Salmon et al. 2011, table 2 and section 4).
constexpr uint32_t kMultiplier0 = 0xD2511F53;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * counter[0];
    uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

float CounterUniform(uint64_t seed, uint64_t counter, uint32_t stream) {
  std::array<uint32_t, 4> bits =
      Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), stream, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  // Maps to the middle of one of 2^23 equal parts: neither 0 nor 1, and exact in F32.
  return (static_cast<float>(bits[0] >> 9) + 0.5f) * 0x1p-23f;
}

}  // namespace heddle::kernels
