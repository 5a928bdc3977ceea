// A joining rank's end of ranks that are processes of their own: asks the head to be let in, and
// then runs the steps that it sends.
//
// Life: Join says who this is, and learns the place; the loader (engine/model/load.h) agrees on
// limits through RankMeeting; Run executes steps until the head ends the group. When the group is
// lost, another client joins with the place that this one had, and Rejoin takes the loaded worker
// along. Thread-safety: Stop from any thread; the rest from one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/rank_meeting.h"
#include "engine/model/rank_worker.h"
#include "server/ranks/local_groups.h"
#include "server/ranks/rank_identity.h"
#include "server/ranks/rank_settings.h"
#include "server/ranks/rank_tls.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace heddle::server {

// A place in a group that is lost, whose weights the rank still has.
struct HeldPlace {
  uint64_t session = 0;  // of the head's process; 0: there is no place
  int32_t rank = 0;
};

// Ranks of one process: they have memory and fate in common.
struct RankFamily {
  uint64_t number = 0;  // a random one; 0: there is one rank
  int32_t rank = 0;     // among them
  int32_t ranks = 1;
  std::shared_ptr<LocalGroups> groups;  // theirs; null: there is one rank
};

// Who calls, in each of its calls.
struct RankCaller {
  RankIdentity identity;
  uint64_t process = 0;     // a random number, of each rank
  int32_t wanted_rank = 0;  // 0: any
  RankFamily family;
  engine::RankMeans means;
  std::shared_ptr<grpc::Channel> channel;  // to a head in this process; null: over the network
};

class RankClient : public engine::RankMeeting {
 public:
  // Blocks until the head answers. UNAVAILABLE: it cannot be reached, has no group just now, or has
  // hung up without a reason; all other errors are refusals, which stay.
  static absl::StatusOr<std::shared_ptr<RankClient>> Join(const std::string& host, uint16_t port,
                                                          const RankTls& tls,
                                                          const RankCaller& caller,
                                                          const HeldPlace& held);
  // The place in the group and the head's options.
  virtual const RankSettings& settings() const = 0;
  HeldPlace place() const { return {.session = settings().session, .rank = rank()}; }
  // This rank's offer, as Agree has sent it.
  virtual const engine::RankOffer& offer() const = 0;
  // In place of a loader: `worker` has run in this place before, with `limits`, and `offer` was
  // offered for it. Errors as Run's.
  absl::Status Rejoin(engine::RankWorker& worker, const engine::RankOffer& offer,
                      const engine::ExecutorLimits& limits);
  // Runs steps until the head ends the group in order: OK. UNAVAILABLE: the head or another rank is
  // lost. ABORTED: the head has ended the group because one is. Other errors: this rank has failed,
  // which the head was told.
  virtual absl::Status Run(engine::RankWorker& worker, const engine::ExecutorLimits& limits) = 0;
  // Leaves the group: Run returns soon.
  virtual void Stop() = 0;
};

}  // namespace heddle::server
