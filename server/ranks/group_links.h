// Makes a rank's device a member of its groups over a mesh: the ranks of its stage, and those of
// equal rank in the other stages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "server/ranks/local_groups.h"
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

// The place of a rank among all, which are counted stage by stage, as Layout does.
struct GroupPlace {
  int32_t rank = 0;
  uint64_t key = 0;                    // of the epoch
  std::span<const uint64_t> families;  // [world] of all ranks; 0: alone in its process
  LocalGroups* local = nullptr;        // of this process; null: it has one rank
  LocalProgress* progress = nullptr;   // with `local`
};
struct JoinedGroups {
  LinkSpeeds speeds;
  std::shared_ptr<kernels::Communicator> local;  // null: the ranks of the stage are not all here
};

// REQUIRES: the mesh is connected, and the settings are those of all ranks. A stage whose ranks are
// all of one process meets in its memory. Then all ranks measure their links, within some 30 ms at
// 1 Gbit/s. Errors: a rank that does not come is named after some seconds.
absl::StatusOr<JoinedGroups> JoinGroups(RankMesh& mesh, const RankSettings& settings,
                                        const GroupPlace& place, kernels::Device& device);

}  // namespace heddle::server
