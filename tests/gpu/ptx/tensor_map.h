// Tensor maps of this machine: what a driver keeps in the 128 opaque bytes of a CUtensorMap, here
// in an encoding of our own, with the restrictions that the driver documents for
// cuTensorMapEncodeTiled (CUDA driver API, "Tensor Map Object Management").
// Not modelled, and refused with a text that says so: interleaved layouts, element strides other
// than 1, packed types below 8 bits, filling with NaN.
// Thread-safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace heddle::ptx {

inline constexpr int kMapBytes = 128;
inline constexpr int kMapAlignment = 64;
inline constexpr int kMaxMapRank = 5;

// Numbers of CUtensorMapSwizzle. Span: bytes of a box's row, within which 16-byte pieces change
// places.
enum class MapSwizzle : uint8_t { kNone = 0, k32Bytes = 1, k64Bytes = 2, k128Bytes = 3 };

// Arguments of cuTensorMapEncodeTiled in its order; enumerations as the driver's numbers.
struct TiledMapArguments {
  int data_type;
  uint32_t rank;
  uint64_t address;
  const uint64_t* sizes;            // [rank] elements
  const uint64_t* strides;          // [rank - 1] bytes, of dimensions 1 and up
  const uint32_t* box;              // [rank] elements
  const uint32_t* element_strides;  // [rank]
  int interleave;
  int swizzle;
  int l2_promotion;
  int fill;
};

struct alignas(kMapAlignment) TensorMap {
  uint64_t seal;  // of all other bytes
  uint64_t address;
  std::array<uint64_t, kMaxMapRank> strides;  // bytes, strides[0] that of an element
  std::array<uint32_t, kMaxMapRank> last;     // index in each dimension, which may have 2^32
  std::array<uint16_t, kMaxMapRank> box;
  uint8_t rank;
  MapSwizzle swizzle;
  std::array<uint8_t, 40> unused;

  int64_t InnerBytes() const { return static_cast<int64_t>(strides[0]) * box[0]; }
  int64_t NumRows() const;  // of the box
  int64_t BoxBytes() const { return NumRows() * InnerBytes(); }
};
static_assert(sizeof(TensorMap) == kMapBytes);

// Writes 128 bytes to `map`. False: a driver would refuse, and `*error` says why.
bool EncodeTiledMap(const TiledMapArguments& arguments, void* map, std::string* error);

// False: these are not bytes that EncodeTiledMap has written.
bool DecodeMap(const void* map, TensorMap* decoded);

// Bytes that the swizzle spreads over and after which a row of the box begins anew; 16: none.
int SwizzleSpan(MapSwizzle swizzle);

// Where what an unswizzled layout has at `address` lies: pieces of 16 bytes change places within a
// span as the address bits from 128 bytes on say (ISA 5.5.7 "Swizzling Modes"). Shared memory's
// own addresses, so that a pattern begins at multiples of 8 spans.
uint32_t SwizzledAddress(uint32_t address, int span);

}  // namespace heddle::ptx
