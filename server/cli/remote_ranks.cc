#include "server/cli/remote_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/memory/host_memory.h"
#include "engine/model/load_ranks.h"
#include "engine/model/rank_binding.h"
#include "kernels/cpu/cpuid.h"
#include "kernels/cpu/limits.h"
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
  identity.isa = options.make_rank_device ? "cuda" : kernels::cpu::Name(isa);
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

// Tells the ranks of a process that they are to end: a signal has come, or one of them has ended.
// Thread-safety: any thread calls anything.
class Ending {
 public:
  // `signals`: where they come from; null: none do. They come to one of the threads that wait.
  explicit Ending(SignalWatch* signals) : signals_(signals) {}

  void End(int number) {  // of a signal; 0: none
    const std::lock_guard lock(mutex_);
    if (!number_.has_value()) number_ = number;
    changed_.notify_all();
  }
  // The number, if they are to end; waits for that up to `timeout`.
  std::optional<int> Wait(milliseconds timeout) {
    {
      std::unique_lock lock(mutex_);
      const auto is_told = [this] { return number_.has_value(); };
      if (signals_ == nullptr) changed_.wait_for(lock, timeout, is_told);
      if (signals_ == nullptr || is_told()) return number_;
    }
    const std::optional<int> signal = signals_->Wait(timeout);
    if (signal.has_value() && *signal != SIGHUP) End(*signal);
    const std::lock_guard lock(mutex_);
    return number_;
  }

 private:
  SignalWatch* const signals_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<int> number_;  // GUARDED_BY(mutex_)
};

// A rank's way through groups.
struct RankRun {
  const config::Config& config;
  engine::LoadOptions options;
  RankAddress head;
  RankTls tls;
  RankCaller caller;
  Ending& ending;
  const Logger& log;
  bool measures;  // or its caller's means are what counts
  OwnPart part;
};

// Gives the options of rank `rank` of `ranks` of a process its part of the memory that they share:
// by their shares `weights`, [ranks] or equal if empty. A GPU has memory of its own.
void DivideMemory(std::span<const double> weights, int32_t rank, int32_t ranks,
                  engine::LoadOptions* options) {
  if (ranks == 1) return;
  double part = 1.0 / ranks;
  if (!weights.empty()) {
    part =
        weights[static_cast<size_t>(rank)] / std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  const auto part_of = [&](int64_t bytes) {
    return static_cast<int64_t>(static_cast<double>(bytes) * part);
  };
  engine::CapacityOptions& capacity = options->capacity;
  capacity.host_kv_bytes = part_of(capacity.host_kv_bytes);
  if (options->make_device) return;
  capacity.kv_bytes = part_of(capacity.kv_bytes);
  if (!options->memory.has_value()) return;
  options->memory->total_bytes = part_of(options->memory->total_bytes);
  options->memory->available_bytes = part_of(options->memory->available_bytes);
}

// The options of rank `rank` of a process that has so many: its processors, or its GPU; memory is
// the process's as it is now.
engine::LoadOptions OfFamilyRank(const engine::LoadOptions& all, int32_t rank, int32_t ranks) {
  engine::LoadOptions options = all;
  if (!all.rank_cpus.empty()) options.rank_cpus = {all.rank_cpus[static_cast<size_t>(rank)]};
  options.rank_devices.clear();
  options.make_rank_device = {};
  options.make_device = {};
  const bool has_gpu = static_cast<bool>(all.make_rank_device);
  if (has_gpu) options.make_device = [make = all.make_rank_device, rank] { return make(rank); };
  if (!has_gpu && ranks > 1) options.memory = engine::ReadHostMemory();
  return options;
}

// The shares of ranks [first, first + ranks) of a stage; empty: they are equal.
std::span<const double> SharesOfFamily(const engine::Layout& layout, int32_t first, int32_t ranks) {
  if (static_cast<int32_t>(layout.weights.size()) < first + ranks) return {};
  return std::span(layout.weights).subspan(static_cast<size_t>(first), static_cast<size_t>(ranks));
}

// A GPU's free memory. GPUs of a group count as equally fast.
engine::RankMeans MeansOfGpu(const engine::LoadOptions& options) {
  const auto device = options.make_device();
  if (!device.ok()) return {};  // loading says why
  return {.memory_bytes = (*device)->memory().value_or(kernels::DeviceMemory()).available_bytes};
}

// Measures what the rank of these options has; some 0.2 s, or as long as a GPU takes to open.
// Memory that ranks of a process share counts in equal parts: the head, which knows their shares,
// divides it.
engine::RankMeans MeasureMeans(const engine::LoadOptions& options, int32_t ranks) {
  if (options.make_device) return MeansOfGpu(options);
  engine::RankMeans means;
  means.memory_bytes = options.memory.value_or(engine::ReadHostMemory()).available_bytes / ranks;
  const std::vector<int> cpus =
      options.rank_cpus.empty() ? std::vector<int>() : options.rank_cpus.front();
  kernels::CpuDeviceOptions cpu = options.cpu;
  if (const auto own = static_cast<int32_t>(cpus.size()); own > 0) {
    cpu.num_threads = cpu.num_threads > 0 ? std::min(cpu.num_threads, own) : own;
  }
  const auto measure = [&] {
    if (!engine::BindThisThread(cpus).ok()) return 0.0;
    auto meter = kernels::cpu::LimitMeter::Create(cpu);
    return meter.ok() ? meter->ReadGbPerSecond() : 0.0;  // without the memory: not known
  };
  means.read_gb_s = std::async(std::launch::async, measure).get();
  return means;
}

// The same of all ranks of a process, at once, as they compute.
std::vector<engine::RankMeans> MeasureTogether(const engine::LoadOptions& all, int32_t ranks) {
  std::vector<std::future<engine::RankMeans>> measured;
  measured.reserve(static_cast<size_t>(ranks));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    measured.push_back(std::async(std::launch::async, [&all, rank, ranks] {
      return MeasureMeans(OfFamilyRank(all, rank, ranks), ranks);
    }));
  }
  std::vector<engine::RankMeans> means;
  means.reserve(measured.size());
  for (auto& one : measured) means.push_back(one.get());
  return means;
}

// Ranks of this process: as many as --rank-cpus has lists, or --rank-devices numbers.
absl::StatusOr<int32_t> FamilyRanks(const engine::LoadOptions& options) {
  HEDDLE_RETURN_IF_ERROR(engine::CheckRankCpus(options.rank_cpus));
  const size_t cpus = options.rank_cpus.size(), gpus = options.rank_devices.size();
  if (cpus > 0 && gpus > 0 && cpus != gpus) {
    return absl::InvalidArgumentError(
        base::StrCat("--rank-cpus has ", cpus, " lists for ", gpus, " GPUs (--rank-devices)"));
  }
  return static_cast<int32_t>(std::max({size_t{1}, cpus, gpus}));
}

// Tries until the head answers: it may not have begun, may be ending, or may wait for others.
// UNAVAILABLE: it has not within `patience`; nullopt: for ever. CANCELLED: the rank is to end.
absl::StatusOr<std::shared_ptr<RankClient>> JoinHead(RankRun& run,
                                                     std::optional<milliseconds> patience) {
  const auto begin = std::chrono::steady_clock::now();
  for (bool is_first = true;; is_first = false) {
    absl::StatusOr<std::shared_ptr<RankClient>> client =
        RankClient::Join(run.head.host, run.head.port, run.tls, run.caller, run.part.place);
    if (!absl::IsUnavailable(client.status())) return client;
    if (is_first) {
      run.log.Info("waiting for the head",
                   {{"at", run.head.text()}, {"why", std::string(client.status().message())}});
    }
    if (patience.has_value() && std::chrono::steady_clock::now() - begin > *patience) {
      return client;
    }
    const std::optional<int> number = run.ending.Wait(kRetry);
    if (number == 0) return absl::CancelledError("another rank of this process has ended");
    if (number.has_value()) {
      run.log.Info("stopped while it waited for the head", {{"signal", *number}});
      run.log.Flush();
      _exit(kDiedOfSignal + *number);
    }
  }
}

absl::StatusOr<engine::LoadedRank> LoadOwnPart(const RankRun& run,
                                               const std::shared_ptr<RankClient>& client) {
  const RankSettings& settings = client->settings();
  const RankFamily& family = run.caller.family;
  engine::LoadOptions options = run.options;
  options.layout = settings.layout;
  const int32_t first = client->rank() % settings.layout.tp - family.rank;
  DivideMemory(SharesOfFamily(settings.layout, first, family.ranks), family.rank, family.ranks,
               &options);
  options.weights = settings.weights;
  options.kv_type = settings.kv_type;
  options.capacity.page_tokens = settings.page_tokens;
  options.capacity.max_batch_tokens = settings.max_batch_tokens;
  options.capacity.max_batch_seqs = settings.max_batch_seqs;
  options.capacity.max_context = settings.max_context;
  options.capacity.adapter_max_rank = settings.adapter_max_rank;
  options.open_draft = {};  // the head's alone
  options.drafter_yields = false;
  options.meeting = client;
  return engine::LoadRank(run.config.model, options);
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
  HEDDLE_ASSIGN_OR_RETURN(part.rank, LoadOwnPart(run, client));
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
  run.log.Info("joined the head", {{"at", run.head.text()}, {"rank", int64_t{client->rank()}}});
  // On the rank's processors, as all threads that it starts.
  std::future<absl::Status> running = std::async(std::launch::async, [&]() -> absl::Status {
    if (!run.options.rank_cpus.empty()) {
      HEDDLE_RETURN_IF_ERROR(engine::BindThisThread(run.options.rank_cpus.front()));
    }
    return PrepareAndRun(run, client);
  });
  bool is_stopped = false;
  while (running.wait_for(milliseconds(is_stopped ? 20 : 0)) != std::future_status::ready) {
    const std::optional<int> number = run.ending.Wait(milliseconds(20));
    if (!number.has_value()) continue;
    if (!is_stopped && number != 0) run.log.Info("shutting down", {{"signal", *number}});
    is_stopped = true;
    client->Stop();
  }
  absl::Status status = running.get();
  if (is_stopped) return std::nullopt;
  return status;
}

// One rank of this process, until the group ends; as RunRank.
absl::Status RunUntilEnd(RankRun& run) {
  std::optional<milliseconds> patience;  // for the first head: without end
  if (run.measures) run.caller.means = MeasureMeans(run.options, run.caller.family.ranks);
  while (true) {
    absl::StatusOr<std::shared_ptr<RankClient>> client = JoinHead(run, patience);
    if (absl::IsCancelled(client.status())) return absl::OkStatus();
    if (absl::IsUnavailable(client.status())) return absl::AbortedError(client.status().message());
    HEDDLE_RETURN_IF_ERROR(client.status());
    const std::optional<absl::Status> status = RunOnce(run, *client);
    if (!status.has_value() || status->ok()) return absl::OkStatus();
    if (!absl::IsUnavailable(*status)) return *status;
    patience = (*client)->settings().rejoin;
    if (patience->count() == 0) return absl::AbortedError(status->message());
    run.log.Warning("the group is lost: joining again", {{"why", std::string(status->message())}});
  }
}

// The ranks of a head's process beside rank 0, each on a thread: they join as those of other
// processes do, without a socket.
class RanksOfHead final : public FamilyOfHead {
 public:
  // `means`: of all ranks of the process.
  RanksOfHead(const config::Config& config, const engine::LoadOptions& options,
              const RankHeadOptions& head, std::span<const engine::RankMeans> means,
              RankHead& started, const Logger* log)
      : config_(config), ending_(nullptr) {
    for (int32_t rank = 1; rank < head.settings.head_ranks; ++rank) {
      const RankFamily family = {head.settings.head_family, rank, head.settings.head_ranks,
                                 head.local_groups};
      runs_.push_back(std::make_unique<RankRun>(
          RankRun{config_,
                  OfFamilyRank(options, rank, family.ranks),
                  {head.host, started.port()},
                  {},
                  {head.identity, RandomNumber(), 0, family, means[static_cast<size_t>(rank)],
                   started.OwnChannel()},
                  ending_,
                  *log,
                  /*measures=*/false,
                  {}}));
    }
    for (const auto& run : runs_) {
      threads_.emplace_back([run = run.get(), head = &started] {
        const absl::Status status = RunUntilEnd(*run);
        if (status.ok()) return;
        run->log.Error("a rank of this process has ended",
                       {{"why", std::string(status.message())}});
        head->End(status);
      });
    }
  }
  ~RanksOfHead() override {
    ending_.End(0);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  const config::Config config_;
  Ending ending_;
  std::vector<std::unique_ptr<RankRun>> runs_;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<StartedHead> StartRankHead(const config::Config& config, engine::LoadOptions* own,
                                          const Logger* log) {
  StartedHead started;
  if (config.ranks_listen.empty()) return started;
  const engine::LoadOptions options = *own;
  RankHeadOptions head;
  HEDDLE_ASSIGN_OR_RETURN(const int32_t ranks, FamilyRanks(options));
  if (ranks > options.layout.tp) {
    return absl::InvalidArgumentError(
        base::StrCat(options.rank_cpus.empty() ? "--rank-devices" : "--rank-cpus", " has ", ranks,
                     options.rank_cpus.empty() ? " numbers" : " lists",
                     "; with --ranks-listen they are for the ranks of this "
                     "process, which share layers: ",
                     options.layout.tp, " at most (--tp)"));
  }
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
      .session = RandomNumber(),
      .head_ranks = ranks,
      .head_family = RandomNumber()};
  *own = OfFamilyRank(options, 0, ranks);
  DivideMemory(SharesOfFamily(options.layout, 0, ranks), 0, ranks, own);
  if (!own->rank_cpus.empty()) head.own_cpus = own->rank_cpus.front();
  std::vector<engine::RankMeans> means(static_cast<size_t>(ranks));
  if (options.layout.pp > 1 && options.layout.stage_layers.empty()) {
    means = MeasureTogether(options, ranks);
  }
  head.own_means = means.front();
  if (ranks > 1) head.local_groups = std::make_shared<LocalGroups>();
  HEDDLE_ASSIGN_OR_RETURN(started.head, RankHead::Start(head, log));
  own->meeting = started.head;
  if (ranks > 1) {
    started.family =
        std::make_unique<RanksOfHead>(config, options, head, means, *started.head, log);
  }
  return started;
}

absl::Status RunRank(const config::Config& config, SignalWatch& signals, const Logger& log) {
  HEDDLE_ASSIGN_OR_RETURN(const RankAddress address, ParseRankAddress("--join", config.join));
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadOptions options, ToLoadOptions(config));
  HEDDLE_ASSIGN_OR_RETURN(const RankTls tls, TlsOf(config, log));
  HEDDLE_ASSIGN_OR_RETURN(const RankIdentity identity, IdentityOf(config, options, log));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t ranks, FamilyRanks(options));
  RankFamily family;
  if (ranks > 1) family = {RandomNumber(), 0, ranks, std::make_shared<LocalGroups>()};
  Ending ending(&signals);
  std::vector<std::unique_ptr<RankRun>> runs;
  for (family.rank = 0; family.rank < ranks; ++family.rank) {
    runs.push_back(std::make_unique<RankRun>(
        RankRun{config,
                OfFamilyRank(options, family.rank, ranks),
                address,
                tls,
                {identity, RandomNumber(), static_cast<int32_t>(config.rank), family, {}, nullptr},
                ending,
                log,
                /*measures=*/true,
                {}}));
  }
  if (ranks == 1) return RunUntilEnd(*runs.front());
  // One that ends takes the others along: the head has lost them all, or none.
  std::vector<std::future<absl::Status>> endings;
  endings.reserve(runs.size());
  for (const auto& run : runs) {
    endings.push_back(std::async(std::launch::async, [run = run.get()] {
      absl::Status status = RunUntilEnd(*run);
      run->ending.End(0);
      return status;
    }));
  }
  absl::Status first;
  for (auto& one : endings) first.Update(one.get());
  return first;
}

}  // namespace heddle::server
