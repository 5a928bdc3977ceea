#include "engine/model/load.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <span>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/files/checkpoint.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/model/divide_stages.h"
#include "engine/model/load_device.h"
#include "engine/model/load_drafter.h"
#include "engine/model/load_memory.h"
#include "engine/model/load_ranks.h"
#include "engine/model/merge_weights.h"
#include "engine/model/random_model.h"
#include "engine/model/rank_devices.h"
#include "engine/model/share_bytes.h"
#include "engine/model/tensor_report.h"
#include "engine/model/tuned_model.h"
#include "engine/model/warm_up.h"
#include "engine/model/weights.h"
#include "engine/parallel/plan_codec.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// Returns text like "BF16 (2.0 GiB), F32 (1.2 MiB)", the largest first.
std::string DescribeFormats(const Checkpoint& checkpoint) {
  return absl::StrJoin(checkpoint.types(), ", ", [](std::string* out, const TypeUsage& usage) {
    absl::StrAppend(out, std::string(usage.type_name), " (", base::ShowBytes(usage.bytes), ")");
  });
}

// The device of the head.
absl::StatusOr<std::unique_ptr<kernels::Device>> MakeDevice(const LoadOptions& options) {
  HEDDLE_RETURN_IF_ERROR(CheckLayout(options));
  if (options.make_device) return options.make_device();
  if (options.reference_ops) return kernels::CreateReferenceDevice();
  // Its threads inherit the processors of the thread that makes them.
  return OnCpusOfHead(options, [&] { return kernels::CreateCpuDevice(CpuOfRank(options, 0)); });
}

// The type that most bytes of the used weights are kept in.
kernels::DType MainType(const Checkpoint& checkpoint, const ModelDescription& model,
                        const WeightPolicy& policy) {
  const std::unordered_set<std::string> used = UsedTensors(model);
  std::map<kernels::DType, int64_t> elements;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (!tensor.dtype || tensor.shape.size() < 2) continue;
    if (!used.contains(std::string(tensor.name))) continue;
    elements[KeptTypeOf(tensor, model.names, policy)] +=
        SourceOf(tensor).rows * tensor.shape.back();
  }
  const auto most =
      std::max_element(elements.begin(), elements.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == elements.end() ? kernels::DType::kF16 : most->first;
}

// Plans the memory with the drafter, if there is one, or without it where it has to yield.
absl::Status PlanWithDrafter(const Checkpoint& checkpoint, const WeightPolicy& policy,
                             const kernels::Device* device, LoadOptions* options,
                             OpenedDrafter* drafter, ModelInfo* loaded) {
  const kernels::DType weights = MainType(checkpoint, loaded->model, policy);
  const CapacityOptions without = options->capacity;
  CountDrafter(*drafter, checkpoint, loaded->model, policy, device, options->layout.pp,
               &options->capacity);
  absl::Status planned = PlanMemory(weights, *options, device, loaded);
  if (planned.ok()) planned = CheckGroups(*options, loaded->capacity);
  const bool is_too_much = absl::IsResourceExhausted(planned) || absl::IsUnimplemented(planned);
  const bool yields = drafter->source != nullptr && options->drafter_yields;
  if (!yields || !is_too_much) return planned;
  options->capacity = without;
  HEDDLE_RETURN_IF_ERROR(PlanMemory(weights, *options, device, loaded));
  LeaveOut(absl::StrCat("with it, ", std::string(planned.message())), drafter);
  return absl::OkStatus();
}

absl::Status CheckTuned(const LoadOptions& options, const ModelInfo& loaded) {
  return CheckTunedModel(options.tuned_model, TunedModelOf(loaded));
}

// `options`: what the drafter takes is added.
absl::StatusOr<ModelInfo> DescribeAll(const Checkpoint& checkpoint, const kernels::Device* device,
                                      LoadOptions* all_options, OpenedDrafter* drafter) {
  FillStepSize(device, &all_options->capacity);
  const LoadOptions& options = *all_options;
  ModelInfo loaded;
  HEDDLE_ASSIGN_OR_RETURN(const WeightPolicy policy, ParseWeightPolicy(options.weights));
  HEDDLE_ASSIGN_OR_RETURN(loaded.model, engine::Describe(checkpoint));
  ServeLongTexts(options.capacity.max_context, &loaded.model.spec);
  HEDDLE_RETURN_IF_ERROR(ValidateTensors(checkpoint, loaded.model));
  for (const std::string_view name : UnusedTensors(checkpoint, loaded.model)) {
    loaded.unused_tensors.emplace_back(name);
  }
  loaded.idle_indexers = ServeShortTexts(options.capacity.max_context, &loaded.model.spec);
  HEDDLE_RETURN_IF_ERROR(CheckOpsFor(loaded.model.spec, device));
  HEDDLE_RETURN_IF_ERROR(CheckLayoutOf(loaded.model.spec, options.layout));
  HEDDLE_RETURN_IF_ERROR(CheckSplits(loaded.model.spec, options));
  HEDDLE_RETURN_IF_ERROR(DivideStages(checkpoint, loaded.model, policy, device, all_options));
  loaded.shares =
      DivideModel(loaded.model.spec, options.layout, CutBlocksOf(checkpoint, loaded.model, policy));
  for (size_t rank = 0; rank < loaded.shares.size(); ++rank) {
    if (options.meeting != nullptr && options.meeting->rank() != static_cast<int32_t>(rank))
      continue;
    const Share& share = loaded.shares[rank];
    loaded.ranks.push_back(
        {.weight_bytes = ShareBytes(checkpoint, loaded.model, policy, share, device)});
  }
  HEDDLE_ASSIGN_OR_RETURN(*drafter, OpenDrafter(checkpoint, loaded.model, device, options));
  HEDDLE_RETURN_IF_ERROR(
      PlanWithDrafter(checkpoint, policy, device, all_options, drafter, &loaded));
  loaded.drafter_left_out = drafter->left_out;
  loaded.formats = DescribeFormats(checkpoint);
  if (policy.matrix) absl::StrAppend(&loaded.formats, ", quantised to ", options.weights);
  if (const std::vector<TypeUsage> types = checkpoint.types(); !types.empty()) {
    loaded.main_format = absl::AsciiStrToLower(std::string(types[0].type_name));
  }
  if (policy.matrix) loaded.main_format = std::string(kernels::Info(*policy.matrix).name);
  HEDDLE_RETURN_IF_ERROR(CheckTuned(options, loaded));
  return loaded;
}

absl::StatusOr<ModelInfo> DescribeRandom(const ModelSpec& spec, kernels::DType weights,
                                         const LoadOptions& options,
                                         const kernels::Device* device) {
  ModelInfo loaded;
  loaded.model.spec = spec;
  HEDDLE_RETURN_IF_ERROR(CheckOpsFor(spec, device));
  HEDDLE_RETURN_IF_ERROR(CheckWholeBlocks(loaded.model.spec, weights));
  HEDDLE_RETURN_IF_ERROR(CheckLayoutOf(spec, options.layout));
  HEDDLE_RETURN_IF_ERROR(CheckSplits(spec, options));
  const int64_t block = kernels::Info(weights).block_elements;
  loaded.shares = DivideModel(spec, options.layout, {block, block, block});
  const int64_t bytes = WeightBytes(loaded.model.spec, weights, device);
  for (int32_t rank = 0; rank < options.layout.world(); ++rank) {
    if (options.meeting != nullptr && options.meeting->rank() != rank) continue;
    const ModelSpec part = SpecOfShare(spec, loaded.shares, rank);
    loaded.ranks.push_back({.weight_bytes = WeightBytes(part, weights, device)});
  }
  HEDDLE_RETURN_IF_ERROR(PlanMemory(weights, options, device, &loaded));
  loaded.main_format = std::string(kernels::Info(weights).name);
  loaded.formats = absl::StrCat("random ", loaded.main_format, " (", base::ShowBytes(bytes), ")");
  HEDDLE_RETURN_IF_ERROR(CheckTuned(options, loaded));
  return loaded;
}

// RankOffer::feature_pages: stage 0 has counted them with its drafter.
int32_t FeaturePages(const ModelInfo& loaded, int32_t rank, kernels::DType activations) {
  const ModelSpec part = SpecOfShare(loaded.model.spec, loaded.shares, rank);
  const int64_t page_bytes = loaded.capacity.page_bytes;
  if (part.stage == 0 || part.rank > 0 || page_bytes == 0) return 0;
  const int64_t bytes = Decoder::FeatureBytes(part, /*features=*/1, part.n_stages,
                                              loaded.capacity.limits.max_batch_tokens, activations);
  return static_cast<int32_t>(
      std::min<int64_t>((bytes + page_bytes - 1) / page_bytes, loaded.capacity.limits.num_pages));
}

// Ranks in other processes: the limits become those of all.
absl::Status AgreeWithOthers(const LoadOptions& options, const kernels::Device& device,
                             ModelInfo* loaded) {
  if (options.meeting == nullptr) return absl::OkStatus();
  Capacity& capacity = loaded->capacity;
  HEDDLE_ASSIGN_OR_RETURN(
      capacity.limits,
      options.meeting->Agree({.limits = capacity.limits,
                              .logit_rows = capacity.logit_rows,
                              .kv_type = std::string(kernels::Info(loaded->kv_dtype).name),
                              .feature_pages = FeaturePages(*loaded, options.meeting->rank(),
                                                            device.activation_dtype())}));
  // The scheduler is here: no sequence may need more pages than there are now.
  if (ExecutorLimits& limits = capacity.limits; options.meeting->rank() == 0) {
    limits.max_context =
        capacity.page_rule().LongestWithin(limits.num_pages, limits.windows, limits.max_context);
  }
  capacity.kv_bytes = int64_t{capacity.limits.num_pages} * capacity.page_bytes;
  DividePool(loaded);
  return absl::OkStatus();
}

// Makes the executor with a small pool first; then memory is measured, and the rest becomes pages.
absl::Status MakeWarmExecutor(const LoadOptions& options, LocalExecutor::Parts parts,
                              LocalModel* loaded) {
  HEDDLE_ASSIGN_OR_RETURN(
      loaded->executor,
      LocalExecutor::Create(std::move(parts), WarmUpLimits(loaded->capacity.limits)));
  const auto begin = std::chrono::steady_clock::now();
  HEDDLE_RETURN_IF_ERROR(WarmUp(*loaded->executor, loaded->executor->device().warm_up_rows()));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  loaded->warm_up_seconds = seconds.count();
  return FitPool(options, loaded);
}

// Makes the executor of a described model, and takes over the device. `add_drafter`: puts one into
// the parts; empty: there is none.
absl::Status MakeExecutor(const LoadOptions& options, std::unique_ptr<kernels::Device> device,
                          const MakeWeights& make_weights,
                          const std::function<absl::Status(LocalExecutor::Parts*)>& add_drafter,
                          LocalModel* loaded) {
  HEDDLE_ASSIGN_OR_RETURN(LoadedRanks ranks, LoadRanks(options, *loaded, make_weights, *device));
  loaded->device = device->description();
  if (ranks.others != nullptr) {
    loaded->device =
        absl::StrCat(ranks.others->world(), " ranks",
                     options.rank_devices.empty()
                         ? ""
                         : absl::StrCat(" on devices ", absl::StrJoin(options.rank_devices, ",")),
                     ", each ", loaded->device);
  }
  LocalExecutor::Parts parts;
  parts.host_kv_directory = options.host_kv_directory;
  parts.device = std::move(device);
  parts.spec =
      std::make_unique<ModelSpec>(SpecOfShare(loaded->model.spec, loaded->shares, /*index=*/0));
  parts.weights = std::make_unique<ModelWeights>(std::move(ranks.head));
  parts.ranks = std::move(ranks.others);
  parts.kv_dtype = loaded->kv_dtype;
  parts.kv_layout = KvLayoutOfRank(loaded->capacity.kv_layout, *parts.spec, /*is_head=*/true);
  if (loaded->shares.size() > 1) {
    parts.least_page_bytes = loaded->capacity.rank_page_bytes.front();
  }
  parts.logit_rows = loaded->capacity.logit_rows;
  if (add_drafter) HEDDLE_RETURN_IF_ERROR(add_drafter(&parts));
  loaded->drafter = parts.draft_traits.text;
  if (parts.device->warm_up_rows().empty()) {
    HEDDLE_ASSIGN_OR_RETURN(loaded->executor,
                            LocalExecutor::Create(std::move(parts), loaded->capacity.limits));
  } else {
    HEDDLE_RETURN_IF_ERROR(MakeWarmExecutor(options, std::move(parts), loaded));
  }
  const kernels::Device& used = loaded->executor->device();
  loaded->advice = used.Advice();
  for (std::string& text : AdviceForRanks(options.rank_devices)) {
    loaded->advice.push_back(std::move(text));
  }
  if (options.splits_steps && options.tuned_model.empty()) {
    loaded->advice.emplace_back(
        "the file of --tune-profile does not say which model it was measured with; if it was "
        "another one, steps are divided as suits that: measure it again with heddle tune");
  }
  loaded->timed_choices = used.TimedChoices();
  return absl::OkStatus();
}

}  // namespace

std::string TunedModelOf(const ModelInfo& info) {
  return TunedModelText(info.model.spec, info.main_format, info.kv_dtype);
}

int64_t KeptBytes(const CheckpointTensor& tensor, const ModelDescription& model,
                  const WeightPolicy& policy, const kernels::Device* device) {
  const kernels::DType kept = KeptTypeOf(tensor, model.names, policy);
  if (device != nullptr && tensor.dtype && tensor.shape.size() > 1) {
    const bool has_order = tensor.quantized != nullptr && kept == *tensor.dtype &&
                           !tensor.quantized->column_order.empty();
    const kernels::DType packed = PackedAs(kept, has_order, device);
    return SourceOf(tensor).rows * device->PackedRowBytes(packed, tensor.shape.back());
  }
  if (kept == tensor.dtype.value_or(kept)) return tensor.bytes();
  return SourceOf(tensor).rows * kernels::RowBytes(kept, tensor.shape.back());
}

int64_t KeptBytes(const Checkpoint& checkpoint, const ModelDescription& model,
                  const WeightPolicy& policy, const kernels::Device* device) {
  const std::unordered_set<std::string> used = UsedTensors(model);
  int64_t bytes = 0;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (!used.contains(std::string(tensor.name))) continue;
    bytes += KeptBytes(tensor, model, policy, device);
  }
  return bytes;
}

absl::StatusOr<ModelInfo> DescribeModel(const std::filesystem::path& path,
                                        const LoadOptions& options) {
  HEDDLE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(path));
  OpenedDrafter drafter;
  LoadOptions with_drafter = options;
  return DescribeAll(checkpoint, nullptr, &with_drafter, &drafter);
}

absl::StatusOr<LocalModel> LoadLocalModel(const std::filesystem::path& path,
                                          const LoadOptions& given) {
  LoadOptions options = given;
  HEDDLE_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(path));
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Device> device, MakeDevice(options));
  HEDDLE_RETURN_IF_ERROR(MakeRankDevices(*device, &options));
  LocalModel loaded;
  OpenedDrafter drafter;
  HEDDLE_ASSIGN_OR_RETURN(static_cast<ModelInfo&>(loaded),
                          DescribeAll(checkpoint, device.get(), &options, &drafter));
  HEDDLE_RETURN_IF_ERROR(AgreeWithOthers(options, *device, &loaded));
  if (!options.merged_adapter.empty()) {
    HEDDLE_RETURN_IF_ERROR(MergeAdapter(options.merged_adapter, loaded.model, &checkpoint));
  }
  if (loaded.model.pooled.has_value()) {
    HEDDLE_ASSIGN_OR_RETURN(loaded.head, PooledHead::Load(checkpoint, loaded.model));
  }
  HEDDLE_ASSIGN_OR_RETURN(const WeightPolicy policy, ParseWeightPolicy(options.weights));
  const MakeWeights make_weights = [&](kernels::Device& on, int32_t rank) {
    return LoadWeights(on, checkpoint, loaded.model, policy,
                       loaded.shares[static_cast<size_t>(rank)]);
  };
  const auto add_drafter = [&](LocalExecutor::Parts* parts) {
    return LoadDrafter(drafter, checkpoint, loaded.model, policy, loaded.capacity.limits, parts);
  };
  HEDDLE_RETURN_IF_ERROR(
      MakeExecutor(options, std::move(device), make_weights, add_drafter, &loaded));
  return loaded;
}

absl::StatusOr<LoadedModel> LoadModel(const std::filesystem::path& path,
                                      const LoadOptions& options) {
  HEDDLE_ASSIGN_OR_RETURN(LocalModel local, LoadLocalModel(path, options));
  LoadedModel loaded;
  static_cast<ModelInfo&>(loaded) = std::move(static_cast<ModelInfo&>(local));
  loaded.executor = std::move(local.executor);
  return loaded;
}

absl::StatusOr<LoadedRank> LoadRank(const std::filesystem::path& path, const LoadOptions& given) {
  LoadOptions options = given;
  HEDDLE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(path));
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Device> device, MakeDevice(options));
  LoadedRank loaded;
  OpenedDrafter drafter;
  HEDDLE_ASSIGN_OR_RETURN(static_cast<ModelInfo&>(loaded),
                          DescribeAll(checkpoint, device.get(), &options, &drafter));
  HEDDLE_RETURN_IF_ERROR(AgreeWithOthers(options, *device, &loaded));
  HEDDLE_ASSIGN_OR_RETURN(const WeightPolicy policy, ParseWeightPolicy(options.weights));
  const MakeWeights make_weights = [&](kernels::Device& on, int32_t rank) {
    return LoadWeights(on, checkpoint, loaded.model, policy,
                       loaded.shares[static_cast<size_t>(rank)]);
  };
  HEDDLE_ASSIGN_OR_RETURN(loaded.worker,
                          LoadOwnRank(options, loaded, make_weights, std::move(device)));
  loaded.device = loaded.worker->device().description();
  return loaded;
}

absl::StatusOr<uint64_t> ModelDigest(const std::filesystem::path& path) {
  constexpr size_t kSample = 256;  // bytes at both ends of each tensor
  HEDDLE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(path));
  uint64_t digest = 0;
  const auto add = [&digest](std::string_view bytes) { digest = ChainChecksum(digest, bytes); };
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    add(absl::StrCat(std::string(tensor.name), " ", std::string(tensor.type_name), " ",
                     absl::StrJoin(tensor.shape, "x"), " ", tensor.data.size()));
    const std::string_view data(reinterpret_cast<const char*>(tensor.data.data()),
                                tensor.data.size());
    add(data.substr(0, kSample));
    add(data.substr(data.size() - std::min(data.size(), kSample)));
  }
  if (const GgufFile* gguf = checkpoint.gguf(); gguf != nullptr) {
    std::span<const std::byte> header = gguf->mapping().bytes();
    for (const GgufTensor& tensor : gguf->tensors()) {
      const auto begin = static_cast<size_t>(tensor.data.data() - header.data());
      header = header.first(std::min(header.size(), begin));
    }
    add({reinterpret_cast<const char*>(header.data()), header.size()});
  } else {
    using nlohmann::json;
    add(checkpoint.config().dump(-1, ' ', false, json::error_handler_t::replace));
  }
  return digest;
}

absl::StatusOr<ModelInfo> DescribeRandomModel(std::string_view shape, kernels::DType weights,
                                              const LoadOptions& options) {
  HEDDLE_ASSIGN_OR_RETURN(const ModelSpec spec, KnownShape(shape));
  return DescribeRandom(spec, weights, options, nullptr);
}

absl::StatusOr<LocalModel> LoadRandomModel(std::string_view shape, kernels::DType weights,
                                           const LoadOptions& options) {
  HEDDLE_ASSIGN_OR_RETURN(const ModelSpec spec, KnownShape(shape));
  return LoadRandomModel(spec, weights, options);
}

absl::StatusOr<LocalModel> LoadRandomModel(const ModelSpec& spec, kernels::DType weights,
                                           const LoadOptions& given) {
  LoadOptions options = given;
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Device> device, MakeDevice(options));
  HEDDLE_RETURN_IF_ERROR(MakeRankDevices(*device, &options));
  LocalModel loaded;
  HEDDLE_ASSIGN_OR_RETURN(static_cast<ModelInfo&>(loaded),
                          DescribeRandom(spec, weights, options, device.get()));
  const MakeWeights make_weights = [&](kernels::Device& on, int32_t rank) {
    double* made_seconds = rank == 0 ? &loaded.random_seconds : nullptr;
    return RandomWeights(on, SpecOfShare(loaded.model.spec, loaded.shares, rank), weights,
                         /*seed=*/static_cast<uint64_t>(rank) + 1, made_seconds);
  };
  HEDDLE_RETURN_IF_ERROR(MakeExecutor(options, std::move(device), make_weights, nullptr, &loaded));
  return loaded;
}

}  // namespace heddle::engine
