#include "server/cli/planned_ranks.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/model/load_ranks.h"
#include "engine/model/meeting_sizes.h"
#include "engine/model/rank_meeting.h"
#include "kernels/memory_nodes.h"

namespace heddle::server {
namespace {

// A place among ranks that are only planned.
class PlannedPlace final : public engine::RankMeeting {
 public:
  // For ranks whose machines are all like `options` say.
  PlannedPlace(int32_t rank, const engine::LoadOptions& options)
      : rank_(rank), ranks_(static_cast<size_t>(options.layout.world())) {
    if (!options.memory) return;
    for (engine::RankMeans& one : ranks_) one.memory_bytes = options.memory->available_bytes;
  }
  int32_t rank() const override { return rank_; }
  absl::StatusOr<std::vector<int32_t>> StageLayers(const engine::DivideStagesFn& divide) override {
    return divide(ranks_);
  }
  absl::StatusOr<engine::ExecutorLimits> Agree(const engine::RankOffer& own) override {
    return own.limits;
  }
  absl::Status JoinGroups(kernels::Device&) override { return NobodyThere(); }
  absl::StatusOr<std::unique_ptr<engine::OtherRanks>> Others(
      const engine::ExecutorLimits&) override {
    return NobodyThere();
  }

 private:
  static absl::Status NobodyThere() {
    return absl::FailedPreconditionError("these ranks are only planned");
  }
  const int32_t rank_;
  std::vector<engine::RankMeans> ranks_;
};

// Adds what the next rank takes, and lowers the limits to what it has room for.
void AddMachine(const engine::ModelInfo& own, engine::ModelInfo* all) {
  engine::Capacity& sum = all->capacity;
  const engine::Capacity& one = own.capacity;
  sum.limits.num_pages = std::min(sum.limits.num_pages, one.limits.num_pages);
  sum.limits.num_host_pages = std::min(sum.limits.num_host_pages, one.limits.num_host_pages);
  sum.limits.max_context = std::min(sum.limits.max_context, one.limits.max_context);
  sum.context_reduced |= one.context_reduced;
  sum.weight_bytes += one.weight_bytes;
  sum.workspace_bytes += one.workspace_bytes;
  sum.kv_bytes_per_token += one.kv_bytes_per_token;
  sum.page_bytes += one.page_bytes;
  sum.limits.page_bytes += one.limits.page_bytes;
  sum.available_bytes += one.available_bytes;
  all->ranks.push_back(own.ranks.front());
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

// "1.0 GiB", or the least and the most.
template <typename Field>
std::string SpreadText(const std::vector<engine::RankMemory>& ranks, Field field) {
  const auto [least, most] =
      std::minmax_element(ranks.begin(), ranks.end(),
                          [&](const auto& a, const auto& b) { return a.*field < b.*field; });
  const std::string text = base::ShowBytes(*least.*field);
  return *least.*field == *most.*field ? text
                                       : base::StrCat(text, " to ", base::ShowBytes(*most.*field));
}

// " in 2 stages of 10 and 12 layers"; empty for one stage.
std::string StagesText(const engine::ModelInfo& model) {
  const std::vector<engine::Share>& shares = model.shares;
  if (shares.front().n_stages == 1) return "";
  std::string text = base::StrCat(" in ", shares.front().n_stages, " stages of ");
  for (const engine::Share& share : shares) {
    if (share.rank > 0) continue;
    const bool is_last = share.stage + 1 == share.n_stages;
    text += base::StrCat(share.stage == 0 ? ""
                         : is_last        ? " and "
                                          : ", ",
                         share.stage_layers.count);
  }
  return text + " layers";
}

std::string WarningText(const PlannedModel& planned) {
  constexpr double kAsFast = 0.99;  // what is said of networks is not more exact
  const double limit = planned.network ? kAsFast : 1;
  if (planned.stream_tok_s >= limit * planned.one_rank_tok_s) return "";
  if (planned.network) {
    return absl::StrFormat(
        "warning   one %s is faster here: %.1f tok/s for one stream instead of %.1f; several "
        "pay where one cannot hold the model, or many streams share them\n",
        planned.hardware.is_gpu ? "GPU" : "machine", planned.one_rank_tok_s, planned.stream_tok_s);
  }
  return absl::StrFormat(
      "warning   one rank is faster here: %.1f tok/s for one stream instead of %.1f; "
      "ranks pay where each has memory of its own, such as a socket (--rank-cpus)\n",
      planned.one_rank_tok_s, planned.stream_tok_s);
}

}  // namespace

absl::StatusOr<engine::ModelInfo> DescribeMachines(const DescribeModelWith& describe,
                                                   const engine::LoadOptions& options) {
  engine::ModelInfo all;
  for (int32_t rank = 0; rank < options.layout.world(); ++rank) {
    engine::LoadOptions own = options;
    own.meeting = std::make_shared<PlannedPlace>(rank, options);
    absl::StatusOr<engine::ModelInfo> one = describe(own);
    if (!one.ok()) {
      return absl::Status(one.status().code(),
                          base::StrCat("rank ", rank, " of ", options.layout.world(), ": ",
                                       std::string(one.status().message())));
    }
    if (rank == 0) {
      all = *std::move(one);
    } else {
      AddMachine(*one, &all);
    }
  }
  all.capacity.kv_bytes = all.capacity.page_bytes * all.capacity.limits.num_pages;
  for (engine::RankMemory& rank : all.ranks) {
    rank.kv_bytes = rank.page_bytes * all.capacity.limits.num_pages;
  }
  return all;
}

void PredictRanks(const ModelCost& whole, const engine::LoadOptions& options,
                  const DescribeModelWith& describe, PlannedModel* planned) {
  const engine::ModelInfo& model = planned->model;
  const std::vector<engine::ModelSpec> parts = engine::SpecsOfRanks(model.model.spec, model.shares);
  std::vector<ModelCost> costs;
  for (size_t r = 0; r < parts.size(); ++r) {
    costs.push_back({.spec = parts[r],
                     .weight_bytes = model.ranks[r].weight_bytes,
                     .weight_format = whole.weight_format,
                     .kv_bytes_per_token = model.ranks[r].kv_bytes_per_token});
  }
  RanksModel peak = ModelOfRanks(costs, planned->hardware, planned->network, PeakModel);
  planned->peak = std::move(peak.stages.front());
  planned->later_peaks.assign(peak.stages.begin() + 1, peak.stages.end());
  RanksModel ranks = ModelOfRanks(costs, planned->hardware, planned->network, RooflineModel);
  planned->stream_tok_s = StreamTokS(ranks);
  planned->machine = std::move(ranks.stages.front());
  planned->later_stages.assign(ranks.stages.begin() + 1, ranks.stages.end());
  planned->link = ranks.link;
  engine::LoadOptions alone = options;
  alone.layout = {};
  const bool is_known = planned->network ? describe(alone).ok() : !HaveOwnMemory(options.rank_cpus);
  if (is_known) {
    planned->one_rank_tok_s =
        StreamTokS({.stages = {RooflineModel(whole, planned->hardware)}, .link = {}});
  } else {
    planned->stream_tok_s = 0;
  }
}

int64_t MeetingBytesOf(const engine::ModelInfo& model, kernels::DType activations) {
  int64_t most = 0;
  for (const engine::ModelSpec& part : engine::SpecsOfRanks(model.model.spec, model.shares)) {
    most = std::max(most, engine::MeetingBytes(part, model.capacity.limits,
                                               model.capacity.logit_rows, activations));
  }
  return most;
}

// Says that a link was not measured.
const char* LinkNote(const PlannedModel& planned) {
  if (!planned.hardware.is_gpu) return "";
  return planned.meets_through_host ? " (predicted: these GPUs meet through the host's memory)"
                                    : " (predicted: no GPU was measured)";
}

std::string RanksText(const PlannedModel& planned) {
  const std::vector<engine::RankMemory>& ranks = planned.model.ranks;
  if (ranks.size() == 1) return "";
  using engine::RankMemory;
  std::string text =
      base::StrCat("ranks     ", ranks.size(), StagesText(planned.model), ", each with ",
                   SpreadText(ranks, &RankMemory::weight_bytes), " of weights and ",
                   SpreadText(ranks, &RankMemory::kv_bytes), " of KV cache, ",
                   SpreadText(ranks, &RankMemory::kv_bytes_per_token), " per token\n");
  if (planned.network) {
    text += absl::StrFormat("link      %g us and %g Gbit/s: a row of activations takes %.0f us%s\n",
                            planned.network->latency_us, planned.network->gbit_s,
                            scheduler::HopUs(planned.link, 1), LinkNote(planned));
  }
  if (planned.host_meeting_bytes > 0) {
    text += base::StrCat("host      ", base::ShowBytes(planned.host_meeting_bytes),
                         " of page-locked memory for each GPU, through which they exchange "
                         "rows (--max-batch-tokens)\n");
  }
  return text + WarningText(planned);
}

}  // namespace heddle::server
