// The kernels of linear_skinny.cuh for weights of 4-bit codes.
#include "kernels/cuda/linear/linear_skinny.cuh"

namespace heddle::kernels::cuda {

Error LaunchLinearSkinny4(const LinearParams& params, Stream stream) {
  switch (params.weight.layout) {
    case WeightLayout::kInt4Offset:
      return skinny::LaunchLayout<WeightLayout::kInt4Offset>(params, stream);
    case WeightLayout::kTable4:
      return skinny::LaunchLayout<WeightLayout::kTable4>(params, stream);
    case WeightLayout::kTable4Fine:
      return skinny::LaunchLayout<WeightLayout::kTable4Fine>(params, stream);
    default:
      return skinny::LaunchLayout<WeightLayout::kInt4>(params, stream);
  }
}

Error LaunchExpertSkinny4(const ExpertLinearParams& params, Stream stream) {
  switch (params.linear.weight.layout) {
    case WeightLayout::kInt4Offset:
      return skinny::LaunchExpertsLayout<WeightLayout::kInt4Offset>(params, stream);
    case WeightLayout::kTable4:
      return skinny::LaunchExpertsLayout<WeightLayout::kTable4>(params, stream);
    case WeightLayout::kTable4Fine:
      return skinny::LaunchExpertsLayout<WeightLayout::kTable4Fine>(params, stream);
    default:
      return skinny::LaunchExpertsLayout<WeightLayout::kInt4>(params, stream);
  }
}

}  // namespace heddle::kernels::cuda
