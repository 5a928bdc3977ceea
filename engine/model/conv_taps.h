// The weights of a convolution of single channels, which files have channel by channel and kernels
// tap by tap. Pure function.
#pragma once

#include <span>
#include <vector>

#include "engine/files/checkpoint.h"
#include "engine/parallel/shard.h"

namespace heddle::engine {

// [taps, channels of all ranges] of a tensor [all channels, (1,) taps]. REQUIRES: the tensor is
// validated.
std::vector<float> TapsOf(const CheckpointTensor& tensor, int64_t taps,
                          std::span<const Range> channels);

}  // namespace heddle::engine
