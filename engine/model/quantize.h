// Quantising at load (`--weights int8|int4|fp8`): floats of a checkpoint become small integers or
// 8-bit floats on their way into the kernels' layout, row by row, so that no quantised copy is
// needed beside it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/checkpoint.h"
#include "kernels/dtype.h"
#include "kernels/tensor.h"

namespace heddle::engine {

// The types that matrices of floats are kept in. `table` is for embeddings and output heads, which
// lose more by coarse steps than other weights.
struct WeightPolicy {
  std::optional<kernels::DType> matrix;
  std::optional<kernels::DType> table;
};

// "auto" (as the checkpoint has them), "int8" (Q8_0), "int4" (Q4_0; tables Q8_0) or "fp8" (E4M3
// with a scale per row; tables as they are, as FP8 checkpoints commonly have them).
absl::StatusOr<WeightPolicy> ParseWeightPolicy(const std::string& name);

enum class WeightRole : uint8_t {
  kMatrix,
  kTable,
  kExact,  // routers and gates of one row: too small to matter, too sensitive to touch
};

// The type that a matrix of `dtype` is kept in: the policy's if that is smaller and the rows are
// whole blocks (128 or 32 columns for FP8); else its own.
kernels::DType KeptAs(const WeightPolicy& policy, WeightRole role, kernels::DType dtype,
                      int64_t cols);

// Encodes one row of floats. Q8_0: steps of the largest magnitude / 127. Q4_0: in each block, the
// scale with the least squared error among those near the largest magnitude / 8, of either sign.
// kF8G32 and kF8G128: all blocks share one scale, the row's largest magnitude / 448.
// REQUIRES: one of these types, cols in whole blocks.
void EncodeRow(kernels::DType dtype, const float* row, int64_t cols, uint8_t* out);

// Reads rows of `source` encoded as `dtype`. Borrows what the source borrows.
class QuantizingReader final : public kernels::RowReader {
 public:
  QuantizingReader(kernels::WeightSource source, kernels::DType dtype)
      : source_(std::move(source)), dtype_(dtype) {}
  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override;

  // A source of the same matrix in `dtype`; borrows this reader.
  kernels::WeightSource source() const;

 private:
  kernels::WeightSource source_;
  kernels::DType dtype_;
};

// A weight's sources in the types that the policy wants. Borrows what they borrow.
class KeptSources {
 public:
  KeptSources(const WeightPolicy& policy, WeightRole role,
              std::span<const kernels::WeightSource> sources);
  std::span<const kernels::WeightSource> sources() const { return sources_; }

 private:
  std::vector<std::unique_ptr<QuantizingReader>> readers_;
  std::vector<kernels::WeightSource> sources_;
};

// Sums of squares over a matrix: those of its values and those of the quantisation error.
struct QuantizingError {
  double values = 0;
  double differences = 0;
  double relative_rms() const;  // 0 for a matrix of zeros

  void Add(const QuantizingError& other) {
    values += other.values;
    differences += other.differences;
  }
};

// Reads the whole matrix.
QuantizingError MeasureQuantizing(const kernels::WeightSource& source, kernels::DType dtype);

}  // namespace heddle::engine
