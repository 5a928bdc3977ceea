// From a path to an engine that can run steps: opens the checkpoint, finds its family, plans the
// memory and packs the weights.
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
#include "engine/family/model_description.h"
#include "engine/model/capacity.h"
#include "engine/model/draft_network.h"
#include "engine/model/local_executor.h"
#include "engine/model/pooled_head.h"
#include "engine/model/quantize.h"
#include "engine/model/rank_meeting.h"
#include "engine/model/rank_worker.h"
#include "engine/parallel/shard.h"
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
  // An adapter that is merged into the weights while they are loaded (merge_weights.h); empty:
  // none.
  std::filesystem::path merged_adapter;
  // Type of keys and values: "auto" (F32 for an F32 model, else the device's preference), "f32",
  // "f16", "bf16", "fp8", "int8" (kernels/kv_cache.h). UNIMPLEMENTED for one that the device lacks.
  std::string kv_type = "auto";
  // The preference to assume when a model is described without a device.
  kernels::DType preferred_kv_type = kernels::DType::kF16;
  std::string host_kv_directory;  // directory of the host tier's file; empty: memory
  OpenDraft open_draft;           // a drafter to run beside the model; empty: none
  // A drafter is left out where it cannot run or where it would cost something: where steps are
  // planned ahead (Device::max_in_flight above 1), since those behind which it runs cannot be, and
  // where the model fits into memory only without it. False: the first is allowed, the second an
  // error.
  bool drafter_yields = false;
  // The machine's memory to assume. Empty: what the device, or this machine, has free.
  std::optional<HostMemory> memory;
  // The ranks that share the model: with more than one, each has a part of `cpu`'s threads, or a
  // device.
  Layout layout;
  // Makes the device of a rank beside the head; empty: ranks are of the CPU, and make_device must
  // be empty, too.
  std::function<absl::StatusOr<std::unique_ptr<kernels::Device>>(int32_t rank)> make_rank_device;
  // Devices follow a tune profile; ranks of models with state, which would divide steps
  // differently, are refused.
  bool splits_steps = false;
  // The model that it was measured with (tuned_model.h); INVALID_ARGUMENT for another one. Empty:
  // the profile does not say, which ModelInfo::advice does then.
  std::string tuned_model;
  std::vector<int32_t> rank_devices;    // [layout.world()] which device a rank has; empty: CPUs
  std::vector<HostMemory> rank_memory;  // of those devices; filled when they are made
  // Where every rank of `layout` is a process: this one's place among them. Null: all are here.
  std::shared_ptr<RankMeeting> meeting;
  // [layout.world()] each rank's processors, or, with `meeting`, [1] those of its rank; empty: all.
  std::vector<std::vector<int>> rank_cpus;
};

// A model's description and limits, and the device that it runs on, without an executor.
struct ModelInfo {
  ModelDescription model;  // names, defaults; its spec is also the executor's
  Capacity capacity;
  // The head of a model that writes no text; null: it does, or it was not loaded.
  std::shared_ptr<const PooledHead> head;
  std::vector<std::string> unused_tensors;  // of the checkpoint, see UnusedTensors
  // Positions that indexers choose where texts are not longer, so that they are left out and rows
  // read everything (ServeShortTexts); 0: there are none, or they are used.
  int32_t idle_indexers = 0;
  std::string device;       // in words
  std::string formats;      // of the weights, in words
  std::string main_format;  // the format of most weight bytes, as "bf16" or "q4_0"
  kernels::DType kv_dtype = kernels::DType::kF16;
  double random_seconds = 0;               // part of loading spent on random numbers
  double warm_up_seconds = 0;              // part of loading; 0: the device needs no warm-up
  std::vector<std::string> advice;         // missing libraries, and their cost (Device::Advice)
  std::vector<std::string> timed_choices;  // what the device found out by timing
  std::string drafter;                     // the drafter beside the model, in words; empty: none
  std::string drafter_left_out;            // why one that was found does not run; empty: none was
  std::vector<Share> shares;               // of the model, one for each rank
  std::vector<RankMemory> ranks;           // what each of them takes
};

// The model as it is served: the executor hides how many devices there are, and which.
struct LoadedModel : ModelInfo {
  std::unique_ptr<Executor> executor;
};

// For measurements and tests, which access the one device.
struct LocalModel : ModelInfo {
  std::unique_ptr<LocalExecutor> executor;
};

// The model in words by which tune profiles know it (tuned_model.h).
std::string TunedModelOf(const ModelInfo& info);

// Bytes of one tensor once converted by the policy and packed by the device (nullptr: the host).
int64_t KeptBytes(const CheckpointTensor& tensor, const ModelDescription& model,
                  const WeightPolicy& policy, const kernels::Device* device);

// The bytes of the used tensors once converted by the policy and packed by the device (nullptr: the
// host).
int64_t KeptBytes(const Checkpoint& checkpoint, const ModelDescription& model,
                  const WeightPolicy& policy, const kernels::Device* device);

// Fills everything but the weights, as `heddle inspect` shows it.
absl::StatusOr<ModelInfo> DescribeModel(const std::filesystem::path& path,
                                        const LoadOptions& options);

// The same for a built-in shape with weights of that format (random_model.h).
absl::StatusOr<ModelInfo> DescribeRandomModel(std::string_view shape, kernels::DType weights,
                                              const LoadOptions& options);

// Error messages name the file, what was found, and what would be valid; see the parts' headers.
absl::StatusOr<LoadedModel> LoadModel(const std::filesystem::path& path,
                                      const LoadOptions& options);
absl::StatusOr<LocalModel> LoadLocalModel(const std::filesystem::path& path,
                                          const LoadOptions& options);

// The rank of options.meeting, which is not 0, without a head.
struct LoadedRank : ModelInfo {
  std::unique_ptr<RankWorker> worker;
};
absl::StatusOr<LoadedRank> LoadRank(const std::filesystem::path& path, const LoadOptions& options);

// A digest of a checkpoint's configuration (GGUF: all metadata), of the names, shapes, types and
// places of its tensors and of a sample of each one's bytes, by which ranks notice that they have
// different models. O(tensors + bytes of metadata).
absl::StatusOr<uint64_t> ModelDigest(const std::filesystem::path& path);

// Makes a model of a built-in shape with random weights (random_model.h), which benchmarks use if
// there is no checkpoint. INVALID_ARGUMENT for a format whose blocks its rows cannot fill.
absl::StatusOr<LocalModel> LoadRandomModel(std::string_view shape, kernels::DType weights,
                                           const LoadOptions& options);
absl::StatusOr<LocalModel> LoadRandomModel(const ModelSpec& spec, kernels::DType weights,
                                           const LoadOptions& options);

}  // namespace heddle::engine
