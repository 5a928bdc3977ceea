// What becomes of each tensor of a checkpoint when it is loaded, and what quantising costs it: the
// list of `heddle inspect --tensors`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/checkpoint.h"
#include "engine/model/name_map.h"
#include "engine/model/quantize.h"

namespace heddle::engine {

struct TensorReport {
  std::string name;
  std::string type;  // in the file, in words
  std::string kept;  // the type that it is loaded as; empty if it cannot be, or is not used
  bool used = true;
  std::vector<int64_t> shape;
  int64_t bytes = 0;                   // as loaded, or in the file if it is not used
  std::optional<double> relative_rms;  // of what quantising at load changes; absent: nothing
};

struct TensorReports {
  std::vector<TensorReport> tensors;
  std::optional<double> relative_rms;  // over all tensors that are quantised at load
};

// The type that `tensor` is kept in under the policy. F32 for one without a type.
kernels::DType KeptTypeOf(const CheckpointTensor& tensor, const NameMap& names,
                          const WeightPolicy& policy);

// Describes the model at `path`, as DescribeModel; with a policy that quantises (`weights` as for
// ParseWeightPolicy) reads and encodes all its weights, on one thread.
absl::StatusOr<TensorReports> ReportTensors(const std::filesystem::path& path,
                                            const std::string& weights);

}  // namespace heddle::engine
