#include "server/http/probes.h"

#include <chrono>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "engine/grammar/grammar_compiler.h"
#include "server/batch/file_store.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

absl::Status EngineHasFailed() {
  return absl::UnavailableError("the engine has failed; see the log, and restart the server");
}

ConnectionFigures Connections(const ServerContext& server) {
  const Transport* transport = server.transport.load();
  if (transport == nullptr) return {};
  const BodyBudget& bodies = server.bodies;
  return {.open = transport->open_connections(),
          .unsent_bytes = server.unsent.total(),
          .pending_body_bytes = bodies.held_bytes(),
          .waiting_bodies = bodies.num_waiting()};
}

}  // namespace

absl::Status CheckServing(const ServerContext& server) {
  switch (server.readiness.load()) {
    case Readiness::kLoading:
      return absl::UnavailableError("the model is still loading");
    case Readiness::kDraining:
      return absl::UnavailableError("the server is shutting down");
    case Readiness::kReady:
    case Readiness::kLeaving:
      break;
  }
  const EngineStats stats = server.dependencies.generation->Stats();
  if (stats.state == EngineState::kRecovering) {
    return WithRetryAfter(absl::UnavailableError(stats.why), kRecoverySeconds);
  }
  return stats.state == EngineState::kFailed ? EngineHasFailed() : absl::OkStatus();
}

absl::Status CheckEngine(const ServerContext& server) {
  EngineStats stats = server.dependencies.generation->Stats();
  if (stats.state == EngineState::kFailed) {
    return EngineHasFailed();
  }
  double busy = stats.busy_since_seconds;
  double limit = std::chrono::duration<double>(server.options.step_timeout).count();
  if (busy <= limit) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "requests wait and no step has ended for %.1f s; the limit is %.1f s", busy, limit));
}

absl::Status CheckReady(const ServerContext& server) {
  HEDDLE_RETURN_IF_ERROR(CheckServing(server));
  if (server.readiness.load() == Readiness::kLeaving) {
    return absl::UnavailableError("the server is about to shut down; send requests elsewhere");
  }
  HEDDLE_RETURN_IF_ERROR(CheckEngine(server));
  return server.prepare->Check();
}

std::string MetricsText(const ServerContext& server) {
  const PreparePool::Figures prepare = server.prepare->figures();
  const engine::grammar::CacheBytes& cache = server.dependencies.codec->grammars().cache();
  const PreparationFigures preparation{.waiting = static_cast<int64_t>(prepare.waiting),
                                       .busy_threads = prepare.busy_threads,
                                       .stuck_threads = prepare.stuck_threads,
                                       .num_grammars = cache.num_grammars(),
                                       .grammar_bytes = static_cast<int64_t>(cache.held())};
  const BatchFigures batches = server.batch == nullptr ? BatchFigures() : server.batch->figures();
  const BranchFigures branches =
      server.branches == nullptr ? BranchFigures() : server.branches->figures(UnixNow());
  return server.dependencies.metrics->Render(server.dependencies.generation->Stats(),
                                             Connections(server), server.options.metric_names,
                                             preparation, batches, branches);
}

std::string StatsJson(const ServerContext& server) {
  return server.dependencies.metrics->RenderJson(server.dependencies.generation->Stats(),
                                                 Connections(server));
}

}  // namespace heddle::server
