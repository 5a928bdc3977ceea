// The ops across ranks of the CUDA backend where NCCL moves the bytes (nccl_group.h). It brings
// parts into the workspace, as many rows at a time as fit, and our kernels add them there, to the
// bits of kernels that meet.
#pragma once

#include "kernels/cuda/device_step.h"
#include "kernels/cuda/ranks/peer_params.h"
#include "kernels/ops.h"

namespace heddle::kernels::cuda {

// The sum that `params` describe, over the ranks of step.ranks, in one round or, if params.in_two,
// in two. Failures are the step's.
void SumOverNccl(DeviceStep& step, const SumRanksParams& params);
void GatherOverNccl(DeviceStep& step, const GatherColumnsArgs& args);

}  // namespace heddle::kernels::cuda
