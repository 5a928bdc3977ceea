// Lays the factors of an adapter out in pages, converted to the type that the kernels read. Private
// to engine/adapter.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/adapter/load_adapter.h"

namespace heddle::engine {

// Rank rows of a factor, as parts of a tensor of the file.
struct RankRows {
  const AdapterTensor* tensor = nullptr;  // nullptr: the factor is the identity
  // Row j of the factor is row `first` + j of the tensor, from `first_column` on; or if `turned`,
  // its element i is the tensor's element [rows[i] + row_offset][first + j * step], times
  // factors[i].
  bool turned = false;
  int64_t first = 0;
  int64_t first_column = 0;
  std::span<const int32_t> columns;  // in place of those from first_column on; empty: those
  int64_t step = 1;
  std::span<const int32_t> rows;
  int64_t row_offset = 0;
  std::span<const float> factors;  // empty: ones

  bool operator==(const RankRows& other) const {
    return tensor == other.tensor && turned == other.turned && first == other.first &&
           first_column == other.first_column && columns.data() == other.columns.data() &&
           columns.size() == other.columns.size() && step == other.step &&
           rows.data() == other.rows.data() && row_offset == other.row_offset &&
           factors.data() == other.factors.data();
  }
};

// One entry of an image, before it has a place.
struct FactorSource {
  std::string_view name;  // of the module
  ImageFactors factors;   // all but the places
  RankRows a, b;
  std::vector<float> gain, bias;  // [outputs] or empty
};

// REQUIRES: the shapes fit each other. Factors that are the same (a module's A for all its parts)
// share their blocks if they follow each other. The same sources give the same bytes.
// INVALID_ARGUMENT for a value that is not finite, or rows longer than a page; RESOURCE_EXHAUSTED
// above target.max_bytes, before memory is taken.
absl::StatusOr<std::shared_ptr<AdapterImage>> PackAdapter(std::span<const FactorSource> sources,
                                                          const AdapterTarget& target);

}  // namespace heddle::engine
