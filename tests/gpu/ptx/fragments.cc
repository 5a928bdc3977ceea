#include "tests/gpu/ptx/fragments.h"

#include <cstring>

namespace heddle::ptx {
namespace {

// Compilers use the machine's vectors for it.
constexpr int kVector = 8;
typedef float Vector __attribute__((vector_size(kVector * sizeof(float))));

void Load(const float* from, Vector* to) { std::memcpy(to, from, sizeof(*to)); }

// A lane is 4 * group + pair: the group is a row, the pair two neighbours.
constexpr int kGroups = 8;
constexpr int kPairs = 4;

template <float (*kConvert)(uint16_t)>
void ConvertPairs(const uint32_t* pairs, float* low, float* high) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    low[lane] = kConvert(static_cast<uint16_t>(pairs[lane]));
    high[lane] = kConvert(static_cast<uint16_t>(pairs[lane] >> 16));
  }
}

void Convert(const uint32_t* pairs, SmallFloat type, float* low, float* high) {
  if (type == SmallFloat::kBF16) {
    ConvertPairs<FloatOfBF16>(pairs, low, high);
  } else {
    ConvertPairs<FloatOfF16>(pairs, low, high);
  }
}

// Where the first group's first pair has its element of register i of the sums: the second two of
// four registers are 8 rows below, each four are 8 columns further.
int FirstPlace(int i, int columns) { return i / 2 % 2 * 8 * columns + i / 4 * 8 + i % 2; }

}  // namespace

void LoadFragmentA(Warp& warp, const std::vector<Operand>& registers, SmallFloat type,
                   FragmentA* a) {
  for (int i = 0; i < 4; ++i) {
    float low[kWarpLanes], high[kWarpLanes];
    Convert(warp.Row<uint32_t>(registers[static_cast<size_t>(i)]), type, low, high);
    float* to = a->data() + i / 2 * 8 * kFragmentRows + i % 2 * 8;
    for (int group = 0; group < kGroups; ++group) {
      for (int pair = 0; pair < kPairs; ++pair) {
        float* place = to + 2 * pair * kFragmentRows + group;
        place[0] = low[group * kPairs + pair];
        place[kFragmentRows] = high[group * kPairs + pair];
      }
    }
  }
}

void LoadFragmentB(Warp& warp, const std::vector<Operand>& registers, SmallFloat type,
                   FragmentB* b) {
  for (int i = 0; i < 2; ++i) {
    float low[kWarpLanes], high[kWarpLanes];
    Convert(warp.Row<uint32_t>(registers[static_cast<size_t>(i)]), type, low, high);
    float* to = b->data() + i * 8 * kMmaColumns;
    for (int group = 0; group < kGroups; ++group) {
      for (int pair = 0; pair < kPairs; ++pair) {
        float* place = to + 2 * pair * kMmaColumns + group;
        place[0] = low[group * kPairs + pair];
        place[kMmaColumns] = high[group * kPairs + pair];
      }
    }
  }
}

void LoadSums(Warp& warp, const std::vector<Operand>& registers, int columns, Sums* sums) {
  for (int i = 0; i < columns / 2; ++i) {
    const float* row = warp.Row<float>(registers[static_cast<size_t>(i)]);
    float* to = sums->data() + FirstPlace(i, columns);
    for (int group = 0; group < kGroups; ++group) {
      for (int pair = 0; pair < kPairs; ++pair) {
        to[group * columns + 2 * pair] = row[group * kPairs + pair];
      }
    }
  }
}

void StoreSums(Warp& warp, const std::vector<Operand>& registers, int columns, const Sums& sums) {
  for (int i = 0; i < columns / 2; ++i) {
    float* row = warp.Row<float>(registers[static_cast<size_t>(i)]);
    const float* from = sums.data() + FirstPlace(i, columns);
    for (int group = 0; group < kGroups; ++group) {
      for (int pair = 0; pair < kPairs; ++pair) {
        row[group * kPairs + pair] = from[group * columns + 2 * pair];
      }
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
