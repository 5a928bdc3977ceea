#include "engine/adapter/describe_adapter.h"

#include <algorithm>
#include <set>

#include "base/status.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/adapter/peft_config.h"

namespace heddle::engine {

absl::StatusOr<AdapterDescription> DescribeAdapter(const std::filesystem::path& path) {
  HEDDLE_ASSIGN_OR_RETURN(const AdapterFile file, ReadAdapterFile(path, /*max_bytes=*/0));
  AdapterDescription description{.summary = file.summary};
  std::set<std::string> kinds;
  std::set<std::string> types;
  int64_t max_rank = 0;
  for (const auto& [name, module] : file.modules) {
    if (module.a.empty() || module.b.empty()) continue;
    // Embeddings of GGUF files have A's tokens as rows; experts that are stacked count as one rank.
    const int64_t rank = std::min(module.a.rows, module.b.cols);
    float scale = module.scale;
    if (file.config != nullptr) {
      HEDDLE_ASSIGN_OR_RETURN(scale, file.config->Scale(name, static_cast<int32_t>(rank)));
    }
    ++description.num_modules;
    kinds.insert(name.substr(name.rfind('.') + 1));
    types.emplace(kernels::Info(module.a.dtype).name);
    types.emplace(kernels::Info(module.b.dtype).name);
    const bool is_first = max_rank == 0;
    max_rank = std::max(max_rank, rank);
    description.min_rank = is_first ? rank : std::min(description.min_rank, rank);
    description.min_scale = is_first ? scale : std::min(description.min_scale, scale);
    description.max_scale = is_first ? scale : std::max(description.max_scale, scale);
    description.summary.parameters += module.a.rows * module.a.cols + module.b.rows * module.b.cols;
  }
  description.summary.max_rank = static_cast<int32_t>(max_rank);
  description.kinds.assign(kinds.begin(), kinds.end());
  description.types.assign(types.begin(), types.end());
  return description;
}

}  // namespace heddle::engine
