// From modules of a file to entries of an image: cuts stacks and heads into their members, turns
// DoRA's magnitudes into gains, and vectors and matrices in place of the base's into differences.
// Private to engine/adapter.
//
// DoRA (Liu et al. 2024) scales each output of W + s B A by m / |W + s B A|, row by row. W does not
// change, so the factor f is known when the adapter is loaded: y + (f - 1) y + f s B A x, which is
// a gain, and factors with rows of B that are multiplied by f.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_places.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/adapter/base_weights.h"
#include "engine/adapter/load_adapter.h"
#include "engine/adapter/pack_adapter.h"

namespace heddle::engine {

// A tensor's values, row by row.
std::vector<float> ValuesOf(const AdapterTensor& tensor);
// Element i of a factor's row j, of the tensor's values.
float ElementOf(const RankRows& from, std::span<const float> values, int64_t j, int64_t i);

class FactorBuilder {
 public:
  // All of it must outlive the builder, and the builder its sources.
  FactorBuilder(const AdapterFile& file, const AdapterTarget& target)
      : file_(file), target_(target), base_(target.base, *target.model) {}

  // INVALID_ARGUMENT, naming the module, for shapes that do not fit the base, ranks above the
  // limit, and what the place does not take.
  absl::Status Add(std::string_view name, const AdapterModule& module, const ModulePlace& place);

  std::span<const FactorSource> sources() const { return sources_; }
  int64_t num_parameters() const { return num_parameters_; }

 private:
  struct Placed {
    std::string_view name;
    const AdapterModule& module;
    const ModulePlace& place;
    int64_t rank = 0;
    float scale = 1.0f;
  };
  absl::Status CheckFits(const Placed& placed) const;
  absl::Status CheckVectors(const Placed& placed) const;
  absl::Status CheckTied(const Placed& placed) const;
  absl::StatusOr<float> ScaleOf(const Placed& placed) const;
  absl::Status AddNorm(const Placed& placed);
  absl::Status AddWhole(const Placed& placed);
  absl::Status AddProduct(const Placed& placed, int32_t member, const ModulePart& part);
  absl::Status AddVectors(const Placed& placed, const ModulePart& part, FactorSource* source);
  // Where the rows of A and B of one member lie in the file.
  void FindRows(const Placed& placed, int32_t member, const ModulePart& part, FactorSource* source);
  // m / |W + s B A| of each row of the part, or column of an embedding.
  absl::StatusOr<std::vector<float>> DoraFactors(const Placed& placed, int32_t member,
                                                 const ModulePart& part,
                                                 const FactorSource& source);
  std::span<const int32_t> Keep(std::vector<int32_t> rows);
  absl::Status Error(const Placed& placed, std::string_view what) const;

  const AdapterFile& file_;
  const AdapterTarget& target_;
  BaseWeights base_;
  std::vector<FactorSource> sources_;
  std::deque<std::vector<int32_t>> rows_;
  std::deque<std::vector<float>> factors_;
  std::deque<AdapterTensor> made_;  // differences of whole matrices
  std::deque<OwnedBytes> bytes_;    // of made_
  int64_t num_parameters_ = 0;
};

}  // namespace heddle::engine
