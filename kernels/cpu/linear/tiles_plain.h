// The tiles of tiles_amx.h for any processor, in plain loops: what the instructions are documented
// to do, so that tests of linear_tiles.h run everywhere and compare the processor's bits with
// these.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

constexpr int kC = 0;
constexpr int kA = 4;
constexpr int kB = 6;

class PlainTiles {
 public:
  void Configure(int32_t rows) {
    std::memset(words_, 0, sizeof(words_));
    rows_ = rows;
  }
  void Release() { rows_ = 0; }

  template <int kTile>
  void Clear() {
    std::memset(words_[kTile], 0, sizeof(words_[kTile]));
  }
  template <int kTile>
  void Load(const void* from, int64_t stride) {
    for (int r = 0; r < RowsOf(kTile); ++r) {
      std::memcpy(words_[kTile][r], static_cast<const char*>(from) + r * stride, 64);
    }
  }
  template <int kTile>
  void Store(void* to, int64_t stride) {
    for (int r = 0; r < RowsOf(kTile); ++r) {
      std::memcpy(static_cast<char*>(to) + r * stride, words_[kTile][r], 64);
    }
  }
  template <int kSums, int kRowsOfX, int kColumns>
  void AddBf16() {
    for (int m = 0; m < rows_; ++m) {
      for (int n = 0; n < 16; ++n) {
        float sums[2] = {0, 0};
        for (int k = 0; k < 16; ++k) {
          const uint32_t x = words_[kRowsOfX][m][k];
          const uint32_t w = words_[kColumns][k][n];
          sums[0] = Flushed(std::fma(AsFloat(x << 16), AsFloat(w << 16), sums[0]));
          sums[1] = Flushed(std::fma(AsFloat(x & kOdd), AsFloat(w & kOdd), sums[1]));
        }
        const float sum = Flushed(sums[0] + sums[1]);
        const float total = Flushed(AsFloat(words_[kSums][m][n]) + sum);
        std::memcpy(&words_[kSums][m][n], &total, 4);
      }
    }
  }

 private:
  static constexpr uint32_t kOdd = 0xffff0000;

  static float Flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
  static float AsFloat(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return Flushed(x);
  }
  int RowsOf(int tile) const { return tile < kB ? rows_ : 16; }

  uint32_t words_[8][16][16] = {};
  int rows_ = 0;
};

}  // namespace
}  // namespace heddle::kernels::cpu
