// A weight matrix that a checkpoint of Hugging Face's ecosystem holds as codes with companions:
// scales, zero points, an order of columns. Read row by row into one of the kernels' formats, so
// that no second copy of it ever exists.
//
// Ownership: views into the checkpoint's mappings, which outlive it.
// Thread-safety: immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/tensor.h"

namespace heddle::engine {

class QuantizedMatrix : public kernels::RowReader {
 public:
  std::string name;       // of the matrix that a plain checkpoint would hold: "...q_proj.weight"
  std::string type_name;  // "GPTQ int4, groups of 128"
  kernels::DType dtype = kernels::DType::kF32;  // of the rows
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<int32_t> column_order;      // see WeightSource
  bool takes_int8_x = false;              // see WeightSource
  std::span<const std::byte> code_bytes;  // the part of the file that ReadRows walks

  // Values that the kernels could not stand for: INVALID_ARGUMENT naming the tensor. Reads all
  // codes, so call it when they are wanted in memory anyway.
  virtual absl::Status CheckCodes() const { return absl::OkStatus(); }
};

}  // namespace heddle::engine
