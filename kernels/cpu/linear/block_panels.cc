#include "kernels/cpu/linear/block_panels.h"

#include <algorithm>
#include <cstring>

#include "kernels/block_codes.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int32_t kGroups = 8;  // of four columns

int32_t LowBits(const BlockTraits& t) { return t.code_bits < 4 ? 2 : t.code_bits < 8 ? 4 : 8; }
int32_t HighBits(const BlockTraits& t) { return t.code_bits - LowBits(t); }

// Offsets of the parts of a panel.
struct Layout {
  Layout(BlockFormat format, int32_t panel_rows) : traits(Traits(format)), rows(panel_rows) {
    subs = kPanelBlock / traits.sub_columns;
    scale_bytes = traits.scale == ScaleType::kF32 ? 4 : 2;
    header_bytes = rows * (scale_bytes + (traits.has_offset ? 2 : 0) + (traits.has_zero ? 1 : 0));
    low_plane = 0;
    if (traits.sub_scales != SubScales::kNone) low_plane = rows * subs;
    if (traits.sub_scales == SubScales::kInt8 && traits.has_offset) low_plane *= 2;
    high_plane = low_plane + LowBits(traits) * rows * 4;
    part_bytes = high_plane + HighBits(traits) * rows * 4;
    parts = traits.columns / kPanelBlock;
    block_bytes = header_bytes + parts * part_bytes;
  }

  const BlockTraits& traits;
  int32_t rows;
  int32_t subs;  // per 32 columns
  int32_t scale_bytes;
  int32_t header_bytes;
  int32_t low_plane;  // offset within a part of 32 columns
  int32_t high_plane;
  int32_t part_bytes;
  int32_t parts;
  int64_t block_bytes;
};

uint32_t LoadWord(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

// Stores bits [shift, shift + kBits) of 32 codes into a plane's words of row r.
template <int32_t kBits>
void PackPlaneOf(const uint8_t* codes, int32_t shift, int32_t rows, int32_t r, uint8_t* plane) {
  constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
  uint32_t words[kBits] = {};
  for (int32_t g = 0; g < kGroups; ++g) {
    uint32_t field = (LoadWord(codes + 4 * g) >> shift) & kMask;
    words[g % kBits] |= field << (kBits * (g / kBits));
  }
  for (int32_t w = 0; w < kBits; ++w) std::memcpy(plane + (w * rows + r) * 4, &words[w], 4);
}

// Every block of a model passes through here at load. Divisions by a width that is not a constant
// took most of that time (docs/benchmarks/loading.md).
void PackPlane(const uint8_t* codes, int32_t shift, int32_t bits, int32_t rows, int32_t r,
               uint8_t* plane) {
  switch (bits) {
    case 1:
      return PackPlaneOf<1>(codes, shift, rows, r, plane);
    case 2:
      return PackPlaneOf<2>(codes, shift, rows, r, plane);
    case 4:
      return PackPlaneOf<4>(codes, shift, rows, r, plane);
    default:
      return PackPlaneOf<8>(codes, shift, rows, r, plane);
  }
}

// The reverse of PackPlane: ORs the bits into the codes.
void UnpackPlane(const uint8_t* plane, int32_t shift, int32_t bits, int32_t rows, int32_t r,
                 uint8_t* codes) {
  const uint32_t mask = 0x01010101u * ((1u << bits) - 1);
  for (int32_t g = 0; g < kGroups; ++g) {
    uint32_t word = LoadWord(plane + (g % bits * rows + r) * 4);
    uint32_t field = LoadWord(codes + 4 * g) | ((word >> (bits * (g / bits))) & mask) << shift;
    std::memcpy(codes + 4 * g, &field, 4);
  }
}

void StoreHalf(uint16_t bits, uint8_t* to) { std::memcpy(to, &bits, 2); }
void StoreScale(ScaleType type, float scale, uint8_t* to) {
  if (type == ScaleType::kF32) std::memcpy(to, &scale, 4);
  if (type == ScaleType::kF16) StoreHalf(F32ToF16(scale), to);
  if (type == ScaleType::kBF16) StoreHalf(F32ToBF16(scale), to);
}
uint16_t LoadHalf(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return bits;
}
float LoadScale(ScaleType type, const uint8_t* from) {
  if (type == ScaleType::kF16) return F16ToF32(LoadHalf(from));
  if (type == ScaleType::kBF16) return BF16ToF32(LoadHalf(from));
  float scale;
  std::memcpy(&scale, from, 4);
  return scale;
}

void PackBlock(const Layout& layout, const BlockCodes& block, int32_t r, uint8_t* out) {
  const BlockTraits& t = layout.traits;
  const int32_t rows = layout.rows;
  StoreScale(t.scale, block.scale, out + r * layout.scale_bytes);
  uint8_t* rest = out + rows * layout.scale_bytes;
  if (t.has_offset) StoreHalf(F32ToF16(block.offset), rest + r * 2);
  if (t.has_zero) rest[r] = static_cast<uint8_t>(block.zero);
  uint8_t* part = out + layout.header_bytes;
  for (int32_t p = 0; p < layout.parts; ++p, part += layout.part_bytes) {
    for (int32_t h = 0; h < layout.subs && t.sub_scales != SubScales::kNone; ++h) {
      const int32_t s = p * layout.subs + h;
      auto scale = static_cast<uint8_t>(block.sub_scales[s]);
      if (t.sub_scales == SubScales::kNibbles) scale |= block.sub_offsets[s] << 4;
      part[h * rows + r] = scale;
      if (t.sub_scales == SubScales::kInt8 && t.has_offset) {
        part[(layout.subs + h) * rows + r] = block.sub_offsets[s];
      }
    }
    const uint8_t* codes = block.codes + p * kPanelBlock;
    PackPlane(codes, 0, LowBits(t), rows, r, part + layout.low_plane);
    if (HighBits(t) > 0) {
      PackPlane(codes, LowBits(t), HighBits(t), rows, r, part + layout.high_plane);
    }
  }
}

void UnpackPart(const Layout& layout, const uint8_t* part, int32_t r, const BlockCodes& header,
                float* out) {
  const BlockTraits& t = layout.traits;
  uint8_t codes[kPanelBlock] = {};
  UnpackPlane(part + layout.low_plane, 0, LowBits(t), layout.rows, r, codes);
  if (HighBits(t) > 0) {
    UnpackPlane(part + layout.high_plane, LowBits(t), HighBits(t), layout.rows, r, codes);
  }
  for (int32_t k = 0; k < kPanelBlock; ++k) {
    const int32_t h = k / t.sub_columns;
    float own_scale = header.scale;
    float own_offset = header.offset;
    if (t.sub_scales == SubScales::kNibbles) {
      own_scale *= static_cast<float>(part[h * layout.rows + r] & 15);
      own_offset *= static_cast<float>(part[h * layout.rows + r] >> 4);
    } else if (t.sub_scales != SubScales::kNone) {
      own_scale *= SubScaleF32(t, static_cast<int8_t>(part[h * layout.rows + r]));
      if (t.has_offset) {
        own_offset *= static_cast<float>(part[(layout.subs + h) * layout.rows + r]);
      }
    }
    out[k] = own_scale * CodeValueF32(t, codes[k], header.zero);
    if (t.has_offset) out[k] += own_offset;
  }
}

}  // namespace

int64_t BlockPanelBytes(BlockFormat format, int32_t panel_rows, int64_t cols) {
  Layout layout(format, panel_rows);
  return (cols / layout.traits.columns * layout.block_bytes + 63) / 64 * 64;
}

void PackBlockPanel(BlockFormat format, int32_t panel_rows, const void* source, int64_t row_bytes,
                    int32_t rows, int64_t cols, void* panel) {
  Layout layout(format, panel_rows);
  std::memset(panel, 0, static_cast<size_t>(BlockPanelBytes(format, panel_rows, cols)));
  const int64_t blocks = cols / layout.traits.columns;
  const int64_t source_bytes = row_bytes / std::max<int64_t>(blocks, 1);
  const auto* in = static_cast<const uint8_t*>(source);
  auto* out = static_cast<uint8_t*>(panel);
  for (int64_t b = 0; b < blocks; ++b, out += layout.block_bytes) {
    for (int32_t r = 0; r < rows; ++r) {
      BlockCodes block;
      ReadBlock(format, in + r * row_bytes + b * source_bytes, &block);
      PackBlock(layout, block, r, out);
    }
  }
}

void UnpackBlockPanel(BlockFormat format, int32_t panel_rows, const void* panel, int32_t row,
                      int64_t cols, float* out) {
  Layout layout(format, panel_rows);
  const BlockTraits& t = layout.traits;
  const auto* block = static_cast<const uint8_t*>(panel);
  for (int64_t begin = 0; begin < cols; begin += t.columns, block += layout.block_bytes) {
    BlockCodes header;
    header.scale = LoadScale(t.scale, block + row * layout.scale_bytes);
    const uint8_t* rest = block + layout.rows * layout.scale_bytes;
    if (t.has_offset) header.offset = F16ToF32(LoadHalf(rest + row * 2));
    if (t.has_zero) header.zero = static_cast<int8_t>(rest[row]);
    const uint8_t* part = block + layout.header_bytes;
    for (int32_t p = 0; p < layout.parts; ++p, part += layout.part_bytes) {
      UnpackPart(layout, part, row, header, out + begin + p * kPanelBlock);
    }
  }
}

}  // namespace heddle::kernels::cpu
