// Launch parameters of the kernel for queries that meet half of each key (attention_halves.cu).
// Rules for all launchers are in runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

// Whole queries of queries that meet half of each key (AttentionArgs::half_keys): the halves of
// heads first_head, first_head + 1 ... of `halves`, with zeros in front of those of odd heads and
// behind those of even ones. `whole` [rows, heads * 2 * half_dim] is dense and has the first head
// at column 0.
struct WholeQueriesParams {
  Tensor halves;  // [rows, all heads * half_dim]
  Tensor whole;
  int64_t half_dim = 0;
  int64_t first_head = 0;
};
Error LaunchWholeQueries(const WholeQueriesParams& params, DType act, Stream stream);

}  // namespace heddle::kernels::cuda
