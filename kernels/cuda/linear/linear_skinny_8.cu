// The kernels of linear_skinny.cuh for weights of 8-bit integers.
#include "kernels/cuda/linear/linear_skinny.cuh"

namespace heddle::kernels::cuda {

Error LaunchLinearSkinny8(const LinearParams& params, Stream stream) {
  switch (params.weight.layout) {
    case WeightLayout::kInt8Offset:
      return skinny::LaunchLayout<WeightLayout::kInt8Offset>(params, stream);
    case WeightLayout::kInt8Fine:
      return skinny::LaunchLayout<WeightLayout::kInt8Fine>(params, stream);
    case WeightLayout::kInt8FineOffset:
      return skinny::LaunchLayout<WeightLayout::kInt8FineOffset>(params, stream);
    case WeightLayout::kInt8Row:
      return skinny::LaunchLayout<WeightLayout::kInt8Row>(params, stream);
    default:
      return skinny::LaunchLayout<WeightLayout::kInt8>(params, stream);
  }
}

Error LaunchExpertSkinny8(const ExpertLinearParams& params, Stream stream) {
  switch (params.linear.weight.layout) {
    case WeightLayout::kInt8Offset:
      return skinny::LaunchExpertsLayout<WeightLayout::kInt8Offset>(params, stream);
    case WeightLayout::kInt8Fine:
      return skinny::LaunchExpertsLayout<WeightLayout::kInt8Fine>(params, stream);
    case WeightLayout::kInt8FineOffset:
      return skinny::LaunchExpertsLayout<WeightLayout::kInt8FineOffset>(params, stream);
    case WeightLayout::kInt8Row:
      return skinny::LaunchExpertsLayout<WeightLayout::kInt8Row>(params, stream);
    default:
      return skinny::LaunchExpertsLayout<WeightLayout::kInt8>(params, stream);
  }
}

}  // namespace heddle::kernels::cuda
