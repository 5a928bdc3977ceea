#include "tests/gpu/ptx/fragments.h"

#include <cstring>

namespace heddle::ptx {
namespace {

// Compilers make of it what the machine has.
constexpr int kVector = 8;
typedef float Vector __attribute__((vector_size(kVector * sizeof(float))));

void Load(const float* from, Vector* to) { std::memcpy(to, from, sizeof(*to)); }

// Register i of a lane holds row lane / 4, with 8 more for the second pair of each 8 columns.
int SumPlace(int i, int lane, int columns) {
  const int row = lane / 4 + (i / 2 % 2) * 8;
  return row * columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

}  // namespace

void LoadFragmentA(Warp& warp, const std::vector<Operand>& registers, SmallFloat type,
                   FragmentA* a) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t* pairs = warp.Row<uint32_t>(registers[static_cast<size_t>(i)]);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int row = lane / 4 + i % 2 * 8;
      const int k = lane % 4 * 2 + i / 2 * 8;
      float* place = a->data() + k * kFragmentRows + row;
      place[0] = FloatOf(static_cast<uint16_t>(pairs[lane]), type);
      place[kFragmentRows] = FloatOf(static_cast<uint16_t>(pairs[lane] >> 16), type);
    }
  }
}

void LoadSums(Warp& warp, const std::vector<Operand>& registers, int columns, Sums* sums) {
  for (int i = 0; i < columns / 2; ++i) {
    const float* row = warp.Row<float>(registers[static_cast<size_t>(i)]);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      sums->data()[SumPlace(i, lane, columns)] = row[lane];
    }
  }
}

void StoreSums(Warp& warp, const std::vector<Operand>& registers, int columns, const Sums& sums) {
  for (int i = 0; i < columns / 2; ++i) {
    float* row = warp.Row<float>(registers[static_cast<size_t>(i)]);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      row[lane] = sums.data()[SumPlace(i, lane, columns)];
    }
  }
}

// Four rows at a time share what is loaded of b.
void MultiplyAdd(const FragmentA& a, const FragmentB& b, int columns, Sums* sums) {
  constexpr int kRows = 4;
  for (int row = 0; row < kFragmentRows; row += kRows) {
    for (int column = 0; column < columns; column += kVector) {
      float* place = sums->data() + row * columns + column;
      Vector sum[kRows];
      for (int i = 0; i < kRows; ++i) Load(place + i * columns, &sum[i]);
      for (int k = 0; k < kFragmentDepth; ++k) {
        Vector right;
        Load(b.data() + k * columns + column, &right);
        const float* left = a.data() + k * kFragmentRows + row;
        for (int i = 0; i < kRows; ++i) sum[i] += left[i] * right;
      }
      for (int i = 0; i < kRows; ++i) std::memcpy(place + i * columns, &sum[i], sizeof(Vector));
    }
  }
}

}  // namespace heddle::ptx
