// How each tensor of a checkpoint is kept when it is loaded, and what quantising costs it: the list
// of `heddle inspect --tensors`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/family/name_map.h"
#include "engine/files/checkpoint.h"
#include "engine/model/quantize.h"

namespace heddle::engine {

struct TensorReport {
  std::string name;
  std::string type;  // type in the file
  std::string kept;  // the type that it is kept in; empty if unsupported or unused
  bool used = true;
  std::vector<int64_t> shape;
  int64_t bytes = 0;                   // as loaded, or in the file if it is not used
  std::optional<double> relative_rms;  // error of quantising at load; absent: not quantised
};

struct TensorReports {
  std::vector<TensorReport> tensors;
  std::optional<double> relative_rms;  // over all tensors that are quantised at load
};

// The type that `tensor` is kept in under the policy; F32 for a tensor without a type.
kernels::DType KeptTypeOf(const CheckpointTensor& tensor, const NameMap& names,
                          const WeightPolicy& policy);

// Describes the model at `path`, as DescribeModel does. With a policy that quantises (`weights` as
// for ParseWeightPolicy) it reads and encodes all weights, on one thread.
absl::StatusOr<TensorReports> ReportTensors(const std::filesystem::path& path,
                                            const std::string& weights);

}  // namespace heddle::engine
