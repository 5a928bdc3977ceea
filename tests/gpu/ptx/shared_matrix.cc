#include "tests/gpu/ptx/shared_matrix.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

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

// An aligned piece that the async proxy may read; nullptr after Fail.
const uint8_t* FindPiece(Warp& warp, uint32_t address) {
  Block& block = warp.block();
  const size_t piece = (address - kSharedBase) / kPieceBytes;
  const bool fine = address >= kSharedBase && (piece + 1) * kPieceBytes <= block.shared().size() &&
                    block.stored_by[piece] == 0;
  if (!fine && !CheckAsyncProxy(warp, address, kPieceBytes, /*lane=*/-1)) return nullptr;
  return block.shared().data() + (address - kSharedBase);
}

template <float (*kConvert)(uint16_t)>
bool LoadPieces(Warp& warp, const SharedMatrix& matrix, int mn_begin, int mn_count, float* to) {
  const int mn_step = matrix.mn_major ? kPieceElements : 1;
  const int k_step = matrix.mn_major ? 1 : kPieceElements;
  for (int k = 0; k < kDepth; k += k_step) {
    for (int mn = 0; mn < mn_count; mn += mn_step) {
      const uint8_t* piece = FindPiece(warp, matrix.Piece(mn_begin + mn, k));
      if (piece == nullptr) return false;
      uint16_t bits[kPieceElements];
      float values[kPieceElements];
      std::memcpy(bits, piece, sizeof(bits));
      for (int i = 0; i < kPieceElements; ++i) values[i] = kConvert(bits[i]);
      float* place = to + k * mn_count + mn;
      if (matrix.mn_major) {
        std::memcpy(place, values, sizeof(values));
      } else {
        for (int i = 0; i < kPieceElements; ++i) place[i * mn_count] = values[i];
      }
    }
  }
  return true;
}

}  // namespace

uint32_t SharedMatrix::Piece(int mn, int k) const {
  const auto m = static_cast<uint32_t>(mn), d = static_cast<uint32_t>(k);
  const int pieces = static_cast<int>(swizzle);  // of a span, as a power of two
  const uint32_t span = static_cast<uint32_t>(kPieceBytes) << pieces;
  if (swizzle == MapSwizzle::kNone) {
    const uint32_t row = mn_major ? d % 8 : m % 8;
    return start + m / 8 * stride + d / 8 * leading + row * kPieceBytes;
  }
  uint32_t offset;
  if (mn_major) {
    const uint32_t piece = m / 8 % (1u << pieces);
    offset = piece * kPieceBytes + (m / 8 >> pieces) * leading + d % 8 * span + d / 8 * stride;
  } else {
    offset = d / 8 * kPieceBytes + m % 8 * span + m / 8 * stride;
  }
  return SwizzledAddress(start + offset, static_cast<int>(span));
}

SharedRange SharedMatrix::Range(int mn_begin, int mn_count) const {
  constexpr uint32_t kLine = 128;
  const int mn_step = mn_major ? kPieceElements : 1;
  const int k_step = mn_major ? 1 : kPieceElements;
  SharedRange range = {UINT32_MAX, 0};
  for (int k = 0; k < kDepth; k += k_step) {
    for (int mn = 0; mn < mn_count; mn += mn_step) {
      const uint32_t piece = Piece(mn_begin + mn, k);
      range.begin = std::min(range.begin, piece);
      range.end = std::max(range.end, piece + kPieceBytes);
    }
  }
  if (swizzle == MapSwizzle::kNone) return range;
  return {range.begin / kLine * kLine, (range.end + kLine - 1) / kLine * kLine};
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
  return type == SmallFloat::kBF16 ? LoadPieces<FloatOfBF16>(warp, matrix, mn_begin, mn_count, to)
                                   : LoadPieces<FloatOfF16>(warp, matrix, mn_begin, mn_count, to);
}

bool LoadMatrixE4M3(Warp& warp, const SharedMatrix& matrix, int half, int mn_begin, int mn_count,
                    float* to) {
  for (int mn = 0; mn < mn_count; ++mn) {
    const uint8_t* piece = FindPiece(warp, matrix.Piece(mn_begin + mn, half * kPieceElements));
    if (piece == nullptr) return false;
    for (int i = 0; i < kPieceBytes; ++i) to[i * mn_count + mn] = FloatOfE4M3(piece[i]);
  }
  return true;
}

}  // namespace heddle::ptx
