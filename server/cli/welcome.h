// The words with which `heddle serve` tells a person that it is ready, and how to ask it something.
// Thread-safety: pure functions; printing blocks for half a second at most.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "server/cli/engine_session.h"
#include "server/log.h"

namespace heddle::server {

// Whether clients need an API key.
bool HasKeys(const config::ServerConfig& config);

struct ServingFacts {
  std::string model_id;
  uint16_t port = 0;
  uint16_t grpc_port = 0;  // 0: no gRPC
  double ready_seconds = 0;
};

// Prints the most important facts for a person, or logs them as a line if machines read the log.
void PrintWelcome(const config::Config& config, const EngineSession& session,
                  const ServingFacts& facts, const Logger& log);

}  // namespace heddle::server
