// From a path to an engine that can run steps: opens the checkpoint, finds its family, plans the
// memory, packs the weights.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/model/capacity.h"
#include "engine/model/families.h"
#include "engine/model/local_executor.h"
#include "kernels/device.h"

namespace heddle::engine {

struct LoadOptions {
  // Makes the device to load onto; empty: the CPU with `cpu`.
  std::function<absl::StatusOr<std::unique_ptr<kernels::Device>>()> make_device;
  kernels::CpuDeviceOptions cpu;
  bool reference_ops = false;  // single-threaded reference kernels; for tests
  CapacityOptions capacity;
  // "auto" (as the checkpoint has them), "int8", "int4" or "fp8": quantised at load.
  std::string weights = "auto";
  // Type of keys and values: "auto" (F32 for an F32 model, else as the device prefers), "f32",
  // "f16", "bf16", "fp8", "int8" (kernels/kv_cache.h). UNIMPLEMENTED for one that the device lacks.
  std::string kv_type = "auto";
  // Describe for a device that prefers this type, where there is none yet to ask.
  kernels::DType preferred_kv_type = kernels::DType::kF16;
  std::string host_kv_directory;  // a file there holds the host's tier; empty: memory does
  // Describe for a machine with this memory. Empty: what the device, or this machine, has free.
  std::optional<HostMemory> memory;
};

struct LoadedModel {
  ModelDescription model;  // names, defaults; its spec is also the executor's
  Capacity capacity;
  std::vector<std::string> unused_tensors;  // of the checkpoint, see UnusedTensors
  std::string device;                       // in words
  std::string formats;                      // of the weights, in words
  std::string main_format;                  // of most bytes of the weights, as "bf16" or "q4_0"
  kernels::DType kv_dtype = kernels::DType::kF16;
  double random_seconds = 0;   // of loading, spent on random numbers in place of a file's
  double warm_up_seconds = 0;  // of loading; 0: the device needs none
  std::unique_ptr<LocalExecutor> executor;
};

// Everything but the weights: what `heddle inspect` shows. `executor` stays null.
absl::StatusOr<LoadedModel> DescribeModel(const std::filesystem::path& path,
                                          const LoadOptions& options);

// The same of a built-in shape with weights of that format (random_model.h).
absl::StatusOr<LoadedModel> DescribeRandomModel(std::string_view shape, kernels::DType weights,
                                                const LoadOptions& options);

// Errors name the file, what was found, and what would be valid; see the parts' headers.
absl::StatusOr<LoadedModel> LoadModel(const std::filesystem::path& path,
                                      const LoadOptions& options);

// A model of a built-in shape with random weights (random_model.h): what benchmarks load where
// there is no checkpoint. INVALID_ARGUMENT for a format that its rows are not whole blocks of.
absl::StatusOr<LoadedModel> LoadRandomModel(std::string_view shape, kernels::DType weights,
                                            const LoadOptions& options);
absl::StatusOr<LoadedModel> LoadRandomModel(const ModelSpec& spec, kernels::DType weights,
                                            const LoadOptions& options);

}  // namespace heddle::engine
