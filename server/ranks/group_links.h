// Makes a rank's device a member of its groups over a mesh: the ranks of its stage, and those of
// equal rank in the other stages.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "server/ranks/rank_mesh.h"
#include "server/ranks/rank_settings.h"

namespace heddle::server {

// The time of a message from rank to rank.
struct LinkSpeed {
  double latency_us = 0;  // of an empty one
  double gbit_s = 0;      // into each rank, beside that
};
struct LinkSpeeds {
  std::optional<LinkSpeed> group;   // of ranks that share layers; empty: there is one
  std::optional<LinkSpeed> stages;  // of a pipeline; likewise
};

// `rank` counts stage by stage, as Layout does. REQUIRES: the mesh is connected, and the settings
// are those of all ranks.
// Then all ranks measure their links, within some 30 ms at 1 Gbit/s. Errors: a rank that does not
// come is named after some seconds.
absl::StatusOr<LinkSpeeds> JoinGroups(RankMesh& mesh, const RankSettings& settings, int32_t rank,
                                      kernels::Device& device);

}  // namespace heddle::server
