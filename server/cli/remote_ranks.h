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

// Listens for the other ranks; null without --ranks-listen. `options` are those that the model is
// loaded with; `log` must outlive the result.
absl::StatusOr<std::shared_ptr<RankHead>> StartRankHead(const config::Config& config,
                                                        const engine::LoadOptions& options,
                                                        const Logger* log);

// Runs this process as a rank of another one's engine until that ends: waits for the head, loads
// this rank's part, executes steps, and joins again when the head or another rank is lost. OK when
// the head ends in order or a signal arrives; ABORTED when the group does not form again in time,
// so that a supervisor starts all of them again.
absl::Status RunRank(const config::Config& config, SignalWatch& signals, const Logger& log);

}  // namespace heddle::server
