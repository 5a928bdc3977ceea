// `heddle simulate`: runs the scheduler of `serve` on a trace or a synthetic load, with a machine
// that is only a formula.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "scheduler/simulation/simulator.h"
#include "server/cli/command.h"
#include "server/cli/planned_model.h"
#include "server/cli/standard_io.h"
#include "server/simulation/report.h"
#include "server/simulation/workload_trace.h"

namespace heddle::server {
namespace {

using scheduler::LengthShape;
using scheduler::SimulatedRequest;

constexpr size_t kMaxTraceBytes = size_t{2} << 30;

LengthShape ToLengthShape(config::LengthShape shape) {
  switch (shape) {
    case config::LengthShape::kFixed:
      return LengthShape::kFixed;
    case config::LengthShape::kUniform:
      return LengthShape::kUniform;
    case config::LengthShape::kExponential:
      return LengthShape::kExponential;
    case config::LengthShape::kLognormal:
      break;
  }
  return LengthShape::kLognormal;
}

scheduler::SyntheticLoad ToLoad(const config::Config& config, int32_t max_context,
                                const AdapterSize& adapter) {
  return {.num_requests = static_cast<int32_t>(config.requests),
          .requests_per_s = config.rate.value_or(0),
          .mean_prompt_tokens = static_cast<double>(config.prompt_tokens),
          .mean_output_tokens = static_cast<double>(config.output_tokens),
          .lengths = ToLengthShape(config.lengths),
          .prefix_groups = static_cast<int32_t>(config.prefix_groups),
          .prefix_tokens = static_cast<int32_t>(config.prefix_tokens),
          .adapters = static_cast<int32_t>(config.adapters),
          .adapter_pages = std::max(1, adapter.pages),
          .max_tokens = std::max(1, max_context - 1),  // the prompt must fit, as for clients
          .seed = static_cast<uint64_t>(config.seed.value_or(1))};
}

absl::StatusOr<std::vector<SimulatedRequest>> Requests(const config::Config& config,
                                                       const PlannedModel& planned,
                                                       const AdapterSize& adapter) {
  if (config.trace.empty()) {
    const int32_t context = scheduler::Scheduler::MaxContext(planned.scheduler, adapter.pages);
    if (context <= 0) {
      return absl::InvalidArgumentError(
          base::StrCat("an adapter of rank ", AdapterRank(config), " takes ", adapter.pages,
                       " pages, and the pool has ", planned.scheduler.num_pages));
    }
    // Requests cut to the context would not have the requested mean length.
    if (config.prefix_tokens + config.prompt_tokens + config.output_tokens > context) {
      const std::string prefix = config.prefix_tokens == 0
                                     ? ""
                                     : base::StrCat("--prefix-tokens ", config.prefix_tokens, ", ");
      return absl::InvalidArgumentError(
          base::StrCat(prefix, "--prompt-tokens ", config.prompt_tokens, " and --output-tokens ",
                       config.output_tokens, " do not fit into the context of ", context));
    }
    return scheduler::MakeLoad(ToLoad(config, context, adapter));
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, ReadFile(config.trace, kMaxTraceBytes));
  return ReadWorkloadTrace(text, config.trace);
}

bool HaveAdapters(const std::vector<SimulatedRequest>& requests) {
  return std::any_of(requests.begin(), requests.end(),
                     [](const SimulatedRequest& request) { return request.adapter != 0; });
}

std::string DescribeLoad(const config::Config& config, size_t requests) {
  std::string text = base::StrCat(requests, " requests");
  if (!config.trace.empty()) {
    text += base::StrCat(" of ", config.trace);
  } else {
    text +=
        base::StrCat(", prompts of ", config.prompt_tokens, " and answers of ",
                     config.output_tokens, " tokens (", config::ValueText("lengths", config), ")");
  }
  if (config.adapters > 0) {
    text += base::StrCat(", ", config.adapters, " adapters of rank ", AdapterRank(config));
  }
  if (config.prefix_tokens > 0) {
    text += base::StrCat(", behind ", config.prefix_tokens, " tokens that ", config.prefix_groups,
                         config.prefix_groups == 1 ? " group shares" : " groups share");
  }
  if (config.clients > 0) return text + base::StrCat(", ", config.clients, " clients");
  if (config.rate) return text + absl::StrFormat(", %g a second", *config.rate);
  return config.trace.empty() ? text + ", all at once" : text;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (out) return absl::OkStatus();
  return absl::InvalidArgumentError(base::StrCat("--plot: cannot write ", base::Quote(path)));
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

absl::Status RunSimulate(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(PlannedModel planned, PlanModel(config));
  const AdapterSize adapter = config.adapters > 0 ? PlanAdapters(config, &planned) : AdapterSize();
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<SimulatedRequest> requests,
                          Requests(config, planned, adapter));
  if (HaveAdapters(requests)) PrepareForAdapters(&planned);
  const double began_s = NowSeconds();
  HEDDLE_ASSIGN_OR_RETURN(
      const scheduler::SimulationResult result,
      scheduler::Simulate(requests, {.scheduler = planned.scheduler,
                                     .machine = planned.machine,
                                     .later_stages = planned.later_stages,
                                     .link = planned.link,
                                     .max_queue = planned.loop.max_queue,
                                     .max_queue_tokens = planned.loop.max_queue_tokens,
                                     .clients = static_cast<int32_t>(config.clients),
                                     .draft_acceptance = config.draft_acceptance.value_or(0)}));
  const SimulationReport report = Summarize(result, planned.scheduler, NowSeconds() - began_s);
  const std::string load = DescribeLoad(config, requests.size());
  if (!config.plot.empty()) {
    const std::string title = base::StrCat(planned.name, " on ", planned.hardware.name, ": ", load);
    HEDDLE_RETURN_IF_ERROR(WriteFile(config.plot, ReportSvg(result, report, title)));
  }
  if (config.json) {
    HEDDLE_RETURN_IF_ERROR(WriteOut(ReportJson(report, {{"model", planned.name},
                                                        {"weights", planned.model.main_format},
                                                        {"hardware", planned.hardware.name},
                                                        {"load", load}})));
    return FlushOut();
  }
  HEDDLE_RETURN_IF_ERROR(WriteOut(
      base::StrCat(DescribePlanned(planned), "load      ", load, "\n\n", ReportText(report))));
  return FlushOut();
}

}  // namespace heddle::server
