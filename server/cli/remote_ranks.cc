#include "server/cli/remote_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "kernels/cpu/cpuid.h"
#include "server/cli/key_file.h"
#include "server/cli/model_options.h"
#include "server/cli/standard_io.h"
#include "server/ranks/rank_client.h"

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
  identity.build = HEDDLE_VERSION;
  HEDDLE_ASSIGN_OR_RETURN(identity.model_digest, engine::ModelDigest(config.model));
  HEDDLE_ASSIGN_OR_RETURN(
      const kernels::cpu::Isa isa,
      kernels::cpu::ResolveIsa(options.cpu.isa, kernels::cpu::DetectCpuFeatures()));
  identity.isa = kernels::cpu::Name(isa);
  return identity;
}

// Tries until the head answers: it may not have begun, or may be ending.
absl::StatusOr<std::shared_ptr<RankClient>> JoinHead(const RankAddress& head,
                                                     const RankIdentity& identity,
                                                     const config::Config& config,
                                                     SignalWatch& signals, const Logger& log) {
  for (bool is_first = true;; is_first = false) {
    absl::StatusOr<std::shared_ptr<RankClient>> client =
        RankClient::Join(head.host, head.port, identity);
    if (!absl::IsUnavailable(client.status())) return client;
    if (is_first) {
      log.Info("waiting for the head",
               {{"at", config.join}, {"why", std::string(client.status().message())}});
    }
    const std::optional<int> number = signals.Wait(kRetry);
    if (number.has_value()) {
      log.Info("stopped while it waited for the head", {{"signal", *number}});
      log.Flush();
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
  options.make_device = {};
  options.meeting = client;
  return engine::LoadRank(config.model, options);
}

absl::Status LoadAndRun(const engine::LoadOptions& options, const config::Config& config,
                        const std::shared_ptr<RankClient>& client, const Logger& log) {
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadedRank rank, LoadOwnPart(options, config, client));
  log.Info("the rank is loaded", {{"rank", int64_t{client->rank()}},
                                  {"ranks", int64_t{client->settings().layout.world()}},
                                  {"device", rank.device}});
  return client->Run(*rank.worker, rank.capacity.limits);
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
  HEDDLE_ASSIGN_OR_RETURN(head.identity, IdentityOf(config, options, *log));
  head.settings = {.layout = options.layout,
                   .weights = options.weights,
                   .kv_type = options.kv_type,
                   .page_tokens = options.capacity.page_tokens,
                   .max_batch_tokens = options.capacity.max_batch_tokens,
                   .max_batch_seqs = options.capacity.max_batch_seqs,
                   .max_context = options.capacity.max_context,
                   .timeout = std::chrono::duration_cast<milliseconds>(
                       std::chrono::duration<double>(config.rank_timeout.value))};
  return RankHead::Start(head, log);
}

absl::Status RunRank(const config::Config& config, SignalWatch& signals, const Logger& log) {
  HEDDLE_ASSIGN_OR_RETURN(const RankAddress address, ParseRankAddress("--join", config.join));
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadOptions options, ToLoadOptions(config));
  HEDDLE_ASSIGN_OR_RETURN(const RankIdentity identity, IdentityOf(config, options, log));
  HEDDLE_ASSIGN_OR_RETURN(const std::shared_ptr<RankClient> client,
                          JoinHead(address, identity, config, signals, log));
  log.Info("joined the head", {{"at", config.join}, {"rank", int64_t{client->rank()}}});
  std::future<absl::Status> running =
      std::async(std::launch::async, [&] { return LoadAndRun(options, config, client, log); });
  bool is_stopped = false;
  while (running.wait_for(milliseconds(0)) != std::future_status::ready) {
    const std::optional<int> number = signals.Wait(milliseconds(20));
    if (!number.has_value() || number == SIGHUP) continue;
    log.Info("shutting down", {{"signal", *number}});
    is_stopped = true;
    client->Stop();
  }
  const absl::Status status = running.get();
  if (is_stopped || status.ok()) return absl::OkStatus();
  return absl::IsUnavailable(status) ? absl::AbortedError(status.message()) : status;
}

}  // namespace heddle::server
