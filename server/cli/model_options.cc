#include "server/cli/model_options.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/bounded_write.h"
#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/memory_nodes.h"
#include "kernels/nano_batch.h"
#include "server/adapters/adapter_names.h"
#include "server/cli/standard_io.h"
#include "server/cli/tune_profile.h"

namespace heddle::server {
namespace {

using MadeDevice = absl::StatusOr<std::unique_ptr<kernels::Device>>;

// Whether an NVIDIA driver is loaded here, even if this build cannot use it.
bool HasNvidiaDriver() {
  std::error_code error;
  return std::filesystem::exists("/proc/driver/nvidia/version", error);
}

// The first GPU if this build and this machine have one. A GPU that exists but cannot be used (its
// memory is taken, say) is an error. If there is one that this build cannot use, standard error
// says why the CPU is used, so that nobody has to infer it from the speed.
MadeDevice FirstGpuOrCpu(const kernels::CpuDeviceOptions& cpu) {
  MadeDevice gpu = kernels::CreateCudaDevice({.tunes = true});
  switch (gpu.status().code()) {
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound: {
      if (!HasNvidiaDriver()) return kernels::CreateCpuDevice(cpu);
      const std::string why(gpu.status().message());
      constexpr std::chrono::milliseconds kLimit{500};
      base::WriteWithin(STDERR_FILENO,
                        base::StrCat("heddle: --device auto is the CPU: ", why, "\n"), kLimit);
      return kernels::CreateCpuDevice(cpu);
    }
    default:
      return gpu;
  }
}

// The ordinal of the device; "cuda" is cuda:0.
absl::StatusOr<int32_t> CudaOrdinal(std::string_view device) {
  int32_t ordinal = 0;
  if (device == "cuda") return ordinal;
  constexpr std::string_view kPrefix = "cuda:";
  if (device.starts_with(kPrefix) &&
      absl::SimpleAtoi(std::string(device.substr(kPrefix.size())), &ordinal) && ordinal >= 0) {
    return ordinal;
  }
  return absl::InvalidArgumentError(
      base::StrCat("--device is ", base::Quote(device), "; valid are auto, cpu, cuda and cuda:N"));
}

absl::StatusOr<std::function<MadeDevice()>> DeviceMaker(const std::string& device,
                                                        const kernels::CpuDeviceOptions& cpu) {
  if (device == "cpu") return [cpu] { return kernels::CreateCpuDevice(cpu); };
  if (device == "auto") return [cpu] { return FirstGpuOrCpu(cpu); };
  HEDDLE_ASSIGN_OR_RETURN(const int32_t ordinal, CudaOrdinal(device));
  return [ordinal] { return kernels::CreateCudaDevice({.ordinal = ordinal, .tunes = true}); };
}

// The numbers of --rank-devices, with "," between them.
absl::StatusOr<std::vector<int32_t>> ParseRankDevices(const config::Config& config) {
  std::vector<int32_t> devices;
  const std::vector<std::string> numbers = absl::StrSplit(config.rank_devices, ',');
  devices.reserve(numbers.size());
  for (const std::string& number : numbers) {
    int32_t ordinal = -1;
    if (!absl::SimpleAtoi(number, &ordinal) || ordinal < 0) {
      return absl::InvalidArgumentError(base::StrCat(
          "--rank-devices needs the number of a GPU for each rank, such as 0,1; found ",
          base::Quote(config.rank_devices)));
    }
    devices.push_back(ordinal);
  }
  return devices;
}

// The GPUs of all ranks, the head's first: those of --rank-devices, or the first ones.
absl::StatusOr<std::vector<int32_t>> RankDevices(const config::Config& config, int32_t world) {
  if (config.device != "cuda") {
    return absl::InvalidArgumentError(
        base::StrCat("--device is ", config.device,
                     "; with --tp and --pp it is cuda, and --rank-devices says which GPUs"));
  }
  std::vector<int32_t> devices(static_cast<size_t>(world));
  std::iota(devices.begin(), devices.end(), 0);
  if (config.rank_devices.empty()) return devices;
  HEDDLE_ASSIGN_OR_RETURN(devices, ParseRankDevices(config));
  if (static_cast<int32_t>(devices.size()) != world) {
    return absl::InvalidArgumentError(base::StrCat(
        "--rank-devices has ", devices.size(), " numbers for ", world, " ranks (--tp times --pp)"));
  }
  return devices;
}

// The GPUs of this process's ranks, where others are in processes of their own: those of
// --rank-devices, or that of --device. Each rank loads by itself, so that none is there twice.
absl::StatusOr<std::vector<int32_t>> DevicesOfProcess(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(const int32_t first, CudaOrdinal(config.device));
  if (config.rank_devices.empty()) return std::vector<int32_t>{first};
  if (config.device != "cuda") {
    return absl::InvalidArgumentError(base::StrCat("--device is ", config.device,
                                                   "; with --rank-devices, which says which GPUs, "
                                                   "it is cuda"));
  }
  HEDDLE_ASSIGN_OR_RETURN(std::vector<int32_t> devices, ParseRankDevices(config));
  std::vector<int32_t> sorted = devices;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return devices;
  return absl::InvalidArgumentError(
      base::StrCat("--rank-devices names GPU ", *twice,
                   " twice; with --ranks-listen and --join each rank has one of its own"));
}

kernels::RankNetwork NetworkOf(const config::Config& config) {
  if (config.rank_network == "nccl") return kernels::RankNetwork::kNccl;
  return config.rank_network == "auto" ? kernels::RankNetwork::kAuto : kernels::RankNetwork::kHost;
}

// Lets each rank have a GPU.
absl::Status PlaceRanks(const config::Config& config, bool are_all, engine::LoadOptions* options) {
  HEDDLE_ASSIGN_OR_RETURN(options->rank_devices, are_all
                                                     ? RankDevices(config, options->layout.world())
                                                     : DevicesOfProcess(config));
  const kernels::CudaDeviceOptions device = {.rank_network = NetworkOf(config)};
  options->make_rank_device = [device,
                               devices = options->rank_devices](int32_t rank) -> MadeDevice {
    kernels::CudaDeviceOptions own = device;
    own.ordinal = devices[static_cast<size_t>(rank)];
    return kernels::CreateCudaDevice(own);
  };
  options->make_device = [make = options->make_rank_device] { return make(0); };
  return absl::OkStatus();
}

constexpr size_t kMaxProfileBytes = size_t{1} << 20;

// Has the options' devices follow the profile in `path`.
absl::Status UseProfile(const std::string& path, engine::LoadOptions* options) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxProfileBytes));
  HEDDLE_ASSIGN_OR_RETURN(TuneProfile read, ReadTuneProfile(text, path));
  HEDDLE_ASSIGN_OR_RETURN(const kernels::NanoBatchProfile profile,
                          ProfileOfRank(std::move(read.steps), options->layout.tp, path));
  const auto apply = [profile](MadeDevice device) -> MadeDevice {
    if (device.ok()) HEDDLE_RETURN_IF_ERROR((*device)->SetNanoBatches(profile));
    return device;
  };
  options->splits_steps = true;
  options->tuned_model = std::move(read.model);
  options->make_device = [apply, make = std::move(options->make_device)] { return apply(make()); };
  if (!options->make_rank_device) return absl::OkStatus();
  options->make_rank_device = [apply, make = std::move(options->make_rank_device)](int32_t rank) {
    return apply(make(rank));
  };
  return absl::OkStatus();
}

// Lists of processors as the kernel writes them, with ":" between the ranks'.
absl::StatusOr<std::vector<std::vector<int>>> ParseRankCpus(std::string_view text) {
  std::vector<std::vector<int>> ranks;
  while (!text.empty()) {
    const size_t end = std::min(text.find(':'), text.size());
    ranks.push_back(kernels::ParseNodeList(text.substr(0, end)));
    if (ranks.back().empty() || end + 1 == text.size()) {
      return absl::InvalidArgumentError(
          base::StrCat("--rank-cpus needs a list of processors for each rank, such as "
                       "0-15:16-31 or 0,2:1,3; found ",
                       base::Quote(text)));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return ranks;
}

// Numbers of layers with "," between the stages'.
absl::StatusOr<std::vector<int32_t>> ParseStageLayers(const std::string& text) {
  std::vector<int32_t> counts;
  if (text.empty()) return counts;
  const std::vector<std::string> numbers = absl::StrSplit(text, ',');
  for (const std::string& number : numbers) {
    int32_t count = -1;
    if (absl::SimpleAtoi(number, &count) && count >= 0) {
      counts.push_back(count);
      continue;
    }
    return absl::InvalidArgumentError(
        base::StrCat("--pp-layers needs a number of layers for each stage, such as 10,12; found ",
                     base::Quote(text)));
  }
  return counts;
}

// The sizes of the shares of a stage's ranks: those of --tp-shares; else as many processors as
// --rank-cpus gives the ranks that have them, if they differ; else none.
absl::StatusOr<std::vector<double>> SharesOf(const std::string& text, int32_t tp,
                                             const std::vector<std::vector<int>>& rank_cpus) {
  std::vector<double> shares;
  if (text.empty()) {
    shares.resize(static_cast<size_t>(tp));
    for (size_t rank = 0; rank < rank_cpus.size(); ++rank) {
      shares[rank % shares.size()] += static_cast<double>(rank_cpus[rank].size());
    }
    const bool are_equal = std::all_of(shares.begin(), shares.end(),
                                       [&](double share) { return share == shares.front(); });
    if (are_equal) shares.clear();
    return shares;
  }
  const std::vector<std::string> numbers = absl::StrSplit(text, ',');
  for (const std::string& number : numbers) {
    double share = 0;
    if (absl::SimpleAtod(number, &share)) {
      shares.push_back(share);
      continue;
    }
    return absl::InvalidArgumentError(
        base::StrCat("--tp-shares needs a number for each rank of a stage, such as 2,1; found ",
                     base::Quote(text)));
  }
  return shares;
}

// NAME=PATH of --lora-merge.
absl::StatusOr<NamedAdapterPath> MergedAdapter(const config::Config& config) {
  const absl::StatusOr<std::vector<NamedAdapterPath>> parsed =
      ParseAdapterOptions({&config.lora_merge, 1});
  if (parsed.ok() && parsed->front().scale.has_value()) {
    return absl::InvalidArgumentError(
        "--lora-merge takes no scale behind its PATH; a path that ends so is written with a / "
        "behind "
        "it");
  }
  if (parsed.ok()) return parsed->front();
  return absl::InvalidArgumentError(
      base::StrCat("--lora-merge needs NAME=PATH, with a name as --lora takes it; found ",
                   base::Quote(config.lora_merge)));
}

}  // namespace

absl::StatusOr<engine::LoadOptions> ToLoadOptions(const config::Config& config) {
  engine::LoadOptions options;
  options.cpu.num_threads = static_cast<int32_t>(config.threads);
  options.cpu.isa = config.isa;
  options.layout.tp = static_cast<int32_t>(config.tp);
  options.layout.pp = static_cast<int32_t>(config.pp);
  options.layout.expert_parallel = config.expert_parallel;
  options.layout.invariant = config.tp_invariant;
  if (config.tp_invariant && config.device != "cpu") {
    return absl::InvalidArgumentError(
        base::StrCat("--tp-invariant is for --device cpu, not ", config.device));
  }
  HEDDLE_ASSIGN_OR_RETURN(options.layout.stage_layers, ParseStageLayers(config.pp_layers));
  HEDDLE_ASSIGN_OR_RETURN(options.rank_cpus, ParseRankCpus(config.rank_cpus));
  // Each of several processes names its own processors.
  const bool are_all = config.ranks_listen.empty() && config.join.empty();
  const auto cpus_of_all = are_all ? options.rank_cpus : std::vector<std::vector<int>>();
  HEDDLE_ASSIGN_OR_RETURN(options.layout.weights,
                          SharesOf(config.tp_shares, options.layout.tp, cpus_of_all));
  // Ranks are made where the model is loaded; --device auto is then the CPU.
  const bool is_shared = options.layout.world() > 1;
  if ((is_shared || !are_all) && config.device.starts_with("cuda")) {
    HEDDLE_RETURN_IF_ERROR(PlaceRanks(config, are_all, &options));
  } else if (!config.rank_devices.empty()) {
    return absl::InvalidArgumentError(
        "--rank-devices is for --device cuda with --tp, --pp or --join; leave it out");
  } else if (!is_shared && are_all) {
    HEDDLE_ASSIGN_OR_RETURN(options.make_device, DeviceMaker(config.device, options.cpu));
  }
  if (!config.tune_profile.empty()) {
    if (!options.make_device || options.layout.pp > 1 || !are_all) {
      return absl::InvalidArgumentError(
          "--tune-profile is for a GPU, or those of a process that share layers (--tp); leave "
          "it out with --pp, --ranks-listen and --join");
    }
    HEDDLE_RETURN_IF_ERROR(UseProfile(config.tune_profile, &options));
  }
  options.weights = config.weights;
  options.kv_type = config.kv_type;
  options.host_kv_directory = config.disk_kv;
  engine::CapacityOptions& capacity = options.capacity;
  capacity.max_context = static_cast<int32_t>(config.max_context);
  capacity.page_tokens = static_cast<int32_t>(config.page_tokens);
  capacity.host_kv_bytes = static_cast<int64_t>(config.host_kv_memory.value);
  capacity.max_batch_tokens = static_cast<int32_t>(config.max_batch_tokens);
  capacity.max_batch_seqs = static_cast<int32_t>(config.max_batch_seqs);
  if (!config.lora_merge.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(const NamedAdapterPath merged, MergedAdapter(config));
    options.merged_adapter = merged.path;
  }
  if (!config.lora.empty() || !config.lora_dir.empty()) {
    capacity.adapter_max_rank = static_cast<int32_t>(config.max_lora_rank);
  }
  switch (config.kv_memory.kind) {
    case config::MemorySize::Kind::kAuto:
      break;
    case config::MemorySize::Kind::kBytes:
      capacity.kv_bytes = static_cast<int64_t>(config.kv_memory.bytes);
      break;
    case config::MemorySize::Kind::kShare:
      capacity.kv_fraction = config.kv_memory.share;
      break;
  }
  return options;
}

absl::Status DescribeForThisCpu(engine::LoadOptions* options) {
  kernels::CpuDeviceOptions cpu = options->cpu;
  cpu.num_threads = 1;
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device,
                          kernels::CreateCpuDevice(cpu));
  options->preferred_kv_type = device->preferred_kv_type();
  return absl::OkStatus();
}

scheduler::PolicyKind ToPolicy(const config::EngineConfig& config) {
  const scheduler::PolicyTraits* policy = scheduler::FindPolicy(config.policy);
  HEDDLE_CHECK(policy != nullptr, "the option table has a policy that the scheduler has not");
  return policy->kind;
}

EngineLoopOptions ToLoopOptions(const config::Config& config) {
  constexpr double kMicroseconds = 1e6;
  EngineLoopOptions options;
  options.max_queue = static_cast<int32_t>(config.max_queue);
  options.max_queue_tokens = config.max_queue_tokens;
  options.max_queue_us = static_cast<int64_t>(config.max_queue_time.value * kMicroseconds);
  options.max_step_tokens = static_cast<int32_t>(config.max_step_tokens);
  if (config.target_inter_token_ms.has_value()) {
    options.target_inter_token_us = static_cast<int64_t>(*config.target_inter_token_ms * 1e3);
  }
  options.prefix_cache = config.prefix_cache;
  options.policy = ToPolicy(config);
  options.starvation_us = static_cast<int64_t>(config.starvation_limit.value * kMicroseconds);
  options.max_lead_us = 1000 * config.max_client_lead_ms;
  return options;
}

LogLevel ToLogLevel(config::LogLevel level) {
  switch (level) {
    case config::LogLevel::kDebug:
      return LogLevel::kDebug;
    case config::LogLevel::kInfo:
      return LogLevel::kInfo;
    case config::LogLevel::kWarning:
      return LogLevel::kWarning;
    case config::LogLevel::kError:
      return LogLevel::kError;
    case config::LogLevel::kOff:
      break;
  }
  return LogLevel::kOff;
}

std::string ServedModelName(const config::Config& config) {
  if (!config.served_model_name.empty()) return config.served_model_name.front();
  if (!config.lora_merge.empty()) return config.lora_merge.substr(0, config.lora_merge.find('='));
  std::filesystem::path path = std::filesystem::absolute(config.model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "models/demo/"
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

}  // namespace heddle::server
