// `heddle bench`: tokens per second of a model, or of random weights in a known shape, and their
// share of this machine's peak rates. These are measured beside each run, because on shared
// machines both change from minute to minute.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/values.h"
#include "engine/memory/host_memory.h"
#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "nlohmann/json.hpp"
#include "server/cli/bench_run.h"
#include "server/cli/command.h"
#include "server/cli/device_meter.h"
#include "server/cli/model_options.h"
#include "server/cli/standard_io.h"

namespace heddle::server {
namespace {

// One measurement and the limits measured around it.
struct Rates {
  double prefill_tok_s = 0;
  double decode_tok_s = 0;
  double read_gb_s = 0;
  double limit_read_gb_s = 0;
  double gops = 0;
  double limit_gops = 0;
};

absl::StatusOr<std::vector<int32_t>> BatchSizes(const config::BenchConfig& config) {
  std::vector<int32_t> sizes;
  for (const std::string& text : config.batch) {
    HEDDLE_ASSIGN_OR_RETURN(const int64_t size, config::ParseInteger(text));
    sizes.push_back(static_cast<int32_t>(size));
  }
  if (sizes.empty()) sizes.push_back(1);
  return sizes;
}

// Checks with the options of this command, because loading would name a context option that the
// user did not give. If the model cannot be described, loading reports why.
absl::Status CheckContext(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadOptions options, ToLoadOptions(config));
  absl::StatusOr<engine::ModelInfo> model =
      config.random_weights.empty()
          ? engine::DescribeModel(config.model, options)
          : engine::DescribeRandomModel(config.random_weights, kernels::DType::kBF16, options);
  const int64_t tokens = config.prompt_tokens + config.output_tokens + 1;
  if (!model.ok() || tokens <= model->model.spec.max_context) return absl::OkStatus();
  return absl::InvalidArgumentError(base::StrCat(
      "--prompt-tokens (", config.prompt_tokens, ") and --output-tokens (", config.output_tokens,
      ") with one more do not fit into this model's context of ", model->model.spec.max_context));
}

absl::StatusOr<engine::LocalModel> Load(const config::Config& config, int32_t largest_batch) {
  HEDDLE_ASSIGN_OR_RETURN(engine::LoadOptions options, ToLoadOptions(config));
  options.capacity.max_context =
      static_cast<int32_t>(config.prompt_tokens + config.output_tokens + 1);
  options.capacity.max_batch_seqs = largest_batch;
  if (config.random_weights.empty()) return engine::LoadLocalModel(config.model, options);
  HEDDLE_ASSIGN_OR_RETURN(const kernels::DType dtype, engine::RandomFormat(config.weights));
  return engine::LoadRandomModel(config.random_weights, dtype, options);
}

absl::StatusOr<Rates> MeasureOnce(const engine::LocalModel& model, const BenchShape& shape,
                                  DeviceMeter& meter) {
  const engine::LocalExecutor& executor = *model.executor;
  const BenchWork work =
      WorkOf(shape, executor.spec(), engine::TrafficOf(executor.spec(), executor.weights()),
             model.capacity.kv_bytes_per_token);
  HEDDLE_ASSIGN_OR_RETURN(BenchRun run, BenchRun::Create(*model.executor, shape));
  Rates rates;
  HEDDLE_ASSIGN_OR_RETURN(const kernels::DeviceLimits before, meter.Measure());
  HEDDLE_ASSIGN_OR_RETURN(const BenchTiming timing, run.Measure());
  HEDDLE_ASSIGN_OR_RETURN(const kernels::DeviceLimits after, meter.Measure());
  rates.limit_read_gb_s = (before.read_gb_s + after.read_gb_s) / 2;
  rates.limit_gops = (before.gops + after.gops) / 2;
  rates.prefill_tok_s = double{1} * shape.batch * shape.prompt_tokens / timing.prefill_s;
  rates.decode_tok_s = double{1} * shape.batch * shape.output_tokens / timing.decode_s;
  rates.read_gb_s = work.decode_bytes / timing.decode_s / 1e9;
  rates.gops = work.prefill_ops / timing.prefill_s / 1e9;
  return rates;
}

// The median of several measurements, for prompts and for decodes separately, each with its own
// limits.
Rates Middle(std::vector<Rates> all) {
  const size_t middle = all.size() / 2;
  auto by = [&](double Rates::*field) {
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(middle), all.end(),
                     [field](const Rates& a, const Rates& b) { return a.*field < b.*field; });
    return all[middle];
  };
  const Rates prefill = by(&Rates::prefill_tok_s);
  Rates rates = by(&Rates::decode_tok_s);
  rates.prefill_tok_s = prefill.prefill_tok_s;
  rates.gops = prefill.gops;
  rates.limit_gops = prefill.limit_gops;
  return rates;
}

std::string ToText(int32_t batch, const Rates& rates) {
  return absl::StrFormat("%5d %14.1f %8.0f %5.0f %% %14.1f %8.1f %5.0f %%\n", batch,
                         rates.prefill_tok_s, rates.gops, 100 * rates.gops / rates.limit_gops,
                         rates.decode_tok_s, rates.read_gb_s,
                         100 * rates.read_gb_s / rates.limit_read_gb_s);
}

std::string ToJson(const config::Config& config, const engine::LocalModel& model,
                   const BenchShape& shape, const Rates& rates, double load_s) {
  const nlohmann::ordered_json json = {
      {"model", config.random_weights.empty() ? config.model : config.random_weights},
      {"weights", model.main_format},
      {"device", model.device},
      {"kv_type", kernels::Info(model.kv_dtype).name},
      {"batch", shape.batch},
      {"prompt_tokens", shape.prompt_tokens},
      {"output_tokens", shape.output_tokens},
      {"prefill_tok_s", rates.prefill_tok_s},
      {"decode_tok_s", rates.decode_tok_s},
      {"read_gb_s", rates.read_gb_s},
      {"limit_read_gb_s", rates.limit_read_gb_s},
      {"gops", rates.gops},
      {"limit_gops", rates.limit_gops},
      {"load_s", load_s},
      {"resident_bytes", engine::ResidentBytes()},
  };
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string Heading(const config::Config& config, const engine::LocalModel& model, double load_s) {
  return base::StrCat(
      "model     ", config.random_weights.empty() ? config.model : config.random_weights, ", ",
      model.formats, "\ndevice    ", model.device, "\nload      ",
      absl::StrFormat("%.2f s, %s resident", load_s, base::ShowBytes(engine::ResidentBytes())),
      "\nprompts of ", config.prompt_tokens, " tokens, then ", config.output_tokens,
      " decodes; shares of this machine's limits, measured beside each run\n\n",
      "batch  prefill tok/s    GOP/s of peak   decode tok/s     GB/s of read\n");
}

}  // namespace

absl::Status RunBench(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int32_t> batches, BatchSizes(config));
  if (!config.bench_text.empty()) return RunTextBench(config, batches);
  HEDDLE_RETURN_IF_ERROR(CheckContext(config));
  const auto began = std::chrono::steady_clock::now();
  HEDDLE_ASSIGN_OR_RETURN(const engine::LocalModel model,
                          Load(config, *std::max_element(batches.begin(), batches.end())));
  const double load_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() -
      model.random_seconds;
  if (!config.json) HEDDLE_RETURN_IF_ERROR(WriteOut(Heading(config, model, load_s)));
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadOptions options, ToLoadOptions(config));
  HEDDLE_ASSIGN_OR_RETURN(DeviceMeter meter, DeviceMeter::Create(model.executor->device(),
                                                                 options.cpu, model.main_format));
  for (const int32_t batch : batches) {
    const BenchShape shape{.batch = batch,
                           .prompt_tokens = static_cast<int32_t>(config.prompt_tokens),
                           .output_tokens = static_cast<int32_t>(config.output_tokens)};
    std::vector<Rates> all;
    for (int64_t i = 0; i < config.repeat; ++i) {
      HEDDLE_ASSIGN_OR_RETURN(const Rates rates, MeasureOnce(model, shape, meter));
      all.push_back(rates);
    }
    const Rates rates = Middle(std::move(all));
    HEDDLE_RETURN_IF_ERROR(
        WriteOut(config.json ? ToJson(config, model, shape, rates, load_s) : ToText(batch, rates)));
    HEDDLE_RETURN_IF_ERROR(FlushOut());
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
