#include "tests/gpu/ptx/tensor_map.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace heddle::ptx {
namespace {

// CUtensorMapDataType from UINT8 on: 8, 16, 32 and 64-bit integers, F16, F32, F64, BF16, three
// kinds of 32-bit floats.
constexpr uint8_t kElementBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

uint64_t Seal(const TensorMap& map) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&map);
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (size_t i = sizeof(map.seal); i < sizeof(map); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001B3;
  }
  return hash;
}

std::string WrongKind(const TiledMapArguments& arguments) {
  if (arguments.data_type < 0 || arguments.data_type >= static_cast<int>(sizeof(kElementBytes))) {
    return absl::StrCat("data type ", arguments.data_type, " is not modelled");
  }
  if (arguments.rank < 1 || arguments.rank > kMaxMapRank) {
    return absl::StrCat("rank ", arguments.rank, " is not within 1 and 5");
  }
  if (arguments.interleave != 0) return "interleaved layouts are not modelled";
  if (arguments.swizzle < 0 || arguments.swizzle > 3) {
    return absl::StrCat("swizzle ", arguments.swizzle, " is not modelled");
  }
  if (arguments.l2_promotion < 0 || arguments.l2_promotion > 3) {
    return absl::StrCat("there is no L2 promotion ", arguments.l2_promotion);
  }
  if (arguments.fill != 0) return "only filling with zeros is modelled";
  return {};
}

std::string WrongTensor(const TiledMapArguments& arguments) {
  if (arguments.address == 0 || arguments.address % 16 != 0) {
    return "the address is not a multiple of 16";
  }
  for (uint32_t i = 0; i < arguments.rank; ++i) {
    if (arguments.sizes[i] == 0 || arguments.sizes[i] > uint64_t{1} << 32) {
      return absl::StrCat("size ", arguments.sizes[i], " is not within 1 and 2^32");
    }
  }
  uint64_t inner = arguments.sizes[0] * kElementBytes[arguments.data_type];
  for (uint32_t i = 0; i + 1 < arguments.rank; ++i) {
    const uint64_t stride = arguments.strides[i];
    if (stride % 16 != 0 || stride >= uint64_t{1} << 40) {
      return absl::StrCat("stride ", stride, " is not a multiple of 16 below 2^40");
    }
    if (stride < inner) {
      return absl::StrCat("stride ", stride, " is less than what it steps over, ", inner);
    }
    inner = stride * arguments.sizes[i + 1];
  }
  return {};
}

std::string WrongBox(const TiledMapArguments& arguments) {
  for (uint32_t i = 0; i < arguments.rank; ++i) {
    if (arguments.box[i] < 1 || arguments.box[i] > 256) {
      return absl::StrCat("box size ", arguments.box[i], " is not within 1 and 256");
    }
    if (arguments.element_strides[i] < 1 || arguments.element_strides[i] > 8) {
      return absl::StrCat("element stride ", arguments.element_strides[i],
                          " is not within 1 and 8");
    }
    if (arguments.element_strides[i] != 1) return "element strides are not modelled";
  }
  const int inner = static_cast<int>(arguments.box[0]) * kElementBytes[arguments.data_type];
  if (inner % 16 != 0) {
    return absl::StrCat("the box's rows of ", inner, " bytes are not multiples of 16");
  }
  const auto swizzle = static_cast<MapSwizzle>(arguments.swizzle);
  if (swizzle != MapSwizzle::kNone && inner > SwizzleSpan(swizzle)) {
    return absl::StrCat("the box's rows of ", inner, " bytes are wider than the swizzle's ",
                        SwizzleSpan(swizzle));
  }
  return {};
}

}  // namespace

int64_t TensorMap::NumRows() const {
  int64_t rows = 1;
  for (int i = 1; i < rank; ++i) rows *= box[static_cast<size_t>(i)];
  return rows;
}

bool EncodeTiledMap(const TiledMapArguments& arguments, void* map, std::string* error) {
  *error = WrongKind(arguments);
  if (error->empty()) *error = WrongTensor(arguments);
  if (error->empty()) *error = WrongBox(arguments);
  if (error->empty() && reinterpret_cast<uintptr_t>(map) % kMapAlignment != 0) {
    *error = "the map itself is not aligned to 64 bytes";
  }
  if (!error->empty()) return false;

  TensorMap encoded;
  std::memset(&encoded, 0, sizeof(encoded));
  encoded.address = arguments.address;
  encoded.rank = static_cast<uint8_t>(arguments.rank);
  encoded.swizzle = static_cast<MapSwizzle>(arguments.swizzle);
  for (uint32_t i = 0; i < arguments.rank; ++i) {
    encoded.strides[i] = i == 0 ? kElementBytes[arguments.data_type] : arguments.strides[i - 1];
    encoded.last[i] = static_cast<uint32_t>(arguments.sizes[i] - 1);
    encoded.box[i] = static_cast<uint16_t>(arguments.box[i]);
  }
  encoded.seal = Seal(encoded);
  std::memcpy(map, &encoded, sizeof(encoded));
  return true;
}

bool DecodeMap(const void* map, TensorMap* decoded) {
  std::memcpy(decoded, map, sizeof(*decoded));
  return decoded->seal == Seal(*decoded);
}

int SwizzleSpan(MapSwizzle swizzle) { return 16 << static_cast<int>(swizzle); }

uint32_t SwizzledAddress(uint32_t address, int span) {
  const auto pieces = static_cast<uint32_t>(span) / 16;
  return address ^ (address >> 7 & (pieces - 1)) << 4;
}

}  // namespace heddle::ptx
