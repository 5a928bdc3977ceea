#include "tests/kernels/testing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "kernels/kv_element.h"

namespace heddle::kernels::test {
namespace {

constexpr float kGap = -12345.0f;

// Encodes one block of 32 values in GGUF's bytes, by its documentation of the two formats.
void EncodeBlock(DType dtype, const float* x, uint8_t* out) {
  bool q8 = dtype == DType::kQ8_0;
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  uint16_t scale_bits = F32ToF16(largest / (q8 ? 127.0f : 7.0f));
  float scale = F16ToF32(scale_bits);
  float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  std::memcpy(out, &scale_bits, 2);
  auto quant = [&](int i, int lo, int hi) {
    return std::clamp(static_cast<int>(std::lround(x[i] * inverse)), lo, hi);
  };
  for (int i = 0; q8 && i < 32; ++i) out[2 + i] = static_cast<uint8_t>(quant(i, -128, 127));
  for (int i = 0; !q8 && i < 16; ++i) {
    out[2 + i] = static_cast<uint8_t>((quant(i, -8, 7) + 8) | ((quant(i + 16, -8, 7) + 8) << 4));
  }
}

// Makes random bytes with sane scales, for the formats that only a search can encode.
void RandomBlock(Random& random, DType dtype, uint8_t* out) {
  const int32_t bytes = Info(dtype).block_bytes;
  for (int32_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(random.Below(256));
  auto half = [&](int32_t at) {
    uint16_t bits = F32ToF16(random.Uniform(0.01f, 0.05f));
    std::memcpy(out + at, &bits, 2);
  };
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      half(0);
      return half(2);
    case DType::kQ2_K:
      half(80);
      return half(82);
    case DType::kQ3_K:
      return half(108);
    case DType::kQ6_K:
      return half(208);
    case DType::kTQ2_0:
      return half(64);
    case DType::kMXFP4:
      out[0] = static_cast<uint8_t>(118 + random.Below(8));
      return;
    default:
      break;
  }
  if (dtype < DType::kInt4G32) return half(0);
  const float scale = random.Uniform(0.01f, 0.05f);
  std::memcpy(out, &scale, 4);
  if (dtype < DType::kF8G32) out[4] = static_cast<uint8_t>(random.Below(16));
  if (dtype >= DType::kIQ1) {  // scales as in files
    for (int32_t i = 4; i < 20; ++i) out[i] = static_cast<uint8_t>(out[i] & 31);
    return;
  }
  if (dtype == DType::kNVFP4) {  // scales from zero over 1/512 up to 1.875
    for (int32_t i = 4; i < 8; ++i) out[i] = static_cast<uint8_t>(random.Below(64));
  }
  for (int32_t i = 4; i < bytes; ++i) {  // no NaN
    if (dtype < DType::kNF4 && dtype >= DType::kF8G32 && (out[i] & 0x7f) == 0x7f) out[i] ^= 1;
  }
}

}  // namespace

std::vector<NamedDevice> CpuDevices(int32_t threads) {
  std::vector<NamedDevice> devices;
  for (const char* isa :
       {"portable", "avx2", "avx2_vnni", "avx512_bw", "avx512", "avx512_bf16", "amx"}) {
    auto device = CreateCpuDevice({threads, isa, false});
    if (device.ok()) devices.push_back({isa, std::move(device).value()});
  }
  return devices;
}

std::vector<float> Random::Normals(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = Normal();
  return values;
}

Matrix::Matrix(int64_t rows, int64_t cols, int64_t pad, int64_t shift)
    : rows_(rows),
      cols_(cols),
      pad_(pad),
      shift_(shift),
      values_(static_cast<size_t>(rows * (cols + pad) + shift), kGap) {
  for (int64_t r = 0; r < rows; ++r) std::fill_n(at(r, 0), cols, 0.0f);
}

Matrix Matrix::RandomOf(Random& random, int64_t rows, int64_t cols, int64_t pad, int64_t shift) {
  Matrix matrix(rows, cols, pad, shift);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) *matrix.at(r, c) = random.Normal();
  }
  return matrix;
}

bool Matrix::GapsIntact() const {
  bool intact = true;
  for (int64_t i = 0; i < shift_; ++i) intact &= values_[static_cast<size_t>(i)] == kGap;
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = cols_; c < cols_ + pad_; ++c) intact &= (*this)(r, c) == kGap;
  }
  return intact;
}

WeightSource TestWeight::source() const { return {bytes.data(), dtype, rows, cols, "test weight"}; }

TestWeight MakeWeight(Random& random, DType dtype, int64_t rows, int64_t cols) {
  TestWeight weight;
  weight.dtype = dtype;
  weight.rows = rows;
  weight.cols = cols;
  int64_t row_bytes = RowBytes(dtype, cols);
  weight.bytes.resize(static_cast<size_t>(rows * row_bytes));
  weight.decoded.resize(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> values = random.Normals(cols);
    uint8_t* out = weight.bytes.data() + r * row_bytes;
    const int32_t columns = Info(dtype).block_elements;
    if (dtype > DType::kQ4_0) {
      for (int64_t b = 0; b < cols / columns; ++b) {
        RandomBlock(random, dtype, out + b * Info(dtype).block_bytes);
      }
    } else if (dtype == DType::kQ8_0 || dtype == DType::kQ4_0) {
      int32_t block = Info(dtype).block_bytes;
      for (int64_t b = 0; b < cols / 32; ++b) EncodeBlock(dtype, &values[b * 32], out + b * block);
    } else {
      for (int64_t c = 0; c < cols; ++c) StoreElement(dtype, out, c, values[c]);
    }
    DequantizeRow(dtype, out, cols, weight.decoded.data() + r * cols);
  }
  return weight;
}

TestWeight MakeRowScaledWeight(Random& random, DType dtype, int64_t rows, int64_t cols) {
  TestWeight weight = MakeWeight(random, dtype, rows, cols);
  const DTypeInfo& info = Info(dtype);
  const bool is_int = dtype == DType::kInt8G32 || dtype == DType::kInt8G128;
  const int64_t row_bytes = RowBytes(dtype, cols);
  for (int64_t r = 0; r < rows; ++r) {
    uint8_t* row = weight.bytes.data() + r * row_bytes;
    for (int64_t at = 0; at < row_bytes; at += info.block_bytes) {
      std::memcpy(row + at, row, 4);
      if (is_int) row[at + 4] = 0;
    }
    DequantizeRow(dtype, row, cols, weight.decoded.data() + r * cols);
  }
  return weight;
}

TestWeight MakeTileScaledWeight(Random& random, DType dtype, int64_t rows, int64_t cols) {
  TestWeight weight = MakeWeight(random, dtype, rows, cols);
  const DTypeInfo& info = Info(dtype);
  const int64_t row_bytes = RowBytes(dtype, cols);
  for (int64_t r = 0; r < rows; ++r) {
    uint8_t* row = weight.bytes.data() + r * row_bytes;
    const uint8_t* first = weight.bytes.data() + r / 128 * 128 * row_bytes;
    for (int64_t k = 0; k < cols; k += info.block_elements) {
      std::memcpy(row + k / info.block_elements * info.block_bytes,
                  first + k / 128 * 128 / info.block_elements * info.block_bytes, 4);
    }
    DequantizeRow(dtype, row, cols, weight.decoded.data() + r * cols);
  }
  return weight;
}

TestBatch::TestBatch(const BatchSpec& spec, uint32_t seed) {
  std::vector<int32_t> free_pages;
  for (const auto& sequence : spec.sequences) {
    num_pages += (sequence.context + spec.page_tokens - 1) / spec.page_tokens + 2;
  }
  free_pages.resize(static_cast<size_t>(num_pages));
  std::iota(free_pages.begin(), free_pages.end(), 0);
  std::shuffle(free_pages.begin(), free_pages.end(), std::mt19937(kSeed + seed));
  q_begin.push_back(0);
  span_begin.push_back(0);
  for (const auto& sequence : spec.sequences) {
    std::vector<int64_t> slots;
    for (int32_t done = 0; done < sequence.context;) {
      int32_t count = std::min(spec.page_tokens, sequence.context - done);
      if (done < sequence.split_at) count = std::min(count, sequence.split_at - done);
      int32_t page = free_pages.back();
      free_pages.pop_back();
      span_page.push_back(page);
      span_tokens.push_back(count);
      for (int32_t i = 0; i < count; ++i) slots.push_back(int64_t{page} * spec.page_tokens + i);
      done += count;
    }
    for (int32_t i = 0; i < sequence.rows; ++i) {
      int32_t position = sequence.context - sequence.rows + i;
      token_ids.push_back(position % 7);
      positions.push_back(position);
      kv_slot.push_back(slots[static_cast<size_t>(position)]);
    }
    q_begin.push_back(static_cast<int32_t>(token_ids.size()));
    span_begin.push_back(static_cast<int32_t>(span_page.size()));
    context_len.push_back(sequence.context);
    logit_rows.push_back(q_begin.back() - 1);
  }
}

HostBatch TestBatch::view() const {
  HostBatch batch = {token_ids,   positions,   kv_slot,    q_begin,   span_begin, span_page,
                     span_tokens, context_len, logit_rows, tree_mask, draw_of_row};
  batch.piece_begin = piece_begin;
  batch.pieces = pieces;
  return batch;
}

TestCache::TestCache(DType dtype, int32_t num_pages, int32_t page_tokens, int32_t n_kv_heads,
                     int32_t head_dim, uint32_t seed) {
  view.dtype = dtype;
  view.num_pages = num_pages;
  view.page_tokens = page_tokens;
  view.n_kv_heads = n_kv_heads;
  view.head_dim = head_dim;
  // Pages with other layers' blocks between them, or adjacent ones.
  if (seed % 2 == 1) view.page_stride = view.block_bytes() + view.head_bytes();
  Random random(seed);
  for (auto* storage : {&keys, &values}) {
    storage->resize(static_cast<size_t>(view.PageOffset(num_pages)));
    for (int64_t slot = 0; slot < int64_t{num_pages} * page_tokens; ++slot) {
      for (int32_t h = 0; h < n_kv_heads; ++h) {
        StoreKvRow(view, storage->data(), slot, h, random.Normals(head_dim).data());
      }
    }
  }
  view.keys = keys.data();
  view.values = values.data();
}

bool SameBits(const Matrix& a, const Matrix& b) {
  HEDDLE_CHECK(a.num_rows() == b.num_rows() && a.num_cols() == b.num_cols(), "shapes differ");
  for (int64_t r = 0; r < a.num_rows(); ++r) {
    for (int64_t c = 0; c < a.num_cols(); ++c) {
      if (std::bit_cast<uint32_t>(a(r, c)) != std::bit_cast<uint32_t>(b(r, c))) return false;
    }
  }
  return true;
}

}  // namespace heddle::kernels::test
