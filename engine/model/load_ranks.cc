#include "engine/model/load_ranks.h"

#include <algorithm>
#include <future>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/model/capacity.h"
#include "engine/model/rank_binding.h"
#include "kernels/cpu/usable_cpus.h"

namespace heddle::engine {
namespace {

// Columns that a cut of the tensor cannot divide.
int64_t BlockOf(const Checkpoint& checkpoint, const std::string& name, const WeightPolicy& policy) {
  const CheckpointTensor* tensor = checkpoint.Find(name);
  if (tensor == nullptr || !tensor->dtype) return 1;
  // Input features in an order of their own are kept one by one (CutSources).
  const bool by_feature = tensor->quantized != nullptr && !tensor->quantized->column_order.empty();
  const int64_t stored = by_feature ? 1 : kernels::Info(*tensor->dtype).block_elements;
  constexpr int64_t kQuantisedBlock = 32;  // of all formats of ParseWeightPolicy
  return policy.matrix.has_value() ? std::lcm(stored, kQuantisedBlock) : stored;
}

int64_t BytesOf(const Checkpoint& checkpoint, std::initializer_list<const std::string*> names) {
  int64_t bytes = 0;
  for (const std::string* name : names) {
    const CheckpointTensor* tensor = checkpoint.Find(*name);
    if (tensor != nullptr) bytes += tensor->bytes();
  }
  return bytes;
}

// KV heads that ranks keep beyond the model's, in one layer.
int64_t RepeatedKvHeads(const AttentionSpec& attention, std::span<const Share> shares,
                        size_t layer) {
  if (attention.n_heads == 0 || attention.mla.kv_rank > 0) return 0;
  int64_t kept = 0;
  for (const Share& share : shares) {
    kept += static_cast<int64_t>(share.layers[layer].attention.kv_heads.size());
  }
  return kept - attention.n_kv_heads;
}

std::span<const int> CpusOf(const LoadOptions& options, int32_t rank) {
  if (options.rank_cpus.empty()) return {};
  return options.rank_cpus[static_cast<size_t>(rank)];
}

// Nothing, or lists for all ranks of processors that this process may use, each in one list.
absl::Status CheckCpus(const LoadOptions& options) {
  const std::vector<int> usable = kernels::cpu::FindUsableCpus().ids;
  std::vector<int> seen;
  if (!options.rank_cpus.empty() &&
      static_cast<int32_t>(options.rank_cpus.size()) != options.layout.world()) {
    return absl::InvalidArgumentError(absl::StrCat("--rank-cpus has ", options.rank_cpus.size(),
                                                   " lists for --tp ", options.layout.tp));
  }
  for (const std::vector<int>& cpus : options.rank_cpus) {
    for (const int cpu : cpus) {
      if (std::find(usable.begin(), usable.end(), cpu) == usable.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--rank-cpus names processor ", cpu, ", which this process may not use"));
      }
      if (std::find(seen.begin(), seen.end(), cpu) != seen.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--rank-cpus names processor ", cpu, " twice"));
      }
      seen.push_back(cpu);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankWorker>> LoadWorker(
    const LoadOptions& options, const ModelInfo& info, const MakeWeights& make_weights,
    int32_t rank, std::shared_ptr<kernels::Communicator> communicator) {
  HEDDLE_RETURN_IF_ERROR(BindThisThread(CpusOf(options, rank)));
  RankWorker::Parts parts;
  if (options.reference_ops) {
    parts.device = kernels::CreateReferenceDevice();
  } else {
    HEDDLE_ASSIGN_OR_RETURN(parts.device, kernels::CreateCpuDevice(CpuOfRank(options, rank)));
  }
  HEDDLE_RETURN_IF_ERROR(parts.device->JoinGroup(std::move(communicator)));
  parts.spec = SpecOfShare(info.model.spec, info.shares, rank);
  HEDDLE_ASSIGN_OR_RETURN(parts.weights, make_weights(*parts.device, rank));
  parts.kv_dtype = info.kv_dtype;
  parts.kv_layout = KvLayoutOfRank(info.capacity.kv_layout, parts.spec, /*is_head=*/false);
  parts.least_page_bytes = info.capacity.rank_page_bytes[static_cast<size_t>(rank)];
  parts.logit_rows = info.capacity.logit_rows;
  parts.host_kv_directory = options.host_kv_directory;
  return RankWorker::Create(std::move(parts), info.capacity.limits);
}

}  // namespace

absl::Status CheckLayout(const LoadOptions& options) {
  const int32_t tp = options.layout.tp;
  if (tp < 1 || tp > kernels::kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("tp is ", tp, "; it must be from 1 to ", kernels::kMaxRanks));
  }
  HEDDLE_RETURN_IF_ERROR(CheckCpus(options));
  if (tp == 1) return absl::OkStatus();
  if (options.make_device) {
    return absl::UnimplementedError(
        absl::StrCat("--tp ", tp, " is for --device cpu: GPUs cannot share a model yet"));
  }
  return absl::OkStatus();
}

CutBlocks CutBlocksOf(const Checkpoint& checkpoint, const ModelDescription& model,
                      const WeightPolicy& policy) {
  CutBlocks blocks;
  for (int32_t layer = 0; layer < model.spec.n_layers(); ++layer) {
    const LayerSpec& spec = model.spec.layers[layer];
    const LayerNames names = model.names.Layer(layer, spec);
    blocks.out = std::lcm(blocks.out, BlockOf(checkpoint, names.o, policy));
    blocks.down = std::lcm(blocks.down, BlockOf(checkpoint, names.down, policy));
    const bool is_mxfp4 = model.names.expert_layout == ExpertLayout::kMxfp4;
    if (is_mxfp4) {
      const int64_t block = kernels::Info(kernels::DType::kMXFP4).block_elements;
      blocks.expert_down = std::lcm(blocks.expert_down, block);
      continue;
    }
    for (int32_t e = 0; e < spec.moe.n_experts; ++e) {
      const int64_t block = BlockOf(checkpoint, ExpertName(names.expert_down, e), policy);
      blocks.expert_down = std::lcm(blocks.expert_down, block);
    }
  }
  return blocks;
}

int64_t RepeatedBytes(const Checkpoint& checkpoint, const ModelDescription& model,
                      std::span<const Share> shares) {
  const auto others = static_cast<int64_t>(shares.size()) - 1;
  int64_t bytes = others * BytesOf(checkpoint, {&model.names.positions});
  for (int32_t i = 0; i < model.spec.n_layers(); ++i) {
    const LayerSpec& layer = model.spec.layers[i];
    const LayerNames names = model.names.Layer(i, layer);
    bytes += others * BytesOf(checkpoint, {&names.router, &names.q_a, &names.kv_a});
    if (layer.attention.linear) bytes += others * BytesOf(checkpoint, {&names.o});
    const AttentionSpec& attention = layer.attention;
    const int64_t repeated = RepeatedKvHeads(attention, shares, static_cast<size_t>(i));
    if (repeated == 0) continue;
    // Either k and v, or a part of qkv.
    bytes += repeated * BytesOf(checkpoint, {&names.k, &names.v}) / attention.n_kv_heads;
    bytes += 2 * repeated * BytesOf(checkpoint, {&names.qkv}) /
             (attention.n_heads + 2 * attention.n_kv_heads);
  }
  return bytes;
}

kernels::CpuDeviceOptions CpuOfRank(const LoadOptions& options, int32_t rank) {
  kernels::CpuDeviceOptions cpu = options.cpu;
  const int32_t world = options.layout.world();
  if (world == 1) return cpu;
  if (!options.rank_cpus.empty()) {
    const auto own = static_cast<int32_t>(CpusOf(options, rank).size());
    cpu.num_threads = cpu.num_threads > 0 ? std::min(cpu.num_threads, own) : own;
    return cpu;
  }
  const int32_t all =
      cpu.num_threads > 0 ? cpu.num_threads : kernels::cpu::FindUsableCpus().num_cores;
  cpu.num_threads = std::max(1, all / world + (rank < all % world ? 1 : 0));
  return cpu;
}

std::vector<ModelSpec> SpecsOfRanks(const ModelSpec& model, std::span<const Share> shares) {
  std::vector<ModelSpec> specs;
  if (shares.size() <= 1) return specs;
  for (const Share& share : shares) specs.push_back(SpecOfShare(model, shares, share.rank));
  return specs;
}

absl::StatusOr<LoadedRanks> LoadRanks(const LoadOptions& options, const ModelInfo& info,
                                      const MakeWeights& make_weights, kernels::Device& head) {
  LoadedRanks loaded;
  const int32_t world = options.layout.world();
  if (world == 1) {
    HEDDLE_ASSIGN_OR_RETURN(loaded.head, make_weights(head, 0));
    return loaded;
  }
  std::vector<std::shared_ptr<kernels::Communicator>> communicators;
  for (auto& made : kernels::MakeLocalCommunicators(world))
    communicators.push_back(std::move(made));
  HEDDLE_RETURN_IF_ERROR(head.JoinGroup(communicators[0]));
  std::vector<std::future<absl::StatusOr<std::unique_ptr<RankWorker>>>> pending;
  for (int32_t rank = 1; rank < world; ++rank) {
    pending.push_back(std::async(std::launch::async, [&, rank] {
      return LoadWorker(options, info, make_weights, rank,
                        communicators[static_cast<size_t>(rank)]);
    }));
  }
  absl::StatusOr<ModelWeights> own = OnCpusOfHead(options, [&] { return make_weights(head, 0); });
  std::vector<std::unique_ptr<RankWorker>> workers;
  absl::Status status = own.status();
  for (auto& loading : pending) {
    absl::StatusOr<std::unique_ptr<RankWorker>> worker = loading.get();
    status.Update(worker.status());
    if (worker.ok()) workers.push_back(*std::move(worker));
  }
  HEDDLE_RETURN_IF_ERROR(status);
  loaded.head = *std::move(own);
  loaded.others =
      std::make_unique<RankThreads>(std::move(workers), communicators[0], options.rank_cpus);
  return loaded;
}

}  // namespace heddle::engine
