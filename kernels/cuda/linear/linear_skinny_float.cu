// The kernels of linear_skinny.cuh for weights of floats, and the choice among the sources.
#include "kernels/cuda/linear/linear_skinny.cuh"

namespace heddle::kernels::cuda {

Error LaunchLinearSkinnyFloat(const LinearParams& params, Stream stream) {
  switch (params.weight.layout) {
    case WeightLayout::kF8:
      return skinny::LaunchLayout<WeightLayout::kF8>(params, stream);
    case WeightLayout::kF8Row:
      return skinny::LaunchLayout<WeightLayout::kF8Row>(params, stream);
    case WeightLayout::kF8Block:
      return skinny::LaunchLayout<WeightLayout::kF8Block>(params, stream);
    default:
      return skinny::LaunchLayout<WeightLayout::kBF16>(params, stream);
  }
}

Error LaunchLinearSkinny(const LinearParams& params, Stream stream) {
  const WeightLayout layout = params.weight.layout;
  if (TraitsOf(layout).code_bits == 4) return LaunchLinearSkinny4(params, stream);
  if (TraitsOf(layout).code_bits == 8 && !IsF8(layout)) {
    return LaunchLinearSkinny8(params, stream);
  }
  return LaunchLinearSkinnyFloat(params, stream);
}

Error LaunchExpertSkinnyFloat(const ExpertLinearParams& params, Stream stream) {
  switch (params.linear.weight.layout) {
    case WeightLayout::kF8:
      return skinny::LaunchExpertsLayout<WeightLayout::kF8>(params, stream);
    case WeightLayout::kF8Row:
      return skinny::LaunchExpertsLayout<WeightLayout::kF8Row>(params, stream);
    case WeightLayout::kF8Block:
      return skinny::LaunchExpertsLayout<WeightLayout::kF8Block>(params, stream);
    default:
      return skinny::LaunchExpertsLayout<WeightLayout::kBF16>(params, stream);
  }
}

Error LaunchExpertSkinny(const ExpertLinearParams& params, Stream stream) {
  const WeightLayout layout = params.linear.weight.layout;
  if (TraitsOf(layout).code_bits == 4) return LaunchExpertSkinny4(params, stream);
  if (TraitsOf(layout).code_bits == 8 && !IsF8(layout)) {
    return LaunchExpertSkinny8(params, stream);
  }
  return LaunchExpertSkinnyFloat(params, stream);
}

}  // namespace heddle::kernels::cuda
