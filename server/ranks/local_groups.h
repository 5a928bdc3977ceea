// Groups of ranks that are all in one process: they meet in its memory, in place of the mesh.
//
// Thread-safety: any thread calls anything.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/communicator.h"

namespace heddle::server {

// A rank's place in its work in such a group, for reports of how far it has come, as RankMesh's.
struct LocalProgress {
  std::atomic<int64_t> ops{0};
  std::atomic<bool> waits{false};
  std::atomic<bool> reported_waits{false};  // of ops that others carry (Communicator::Report)

  bool any_waits() const { return waits || reported_waits; }
};

class LocalGroups {
 public:
  // The communicator of rank `rank` of `world` in the group whose first rank is `first`, in the
  // epoch that `key` names. Each of them joins once; `progress` must outlive the result.
  std::shared_ptr<kernels::Communicator> Join(uint64_t key, int32_t first, int32_t world,
                                              int32_t rank, LocalProgress* progress);

 private:
  using Group = std::vector<std::unique_ptr<kernels::Communicator>>;

  std::mutex mutex_;
  // GUARDED_BY(mutex_): communicators that nobody has asked for yet.
  std::map<std::pair<uint64_t, int32_t>, Group> groups_;
};

}  // namespace heddle::server
