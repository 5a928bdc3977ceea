// The checks that every backend's Pack makes before it takes memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor.h"

namespace heddle::kernels {

struct StackedShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

// INVALID_ARGUMENT, naming the source, for no sources, no data, unequal cols, rows or cols < 1,
// sizes that overflow, cols that are not whole blocks of the dtype, or sum_borders that do not fit.
absl::StatusOr<StackedShape> CheckSources(std::span<const WeightSource> sources);

// The further check of PackStack: INVALID_ARGUMENT if the sources are not `count` times the same
// number of matrices with the same rows.
absl::Status CheckStack(std::span<const WeightSource> sources, int32_t count);

// Rows [begin, begin + count) of a source in its dtype's layout: in place, or in `buffer`, which is
// resized for them.
const uint8_t* SourceRows(const WeightSource& source, int64_t begin, int64_t count,
                          std::vector<uint8_t>* buffer);

// Decodes one row of the source, given by SourceRows, to out [cols] in the order of input features.
void DecodeSourceRow(const WeightSource& source, const uint8_t* row, float* out);

// The source's rows [begin, begin + count) as a separate source.
WeightSource PartOf(const WeightSource& source, int64_t begin, int64_t count);

}  // namespace heddle::kernels
