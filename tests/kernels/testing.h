// Shared parts of the op tests: the devices under test, seeded random matrices with strides and
// misalignment, weights of every format, and a paged batch builder.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace heddle::kernels::test {

// The seed of everything random here; a failing check names the case, and the case fixes the rest.
inline constexpr uint32_t kSeed = 20240607;

struct NamedDevice {
  std::string name;
  std::unique_ptr<Device> device;
};

inline constexpr DType kAllTypes[] = {
    DType::kF32,      DType::kF16,     DType::kBF16,    DType::kQ8_0,     DType::kQ4_0,
    DType::kQ4_1,     DType::kQ5_0,    DType::kQ5_1,    DType::kQ2_K,     DType::kQ3_K,
    DType::kQ4_K,     DType::kQ5_K,    DType::kQ6_K,    DType::kIQ4_NL,   DType::kIQ4_XS,
    DType::kMXFP4,    DType::kInt4G32, DType::kInt4G64, DType::kInt4G128, DType::kInt8G32,
    DType::kInt8G128, DType::kF8G32,   DType::kF8G128,  DType::kNF4,      DType::kTQ2_0,
    DType::kNVFP4,    DType::kFP4,     DType::kIQ1,     DType::kIQ2,      DType::kIQ3XXS,
    DType::kIQ3S};

// Every level that this machine has, each with `threads` threads.
std::vector<NamedDevice> CpuDevices(int32_t threads);

// Whether the level has instructions for products of BF16, to which it rounds activations then.
inline bool MultipliesBf16(const std::string& isa) { return isa == "avx512_bf16" || isa == "amx"; }

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(kSeed + seed) {}
  float Normal() { return normal_(engine_); }
  float Uniform(float lo, float hi) {
    return std::uniform_real_distribution<float>(lo, hi)(engine_);
  }
  int32_t Below(int32_t n) { return std::uniform_int_distribution<int32_t>(0, n - 1)(engine_); }
  std::vector<float> Normals(int64_t n);

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// A [rows, cols] matrix of floats whose rows lie `pad` apart and start `shift` floats past the
// allocation's start, so that kernels meet odd strides and alignments.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, int64_t pad = 0, int64_t shift = 0);
  static Matrix RandomOf(Random& random, int64_t rows, int64_t cols, int64_t pad = 0,
                         int64_t shift = 0);

  Tensor tensor() { return {values_.data() + shift_, rows_, cols_, cols_ + pad_}; }
  Tensor rows(int64_t begin, int64_t end) {
    return {at(begin, 0), end - begin, cols_, cols_ + pad_};
  }
  float* at(int64_t r, int64_t c) { return values_.data() + shift_ + r * (cols_ + pad_) + c; }
  float operator()(int64_t r, int64_t c) const {
    return values_[static_cast<size_t>(shift_ + r * (cols_ + pad_) + c)];
  }
  int64_t num_rows() const { return rows_; }
  int64_t num_cols() const { return cols_; }
  // True if the gaps between rows still hold what the constructor put there.
  bool GapsIntact() const;

 private:
  int64_t rows_, cols_, pad_, shift_;
  std::vector<float> values_;
};

// A checkpoint matrix in `dtype` of random values, and those values decoded.
struct TestWeight {
  std::vector<uint8_t> bytes;
  WeightSource source() const;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> decoded;  // [rows, cols]
};
// For formats beyond Q8_0 and Q4_0 the blocks themselves are random, with scales of like size.
TestWeight MakeWeight(Random& random, DType dtype, int64_t rows, int64_t cols);
// The same with one scale for all blocks of a row, and no zero points. REQUIRES: kF8G32, kF8G128,
// kInt8G32 or kInt8G128.
TestWeight MakeRowScaledWeight(Random& random, DType dtype, int64_t rows, int64_t cols);

// MakeWeight with one scale for each 128 rows and columns. REQUIRES: kF8G32 or kF8G128.
TestWeight MakeTileScaledWeight(Random& random, DType dtype, int64_t rows, int64_t cols);

// A batch of sequences with random contexts over a pool of shuffled pages, built span by span.
struct BatchSpec {
  struct Sequence {
    int32_t rows;
    int32_t context;        // includes the rows
    int32_t split_at = -1;  // > 0: a page ends early after so many positions (a fork)
  };
  std::vector<Sequence> sequences;
  int32_t page_tokens = 16;
};
struct TestBatch {
  explicit TestBatch(const BatchSpec& spec, uint32_t seed = 1);
  HostBatch view() const;
  int32_t num_pages = 0;
  std::vector<int32_t> token_ids, positions, q_begin, span_begin, span_page, span_tokens;
  std::vector<int32_t> context_len, logit_rows;
  std::vector<int64_t> kv_slot;
  std::vector<uint64_t> tree_mask;
  std::vector<int32_t> draw_of_row;
  std::vector<int32_t> piece_begin;
  std::vector<ContextPiece> pieces;
};

// A KV cache with storage, filled with random values in its type.
struct TestCache {
  TestCache(DType dtype, int32_t num_pages, int32_t page_tokens, int32_t n_kv_heads,
            int32_t head_dim, uint32_t seed);
  KvCacheView view;
  std::vector<uint8_t> keys, values;
};

// True if all elements are the same bits, NaN included.
bool SameBits(const Matrix& a, const Matrix& b);

}  // namespace heddle::kernels::test
