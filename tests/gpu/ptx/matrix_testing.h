// Matrices of small integers, so that products of them are exact, and the text of kernels on them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace heddle::ptx::test {

// [rows, columns] small integers.
struct Matrix {
  Matrix(int r, int c, unsigned seed) : rows(r), columns(c) {
    std::mt19937 random(seed);
    for (int i = 0; i < r * c; ++i) values.push_back(static_cast<float>(random() % 17) - 8);
  }
  float at(int r, int c) const { return values[static_cast<size_t>(r * columns + c)]; }
  int rows, columns;
  std::vector<float> values;
};

inline uint16_t BF16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

// Integers up to 2048.
inline uint16_t F16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x == 0) return 0;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | (((bits >> 23 & 0xFF) - 112) << 10) |
                               (bits >> 13 & 0x3FF));
}

inline uint16_t Small(float x, bool bf16) { return bf16 ? BF16(x) : F16(x); }

inline void Put(std::vector<uint8_t>& bytes, int at, uint16_t value) {
  const size_t end = (static_cast<size_t>(at) / 16 + 1) * 16;
  if (bytes.size() < end) bytes.resize(end);
  std::memcpy(bytes.data() + at, &value, 2);
}

// "{%x0,%x1,...}"
inline std::string Registers(const std::string& prefix, int begin, int count) {
  std::string list = "{";
  for (int i = 0; i < count; ++i) list += (i > 0 ? "," : "") + prefix + std::to_string(begin + i);
  return list + "}";
}

// Every thread stores registers prefix0.. to out[thread][count].
inline std::string StoreAll(const std::string& prefix, int count) {
  std::string text = "mul.lo.s32 %r60, %r1, " + std::to_string(4 * count) +
                     ";\ncvt.u64.u32 %rd60, %r60;\nadd.s64 %rd61, %rd2, %rd60;\n";
  const std::string type = prefix == "%f" ? "f32" : "u32";
  for (int i = 0; i < count; ++i) {
    text += "st.global." + type + " [%rd61+" + std::to_string(4 * i) + "], " + prefix +
            std::to_string(i + (prefix == "%f" ? 0 : 10)) + ";\n";
  }
  return text;
}

}  // namespace heddle::ptx::test
