#include "server/cli/planned_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/model/load_ranks.h"
#include "engine/model/random_model.h"
#include "kernels/memory_nodes.h"
#include "server/cli/model_options.h"
#include "server/cli/standard_io.h"
#include "server/simulation/machine_model.h"
#include "server/simulation/profile.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxPlanProfileBytes = size_t{1} << 20;

absl::StatusOr<engine::LoadOptions> DescribeOptions(const config::Config& config,
                                                    const Hardware& hardware) {
  HEDDLE_ASSIGN_OR_RETURN(engine::LoadOptions options, ToLoadOptions(config));
  if (hardware.name == "host") HEDDLE_RETURN_IF_ERROR(DescribeForThisCpu(&options));
  if (hardware.is_gpu) options.capacity.activation_dtype = kernels::DType::kBF16;
  auto bytes = static_cast<int64_t>(config.device_memory.value);
  if (bytes == 0) bytes = hardware.memory_bytes;
  if (bytes > 0) options.memory = {.total_bytes = bytes, .available_bytes = bytes};
  return options;
}

absl::Status CheckRanks(const engine::LoadOptions& options, const Hardware& hardware) {
  if (options.layout.world() > 1 && hardware.is_gpu) {
    return absl::UnimplementedError(base::StrCat("--tp ", options.layout.tp,
                                                 " is for processors, and ", hardware.name,
                                                 " is a GPU: GPUs cannot share a model yet"));
  }
  return engine::CheckLayout(options);
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
  planned->machine = MeasuredModel(cost, profile.points, planned->scheduler.max_step_tokens);
  planned->is_measured = true;
  planned->hardware.description =
      base::StrCat("as measured by ", path, " on ", profile.device, " with ", profile.model);
  return absl::OkStatus();
}

// Whether each rank has memory nodes that no other has.
bool HaveOwnMemory(const std::vector<std::vector<int>>& rank_cpus) {
  std::vector<int> all;
  for (const std::vector<int>& cpus : rank_cpus) {
    const std::vector<int> nodes = kernels::NodesOfProcessors(cpus);
    if (nodes.empty()) return false;
    all.insert(all.end(), nodes.begin(), nodes.end());
  }
  std::sort(all.begin(), all.end());
  return !all.empty() && std::adjacent_find(all.begin(), all.end()) == all.end();
}

double StreamTokS(const scheduler::StepTimeModel& model) {
  return 1e6 / (model.fixed_us + model.sum_row_us + scheduler::MatricesUs(model, 1, 1));
}

// Fills in the times of a model that ranks share. `whole`: of the model in one piece.
void PredictRanks(const ModelCost& whole, bool have_own_memory, PlannedModel* planned) {
  const engine::ModelInfo& model = planned->model;
  const std::vector<engine::ModelSpec> parts = engine::SpecsOfRanks(model.model.spec, model.shares);
  std::vector<ModelCost> costs;
  for (size_t r = 0; r < parts.size(); ++r) {
    costs.push_back({.spec = parts[r],
                     .weight_bytes = model.ranks[r].weight_bytes,
                     .weight_format = whole.weight_format,
                     .kv_bytes_per_token = model.ranks[r].kv_bytes_per_token});
  }
  planned->peak = ModelOfRanks(costs, planned->hardware, PeakModel);
  planned->machine = ModelOfRanks(costs, planned->hardware, RooflineModel);
  if (have_own_memory) return;
  planned->stream_tok_s = StreamTokS(planned->machine);
  planned->one_rank_tok_s = StreamTokS(RooflineModel(whole, planned->hardware));
}

// "1.0 GiB", or the least and the most.
template <typename Field>
std::string Spread(const std::vector<engine::RankMemory>& ranks, Field field) {
  const auto [least, most] =
      std::minmax_element(ranks.begin(), ranks.end(),
                          [&](const auto& a, const auto& b) { return a.*field < b.*field; });
  const std::string text = base::ShowBytes(*least.*field);
  return *least.*field == *most.*field ? text
                                       : base::StrCat(text, " to ", base::ShowBytes(*most.*field));
}

std::string RanksText(const PlannedModel& planned) {
  const std::vector<engine::RankMemory>& ranks = planned.model.ranks;
  if (ranks.size() == 1) return "";
  using engine::RankMemory;
  std::string text = base::StrCat("ranks     ", ranks.size(), ", each with ",
                                  Spread(ranks, &RankMemory::weight_bytes), " of weights and ",
                                  Spread(ranks, &RankMemory::kv_bytes), " of KV cache, ",
                                  Spread(ranks, &RankMemory::kv_bytes_per_token), " per token\n");
  if (planned.stream_tok_s >= planned.one_rank_tok_s) return text;
  return text + absl::StrFormat(
                    "warning   one rank is faster here: %.1f tok/s for one stream instead of %.1f; "
                    "ranks pay where each has memory of its own, such as a socket (--rank-cpus)\n",
                    planned.one_rank_tok_s, planned.stream_tok_s);
}

}  // namespace

absl::StatusOr<PlannedModel> PlanModel(const config::Config& config) {
  PlannedModel planned;
  planned.name = config.shape.empty() ? config.model : config.shape;
  HEDDLE_ASSIGN_OR_RETURN(planned.hardware, FindHardware(config.hardware));
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadOptions options,
                          DescribeOptions(config, planned.hardware));
  HEDDLE_RETURN_IF_ERROR(CheckRanks(options, planned.hardware));
  HEDDLE_ASSIGN_OR_RETURN(planned.model, Describe(config, options));
  planned.loop = ToLoopOptions(config);
  planned.scheduler = SchedulerOptionsFor(planned.model.capacity.limits, planned.loop);
  const ModelCost cost{.spec = planned.model.model.spec,
                       .weight_bytes = planned.model.capacity.weight_bytes,
                       .weight_format = planned.model.main_format,
                       .kv_bytes_per_token = planned.model.capacity.kv_bytes_per_token};
  if (planned.model.ranks.size() > 1) {
    PredictRanks(cost, HaveOwnMemory(options.rank_cpus), &planned);
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
