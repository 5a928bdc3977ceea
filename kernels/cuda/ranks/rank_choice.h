// How ranks whose memory the devices do not reach agree on what carries between them, when a group
// is made: each says what it is and has, and all come to the same answer from what all have said.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/ranks/nccl_library.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/dtype.h"

namespace heddle::kernels::cuda {

// A number of this GPU, the same in all processes and on no other GPU. 0: it has none.
uint64_t DeviceNumber(int32_t ordinal);

// This rank.
struct RankTraits {
  RankNetwork network = RankNetwork::kAuto;
  const absl::StatusOr<NcclApi>& nccl;  // or why it does not have it
  DType activations = DType::kBF16;
  bool shares_layers = true;  // PeerGroup::Options
};

struct RankChoice {
  bool uses_nccl = false;
  bool must_use_nccl = false;  // some rank's network is kNccl
  std::string why_not;
};

// Blocks until all ranks have come. INVALID_ARGUMENT for GPUs of different kinds that share layers,
// activations of different types, and ranks of which one asks for NCCL and another one for the
// host; FAILED_PRECONDITION if one asks for NCCL, and they cannot use it.
absl::StatusOr<RankChoice> AgreeOnRanks(Communicator& group, const DeviceInfo& device,
                                        const RankTraits& own);

// Whether all ranks are connected: "", or what the first one says that is not. `own` is this one's.
// An error: the group was aborted.
absl::StatusOr<std::string> WhyNotConnected(Communicator& group, const absl::Status& own);

}  // namespace heddle::kernels::cuda
