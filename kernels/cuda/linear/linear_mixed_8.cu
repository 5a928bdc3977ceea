// The kernels of linear_mixed.cuh for weights of 8-bit integers.
#include "kernels/cuda/linear/linear_mixed.cuh"

namespace heddle::kernels::cuda {

Error LaunchLinearMixed8(const LinearParams& params, int multiprocessors, Stream stream) {
  switch (params.weight.layout) {
    case WeightLayout::kInt8Offset:
      return mixed::LaunchLayout<WeightLayout::kInt8Offset>(params, multiprocessors, stream);
    case WeightLayout::kInt8Fine:
      return mixed::LaunchLayout<WeightLayout::kInt8Fine>(params, multiprocessors, stream);
    case WeightLayout::kInt8FineOffset:
      return mixed::LaunchLayout<WeightLayout::kInt8FineOffset>(params, multiprocessors, stream);
    case WeightLayout::kInt8Row:
      return mixed::LaunchLayout<WeightLayout::kInt8Row>(params, multiprocessors, stream);
    default:
      return mixed::LaunchLayout<WeightLayout::kInt8>(params, multiprocessors, stream);
  }
}

Error LaunchExpertMixed8(const ExpertLinearParams& params, Stream stream) {
  switch (params.linear.weight.layout) {
    case WeightLayout::kInt8Offset:
      return mixed::LaunchExpertsLayout<WeightLayout::kInt8Offset>(params, stream);
    case WeightLayout::kInt8Fine:
      return mixed::LaunchExpertsLayout<WeightLayout::kInt8Fine>(params, stream);
    case WeightLayout::kInt8FineOffset:
      return mixed::LaunchExpertsLayout<WeightLayout::kInt8FineOffset>(params, stream);
    case WeightLayout::kInt8Row:
      return mixed::LaunchExpertsLayout<WeightLayout::kInt8Row>(params, stream);
    default:
      return mixed::LaunchExpertsLayout<WeightLayout::kInt8>(params, stream);
  }
}

}  // namespace heddle::kernels::cuda
