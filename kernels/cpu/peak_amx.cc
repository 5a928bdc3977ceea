// Peak rate of tdpbf16ps: products of tiles of BF16 pairs, added to F32.
#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tiles_amx.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int64_t kFlopsOfTile = 16 * 16 * 32 * 2;

// A round is a quarter of what a kernel does in a step, so that a million take some 20 ms.
float Bf16Rounds(int64_t rounds) {
  AmxTiles tiles;
  tiles.Configure(16);
  for (int64_t r = 0; r < rounds; r += 4) {
    tiles.AddBf16<kC, kA, kB>();
    tiles.AddBf16<kC + 1, kA, kB + 1>();
    tiles.AddBf16<kC + 2, kA + 1, kB>();
    tiles.AddBf16<kC + 3, kA + 1, kB + 1>();
  }
  float sums[16][16];
  tiles.Store<kC>(sums, 64);
  tiles.Release();
  return sums[0][0];
}

}  // namespace

extern const Bf16PeakKernels kPeakAmx;
const Bf16PeakKernels kPeakAmx = {Bf16Rounds, kFlopsOfTile};

}  // namespace heddle::kernels::cpu
