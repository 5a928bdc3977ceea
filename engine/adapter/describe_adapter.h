// Describes an adapter by its files alone, before any base is known, for `heddle inspect`.
// Blocking: reads the whole file. Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/load_adapter.h"

namespace heddle::engine {

struct AdapterDescription {
  AdapterSummary summary;          // but for `modules`, which needs the base
  std::vector<std::string> kinds;  // of modules with factors: "k_proj", "q_proj"...
  int64_t num_modules = 0;
  int64_t min_rank = 0;  // of modules; the largest is in the summary
  float min_scale = 0;   // of products: alpha / rank, or as the file has it
  float max_scale = 0;
  std::vector<std::string> types;  // of factors: "f32", "bf16"...
};

// Errors as LoadAdapter's, for what can be seen without the base.
absl::StatusOr<AdapterDescription> DescribeAdapter(const std::filesystem::path& path);

}  // namespace heddle::engine
