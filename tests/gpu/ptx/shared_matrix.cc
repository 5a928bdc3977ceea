#include "tests/gpu/ptx/shared_matrix.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/under_way.h"

namespace heddle::ptx {
namespace {

constexpr int kPieceBytes = 16;
constexpr int kPieceElements = 8;
constexpr int kDepth = 16;  // K of an instruction on 16-bit elements

// Bits that the format has no field for: 14-15, 30-31, 46-48, 52-61.
constexpr uint64_t kReserved =
    uint64_t{3} << 14 | uint64_t{3} << 30 | uint64_t{7} << 46 | uint64_t{0x3FF} << 52;

MapSwizzle DecodeSwizzle(uint64_t descriptor) {
  constexpr MapSwizzle kModes[] = {MapSwizzle::kNone, MapSwizzle::k128Bytes, MapSwizzle::k64Bytes,
                                   MapSwizzle::k32Bytes};
  return kModes[descriptor >> 62];
}

// 14 bits that stand for bytes: (x & 0x3FFFF) >> 4.
uint32_t DecodeBytes(uint64_t descriptor, int shift) {
  return static_cast<uint32_t>(descriptor >> shift & 0x3FFF) << 4;
}

template <float (*kConvert)(uint16_t)>
void ConvertPiece(const uint8_t* piece, int step, float* to) {
  uint16_t bits[kPieceElements];
  std::memcpy(bits, piece, sizeof(bits));
  for (int i = 0; i < kPieceElements; ++i) to[i * step] = kConvert(bits[i]);
}

}  // namespace

uint32_t SharedMatrix::Piece(int mn, int k) const {
  const auto span = static_cast<uint32_t>(SwizzleSpan(swizzle));
  const bool none = swizzle == MapSwizzle::kNone;
  const auto m = static_cast<uint32_t>(mn), d = static_cast<uint32_t>(k);
  uint32_t offset;
  if (mn_major && none) {
    offset = m / 8 * stride + d % 8 * kPieceBytes + d / 8 * leading;
  } else if (mn_major) {
    const uint32_t width = span / kPieceBytes;
    offset = m / 8 % width * kPieceBytes + m / 8 / width * leading + d % 8 * span + d / 8 * stride;
  } else {
    const uint32_t step = none ? leading : kPieceBytes;
    offset = m % 8 * span + m / 8 * stride + d / 8 * step;
  }
  return none ? start + offset : SwizzledAddress(start + offset, static_cast<int>(span));
}

std::string DecodeDescriptor(uint64_t descriptor, bool mn_major, int mn_count,
                             SharedMatrix* matrix) {
  *matrix = {.start = DecodeBytes(descriptor, 0),
             .leading = DecodeBytes(descriptor, 16),
             .stride = DecodeBytes(descriptor, 32),
             .base_offset = static_cast<uint32_t>(descriptor >> 49 & 7),
             .swizzle = DecodeSwizzle(descriptor),
             .mn_major = mn_major};
  if ((descriptor & kReserved) != 0) {
    return absl::StrCat("descriptor 0x", absl::Hex(descriptor), " has bits outside of its fields");
  }
  if (matrix->swizzle == MapSwizzle::kNone) return {};
  // The base offset is for patterns that begin elsewhere than at multiples of 8 spans; start
  // addresses move within the pattern's first row, along K or along M/N.
  const auto span = static_cast<uint32_t>(SwizzleSpan(matrix->swizzle));
  if (matrix->base_offset != 0 || matrix->start / span % 8 != 0) {
    return absl::StrCat("start ", matrix->start, " with base offset ", matrix->base_offset,
                        ": patterns that do not begin at a multiple of ", 8 * span,
                        " bytes are not modelled");
  }
  const uint32_t side_by_side = 2 * static_cast<uint32_t>(mn_major ? mn_count : kDepth);
  if (matrix->start % span != 0 && matrix->start % span + side_by_side > span) {
    return absl::StrCat("start ", matrix->start, ": the matrix leaves the swizzle's rows of ", span,
                        " bytes");
  }
  return {};
}

bool LoadMatrix(Warp& warp, const SharedMatrix& matrix, SmallFloat type, int mn_begin, int mn_count,
                float* to) {
  const int mn_step = matrix.mn_major ? kPieceElements : 1;
  const int k_step = matrix.mn_major ? 1 : kPieceElements;
  const int step = matrix.mn_major ? 1 : mn_count;
  const uint8_t* shared = warp.block().shared().data();
  for (int k = 0; k < kDepth; k += k_step) {
    for (int mn = 0; mn < mn_count; mn += mn_step) {
      const uint32_t address = matrix.Piece(mn_begin + mn, k);
      if (!CheckAsyncProxy(warp, address, kPieceBytes, /*lane=*/-1)) return false;
      const uint8_t* piece = shared + (address - kSharedBase);
      float* place = to + k * mn_count + mn;
      if (type == SmallFloat::kBF16) {
        ConvertPiece<FloatOfBF16>(piece, step, place);
      } else {
        ConvertPiece<FloatOfF16>(piece, step, place);
      }
    }
  }
  return true;
}

}  // namespace heddle::ptx
