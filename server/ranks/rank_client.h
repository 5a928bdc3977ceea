// A joining rank's end of ranks that are processes of their own: asks the head to be let in, and
// then runs the steps that it sends.
//
// Life: Join says who this is, and learns the place; the loader (engine/model/load.h) agrees on
// limits through RankMeeting; Run executes steps until the head ends the group. Thread-safety: Stop
// from any thread; the rest from one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/rank_meeting.h"
#include "engine/model/rank_worker.h"
#include "server/ranks/rank_identity.h"
#include "server/ranks/rank_settings.h"

namespace heddle::server {

class RankClient : public engine::RankMeeting {
 public:
  // Blocks until the head answers. UNAVAILABLE: it cannot be reached, or ends just now; all other
  // errors are refusals, which stay.
  static absl::StatusOr<std::shared_ptr<RankClient>> Join(const std::string& host, uint16_t port,
                                                          const RankIdentity& identity);
  // The place in the group and the head's options.
  virtual const RankSettings& settings() const = 0;
  // Runs steps until the head ends the group: OK. An error: the head or another rank is lost, or
  // this rank has failed, which the head was told.
  virtual absl::Status Run(engine::RankWorker& worker, const engine::ExecutorLimits& limits) = 0;
  // Leaves the group: Run returns soon.
  virtual void Stop() = 0;
};

}  // namespace heddle::server
