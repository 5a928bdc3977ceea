// The kernels of linear_mixed.cuh for weights of 4-bit codes.
#include "kernels/cuda/linear/linear_mixed.cuh"

namespace heddle::kernels::cuda {

Error LaunchLinearMixed4(const LinearParams& params, int multiprocessors, Stream stream) {
  switch (params.weight.layout) {
    case WeightLayout::kInt4Offset:
      return mixed::LaunchLayout<WeightLayout::kInt4Offset>(params, multiprocessors, stream);
    case WeightLayout::kTable4:
      return mixed::LaunchLayout<WeightLayout::kTable4>(params, multiprocessors, stream);
    case WeightLayout::kTable4Fine:
      return mixed::LaunchLayout<WeightLayout::kTable4Fine>(params, multiprocessors, stream);
    default:
      return mixed::LaunchLayout<WeightLayout::kInt4>(params, multiprocessors, stream);
  }
}

Error LaunchExpertMixed4(const ExpertLinearParams& params, Stream stream) {
  switch (params.linear.weight.layout) {
    case WeightLayout::kInt4Offset:
      return mixed::LaunchExpertsLayout<WeightLayout::kInt4Offset>(params, stream);
    case WeightLayout::kTable4:
      return mixed::LaunchExpertsLayout<WeightLayout::kTable4>(params, stream);
    case WeightLayout::kTable4Fine:
      return mixed::LaunchExpertsLayout<WeightLayout::kTable4Fine>(params, stream);
    default:
      return mixed::LaunchExpertsLayout<WeightLayout::kInt4>(params, stream);
  }
}

}  // namespace heddle::kernels::cuda
