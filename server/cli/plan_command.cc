// `heddle plan`: computes how many users fit, and how fast they are served, without loading the
// weights.
#include "base/status.h"
#include "server/cli/command.h"
#include "server/cli/planned_model.h"
#include "server/cli/standard_io.h"
#include "server/simulation/capacity_plan.h"

namespace heddle::server {
namespace {

std::vector<engine::RankMemory> RanksOf(const PlannedModel& planned) {
  if (planned.model.ranks.size() == 1) return {};
  return planned.model.ranks;
}

}  // namespace

absl::Status RunPlan(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(PlannedModel planned, PlanModel(config));
  const AdapterSize adapter = PlanAdapters(config, &planned);
  const auto output = static_cast<int32_t>(config.output_tokens);
  const auto prompt =
      static_cast<int32_t>(config.context > 0 ? config.context - output : config.prompt_tokens);
  const CapacityQuestion question{
      .capacity = planned.model.capacity,
      .scheduler = planned.scheduler,
      .machine = planned.machine,
      .peak = planned.peak,
      .later_stages = planned.later_stages,
      .later_peaks = planned.later_peaks,
      .link = planned.link,
      .users = static_cast<int32_t>(config.users),
      .prompt_tokens = prompt,
      .output_tokens = output,
      .adapters = static_cast<int32_t>(config.adapters),
      .adapter_rank = AdapterRank(config),
      .adapter = adapter,
      .ranks = RanksOf(planned),
      .one_rank_is_faster = planned.stream_tok_s < planned.one_rank_tok_s};
  HEDDLE_ASSIGN_OR_RETURN(const CapacityAnswer answer, AnswerCapacity(question));
  if (config.json) {
    HEDDLE_RETURN_IF_ERROR(
        WriteOut(CapacityJson(question, answer,
                              {{"model", planned.name},
                               {"weights", planned.model.main_format},
                               {"kv_type", std::string(kernels::Info(planned.model.kv_dtype).name)},
                               {"hardware", planned.hardware.name}})));
    return FlushOut();
  }
  HEDDLE_RETURN_IF_ERROR(WriteOut(DescribePlanned(planned) + CapacityText(question, answer)));
  return FlushOut();
}

}  // namespace heddle::server
