// The reward model that ranks the samples of searches, from its options.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "server/log.h"
#include "server/reward/reward_client.h"

namespace heddle::server {

// nullptr without --reward-url. `log` outlives the result.
absl::StatusOr<std::unique_ptr<RewardClient>> StartRewards(const config::ServerConfig& config,
                                                           const Logger* log);

}  // namespace heddle::server
