// The processor's tiles (Intel AMX): eight registers of up to 16 rows of 64 bytes. tiles_plain.h
// has the same names for any processor; linear_tiles.h is written in them.
//   Configure      registers kC and kA have `rows` rows, 1 to 16, kB has 16, and all hold zeros
//   Clear          a register becomes zeros
//   Load, Store    a register from or to rows of 64 bytes, `stride` bytes apart
//   AddBf16        C [m][n] += A [m][k] B [k][n]: pairs of BF16 in 32 bits, F32 sums
//   Release        ends the use of all registers
// The registers belong to the thread: the system saves them when threads change places. Whoever has
// them configured sees to it that they are released, because tiles in use make such a change
// slower.
//
// Numerics of AddBf16, from the instruction (Intel SDM, TDPBF16PS): a tile's even and odd columns
// are summed apart, in order and from zero, each product added with one rounding to nearest even;
// the two sums are added to each other, and then to C. Denormal inputs and results count as zero.
// Everything has internal linkage: see vec_avx512.h.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

// Sums, rows of x and columns of the panel: [i] are the two that a kernel works on at a time.
constexpr int kC = 0;  // four of them
constexpr int kA = 4;
constexpr int kB = 6;

// The operand of ldtilecfg.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// By the rows of x.
struct AllTileShapes {
  TileShapes of_rows[17];

  constexpr AllTileShapes() {
    for (int rows = 0; rows <= 16; ++rows) {
      for (int i = 0; i < 8; ++i) {
        of_rows[rows].row_bytes[i] = 64;
        of_rows[rows].rows[i] = static_cast<uint8_t>(i < kB ? rows : 16);
      }
    }
  }
};
constexpr AllTileShapes kTileShapes;

class AmxTiles {
 public:
  void Configure(int32_t rows) { asm volatile("ldtilecfg %0" ::"m"(kTileShapes.of_rows[rows])); }
  void Release() { asm volatile("tilerelease"); }

  template <int kTile>
  void Clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  void Load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void Store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kSums, int kRowsOfX, int kColumns>
  void AddBf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRowsOfX),
                 "i"(kColumns));
  }
};

}  // namespace
}  // namespace heddle::kernels::cpu
