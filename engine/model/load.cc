#include "engine/model/load.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "engine/files/checkpoint.h"
#include "engine/model/weights.h"

namespace heddle::engine {
namespace {

// "BF16 (2.0 GiB), F32 (1.2 MiB)", largest first.
std::string DescribeFormats(const Checkpoint& checkpoint) {
  return absl::StrJoin(checkpoint.types(), ", ", [](std::string* out, const TypeUsage& usage) {
    absl::StrAppend(out, std::string(usage.type_name), " (", FormatBytes(usage.bytes), ")");
  });
}

absl::StatusOr<kernels::DType> KvType(const std::string& name, const Checkpoint& checkpoint) {
  if (name == "f32") return kernels::DType::kF32;
  if (name == "f16") return kernels::DType::kF16;
  if (name == "bf16") return kernels::DType::kBF16;
  if (name != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("kv-type is \"", name, "\"; valid are auto, f32, f16 and bf16"));
  }
  const std::vector<TypeUsage> types = checkpoint.types();
  const bool full = !types.empty() && types[0].type_name == "F32";
  return full ? kernels::DType::kF32 : kernels::DType::kF16;
}

absl::StatusOr<std::unique_ptr<kernels::Device>> MakeDevice(const LoadOptions& options) {
  if (options.make_device) return options.make_device();
  if (options.reference_ops) return kernels::CreateReferenceDevice();
  return kernels::CreateCpuDevice(options.cpu);
}

// The memory that weights and pages come from.
HostMemory MemoryOf(const kernels::Device* device) {
  const auto own = device == nullptr ? std::nullopt : device->memory();
  if (!own) return ReadHostMemory();
  return {.total_bytes = own->total_bytes, .available_bytes = own->available_bytes};
}

// `device` is where the model will run, or nullptr for the host.
absl::StatusOr<LoadedModel> DescribeAll(const Checkpoint& checkpoint, const LoadOptions& options,
                                        const kernels::Device* device) {
  LoadedModel loaded;
  HEDDLE_ASSIGN_OR_RETURN(loaded.model, engine::Describe(checkpoint));
  HEDDLE_RETURN_IF_ERROR(ValidateTensors(checkpoint, loaded.model));
  HEDDLE_ASSIGN_OR_RETURN(loaded.kv_dtype, KvType(options.kv_type, checkpoint));
  loaded.formats = DescribeFormats(checkpoint);
  CapacityOptions capacity = options.capacity;
  capacity.kv_dtype = loaded.kv_dtype;
  if (device != nullptr) capacity.activation_dtype = device->activation_dtype();
  HEDDLE_ASSIGN_OR_RETURN(loaded.capacity, PlanCapacity(loaded.model.spec, checkpoint.total_bytes(),
                                                        MemoryOf(device), capacity));
  return loaded;
}

}  // namespace

absl::StatusOr<LoadedModel> DescribeModel(const std::filesystem::path& path,
                                          const LoadOptions& options) {
  HEDDLE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(path));
  return DescribeAll(checkpoint, options, nullptr);
}

absl::StatusOr<LoadedModel> LoadModel(const std::filesystem::path& path,
                                      const LoadOptions& options) {
  HEDDLE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(path));
  LocalExecutor::Parts parts;
  HEDDLE_ASSIGN_OR_RETURN(parts.device, MakeDevice(options));
  HEDDLE_ASSIGN_OR_RETURN(LoadedModel loaded, DescribeAll(checkpoint, options, parts.device.get()));
  loaded.device = parts.device->description();
  parts.spec = std::make_unique<ModelSpec>(loaded.model.spec);
  HEDDLE_ASSIGN_OR_RETURN(ModelWeights weights,
                          LoadWeights(*parts.device, checkpoint, loaded.model));
  parts.weights = std::make_unique<ModelWeights>(std::move(weights));
  parts.kv_dtype = loaded.kv_dtype;
  HEDDLE_ASSIGN_OR_RETURN(loaded.executor,
                          LocalExecutor::Create(std::move(parts), loaded.capacity.limits));
  return loaded;
}

}  // namespace heddle::engine
