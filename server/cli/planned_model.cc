#include "server/cli/planned_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/model/load_ranks.h"
#include "engine/model/random_model.h"
#include "kernels/cuda/cuda_sizes.h"
#include "server/cli/model_options.h"
#include "server/cli/planned_ranks.h"
#include "server/cli/standard_io.h"
#include "server/simulation/machine_model.h"
#include "server/simulation/profile.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxPlanProfileBytes = size_t{1} << 20;
constexpr double kUsualLatencyUs = 100;  // of a switch and two kernels
constexpr kernels::DType kGpuActivations = kernels::DType::kBF16;

// As a GPU with so much memory has them.
void DescribeForGpu(int64_t bytes, engine::CapacityOptions* capacity) {
  capacity->activation_dtype = kGpuActivations;
  capacity->logit_rows = kernels::cuda::kLogitRows;
  capacity->cpu_threads = 0;
  capacity->receives_messages = false;  // they pass through the host's memory
  const kernels::StepSize step = kernels::cuda::StepFor(bytes);
  if (capacity->max_batch_tokens == 0) {
    capacity->max_batch_tokens = std::max(step.tokens, capacity->max_batch_seqs);
  }
  if (capacity->max_batch_seqs == 0) {
    capacity->max_batch_seqs = std::min(step.seqs, capacity->max_batch_tokens);
  }
}

absl::StatusOr<engine::LoadOptions> DescribeOptions(const config::Config& config,
                                                    const Hardware& hardware) {
  HEDDLE_ASSIGN_OR_RETURN(engine::LoadOptions options, ToLoadOptions(config));
  if (hardware.name == "host") HEDDLE_RETURN_IF_ERROR(DescribeForThisCpu(&options));
  auto bytes = static_cast<int64_t>(config.device_memory.value);
  if (bytes == 0) bytes = hardware.memory_bytes;
  if (hardware.is_gpu) DescribeForGpu(bytes, &options.capacity);
  if (bytes > 0) options.memory = {.total_bytes = bytes, .available_bytes = bytes};
  return options;
}

absl::StatusOr<engine::ModelInfo> Describe(const config::Config& config,
                                           const engine::LoadOptions& options) {
  if (config.shape.empty()) return engine::DescribeModel(config.model, options);
  HEDDLE_ASSIGN_OR_RETURN(const kernels::DType weights, engine::RandomFormat(config.weights));
  return engine::DescribeRandomModel(config.shape, weights, options);
}

absl::Status UseProfile(const std::string& path, const ModelCost& cost, PlannedModel* planned) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxPlanProfileBytes));
  HEDDLE_ASSIGN_OR_RETURN(const Profile profile, ReadProfile(text, path));
  if (profile.weights != cost.weight_format) {
    return absl::InvalidArgumentError(
        base::StrCat(path, " was measured with ", profile.weights, " weights; this model's are ",
                     cost.weight_format, ": measure it with `heddle bench`"));
  }
  const size_t world = planned->model.ranks.size();
  const bool is_of_ranks = world > 1;
  const std::string ranks = base::StrCat(world, " ranks,");
  if (is_of_ranks ? !profile.device.starts_with(ranks)
                  : profile.device.find(" ranks, ") != std::string::npos) {
    return absl::InvalidArgumentError(
        base::StrCat(path, " was measured on ", profile.device, "; measure it with --tp ", world));
  }
  if (planned->scheduler.pipeline_stages > 1) {
    return absl::UnimplementedError("--profile does not go with --pp: it has no times of stages");
  }
  planned->machine = MeasuredModel(cost, profile.points, planned->scheduler.max_step_tokens);
  planned->is_measured = true;
  planned->hardware.description =
      base::StrCat("as measured by ", path, " on ", profile.device, " with ", profile.model);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlannedModel> PlanModel(const config::Config& config) {
  PlannedModel planned;
  planned.name = config.shape.empty() ? config.model : config.shape;
  HEDDLE_ASSIGN_OR_RETURN(planned.hardware, FindHardware(config.hardware));
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadOptions options,
                          DescribeOptions(config, planned.hardware));
  HEDDLE_RETURN_IF_ERROR(engine::CheckLayout(options));
  const DescribeModelWith describe = [&config](const engine::LoadOptions& with) {
    return Describe(config, with);
  };
  if (planned.hardware.is_gpu && options.layout.world() > 1 && !config.link_rate) {
    planned.network = {.latency_us = planned.hardware.link_us,
                       .gbit_s = planned.hardware.link_gbit_s};
    HEDDLE_ASSIGN_OR_RETURN(planned.model, DescribeMachines(describe, options));
    planned.meets_through_host = planned.hardware.meets_through_host;
    if (planned.meets_through_host) {
      planned.host_meeting_bytes = MeetingBytesOf(planned.model, kGpuActivations);
    }
  } else if (config.link_rate) {
    planned.network = {.latency_us = config.link_latency.value_or(kUsualLatencyUs),
                       .gbit_s = *config.link_rate};
    HEDDLE_ASSIGN_OR_RETURN(planned.model, DescribeMachines(describe, options));
    if (planned.hardware.is_gpu) {
      planned.host_meeting_bytes = MeetingBytesOf(planned.model, kGpuActivations);
    }
  } else {
    HEDDLE_ASSIGN_OR_RETURN(planned.model, describe(options));
  }
  planned.loop = ToLoopOptions(config);
  planned.scheduler = SchedulerOptionsFor(planned.model.capacity.limits, planned.loop);
  planned.scheduler.max_in_flight = 1 + (options.layout.pp > 1 ? options.layout.pp : 0);
  const ModelCost cost{.spec = planned.model.model.spec,
                       .weight_bytes = planned.model.capacity.weight_bytes,
                       .weight_format = planned.model.main_format,
                       .kv_bytes_per_token = planned.model.capacity.kv_bytes_per_token};
  if (planned.model.ranks.size() > 1) {
    PredictRanks(cost, options, describe, &planned);
  } else {
    planned.peak = PeakModel(cost, planned.hardware);
    planned.machine = RooflineModel(cost, planned.hardware);
  }
  if (config.profile.empty()) return planned;
  HEDDLE_RETURN_IF_ERROR(UseProfile(config.profile, cost, &planned));
  planned.stream_tok_s = planned.one_rank_tok_s = 0;
  return planned;
}

int32_t AdapterRank(const config::Config& config) {
  constexpr int64_t kCommonRank = 16;
  if (config.adapters == 0) return static_cast<int32_t>(config.adapter_rank);
  return static_cast<int32_t>(config.adapter_rank == 0 ? kCommonRank : config.adapter_rank);
}

AdapterSize PlanAdapters(const config::Config& config, PlannedModel* planned) {
  const int32_t rank = AdapterRank(config);
  if (rank == 0) return {};
  PrepareForAdapters(planned);
  constexpr int64_t kFactorBytes = 2;  // BF16
  return SizeOfAdapter(planned->model.model.spec, rank, kFactorBytes,
                       planned->model.capacity.page_bytes);
}

void PrepareForAdapters(PlannedModel* planned) {
  scheduler::SchedulerOptions& options = planned->scheduler;
  options.adapter_slots = std::max(options.adapter_slots, 2 * options.max_step_seqs);
  planned->machine.adapter_page_us = options.adapter_page_us;
}

std::string DescribePlanned(const PlannedModel& planned) {
  return base::StrCat("model     ", planned.name, ", ", planned.model.formats, ", KV ",
                      kernels::Info(planned.model.kv_dtype).name, "\nmachine   ",
                      planned.hardware.description, "\nmemory    ",
                      engine::DescribeCapacity(planned.model.capacity), "\n", RanksText(planned));
}

}  // namespace heddle::server
