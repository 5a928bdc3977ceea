// Makes a rank's device a member of its groups over a mesh: the ranks of its stage, and those of
// equal rank in the other stages.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "server/ranks/rank_mesh.h"
#include "server/ranks/rank_settings.h"

namespace heddle::server {

// `rank` counts stage by stage, as Layout does. REQUIRES: the mesh is connected, and the settings
// are those of all ranks.
absl::Status JoinGroups(RankMesh& mesh, const RankSettings& settings, int32_t rank,
                        kernels::Device& device);

}  // namespace heddle::server
