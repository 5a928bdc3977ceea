#include "server/cli/remote_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "kernels/cpu/cpuid.h"
#include "server/cli/build_name.h"
#include "server/cli/key_file.h"
#include "server/cli/model_options.h"
#include "server/cli/standard_io.h"
#include "server/ranks/rank_client.h"
#include "server/ranks/rank_mesh.h"

namespace heddle::server {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kLeastTokenBytes = 16;
constexpr milliseconds kRetry{500};  // between two attempts to reach the head
constexpr int kDiedOfSignal = 128;   // plus its number: what a shell reports for a signal

absl::StatusOr<RankIdentity> IdentityOf(const config::Config& config,
                                        const engine::LoadOptions& options, const Logger& log) {
  RankIdentity identity;
  if (!config.rank_token_file.empty()) {
    WarnIfReadableByOthers("--rank-token-file", config.rank_token_file, log);
    HEDDLE_ASSIGN_OR_RETURN(const std::string text,
                            ReadFile(config.rank_token_file, kMaxTokenBytes));
    identity.token = std::string(absl::StripAsciiWhitespace(text));
    if (identity.token.size() < kLeastTokenBytes) {
      return absl::InvalidArgumentError(base::StrCat("--rank-token-file ", config.rank_token_file,
                                                     " has ", std::to_string(identity.token.size()),
                                                     " characters; a token needs ",
                                                     std::to_string(kLeastTokenBytes)));
    }
  }
  identity.build = BuildName(HEDDLE_VERSION);
  HEDDLE_ASSIGN_OR_RETURN(identity.model_digest, engine::ModelDigest(config.model));
  HEDDLE_ASSIGN_OR_RETURN(
      const kernels::cpu::Isa isa,
      kernels::cpu::ResolveIsa(options.cpu.isa, kernels::cpu::DetectCpuFeatures()));
  identity.isa = kernels::cpu::Name(isa);
  HEDDLE_ASSIGN_OR_RETURN(identity.ucx, RankMesh::Version());
  return identity;
}

absl::StatusOr<RankTls> TlsOf(const config::Config& config, const Logger& log) {
  RankTls tls{config.rank_tls_cert, config.rank_tls_key, config.rank_tls_ca};
  if (tls.enabled()) WarnIfReadableByOthers("--rank-tls-key", tls.key_file, log);
  HEDDLE_RETURN_IF_ERROR(CheckRankTls(tls, [&log](const std::string& what) { log.Warning(what); }));
  return tls;
}

// A number that no other process has.
uint64_t RandomNumber() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

// This process's part of the model, as long as it can be used.
struct OwnPart {
  std::optional<engine::LoadedRank> rank;  // empty: nothing is loaded
  HeldPlace place;
  engine::RankOffer offer;
};

// A rank's way through groups.
struct RankRun {
  const config::Config& config;
  const engine::LoadOptions& options;
  RankAddress head;
  RankTls tls;
  RankCaller caller;
  SignalWatch& signals;
  const Logger& log;
  OwnPart part;
};

// Tries until the head answers: it may not have begun, may be ending, or may wait for others.
// UNAVAILABLE: it has not within `patience`; nullopt: for ever.
absl::StatusOr<std::shared_ptr<RankClient>> JoinHead(RankRun& run,
                                                     std::optional<milliseconds> patience) {
  const auto begin = std::chrono::steady_clock::now();
  for (bool is_first = true;; is_first = false) {
    absl::StatusOr<std::shared_ptr<RankClient>> client =
        RankClient::Join(run.head.host, run.head.port, run.tls, run.caller, run.part.place);
    if (!absl::IsUnavailable(client.status())) return client;
    if (is_first) {
      run.log.Info("waiting for the head",
                   {{"at", run.config.join}, {"why", std::string(client.status().message())}});
    }
    if (patience.has_value() && std::chrono::steady_clock::now() - begin > *patience) {
      return client;
    }
    const std::optional<int> number = run.signals.Wait(kRetry);
    if (number.has_value()) {
      run.log.Info("stopped while it waited for the head", {{"signal", *number}});
      run.log.Flush();
      _exit(kDiedOfSignal + *number);
    }
  }
}

absl::StatusOr<engine::LoadedRank> LoadOwnPart(engine::LoadOptions options,
                                               const config::Config& config,
                                               const std::shared_ptr<RankClient>& client) {
  const RankSettings& settings = client->settings();
  options.layout = settings.layout;
  options.weights = settings.weights;
  options.kv_type = settings.kv_type;
  options.capacity.page_tokens = settings.page_tokens;
  options.capacity.max_batch_tokens = settings.max_batch_tokens;
  options.capacity.max_batch_seqs = settings.max_batch_seqs;
  options.capacity.max_context = settings.max_context;
  options.capacity.adapter_max_rank = settings.adapter_max_rank;
  options.make_device = {};
  options.meeting = client;
  return engine::LoadRank(config.model, options);
}

// Takes the loaded part to its place again, or loads the part of a new place.
absl::Status Prepare(RankRun& run, const std::shared_ptr<RankClient>& client) {
  OwnPart& part = run.part;
  const HeldPlace place = client->place();
  if (part.rank.has_value() && part.place.session == place.session &&
      part.place.rank == place.rank) {
    return client->Rejoin(*part.rank->worker, part.offer, part.rank->capacity.limits);
  }
  part = {};  // its memory is needed
  HEDDLE_ASSIGN_OR_RETURN(part.rank, LoadOwnPart(run.options, run.config, client));
  part.place = place;
  part.offer = client->offer();
  run.log.Info("the rank is loaded", {{"rank", int64_t{client->rank()}},
                                      {"ranks", int64_t{client->settings().layout.world()}},
                                      {"device", part.rank->device}});
  return absl::OkStatus();
}

absl::Status PrepareAndRun(RankRun& run, const std::shared_ptr<RankClient>& client) {
  const absl::Status status = Prepare(run, client);
  if (absl::IsCancelled(status)) return absl::OkStatus();  // the head has ended in order
  HEDDLE_RETURN_IF_ERROR(status);
  return client->Run(*run.part.rank->worker, run.part.rank->capacity.limits);
}

// One life of the group. nullopt: a signal has ended it.
std::optional<absl::Status> RunOnce(RankRun& run, const std::shared_ptr<RankClient>& client) {
  run.log.Info("joined the head", {{"at", run.config.join}, {"rank", int64_t{client->rank()}}});
  std::future<absl::Status> running =
      std::async(std::launch::async, [&] { return PrepareAndRun(run, client); });
  bool is_stopped = false;
  while (running.wait_for(milliseconds(0)) != std::future_status::ready) {
    const std::optional<int> number = run.signals.Wait(milliseconds(20));
    if (!number.has_value() || number == SIGHUP) continue;
    run.log.Info("shutting down", {{"signal", *number}});
    is_stopped = true;
    client->Stop();
  }
  absl::Status status = running.get();
  if (is_stopped) return std::nullopt;
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<RankHead>> StartRankHead(const config::Config& config,
                                                        const engine::LoadOptions& options,
                                                        const Logger* log) {
  if (config.ranks_listen.empty()) return nullptr;
  RankHeadOptions head;
  HEDDLE_ASSIGN_OR_RETURN(const RankAddress address,
                          ParseRankAddress("--ranks-listen", config.ranks_listen));
  head.host = address.host;
  head.port = address.port;
  HEDDLE_ASSIGN_OR_RETURN(head.tls, TlsOf(config, *log));
  HEDDLE_ASSIGN_OR_RETURN(head.identity, IdentityOf(config, options, *log));
  head.settings = {
      .layout = options.layout,
      .weights = options.weights,
      .kv_type = options.kv_type,
      .page_tokens = options.capacity.page_tokens,
      .max_batch_tokens = options.capacity.max_batch_tokens,
      .max_batch_seqs = options.capacity.max_batch_seqs,
      .max_context = options.capacity.max_context,
      .adapter_max_rank = options.capacity.adapter_max_rank,
      .wire = config.rank_wire == "bf16" ? kernels::DType::kBF16 : kernels::DType::kF32,
      .timeout = std::chrono::duration_cast<milliseconds>(
          std::chrono::duration<double>(config.rank_timeout.value)),
      .rejoin = std::chrono::duration_cast<milliseconds>(
          std::chrono::duration<double>(config.rank_rejoin_timeout.value)),
      .session = RandomNumber()};
  return RankHead::Start(head, log);
}

absl::Status RunRank(const config::Config& config, SignalWatch& signals, const Logger& log) {
  HEDDLE_ASSIGN_OR_RETURN(const RankAddress address, ParseRankAddress("--join", config.join));
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadOptions options, ToLoadOptions(config));
  HEDDLE_ASSIGN_OR_RETURN(const RankTls tls, TlsOf(config, log));
  HEDDLE_ASSIGN_OR_RETURN(const RankIdentity identity, IdentityOf(config, options, log));
  RankRun run{
      config,  options, address, tls, {identity, RandomNumber(), static_cast<int32_t>(config.rank)},
      signals, log,     {}};
  std::optional<milliseconds> patience;  // for the first head: without end
  while (true) {
    absl::StatusOr<std::shared_ptr<RankClient>> client = JoinHead(run, patience);
    if (absl::IsUnavailable(client.status())) return absl::AbortedError(client.status().message());
    HEDDLE_RETURN_IF_ERROR(client.status());
    const std::optional<absl::Status> status = RunOnce(run, *client);
    if (!status.has_value() || status->ok()) return absl::OkStatus();
    if (!absl::IsUnavailable(*status)) return *status;
    patience = (*client)->settings().rejoin;
    if (patience->count() == 0) return absl::AbortedError(status->message());
    log.Warning("the group is lost: joining again", {{"why", std::string(status->message())}});
  }
}

}  // namespace heddle::server
