// A weight matrix that a Hugging Face checkpoint holds as codes with companions: scales, zero
// points, an order of columns. It is read row by row into one of the kernels' formats, so that no
// second copy of it ever exists.
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
  std::string name;                             // the plain checkpoint's name: "...q_proj.weight"
  std::string type_name;                        // "GPTQ int4, groups of 128"
  kernels::DType dtype = kernels::DType::kF32;  // of the rows
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<int32_t> column_order;      // see WeightSource
  bool takes_int8_x = false;              // see WeightSource
  std::span<const std::byte> code_bytes;  // the part of the file that ReadRows reads

  // INVALID_ARGUMENT, naming the tensor, for values that the kernels could not represent. It reads
  // all codes, so call it when they are needed in memory anyway.
  virtual absl::Status CheckCodes() const { return absl::OkStatus(); }
};

}  // namespace heddle::engine
