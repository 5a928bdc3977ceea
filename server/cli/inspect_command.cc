#include "base/status.h"
#include "server/cli/command.h"
#include "server/cli/inspect.h"
#include "server/cli/model_options.h"
#include "server/cli/standard_io.h"

namespace heddle::server {

absl::Status RunInspect(const config::Config& config) {
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
