// `heddle serve`: loads the model, answers until told to stop, drains and ends.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/message.h"
#include "base/status.h"
#include "engine/memory/host_memory.h"
#include "server/cli/adapter_options.h"
#include "server/cli/command.h"
#include "server/cli/descriptor_limit.h"
#include "server/cli/engine_session.h"
#include "server/cli/free_memory.h"
#include "server/cli/key_file.h"
#include "server/cli/model_options.h"
#include "server/cli/remote_ranks.h"
#include "server/cli/reward_options.h"
#include "server/cli/signals.h"
#include "server/cli/standard_io.h"
#include "server/cli/welcome.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/library_logs.h"
#include "server/http/http_server.h"
#include "server/http/page_origin.h"
#include "server/http/transport.h"
#include "server/log.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kFarewell{500};  // to write the last frames of streams that are cancelled
constexpr int kExitSignal = 128;        // plus its number: what a shell reports for a signal
constexpr int kExitStuck = 1;           // as after any other failure
constexpr int64_t kLeastPrepareThreads = 2;  // one large body then does not stop all others

ReasoningField ToReasoningField(config::ReasoningField field) {
  switch (field) {
    case config::ReasoningField::kReasoningContent:
      return ReasoningField::kReasoningContent;
    case config::ReasoningField::kReasoning:
      return ReasoningField::kReasoning;
    case config::ReasoningField::kBoth:
      return ReasoningField::kBoth;
    case config::ReasoningField::kNone:
      break;
  }
  return ReasoningField::kNone;
}

void WarnIfOpen(const config::ServerConfig& config, const Logger& log) {
  if (IsLoopback(config.host)) return;
  const bool has_keys = HasKeys(config);
  if (!has_keys && config.tls_client_ca.empty()) {
    log.Warning("anyone who reaches this address may use the model: there is no --api-key-file",
                {{"host", config.host}});
  }
  if (has_keys && config.tls_cert.empty()) {
    log.Warning("API keys cross the network in the clear: there is no --tls-cert",
                {{"host", config.host}});
  }
}

TlsOptions ToTlsOptions(const config::ServerConfig& config) {
  return {config.tls_cert, config.tls_key, config.tls_client_ca};
}

// nullptr without --tls-cert.
absl::StatusOr<std::unique_ptr<TlsContext>> LoadTls(const config::ServerConfig& config,
                                                    const Logger& log) {
  if (config.tls_cert.empty()) return nullptr;
  return TlsContext::Load(ToTlsOptions(config),
                          [&log](const std::string& warning) { log.Warning(warning); });
}

PrefixCacheScope ToCacheScope(config::PrefixCacheScope scope) {
  switch (scope) {
    case config::PrefixCacheScope::kAuto:
      return PrefixCacheScope::kAuto;
    case config::PrefixCacheScope::kKey:
      return PrefixCacheScope::kKey;
    case config::PrefixCacheScope::kAll:
      break;
  }
  return PrefixCacheScope::kAll;
}

// The memory for all bodies in reception: the option's, or a share of the memory, but always enough
// for two of the largest.
size_t PendingBodyBytes(const config::ServerConfig& config, const engine::HostMemory& memory) {
  constexpr uint64_t kMost = uint64_t{256} << 20;
  constexpr uint64_t kShare = 16;
  if (config.max_pending_body_bytes.value > 0) return config.max_pending_body_bytes.value;
  const uint64_t share = memory.total_bytes > 0 ? uint64_t(memory.total_bytes) / kShare : kMost;
  return std::max(std::min(kMost, share), 2 * config.max_body_bytes.value);
}

// Keys and values of one position in all layers.
int64_t BytesPerToken(const engine::Capacity& capacity) {
  return capacity.page_bytes * static_cast<int64_t>(capacity.limits.windows.size()) /
         capacity.limits.page_tokens;
}

absl::StatusOr<HttpServerOptions> ToHttpOptions(const config::Config& config, KeyFile* key_file) {
  HttpServerOptions options;
  options.host = config.host;
  options.port = static_cast<uint16_t>(config.port);
  options.io_threads = static_cast<int>(config.io_threads);
  options.prepare_threads = static_cast<int>(
      config.prepare_threads > 0 ? config.prepare_threads
                                 : std::max(kLeastPrepareThreads, config.io_threads));
  options.free_prepare_threads = options.prepare_threads;
  options.max_preparing = static_cast<size_t>(config.max_queue);
  options.max_connections = static_cast<int>(config.max_connections);
  options.max_body_bytes = config.max_body_bytes.value;
  options.max_pending_body_bytes = PendingBodyBytes(config, engine::ReadHostMemory());
  options.request_timeout = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(config.request_timeout.value));
  options.step_timeout = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(config.watchdog_timeout.value));
  options.api_keys = config.api_key;
  options.admin_keys = config.admin_key;
  options.key_limits = DefaultKeyLimits(config);
  options.max_open_requests = config.max_open_requests;
  HEDDLE_ASSIGN_OR_RETURN(options.hashed_keys, key_file->Read());
  options.keys_may_change = key_file->is_used();
  options.prefix_cache_scope = ToCacheScope(config.prefix_cache_scope);
  options.cors_origin = config.cors_origin;
  options.batch = {.folder = config.batch_dir,
                   .max_bytes = static_cast<int64_t>(config.batch_storage.value),
                   .concurrency = static_cast<int>(config.batch_concurrency)};
  options.branches.max_branches = config.max_branches;
  options.allow_adapter_updates = config.allow_lora_updates;
  options.policy.reasoning_field = ToReasoningField(config.reasoning_field);
  options.policy.clamp_max_tokens = config.max_tokens_overflow == config::MaxTokensOverflow::kClamp;
  options.policy.scheduling = ToPolicy(config);
  options.policy.ignore_unknown_fields = config.unknown_fields == config::UnknownFields::kIgnore;
  options.policy.has_reward_model = !config.reward_url.empty();
  options.policy.drops_unsupported = config.schema_unsupported == config::SchemaUnsupported::kWarn;
  if (config.metric_names == config::MetricNames::kVllm)
    options.metric_names = ServerMetrics::Names::kAlsoVllm;
  options.trace_sample_ratio = config.trace_sample_ratio.value_or(1);
  options.version = HEDDLE_VERSION;
  return options;
}

// nullptr without --otlp-endpoint. `log` and `metrics` must outlive the result.
absl::StatusOr<std::unique_ptr<SpanExporter>> StartSpans(const config::LogConfig& config,
                                                         const Logger* log,
                                                         ServerMetrics* metrics) {
  if (config.otlp_endpoint.empty()) return nullptr;
  SpanExporter::Options options;
  HEDDLE_ASSIGN_OR_RETURN(options.endpoint, ParseOtlpEndpoint(config.otlp_endpoint));
  options.resource = {{"service.name", "heddle"},
                      {"service.version", HEDDLE_VERSION},
                      {"process.pid", int64_t{getpid()}}};
  return std::make_unique<SpanExporter>(
      std::move(options), log,
      [metrics](int64_t exported, int64_t dropped) { metrics->CountSpans(exported, dropped); });
}

engine::Pooling ToPooling(config::Pooling pooling, const engine::ModelDescription& model) {
  switch (pooling) {
    case config::Pooling::kAuto:
      if (!model.pooled.has_value()) return engine::Pooling::kLast;
      return model.pooled->pooling.value_or(engine::Pooling::kLast);
    case config::Pooling::kLast:
      return engine::Pooling::kLast;
    case config::Pooling::kMean:
      return engine::Pooling::kMean;
    case config::Pooling::kFirst:
      break;
  }
  return engine::Pooling::kFirst;
}

ServedModel ToServedModel(const config::Config& config, const EngineSession& session) {
  ServedModel model;
  model.id = ServedModelName(config);
  if (config.served_model_name.size() > 1) {
    model.aliases.assign(config.served_model_name.begin() + 1, config.served_model_name.end());
  }
  // The same seed gives the same tokens for the same build, weights format and instruction set.
  model.fingerprint = base::StrCat(
      "heddle-", HEDDLE_VERSION, "-",
      std::to_string(std::hash<std::string>()(session.model.device + session.model.formats) %
                     0xFFFFFF));
  model.created = std::chrono::duration_cast<std::chrono::seconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count();
  model.max_context = session.model.capacity.limits.max_context;
  model.max_joined_context = BranchSupportOf(session.model.capacity.limits).max_joined_context;
  model.segments = session.model.capacity.limits.segments;
  model.defaults = session.defaults;
  model.embedding_size = session.model.model.spec.hidden;
  model.pooling = ToPooling(config.pooling, session.model.model);
  if (session.model.head != nullptr) {
    model.head = session.model.head;
    model.embedding_size = model.head->size();
    const int32_t longest = model.head->output().max_tokens;
    if (longest > 0) model.max_context = std::min(model.max_context, longest);
  }
  model.family = session.model.model.spec.family;
  model.weight_format = session.model.main_format;
  model.num_parameters = engine::CountParameters(session.model.model);
  model.weight_bytes = session.model.capacity.weight_bytes;
  model.max_sequences = session.model.capacity.limits.max_batch_seqs;
  return model;
}

// The gRPC front end beside `http`, or nullptr if it is not enabled.
absl::StatusOr<std::unique_ptr<GrpcServer>> StartGrpc(const config::ServerConfig& config,
                                                      const ServedModel& model, HttpServer* http,
                                                      const GenerationService* generation) {
  if (!config.grpc_port) return nullptr;
  GrpcServerOptions options;
  options.host = config.host;
  options.port = static_cast<uint16_t>(*config.grpc_port);
  options.workers = static_cast<int>(config.io_threads);
  options.max_message_bytes = config.max_body_bytes.value;
  options.max_connections = static_cast<int>(config.max_connections);
  options.version = HEDDLE_VERSION;
  options.model_id = model.id;
  options.tls = ToTlsOptions(config);
  return GrpcServer::Start(options, http, generation);
}

// The owners of certificates that are read again. After an error in a file the server continues
// with its old certificate.
class Certificates {
 public:
  // Either may be nullptr.
  Certificates(TlsContext* tls, GrpcServer* grpc, const Logger* log)
      : tls_(tls), grpc_(grpc), log_(log) {}

  void Reload() {
    if (tls_ == nullptr) return;
    absl::Status reloaded = tls_->Reload();
    if (grpc_ != nullptr) reloaded.Update(grpc_->ReloadTls());
    reloaded.ok() ? Tell(true) : Tell(reloaded);
  }

  // Checks every few seconds whether the files have changed.
  void Check(SteadyClock::time_point now) {
    constexpr std::chrono::seconds kInterval{10};
    if (now - last_check_ < kInterval) return;
    last_check_ = now;
    if (tls_ != nullptr) Tell(tls_->ReloadIfChanged());
    if (grpc_ != nullptr) Tell(grpc_->ReloadTlsIfChanged());
  }

 private:
  void Tell(const absl::StatusOr<bool>& reloaded) {
    if (!reloaded.ok()) {
      log_->Error("certificates were not read again", {{"error", MessageOf(reloaded.status())}});
    } else if (*reloaded) {
      log_->Info("certificates were read again: new connections use them");
    }
  }

  TlsContext* tls_;
  GrpcServer* grpc_;
  const Logger* log_;
  SteadyClock::time_point last_check_ = SteadyClock::now();
};

// Reads the keys again; as with certificates, an error in the file keeps the old ones.
void ReloadKeys(KeyFile* file, HttpServer* server, const Logger& log) {
  const absl::StatusOr<std::vector<ApiKey>> keys = file->Read();
  if (!keys.ok()) {
    log.Error("API keys were not read again", {{"error", MessageOf(keys.status())}});
    return;
  }
  server->ReplaceKeys(*keys);
  log.Info("API keys were read again", {{"keys", int64_t(keys->size())}});
}

// The files that a running server reads again.
struct Reloads {
  Certificates* certificates;
  KeyFile* keys;
  HttpServer* server;
};

void ReloadAll(const Reloads& reloads, const Logger& log) {
  reloads.certificates->Reload();
  if (reloads.keys->is_used()) ReloadKeys(reloads.keys, reloads.server, log);
}

// Waits for SIGINT or SIGTERM (OK), or for the engine to fail (a supervisor should then restart
// us). ABORTED: the group of ranks in other processes has ended for good (`ranks`, or null).
// `grpc`, or null, is told whether the engine serves.
absl::Status WaitForEnd(const config::Config& config, SignalWatch& signals, EngineLoop& loop,
                        const RankHead* ranks, GrpcServer* grpc, const Reloads& reloads,
                        const Logger& log) {
  constexpr int kPollsPerLook = 10;  // at the key file, which is every two seconds
  FreeMemory free_memory;
  bool is_serving = true;
  for (int poll = 1;; ++poll) {
    loop.Beat();
    reloads.certificates->Check(SteadyClock::now());
    free_memory.Check(SteadyClock::now());
    if (std::optional<int> number = signals.Wait(milliseconds(200))) {
      if (number == SIGHUP) {
        ReloadAll(reloads, log);
        continue;
      }
      log.Info("shutting down", {{"signal", *number}});
      return absl::OkStatus();
    }
    if (poll % kPollsPerLook == 0 && reloads.keys->HasChanged()) {
      ReloadKeys(reloads.keys, reloads.server, log);
    }
    if (config.stuck_timeout.value > 0) loop.FailIfStuck(Seconds(config.stuck_timeout.value));
    if (const absl::Status lost = ranks == nullptr ? absl::OkStatus() : ranks->Failure();
        !lost.ok()) {
      return absl::AbortedError(lost.message());
    }
    const EngineState state = loop.Stats().state;
    if (ranks != nullptr && ranks->is_lost() && state == EngineState::kServing) {
      loop.CheckExecutor();  // it may have nothing to run
    }
    if (grpc != nullptr && (state == EngineState::kServing) != is_serving) {
      grpc->SetReady(!is_serving);
    }
    is_serving = state == EngineState::kServing;
    if (state == EngineState::kFailed) {
      const std::string why(loop.Failure().message());
      log.Error("the engine has failed: nothing runs any more", {{"error", why}});
      return absl::InternalError(base::StrCat("the engine has failed: ", why));
    }
  }
}

// Runs before the model is loaded, which may take minutes and would be in vain.
absl::Status CheckPorts(const config::ServerConfig& config) {
  HEDDLE_RETURN_IF_ERROR(CheckAddress(config.host, static_cast<uint16_t>(config.port)));
  if (!config.grpc_port) return absl::OkStatus();
  return CheckAddress(config.host, static_cast<uint16_t>(*config.grpc_port));
}

// Nothing runs yet that would have to finish, and loading may take minutes, so a signal ends the
// process at once.
absl::StatusOr<EngineSession> StartUnlessStopped(const config::Config& config, const Logger& log,
                                                 SignalWatch& signals) {
  constexpr milliseconds kPoll{5};  // the most that polling adds to a start
  std::future<absl::StatusOr<EngineSession>> session =
      std::async(std::launch::async, [&] { return StartEngine(config, log); });
  while (session.wait_for(milliseconds(0)) != std::future_status::ready) {
    const std::optional<int> number = signals.Wait(kPoll);
    if (!number.has_value() || number == SIGHUP) continue;
    log.Info("stopped while the model was loading", {{"signal", *number}});
    log.Flush();
    _exit(kExitSignal + *number);
  }
  return session.get();
}

SteadyClock::time_point After(config::Seconds wait) {
  return SteadyClock::now() +
         std::chrono::duration_cast<SteadyClock::duration>(Seconds(wait.value));
}

// Ends the process at once on a second signal.
void EndIfSignalled(SignalWatch& signals, const Logger& log) {
  const std::optional<int> number = signals.Wait(milliseconds(20));
  if (!number.has_value() || number == SIGHUP) return;
  log.Flush();
  _exit(kExitSignal + *number);
}

// Continues to serve for --drain-delay, while load balancers notice that this server leaves.
void LeaveFirst(const config::Config& config, SignalWatch& signals, HttpServer& server,
                GrpcServer* grpc, EngineLoop& loop, const Logger& log) {
  if (config.drain_delay.value <= 0) return;
  const auto end = After(config.drain_delay);
  log.Info("leaving: /ready says so, requests are still served",
           {{"seconds", config.drain_delay.value}});
  server.Leave();
  if (grpc != nullptr) grpc->SetReady(false);
  while (SteadyClock::now() < end && loop.Stats().state != EngineState::kFailed) {
    loop.Beat();
    EndIfSignalled(signals, log);
  }
}

// Finishes running requests within the drain timeout; a second signal ends the process at once.
void DrainAndStop(const config::Config& config, SignalWatch& signals, HttpServer& server,
                  GrpcServer* grpc, EngineLoop& loop, const Logger& log) {
  log.Info("draining: no new requests, finishing what runs");
  server.SetReady(false);
  const auto deadline = After(config.drain_timeout);
  std::atomic<bool> done = false;
  std::thread drainer([&] {
    if (!server.Drain(deadline)) {
      log.Warning("drain timeout: cancelling what still runs");
      // Clients get an error that says so, instead of a broken stream.
      loop.Drain(SteadyClock::now());
      server.Drain(SteadyClock::now() + kFarewell);
    }
    if (grpc != nullptr) {
      grpc->Stop(std::chrono::system_clock::now() +
                 std::max(deadline - SteadyClock::now(), SteadyClock::duration::zero()));
    }
    server.Stop();
    loop.Drain(std::max(deadline, SteadyClock::now()));
    done = true;
  });
  while (!done) {
    loop.Beat();
    EndIfSignalled(signals, log);
    // Waiting for a step any longer than /health does is useless.
    if (loop.FailIfStuck(Seconds(config.watchdog_timeout.value))) {
      log.Error("the engine has failed while it was to finish",
                {{"error", std::string(loop.Failure().message())}});
    }
  }
  drainer.join();
}

}  // namespace

absl::Status RunServe(const config::Config& config) {
  const auto began = SteadyClock::now();
  KeyFile key_file(config);
  SignalWatch signals(/*takes_hangup=*/!config.tls_cert.empty() || key_file.is_used());
  const Logger log(
      config.log_format == config::LogFormat::kJson ? LogFormat::kJson : LogFormat::kText,
      ToLogLevel(config.log_level));
  const LibraryLogs library_logs(&log);
  if (!config.join.empty()) return RunRank(config, signals, log);
  // A client of gRPC has three descriptors: its own, and both ends of the guard's pair.
  AllowDescriptors(config.max_connections * (config.grpc_port.has_value() ? 4 : 1), log);
  HEDDLE_ASSIGN_OR_RETURN(HttpServerOptions http_options, ToHttpOptions(config, &key_file));
  WarnIfOpen(config, log);
  WarnIfReadableByOthers("--api-key-file", config.api_key_file, log);
  WarnIfReadableByOthers("--tls-key", config.tls_key, log);
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<TlsContext> tls, LoadTls(config, log));
  HEDDLE_RETURN_IF_ERROR(CheckPorts(config));
  HEDDLE_ASSIGN_OR_RETURN(EngineSession session, StartUnlessStopped(config, log, signals));
  LogSpeculation(session.speculation, log);
  http_options.branches.bytes_per_token = BytesPerToken(session.model.capacity);
  const BranchSupport support = BranchSupportOf(session.model.capacity.limits);
  http_options.branches.no_concurrent = support.no_concurrent;
  http_options.branches.no_workers = support.no_workers;
  const ServedModel model = ToServedModel(config, session);
  ServerMetrics metrics(model.id, HEDDLE_VERSION);
  metrics.WatchLog([&log] { return log.dropped(); });
  if (config.metrics_by_key) metrics.WatchKeys();
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<SpanExporter> spans,
                          StartSpans(config, &log, &metrics));
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<RewardClient> rewards, StartRewards(config, &log));
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<AdapterRegistry> adapters,
                          StartAdapters(config, session, model, &metrics, &log));
  const std::unique_ptr<AdapterSets> adapter_sets =
      MakeAdapterSets(config, adapters.get(), &metrics);
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> server,
                          HttpServer::Start(http_options, {.generation = session.loop.get(),
                                                           .codec = session.codec.get(),
                                                           .model = &model,
                                                           .metrics = &metrics,
                                                           .log = &log,
                                                           .tls = tls.get(),
                                                           .spans = spans.get(),
                                                           .rewards = rewards.get(),
                                                           .adapters = adapters.get(),
                                                           .adapter_sets = adapter_sets.get()}));
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> grpc,
                          StartGrpc(config, model, server.get(), session.loop.get()));
  server->SetReady(true);
  if (grpc != nullptr) grpc->SetReady(true);
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - began).count();
  PrintWelcome(config, session,
               {.model_id = model.id,
                .port = server->port(),
                .grpc_port = grpc == nullptr ? uint16_t{0} : static_cast<uint16_t>(grpc->port()),
                .ready_seconds = seconds},
               log);

  Certificates certificates(tls.get(), grpc.get(), &log);
  absl::Status end = WaitForEnd(config, signals, *session.loop, session.ranks.head.get(),
                                grpc.get(), {&certificates, &key_file, server.get()}, log);
  if (end.ok()) LeaveFirst(config, signals, *server, grpc.get(), *session.loop, log);
  DrainAndStop(config, signals, *server, grpc.get(), *session.loop, log);
  if (session.loop->IsStuck()) {
    log.Flush();
    _exit(kExitStuck);
  }
  return end;
}

}  // namespace heddle::server
