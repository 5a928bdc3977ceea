// A RowReader may also be a picker, which writes single rows about as fast as neighbouring ones.
// Without it, whoever wants some rows of a matrix whose codes lie transposed reads all of them.
#pragma once

#include <cstdint>
#include <span>

namespace heddle::kernels {

class RowPicker {
 public:
  virtual ~RowPicker() = default;
  // Writes the rows with these numbers, which rise, behind each other, RowBytes(dtype, cols) each.
  // Safe to call from any thread.
  virtual void PickRows(std::span<const int32_t> rows, uint8_t* out) const = 0;
};

}  // namespace heddle::kernels
