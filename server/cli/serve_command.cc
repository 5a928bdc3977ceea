// `heddle serve`: loads the model, answers until told to stop, drains, leaves.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "server/cli/command.h"
#include "server/cli/engine_session.h"
#include "server/cli/model_options.h"
#include "server/cli/signals.h"
#include "server/cli/standard_io.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "server/http/page_origin.h"
#include "server/http/transport.h"
#include "server/log.h"
#include "server/openai/api_error.h"

namespace heddle::server {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kFarewell{500};  // to write the last frames of streams that are cancelled
constexpr int kExitSignal = 128;        // plus its number: what a shell reports for a signal
constexpr int kExitStuck = 1;           // as after any other failure
constexpr int64_t kLeastPrepareThreads = 2;  // one may have a body to itself, and others go on

ReasoningField ToReasoningField(const std::string& name) {
  if (name == "reasoning") return ReasoningField::kReasoning;
  if (name == "both") return ReasoningField::kBoth;
  return name == "none" ? ReasoningField::kNone : ReasoningField::kReasoningContent;
}

KeyLimits ToKeyLimits(const config::Config& config) {
  return {.requests_per_minute = config.key_requests_per_minute,
          .tokens_per_minute = config.key_tokens_per_minute,
          .concurrency = config.key_concurrency};
}

// The keys of --api-key-file; the error names the file and the line.
absl::StatusOr<std::vector<ApiKey>> ReadKeyFile(const config::Config& config) {
  constexpr size_t kMaxKeyFileBytes = size_t{16} << 20;
  if (config.api_key_file.empty()) return std::vector<ApiKey>();
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, ReadFile(config.api_key_file, kMaxKeyFileBytes));
  absl::StatusOr<std::vector<ApiKey>> keys = ParseKeyFile(text, ToKeyLimits(config));
  if (keys.ok() && !keys->empty()) return keys;
  const std::string_view why = keys.ok() ? "there is no key in it" : MessageOf(keys.status());
  return absl::InvalidArgumentError(
      base::StrCat("--api-key-file ", config.api_key_file, ": ", why));
}

bool HasKeys(const config::Config& config) {
  return !config.api_key.empty() || !config.api_key_file.empty();
}

void WarnIfOpen(const config::Config& config, const Logger& log) {
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

TlsOptions ToTlsOptions(const config::Config& config) {
  return {config.tls_cert, config.tls_key, config.tls_client_ca};
}

// nullptr without --tls-cert.
absl::StatusOr<std::unique_ptr<TlsContext>> LoadTls(const config::Config& config,
                                                    const Logger& log) {
  if (config.tls_cert.empty()) return nullptr;
  return TlsContext::Load(ToTlsOptions(config),
                          [&log](const std::string& warning) { log.Warning(warning); });
}

absl::StatusOr<HttpServerOptions> ToHttpOptions(const config::Config& config) {
  HttpServerOptions options;
  options.host = config.host;
  options.port = static_cast<uint16_t>(config.port);
  options.io_threads = static_cast<int>(config.io_threads);
  options.prepare_threads = static_cast<int>(
      config.prepare_threads > 0 ? config.prepare_threads
                                 : std::max(kLeastPrepareThreads, config.io_threads));
  options.max_preparing = static_cast<size_t>(config.max_queue);
  options.max_connections = static_cast<int>(config.max_connections);
  options.max_body_bytes = config.max_body_bytes.value;
  options.request_timeout = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(config.request_timeout.value));
  options.step_timeout = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(config.watchdog_timeout.value));
  options.api_keys = config.api_key;
  options.admin_keys = config.admin_key;
  options.key_limits = ToKeyLimits(config);
  options.max_open_requests = config.max_open_requests;
  HEDDLE_ASSIGN_OR_RETURN(options.hashed_keys, ReadKeyFile(config));
  options.cors_origin = config.cors_origin;
  options.policy.reasoning_field = ToReasoningField(config.reasoning_field);
  options.policy.clamp_max_tokens = config.max_tokens_overflow == "clamp";
  options.policy.scheduling = ToPolicy(config);
  options.policy.ignore_unknown_fields = config.unknown_fields == "ignore";
  if (config.metric_names == "vllm") options.metric_names = ServerMetrics::Names::kAlsoVllm;
  options.trace_sample_ratio = config.trace_sample_ratio.value_or(1);
  options.version = HEDDLE_VERSION;
  return options;
}

// nullptr without --otlp-endpoint. `log` and `metrics` outlive it.
absl::StatusOr<std::unique_ptr<SpanExporter>> StartSpans(const config::Config& config,
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

engine::Pooling ToPooling(const std::string& name) {
  if (name == "mean") return engine::Pooling::kMean;
  return name == "first" ? engine::Pooling::kFirst : engine::Pooling::kLast;
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
  model.defaults = session.defaults;
  model.embedding_size = session.model.model.spec.hidden;
  model.pooling = ToPooling(config.pooling);
  return model;
}

std::string GrpcLine(const config::Config& config, const GrpcServer* grpc) {
  return grpc == nullptr ? "" : base::StrCat("\ngRPC      ", config.host, ":", grpc->port());
}

// The gRPC front end beside `http`, or nullptr where none was asked for.
absl::StatusOr<std::unique_ptr<GrpcServer>> StartGrpc(const config::Config& config,
                                                      const ServedModel& model, HttpServer* http,
                                                      const GenerationService* generation) {
  if (!config.grpc_port) return nullptr;
  GrpcServerOptions options;
  options.host = config.host;
  options.port = static_cast<uint16_t>(*config.grpc_port);
  options.workers = static_cast<int>(config.io_threads);
  options.max_message_bytes = config.max_body_bytes.value;
  options.version = HEDDLE_VERSION;
  options.model_id = model.id;
  options.tls = ToTlsOptions(config);
  return GrpcServer::Start(options, http, generation);
}

// Of the time to get ready, where the device needed one.
std::string WarmUpText(const engine::LoadedModel& model) {
  if (model.warm_up_seconds == 0) return "";
  return absl::StrFormat(", %.2f s of it to warm up", model.warm_up_seconds);
}

std::string UrlText(const config::Config& config, uint16_t port) {
  const std::string_view scheme = config.tls_cert.empty() ? "http" : "https";
  const bool is_ipv6 = config.host.find(':') != std::string::npos;
  const std::string host = is_ipv6 ? base::StrCat("[", config.host, "]") : config.host;
  return base::StrCat(scheme, "://", host, ":", port);
}

// What a person wants to see first; where machines read the log, a line of it.
void PrintWelcome(const config::Config& config, const EngineSession& session,
                  const ServedModel& model, uint16_t port, const GrpcServer* grpc, double seconds,
                  const Logger& log) {
  const std::string url = UrlText(config, port);
  if (config.log_format == "json") {
    log.Info("serving", {{"version", HEDDLE_VERSION},
                         {"model", model.id},
                         {"family", session.model.model.spec.family},
                         {"weights", session.model.formats},
                         {"device", session.model.device},
                         {"memory", engine::DescribeCapacity(session.model.capacity)},
                         {"url", url},
                         {"grpc_port", int64_t{grpc == nullptr ? 0 : grpc->port()}},
                         {"ready_seconds", seconds}});
    return;
  }
  const std::string_view key = HasKeys(config) ? " -H 'Authorization: Bearer KEY'" : "";
  std::string text = base::StrCat(
      "model     ", model.id, ": ", session.model.model.spec.family, ", ", session.model.formats,
      "\ndevice    ", session.model.device, "\nmemory    ",
      engine::DescribeCapacity(session.model.capacity), "\nready in  ",
      absl::StrFormat("%.2f s", seconds), WarmUpText(session.model), "\nserving   ", url,
      "/v1 (Ctrl-C ends it)", GrpcLine(config, grpc), "\n\nTry:\n  curl ", url,
      "/v1/chat/completions -H 'Content-Type: application/json'", key,
      " \\\n"
      "    -d '{\"model\": \"",
      model.id, "\", \"messages\": [{\"role\": \"user\", \"content\": \"What is 7 + 5?\"}]}'\n\n");
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// A file that is wrong leaves what is in use: the server goes on with its old certificate.
void ReloadTls(TlsContext* tls, const Logger& log) {
  const absl::Status reloaded = tls->Reload();
  if (reloaded.ok()) {
    log.Info("certificates were read again: new connections use them");
  } else {
    log.Error("certificates were not read again", {{"error", MessageOf(reloaded)}});
  }
}

// Until SIGINT or SIGTERM (OK), or the engine fails (then a supervisor should start us anew).
absl::Status WaitForEnd(const config::Config& config, SignalWatch& signals, EngineLoop& loop,
                        TlsContext* tls, const Logger& log) {
  while (true) {
    if (std::optional<int> number = signals.Wait(milliseconds(200))) {
      if (number == SIGHUP) {
        ReloadTls(tls, log);
        continue;
      }
      log.Info("shutting down", {{"signal", *number}});
      return absl::OkStatus();
    }
    if (config.stuck_timeout.value > 0) loop.FailIfStuck(Seconds(config.stuck_timeout.value));
    if (loop.Stats().state == EngineState::kFailed) {
      const std::string why(loop.Failure().message());
      log.Error("the engine has failed: nothing runs any more", {{"error", why}});
      return absl::InternalError(base::StrCat("the engine has failed: ", why));
    }
  }
}

// Before the model is loaded, which may take minutes and would be for nothing.
absl::Status CheckPorts(const config::Config& config) {
  HEDDLE_RETURN_IF_ERROR(CheckAddress(config.host, static_cast<uint16_t>(config.port)));
  if (!config.grpc_port) return absl::OkStatus();
  return CheckAddress(config.host, static_cast<uint16_t>(*config.grpc_port));
}

// Nothing runs yet that would have to finish, and loading may take minutes: a signal ends the
// process at once.
absl::StatusOr<EngineSession> StartUnlessStopped(const config::Config& config, const Logger& log,
                                                 SignalWatch& signals) {
  constexpr milliseconds kPoll{5};  // the most that this adds to a start
  std::future<absl::StatusOr<EngineSession>> session =
      std::async(std::launch::async, [&] { return StartEngine(config, log); });
  while (session.wait_for(milliseconds(0)) != std::future_status::ready) {
    const std::optional<int> number = signals.Wait(kPoll);
    if (!number.has_value() || number == SIGHUP) continue;
    log.Info("stopped while the model was loading", {{"signal", *number}});
    _exit(kExitSignal + *number);
  }
  return session.get();
}

SteadyClock::time_point After(config::Seconds wait) {
  return SteadyClock::now() +
         std::chrono::duration_cast<SteadyClock::duration>(Seconds(wait.value));
}

// A second signal ends the process at once.
void EndIfSignalled(SignalWatch& signals) {
  const std::optional<int> number = signals.Wait(milliseconds(20));
  if (number.has_value() && number != SIGHUP) _exit(kExitSignal + *number);
}

// Serves on for --drain-delay, while load balancers find out that this server leaves.
void LeaveFirst(const config::Config& config, SignalWatch& signals, HttpServer& server,
                GrpcServer* grpc, const EngineLoop& loop, const Logger& log) {
  if (config.drain_delay.value <= 0) return;
  const auto end = After(config.drain_delay);
  log.Info("leaving: /ready says so, requests are still served",
           {{"seconds", config.drain_delay.value}});
  server.Leave();
  if (grpc != nullptr) grpc->SetReady(false);
  while (SteadyClock::now() < end && loop.Stats().state != EngineState::kFailed) {
    EndIfSignalled(signals);
  }
}

// Finishes what runs within the drain timeout; a second signal ends the process at once.
void DrainAndStop(const config::Config& config, SignalWatch& signals, HttpServer& server,
                  GrpcServer* grpc, EngineLoop& loop, const Logger& log) {
  log.Info("draining: no new requests, finishing what runs");
  server.SetReady(false);
  const auto deadline = After(config.drain_timeout);
  std::atomic<bool> done = false;
  std::thread drainer([&] {
    if (!server.Drain(deadline)) {
      log.Warning("drain timeout: cancelling what still runs");
      // Its clients get an error that says so, and not a stream that breaks off.
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
    EndIfSignalled(signals);
    // No use in waiting longer than /health does for a step that ends.
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
  SignalWatch signals(/*takes_hangup=*/!config.tls_cert.empty());
  const Logger log(config.log_format == "json" ? LogFormat::kJson : LogFormat::kText,
                   ToLogLevel(config));
  HEDDLE_ASSIGN_OR_RETURN(const HttpServerOptions http_options, ToHttpOptions(config));
  WarnIfOpen(config, log);
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<TlsContext> tls, LoadTls(config, log));
  HEDDLE_RETURN_IF_ERROR(CheckPorts(config));
  HEDDLE_ASSIGN_OR_RETURN(EngineSession session, StartUnlessStopped(config, log, signals));
  const ServedModel model = ToServedModel(config, session);
  ServerMetrics metrics(model.id, HEDDLE_VERSION);
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<SpanExporter> spans,
                          StartSpans(config, &log, &metrics));
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> server,
                          HttpServer::Start(http_options, {.generation = session.loop.get(),
                                                           .codec = session.codec.get(),
                                                           .model = &model,
                                                           .metrics = &metrics,
                                                           .log = &log,
                                                           .tls = tls.get(),
                                                           .spans = spans.get()}));
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> grpc,
                          StartGrpc(config, model, server.get(), session.loop.get()));
  server->SetReady(true);
  if (grpc != nullptr) grpc->SetReady(true);
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - began).count();
  PrintWelcome(config, session, model, server->port(), grpc.get(), seconds, log);

  absl::Status end = WaitForEnd(config, signals, *session.loop, tls.get(), log);
  if (end.ok()) LeaveFirst(config, signals, *server, grpc.get(), *session.loop, log);
  DrainAndStop(config, signals, *server, grpc.get(), *session.loop, log);
  if (session.loop->IsStuck()) _exit(kExitStuck);
  return end;
}

}  // namespace heddle::server
