// GGUF's formats of 1 to 3 bits, read into formats of the kernels, exactly.
//
// In the formats with grids (IQ1 to IQ3) a code names a row of a fixed table, which has the
// magnitudes of 8 or 4 columns; signs are apart. The kernels have a code for each column, an
// integer scale for each 16 or 32, and an F32 for 256. Source: the formats' definition by the
// dequantisers of the gguf package and of ggml.
#include <bit>
#include <cstring>
#include <utility>

#include "engine/files/quantized/gguf_grids.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace heddle::engine {
namespace {

using kernels::DType;

constexpr int kColumns = 256;  // of a block
constexpr int kRun = 32;       // columns

// A block taken apart; formats of the kernels are made of it.
struct Parts {
  float scale = 0;
  int8_t sub_scales[16] = {};
  uint8_t codes[kColumns] = {};
};

uint16_t HalfBits(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
uint32_t WordBits(const uint8_t* p) {
  return HalfBits(p) | static_cast<uint32_t>(HalfBits(p + 2)) << 16;
}
float Half(const uint8_t* p) { return kernels::F16ToF32(HalfBits(p)); }
int Nibble(const uint8_t* p, int i) { return (p[i / 2] >> (4 * (i % 2))) & 15; }
int8_t Odd(uint32_t scale) { return static_cast<int8_t>(2 * scale + 1); }

// The eighth sign makes the number of negative ones even.
uint8_t EightSigns(uint32_t seven) {
  return static_cast<uint8_t>(seven | (static_cast<uint32_t>(std::popcount(seven)) & 1u) << 7);
}

// Writes the codes of the columns of a grid's row: kBits of magnitude each, and the sign above.
template <int kBits>
void PutRow(uint16_t row, int columns, uint8_t signs, uint8_t* codes) {
  for (int i = 0; i < columns; ++i) {
    const int magnitude = (row >> (kBits * i)) & ((1 << kBits) - 1);
    codes[i] = static_cast<uint8_t>(magnitude | ((signs >> i) & 1) << kBits);
  }
}

// d * (s + 1/2) / 4 is d / 8 times an odd number.
void ReadIq2Xxs(const uint8_t* b, Parts* out) {
  out->scale = Half(b) / 8;
  for (int run = 0; run < 8; ++run) {
    const uint8_t* from = b + 2 + 8 * run;
    const uint32_t signs = WordBits(from + 4);
    out->sub_scales[2 * run] = out->sub_scales[2 * run + 1] = Odd(signs >> 28);
    for (int i = 0; i < 4; ++i) {
      PutRow<2>(kGridIq2Xxs[from[i]], 8, EightSigns((signs >> (7 * i)) & 127),
                out->codes + kRun * run + 8 * i);
    }
  }
}

void ReadIq2Xs(const uint8_t* b, Parts* out) {
  out->scale = Half(b) / 8;
  for (int s = 0; s < 16; ++s) out->sub_scales[s] = Odd(Nibble(b + 66, s));
  for (int i = 0; i < 32; ++i) {
    const uint16_t code = HalfBits(b + 2 + 2 * i);
    PutRow<2>(kGridIq2Xs[code & 511], 8, EightSigns(code >> 9), out->codes + 8 * i);
  }
}

void ReadIq2S(const uint8_t* b, Parts* out) {
  const uint8_t* signs = b + 34;
  const uint8_t* high = b + 66;
  out->scale = Half(b) / 8;
  for (int s = 0; s < 16; ++s) out->sub_scales[s] = Odd(Nibble(b + 74, s));
  for (int i = 0; i < 32; ++i) {
    const int row = b[2 + i] | ((high[i / 4] >> (2 * (i % 4))) & 3) << 8;
    PutRow<2>(kGridIq2S[row], 8, signs[i], out->codes + 8 * i);
  }
}

// d * (s + 1/2) / 2 is d / 4 times an odd number.
void ReadIq3Xxs(const uint8_t* b, Parts* out) {
  out->scale = Half(b) / 4;
  for (int run = 0; run < 8; ++run) {
    const uint32_t word = WordBits(b + 66 + 4 * run);
    out->sub_scales[run] = Odd(word >> 28);
    for (int i = 0; i < 8; ++i) {
      const uint8_t signs = EightSigns((word >> (7 * (i / 2))) & 127);
      PutRow<3>(kGridIq3Xxs[b[2 + 8 * run + i]], 4, static_cast<uint8_t>(signs >> (4 * (i % 2))),
                out->codes + kRun * run + 4 * i);
    }
  }
}

void ReadIq3S(const uint8_t* b, Parts* out) {
  const uint8_t* high = b + 66;
  const uint8_t* signs = b + 74;
  out->scale = Half(b);
  for (int s = 0; s < 8; ++s) out->sub_scales[s] = Odd(Nibble(b + 106, s));
  for (int i = 0; i < 64; ++i) {
    const int row = b[2 + i] | ((high[i / 8] >> (i % 8)) & 1) << 8;
    PutRow<3>(kGridIq3S[row], 4, static_cast<uint8_t>(signs[i / 2] >> (4 * (i % 2))),
              out->codes + 4 * i);
  }
}

// IQ1 has no signs. The number that is added to all columns of a row takes their place: an eighth,
// or minus an eighth.
void PutIq1Row(int row, bool is_minus, uint8_t* codes) {
  PutRow<2>(kGridIq1[row], 8, is_minus ? 0xff : 0, codes);
}

void ReadIq1S(const uint8_t* b, Parts* out) {
  out->scale = Half(b) / 8;
  for (int run = 0; run < 8; ++run) {
    const uint16_t high = HalfBits(b + 34 + 2 * run);
    out->sub_scales[2 * run] = out->sub_scales[2 * run + 1] = Odd((high >> 12) & 7);
    for (int i = 0; i < 4; ++i) {
      PutIq1Row(b[2 + 4 * run + i] | ((high >> (3 * i)) & 7) << 8, (high & 0x8000) != 0,
                out->codes + kRun * run + 8 * i);
    }
  }
}

// The F16 is in the high nibbles of four words of scales.
void ReadIq1M(const uint8_t* b, Parts* out) {
  const uint8_t* high = b + 32;
  const uint8_t* scales = b + 48;
  uint16_t half = 0;
  for (int i = 0; i < 4; ++i) {
    half = static_cast<uint16_t>(half | (HalfBits(scales + 2 * i) >> 12) << (4 * i));
  }
  out->scale = kernels::F16ToF32(half) / 8;
  for (int s = 0; s < 16; ++s) {
    out->sub_scales[s] = Odd((HalfBits(scales + s / 4 * 2) >> (3 * (s % 4))) & 7);
  }
  for (int i = 0; i < 32; ++i) {
    const int more = Nibble(high, i);
    PutIq1Row(b[i] | (more & 7) << 8, (more & 8) != 0, out->codes + 8 * i);
  }
}

// Five digits of base 3 to a byte, as the fraction of 256 that they are: the byte times 3 is a
// digit and the rest. Digit n of 32 bytes is 32 columns, then of 16 bytes 16, then four digits of 4
// bytes.
void ReadTq1(const uint8_t* b, Parts* out) {
  uint8_t* to = out->codes;
  const auto put = [&to](const uint8_t* bytes, int count, int digits) {
    for (int n = 0, power = 1; n < digits; ++n, power *= 3) {
      for (int i = 0; i < count; ++i) {
        *to++ = static_cast<uint8_t>(((bytes[i] * power) & 255) * 3 >> 8);
      }
    }
  };
  put(b, 32, 5);
  put(b + 32, 16, 5);
  put(b + 48, 4, 4);
  out->scale = Half(b + 52);
}

// Low bits and high bits as in Q2_K and Q3_K.
void PutTwoBits(const uint8_t* codes, uint8_t* to) {
  std::memset(to, 0, kColumns / 4);
  for (int k = 0; k < kColumns; ++k) {
    uint8_t& byte = to[k / 128 * 32 + k % 32];
    byte = static_cast<uint8_t>(byte | (codes[k] & 3) << (k % 128 / 32 * 2));
  }
}
void PutThirdBits(const uint8_t* codes, uint8_t* to) {
  std::memset(to, 0, kColumns / 8);
  for (int k = 0; k < kColumns; ++k) {
    to[k % 32] = static_cast<uint8_t>(to[k % 32] | (codes[k] >> 2) << (k / 32));
  }
}
// 32 columns as in Q4_0.
void PutNibbles(const uint8_t* codes, uint8_t* to) {
  for (int j = 0; j < 16; ++j) to[j] = static_cast<uint8_t>(codes[j] | codes[j + 16] << 4);
}

template <void (*kRead)(const uint8_t*, Parts*)>
void ToThreeBits(const uint8_t* b, uint8_t* to) {
  Parts parts;
  kRead(b, &parts);
  std::memcpy(to, &parts.scale, 4);
  std::memcpy(to + 4, parts.sub_scales, 16);
  PutTwoBits(parts.codes, to + 20);
  PutThirdBits(parts.codes, to + 84);
}

template <void (*kRead)(const uint8_t*, Parts*)>
void ToFourBits(const uint8_t* b, uint8_t* to) {
  Parts parts;
  kRead(b, &parts);
  std::memcpy(to, &parts.scale, 4);
  std::memcpy(to + 4, parts.sub_scales, 8);
  for (int run = 0; run < 8; ++run) PutNibbles(parts.codes + kRun * run, to + 12 + 16 * run);
}

void ToTq2(const uint8_t* b, uint8_t* to) {
  Parts parts;
  ReadTq1(b, &parts);
  PutTwoBits(parts.codes, to);
  std::memcpy(to + 64, b + 52, 2);
}

// Q1_0: a bit for -1 or 1; Q2_0: two bits for -1 to 2. Blocks of int4 with a zero point of 1.
template <int kBits, int kBlock>
void ToInt4(const uint8_t* b, uint8_t* to) {
  const float scale = Half(b);
  std::memcpy(to, &scale, 4);
  to[4] = 1;
  uint8_t codes[kBlock];
  for (int k = 0; k < kBlock; ++k) {
    const int code = (b[2 + k * kBits / 8] >> (k * kBits % 8)) & ((1 << kBits) - 1);
    codes[k] = static_cast<uint8_t>(kBits == 1 ? 2 * code : code);
  }
  for (int k = 0; k < kBlock; k += kRun) PutNibbles(codes + k, to + 5 + k / 2);
}

struct Source {
  std::string_view type;
  int32_t block_bytes;  // in the file
  DType dtype;          // with blocks of as many columns
  void (*repack)(const uint8_t* from, uint8_t* to);
};
constexpr Source kSources[] = {
    {"IQ1_S", 50, DType::kIQ1, ToThreeBits<ReadIq1S>},
    {"IQ1_M", 56, DType::kIQ1, ToThreeBits<ReadIq1M>},
    {"IQ2_XXS", 66, DType::kIQ2, ToThreeBits<ReadIq2Xxs>},
    {"IQ2_XS", 74, DType::kIQ2, ToThreeBits<ReadIq2Xs>},
    {"IQ2_S", 82, DType::kIQ2, ToThreeBits<ReadIq2S>},
    {"IQ3_XXS", 98, DType::kIQ3XXS, ToFourBits<ReadIq3Xxs>},
    {"IQ3_S", 110, DType::kIQ3S, ToFourBits<ReadIq3S>},
    {"TQ1_0", 54, DType::kTQ2_0, ToTq2},
    {"Q1_0", 18, DType::kInt4G128, ToInt4<1, 128>},
    {"Q2_0", 18, DType::kInt4G64, ToInt4<2, 64>},
};

class GgufCodes final : public QuantizedMatrix {
 public:
  GgufCodes(const CheckpointTensor& tensor, const Source& source) : source_(source) {
    name = tensor.name;
    type_name = tensor.type_name;
    dtype = source.dtype;
    cols = tensor.shape.back();
    rows = NumElements(tensor) / cols;
    code_bytes = tensor.data;
  }

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    const kernels::DTypeInfo& info = kernels::Info(dtype);
    const int64_t blocks = cols / info.block_elements;
    const auto* from = reinterpret_cast<const uint8_t*>(code_bytes.data());
    from += begin * blocks * source_.block_bytes;
    for (int64_t i = 0; i < count * blocks; ++i) {
      source_.repack(from, out);
      from += source_.block_bytes;
      out += info.block_bytes;
    }
  }

 private:
  const Source& source_;
};

}  // namespace

std::unique_ptr<QuantizedMatrix> ReadGgufCodes(const CheckpointTensor& tensor) {
  for (const Source& source : kSources) {
    if (source.type == tensor.type_name) return std::make_unique<GgufCodes>(tensor, source);
  }
  return nullptr;
}

}  // namespace heddle::engine
