#include "server/cli/reward_options.h"

#include <chrono>
#include <utility>

#include "base/status.h"
#include "server/cli/http_get.h"

namespace heddle::server {

absl::StatusOr<std::unique_ptr<RewardClient>> StartRewards(const config::ServerConfig& config,
                                                           const Logger* log) {
  if (config.reward_url.empty()) return nullptr;
  HEDDLE_ASSIGN_OR_RETURN(HttpAddress address, ParseHttpAddress(config.reward_url, "--reward-url"));
  RewardClient::Options options;
  options.host = std::move(address.host);
  options.port = std::move(address.port);
  options.target = std::move(address.prefix) + options.target;
  options.key = config.reward_key;
  options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(config.reward_timeout.value));
  return std::make_unique<RewardClient>(std::move(options), log);
}

}  // namespace heddle::server
