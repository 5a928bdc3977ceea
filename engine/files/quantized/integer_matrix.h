// The common part of matrices of small unsigned integers with a scale and a zero point per group of
// columns: the order of columns, and writing them as kInt4* or kInt8* rows.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/files/quantized/tensor_set.h"
#include "kernels/row_picker.h"

namespace heddle::engine {

class IntegerMatrix : public QuantizedMatrix, public kernels::RowPicker {
 public:
  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const final;
  void PickRows(std::span<const int32_t> rows, uint8_t* out) const final;

  // Chooses dtype and type_name once rows, cols, bits_ and group_ are set. UNIMPLEMENTED for widths
  // and groups that the kernels lack.
  absl::Status Finish(const CheckpointTensor& tensor, std::string_view method,
                      const TensorSet& set);

  // Derives, from the group of each column (`groups` [cols]), an order in which groups are
  // contiguous.
  absl::Status SetOrder(const CheckpointTensor& tensor, std::span<const int32_t> groups,
                        const TensorSet& set);

 protected:
  // Codes of rows [begin, begin + count) in the natural order of columns: [count, cols].
  virtual void Codes(int64_t begin, int64_t count, uint8_t* out) const = 0;
  // The same of the rows with these numbers, which rise.
  virtual void PickCodes(std::span<const int32_t> picked, uint8_t* out) const;
  virtual float Scale(int64_t row, int64_t group) const = 0;
  virtual int32_t Zero(int64_t row, int64_t group) const = 0;  // 0 .. 2^bits - 1

  int32_t bits_ = 4;
  int64_t group_ = 0;  // columns

 private:
  // Writes rows of which the codes are `unpacked`; row_at(i) is the number of the i-th.
  template <typename RowAt>
  void WriteRows(std::span<const uint8_t> unpacked, const RowAt& row_at, uint8_t* out) const;
  void WriteRow(int64_t row, const uint8_t* codes, uint8_t* out) const;
};

// Element `index` of a little-endian stream of `bits`-wide numbers that begins at `words`; its
// 32-bit words are `stride` words apart.
inline uint32_t StreamElement(const std::byte* words, int64_t stride, int64_t index, int32_t bits) {
  auto word = [&](int64_t i) {
    uint32_t value;
    std::memcpy(&value, words + i * stride * 4, 4);
    return value;
  };
  const int64_t at = index * bits;
  const auto shift = static_cast<int32_t>(at % 32);
  uint64_t both = word(at / 32);
  if (shift + bits > 32) both |= static_cast<uint64_t>(word(at / 32 + 1)) << 32;
  return static_cast<uint32_t>(both >> shift) & ((1u << bits) - 1);
}

}  // namespace heddle::engine
