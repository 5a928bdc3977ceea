// The kernels of linear_mixed.cuh for weights of floats, and the choice among the sources.
#include "kernels/cuda/linear/linear_mixed.cuh"

namespace heddle::kernels::cuda {

Error LaunchLinearMixedFloat(const LinearParams& params, int multiprocessors, Stream stream) {
  switch (params.weight.layout) {
    case WeightLayout::kF8:
      return mixed::LaunchLayout<WeightLayout::kF8>(params, multiprocessors, stream);
    case WeightLayout::kF8Block:
      return mixed::LaunchLayout<WeightLayout::kF8Block>(params, multiprocessors, stream);
    default:
      return mixed::LaunchLayout<WeightLayout::kF8Row>(params, multiprocessors, stream);
  }
}

Error LaunchExpertMixedFloat(const ExpertLinearParams& params, Stream stream) {
  switch (params.linear.weight.layout) {
    case WeightLayout::kF8:
      return mixed::LaunchExpertsLayout<WeightLayout::kF8>(params, stream);
    case WeightLayout::kF8Block:
      return mixed::LaunchExpertsLayout<WeightLayout::kF8Block>(params, stream);
    case WeightLayout::kF8Row:
      return mixed::LaunchExpertsLayout<WeightLayout::kF8Row>(params, stream);
    default:
      return mixed::LaunchExpertsLayout<WeightLayout::kBF16>(params, stream);
  }
}

Error LaunchLinearMixed(const LinearParams& params, int32_t num_multiprocessors, Stream stream) {
  const WeightLayout layout = params.weight.layout;
  if (TraitsOf(layout).code_bits == 4) {
    return LaunchLinearMixed4(params, num_multiprocessors, stream);
  }
  if (TraitsOf(layout).code_bits == 8 && !IsF8(layout)) {
    return LaunchLinearMixed8(params, num_multiprocessors, stream);
  }
  return LaunchLinearMixedFloat(params, num_multiprocessors, stream);
}

Error LaunchExpertMixed(const ExpertLinearParams& params, Stream stream) {
  const WeightLayout layout = params.linear.weight.layout;
  if (TraitsOf(layout).code_bits == 4) return LaunchExpertMixed4(params, stream);
  if (TraitsOf(layout).code_bits == 8 && !IsF8(layout)) return LaunchExpertMixed8(params, stream);
  return LaunchExpertMixedFloat(params, stream);
}

}  // namespace heddle::kernels::cuda
