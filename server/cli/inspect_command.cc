#include <optional>

#include "base/status.h"
#include "engine/adapter/load_adapter.h"
#include "engine/model/load_ranks.h"
#include "server/cli/command.h"
#include "server/cli/inspect.h"
#include "server/cli/inspect_adapter.h"
#include "server/cli/model_options.h"
#include "server/cli/standard_io.h"

namespace heddle::server {
namespace {

// Loads the adapter as `serve` would do with the base.
absl::StatusOr<AdapterOnBase> CheckOnBase(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(engine::LoadOptions options, ToLoadOptions(config));
  options.capacity.adapter_max_rank = kernels::kMaxAdapterRank;
  HEDDLE_RETURN_IF_ERROR(engine::CheckLayout(options));
  HEDDLE_RETURN_IF_ERROR(DescribeForThisCpu(&options));
  HEDDLE_ASSIGN_OR_RETURN(const engine::ModelInfo model,
                          engine::DescribeModel(config.base, options));
  const engine::Capacity& capacity = model.capacity;
  engine::AdapterTarget target;
  target.model = &model.model;
  target.base = config.base;
  target.dtype = capacity.limits.adapter_dtype;
  target.shares = model.shares;
  target.page_bytes = capacity.page_bytes;
  target.rank_page_bytes = capacity.rank_page_bytes;
  target.max_rank = kernels::kMaxAdapterRank;
  HEDDLE_ASSIGN_OR_RETURN(const engine::LoadedAdapter loaded,
                          engine::LoadAdapter(config.model, target));
  return AdapterOnBase{.base = config.base,
                       .modules = loaded.summary.modules,
                       .bytes = loaded.image->bytes(),
                       .pages = loaded.image->pages_of_each_rank(),
                       .tokens = loaded.image->pages_of_each_rank() /
                                 capacity.kv_layout.n_kv_groups() *
                                 int64_t{capacity.limits.page_tokens}};
}

absl::Status InspectAdapter(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(const engine::AdapterDescription description,
                          engine::DescribeAdapter(config.model));
  std::optional<AdapterOnBase> on_base;
  if (!config.base.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(on_base, CheckOnBase(config));
  }
  HEDDLE_RETURN_IF_ERROR(WriteOut(config.json
                                      ? InspectAdapterJson(config.model, description, on_base)
                                      : InspectAdapterText(config.model, description, on_base)));
  return FlushOut();
}

}  // namespace

absl::Status RunInspect(const config::Config& config) {
  if (engine::IsAdapter(config.model)) return InspectAdapter(config);
  if (!config.base.empty()) {
    return absl::InvalidArgumentError("--base is for adapters, and this is a model");
  }
  HEDDLE_ASSIGN_OR_RETURN(engine::LoadOptions options, ToLoadOptions(config));
  HEDDLE_RETURN_IF_ERROR(DescribeForThisCpu(&options));
  HEDDLE_ASSIGN_OR_RETURN(const engine::ModelInfo model,
                          engine::DescribeModel(config.model, options));
  engine::TensorReports tensors;
  if (config.tensors) {
    HEDDLE_ASSIGN_OR_RETURN(tensors, engine::ReportTensors(config.model, config.weights));
  }
  HEDDLE_RETURN_IF_ERROR(WriteOut(config.json ? InspectJson(config.model, model, tensors)
                                              : InspectText(config.model, model, tensors)));
  return FlushOut();
}

}  // namespace heddle::server
