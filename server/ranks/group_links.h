// Makes a rank's device a member of its groups over a mesh: the ranks of its stage, and those of
// equal rank in the other stages.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/parallel/shard.h"
#include "kernels/device.h"
#include "server/ranks/rank_mesh.h"

namespace heddle::server {

// `rank` counts stage by stage, as Layout does. REQUIRES: the mesh is connected.
absl::Status JoinGroups(RankMesh& mesh, const engine::Layout& layout, int32_t rank,
                        kernels::Device& device);

}  // namespace heddle::server
