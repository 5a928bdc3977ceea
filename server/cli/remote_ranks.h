// Ranks of one engine in several processes: what `heddle serve` does with --ranks-listen and
// --join.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/load.h"
#include "server/cli/signals.h"
#include "server/log.h"
#include "server/ranks/rank_head.h"

namespace heddle::server {

// The ranks of a head's process beside rank 0. They end when the head does; its destructor waits.
class FamilyOfHead {
 public:
  virtual ~FamilyOfHead() = default;
};

struct StartedHead {
  std::shared_ptr<RankHead> head;        // null: there is no --ranks-listen
  std::unique_ptr<FamilyOfHead> family;  // null: rank 0 is alone in this process
};

// Listens for the other ranks, and starts those of this process: as many as --rank-cpus has lists,
// rank 0 among them. `own` are the options that the model is to be loaded with; those of rank 0
// take their place. `log` must outlive the result.
absl::StatusOr<StartedHead> StartRankHead(const config::Config& config, engine::LoadOptions* own,
                                          const Logger* log);

// Runs this process as a rank of another one's engine until that ends: waits for the head, loads
// this rank's part, executes steps, and joins again when the head or another rank is lost. OK when
// the head ends in order or a signal arrives; ABORTED when the group does not form again in time,
// so that a supervisor starts all of them again. With several lists in --rank-cpus the process has
// as many ranks, each on a thread, and ends when one of them does.
absl::Status RunRank(const config::Config& config, SignalWatch& signals, const Logger& log);

}  // namespace heddle::server
