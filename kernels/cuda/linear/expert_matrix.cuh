// One matrix of a stack, for the kernels whose blocks multiply the pairs of one expert each.
#pragma once

#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {

// The product with one matrix of the stack.
HEDDLE_DEVICE LinearParams ParamsOfExpert(const ExpertLinearParams& p, int expert) {
  const int64_t first = expert * p.matrix_rows;
  LinearParams own = p.linear;
  own.weight.rows = p.matrix_rows;
  own.weight.data += first * own.weight.row_bytes;
  own.weight.scales += first * own.weight.scales_stride;
  own.weight.tile_scales += first / kScaleTile * own.weight.tiles_stride;
  if (own.weight.row_factors != nullptr) own.weight.row_factors += first;
  if (own.bias != nullptr) own.bias += first;
  if (own.bias_up != nullptr) own.bias_up += first;
  return own;
}

}  // namespace heddle::kernels::cuda
