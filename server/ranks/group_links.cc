#include "server/ranks/group_links.h"

#include <vector>

#include "base/status.h"

namespace heddle::server {

absl::Status JoinGroups(RankMesh& mesh, const RankSettings& settings, int32_t rank,
                        kernels::Device& device) {
  const engine::Layout& layout = settings.layout;
  const int32_t stage = rank / layout.tp;
  if (layout.tp > 1) {
    std::vector<int32_t> members;
    members.reserve(static_cast<size_t>(layout.tp));
    for (int32_t i = 0; i < layout.tp; ++i) members.push_back(stage * layout.tp + i);
    HEDDLE_RETURN_IF_ERROR(device.JoinGroup(mesh.Join(members, settings.wire)));
  }
  if (layout.pp == 1) return absl::OkStatus();
  std::vector<int32_t> members;
  members.reserve(static_cast<size_t>(layout.pp));
  for (int32_t i = 0; i < layout.pp; ++i) members.push_back(rank % layout.tp + i * layout.tp);
  return device.JoinStages(mesh.Join(members, settings.wire));
}

}  // namespace heddle::server
