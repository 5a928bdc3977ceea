#include "engine/model/load_ranks.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/model/capacity.h"
#include "engine/model/meeting_sizes.h"
#include "engine/model/rank_binding.h"
#include "engine/model/rank_threads.h"
#include "engine/parallel/sum_ranges.h"
#include "kernels/cpu/usable_cpus.h"
#include "kernels/host_meetings.h"

namespace heddle::engine {
namespace {

// Columns that a cut of the tensor cannot divide. `in_order`: of the stored columns, and not of
// input features.
int64_t BlockOf(const Checkpoint& checkpoint, const std::string& name, const WeightPolicy& policy,
                bool in_order = false) {
  const CheckpointTensor* tensor = checkpoint.Find(name);
  if (tensor == nullptr || !tensor->dtype) return 1;
  // Input features in an order of their own are kept one by one (CutSources).
  const bool by_feature =
      !in_order && tensor->quantized != nullptr && !tensor->quantized->column_order.empty();
  const int64_t stored = by_feature ? 1 : kernels::Info(*tensor->dtype).block_elements;
  constexpr int64_t kQuantisedBlock = 32;  // of all formats of ParseWeightPolicy
  return policy.matrix.has_value() ? std::lcm(stored, kQuantisedBlock) : stored;
}

FeatureOrder StoredOrderOf(const Checkpoint& checkpoint, const std::string& name) {
  const CheckpointTensor* tensor = checkpoint.Find(name);
  const bool has_order = tensor != nullptr && tensor->dtype && tensor->quantized != nullptr &&
                         !tensor->quantized->column_order.empty();
  if (!has_order) return nullptr;
  return std::make_shared<const std::vector<int32_t>>(tensor->quantized->column_order);
}

std::span<const int> CpusOf(const LoadOptions& options, int32_t rank) {
  if (options.rank_cpus.empty()) return {};
  return options.rank_cpus[options.meeting != nullptr ? 0 : static_cast<size_t>(rank)];
}

// Nothing, or lists for all ranks of processors that this process may use, each in one list.
absl::Status CheckCpus(const LoadOptions& options) {
  const int32_t ranks = options.meeting != nullptr ? 1 : options.layout.world();
  if (!options.rank_cpus.empty() && static_cast<int32_t>(options.rank_cpus.size()) != ranks) {
    return absl::InvalidArgumentError(absl::StrCat("--rank-cpus has ", options.rank_cpus.size(),
                                                   " lists for ", ranks,
                                                   " ranks (--tp times --pp)"));
  }
  return CheckRankCpus(options.rank_cpus);
}

// The communicators of all ranks: those that share layers, and, across stages, those of equal rank
// in their groups. Null: there is nobody to meet.
struct Meetings {
  std::vector<std::shared_ptr<kernels::Communicator>> groups;     // [world]
  std::vector<std::shared_ptr<kernels::Communicator>> pipelines;  // [world]

  explicit Meetings(const Layout& layout)
      : groups(static_cast<size_t>(layout.world())), pipelines(groups.size()) {
    const auto tp = static_cast<size_t>(layout.tp);
    for (size_t first = 0; tp > 1 && first < groups.size(); first += tp) {
      for (auto& made : kernels::MakeLocalCommunicators(layout.tp)) {
        groups[first + static_cast<size_t>(made->rank())] = std::move(made);
      }
    }
    for (size_t rank = 0; layout.pp > 1 && rank < tp; ++rank) {
      for (auto& made : kernels::MakeLocalCommunicators(layout.pp)) {
        pipelines[rank + tp * static_cast<size_t>(made->rank())] = std::move(made);
      }
    }
  }

  absl::Status Join(kernels::Device& device, int32_t rank) const {
    const auto at = static_cast<size_t>(rank);
    if (groups[at] != nullptr) HEDDLE_RETURN_IF_ERROR(device.JoinGroup(groups[at]));
    return pipelines[at] == nullptr ? absl::OkStatus() : device.JoinStages(pipelines[at]);
  }

  void Abort(const absl::Status& why) const {
    for (const auto& group : OfEachGroup()) group->Abort(why);
  }

  // One communicator of each group.
  std::vector<std::shared_ptr<kernels::Communicator>> OfEachGroup() const {
    std::vector<std::shared_ptr<kernels::Communicator>> all;
    for (const auto* kind : {&groups, &pipelines}) {
      for (const auto& one : *kind) {
        if (one != nullptr && one->rank() == 0) all.push_back(one);
      }
    }
    return all;
  }
};

// `parts` has a device that has joined its groups.
absl::StatusOr<std::unique_ptr<RankWorker>> MakeWorker(const LoadOptions& options,
                                                       const ModelInfo& info,
                                                       const MakeWeights& make_weights,
                                                       int32_t rank, RankWorker::Parts parts) {
  parts.spec = SpecOfShare(info.model.spec, info.shares, rank);
  HEDDLE_ASSIGN_OR_RETURN(parts.weights, make_weights(*parts.device, rank));
  parts.kv_dtype = info.kv_dtype;
  parts.kv_layout = KvLayoutOfRank(info.capacity.kv_layout, parts.spec, /*is_head=*/false);
  parts.least_page_bytes = info.capacity.rank_page_bytes[static_cast<size_t>(rank)];
  parts.logit_rows = info.capacity.logit_rows;
  parts.host_kv_directory = options.host_kv_directory;
  return RankWorker::Create(std::move(parts), info.capacity.limits);
}

// Tells a device how much it exchanges with others, if it may meet them through the host's memory.
void TellRoom(const LoadOptions& options, const ModelInfo& info, int32_t rank,
              kernels::Device& device) {
  auto* meetings = dynamic_cast<kernels::HostMeetings*>(&device);
  if (meetings == nullptr) return;
  const ModelSpec own = SpecOfShare(info.model.spec, info.shares, rank);
  kernels::HostMeetings::Room room =
      MeetingRoom(own, info.capacity.limits, info.capacity.logit_rows, device.activation_dtype());
  if (options.host_kv_directory.empty()) {
    // The host's tier for pages is taken later.
    const int64_t tier = info.capacity.rank_page_bytes[static_cast<size_t>(rank)] *
                         info.capacity.limits.num_host_pages;
    room.free_bytes = [free = std::move(room.free_bytes), tier] { return free() - tier; };
  }
  meetings->SetRoom(std::move(room));
}

absl::StatusOr<std::unique_ptr<RankWorker>> LoadWorker(const LoadOptions& options,
                                                       const ModelInfo& info,
                                                       const MakeWeights& make_weights,
                                                       int32_t rank, const Meetings& meetings) {
  HEDDLE_RETURN_IF_ERROR(BindThisThread(CpusOf(options, rank)));
  RankWorker::Parts parts;
  if (options.make_rank_device) {
    HEDDLE_ASSIGN_OR_RETURN(parts.device, options.make_rank_device(rank));
  } else if (options.reference_ops) {
    parts.device = kernels::CreateReferenceDevice();
  } else {
    HEDDLE_ASSIGN_OR_RETURN(parts.device, kernels::CreateCpuDevice(CpuOfRank(options, rank)));
  }
  TellRoom(options, info, rank, *parts.device);
  HEDDLE_RETURN_IF_ERROR(meetings.Join(*parts.device, rank));
  return MakeWorker(options, info, make_weights, rank, std::move(parts));
}

// Joins the groups of ranks in other processes.
absl::Status MeetOthers(const LoadOptions& options, const ModelInfo& info,
                        kernels::Device& device) {
  TellRoom(options, info, options.meeting->rank(), device);
  return options.meeting->JoinGroups(device);
}

// Refuses, by name, options that do not work yet with ranks in other processes.
absl::Status CheckMeeting(const LoadOptions& options) {
  if (options.meeting == nullptr) return absl::OkStatus();
  if (options.merged_adapter.empty()) return absl::OkStatus();
  return absl::UnimplementedError("--lora-merge does not work with ranks in other processes yet");
}

absl::Status CheckShares(const Layout& layout) {
  if (layout.weights.empty()) return absl::OkStatus();
  constexpr double kMostTimes = 1000;  // that a share is as large as another one
  const auto [least, most] = std::minmax_element(layout.weights.begin(), layout.weights.end());
  const bool are_sizes = std::all_of(layout.weights.begin(), layout.weights.end(),
                                     [](double w) { return w > 0 && std::isfinite(w); }) &&
                         *most <= kMostTimes * *least;
  if (!are_sizes || static_cast<int32_t>(layout.weights.size()) != layout.tp) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the shares of ranks are ", absl::StrJoin(layout.weights, ","), "; there must be ",
        layout.tp, " (--tp), all above 0 and none ", kMostTimes, " times another (--tp-shares)"));
  }
  if (layout.invariant && *least != *most) {
    return absl::InvalidArgumentError(
        "--tp-invariant is for ranks with equal shares: leave out --tp-shares, or give all ranks "
        "as "
        "many processors in --rank-cpus");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRankCpus(std::span<const std::vector<int>> rank_cpus) {
  const std::vector<int> usable = kernels::cpu::FindUsableCpus().ids;
  std::vector<int> seen;
  for (const std::vector<int>& cpus : rank_cpus) {
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

absl::Status CheckLayout(const LoadOptions& options) {
  const std::pair<const char*, int32_t> counts[] = {{"tp", options.layout.tp},
                                                    {"pp", options.layout.pp}};
  for (const auto& [name, count] : counts) {
    if (count >= 1 && count <= kernels::kMaxRanks) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", count, "; it must be from 1 to ", kernels::kMaxRanks));
  }
  if (options.layout.world() > kernels::kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("tp times pp is ", options.layout.world(),
                                                   "; it must be at most ", kernels::kMaxRanks));
  }
  HEDDLE_RETURN_IF_ERROR(CheckMeeting(options));
  HEDDLE_RETURN_IF_ERROR(CheckCpus(options));
  if (options.layout.invariant && kSumRanges % options.layout.tp != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tp-invariant is for --tp 1, 2, 4 and 8; found ", options.layout.tp));
  }
  HEDDLE_RETURN_IF_ERROR(CheckShares(options.layout));
  const std::string layout = LayoutText(options.layout);
  if (layout.empty()) return absl::OkStatus();
  if (options.make_device && !options.make_rank_device && options.meeting == nullptr) {
    return absl::UnimplementedError(absl::StrCat(layout, " is for --device cpu and --device cuda"));
  }
  return absl::OkStatus();
}

// Refuses to cut recurrences whose norms or heads go across key heads.
absl::Status CheckRecurrences(const ModelSpec& spec, const Layout& layout) {
  for (const LayerSpec& layer : spec.layers) {
    const RecurrenceSpec& recurrence = layer.attention.recurrence;
    const kernels::RecurrenceShape& shape = recurrence.shape;
    if (layout.tp == 1 || shape.taps == 0 || shape.n_key_heads == 1) continue;
    const bool goes_across = shape.tiled && shape.n_heads != shape.n_key_heads;
    if (!goes_across && recurrence.norm_width <= shape.values() / shape.n_key_heads) continue;
    return absl::UnimplementedError(
        absl::StrCat("--tp is ", layout.tp, ": the recurrent layers of this ",
                     goes_across ? "file have their heads in an order that ranks cannot share"
                                 : "model have norms over all heads, which ranks cannot share",
                     "; use --pp"));
  }
  return absl::OkStatus();
}

// Refuses to cut what ranks or stages would need of each other.
absl::Status CheckLayerInputs(const ModelSpec& spec, const Layout& layout) {
  const bool is_apart = std::any_of(spec.layers.begin(), spec.layers.end(),
                                    [](const LayerSpec& layer) { return layer.moe.apart; });
  const char* has = nullptr;
  if (layout.tp > 1 && is_apart) has = "experts with norms of their own";
  if (spec.has_memory()) has = "layers that read what an earlier recurrence gives";
  if (spec.shares_kv()) has = "layers that share keys and values";
  if (spec.altup.count > 0) has = "alternating updates";
  if (spec.layer_input_dim > 0) has = "layers with embeddings of their own";
  const bool mixes_time =
      std::any_of(spec.layers.begin(), spec.layers.end(),
                  [](const LayerSpec& layer) { return layer.attention.wkv.is_here(); });
  if (mixes_time) has = "recurrent layers with a share of the first one's values";
  const bool share_choices =
      std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& layer) {
        const IndexerSpec& indexer = layer.attention.mla.indexer;
        return indexer.top_k > 0 && !indexer.is_here();
      });
  if (layout.pp > 1 && share_choices) {
    return absl::UnimplementedError(absl::StrCat(
        "--pp is ", layout.pp, ": layers of this model read the positions that an earlier layer ",
        "has chosen, which stages cannot share; use --tp, or a --max-context of ",
        spec.indexer_top_k()));
  }
  if (has == nullptr || layout.world() == 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      layout.tp > 1 ? "--tp" : "--pp", " is ", layout.tp > 1 ? layout.tp : layout.pp,
      ": this model has ", has, ", which ", layout.tp > 1 ? "ranks" : "stages", " cannot share"));
}

// Refuses a stage that begins between layers that read one input.
absl::Status CheckStageBorders(const ModelSpec& spec, std::span<const int32_t> counts) {
  size_t first = 0;
  for (const int32_t count : counts) {
    if (count > 0 && spec.layers[first].attention_input == AttentionInput::kShared) {
      return absl::InvalidArgumentError(
          absl::StrCat("--pp-layers is ", absl::StrJoin(counts, ","),
                       "; in this model attention and the recurrence beside it count as two "
                       "layers, which have to be in one stage"));
    }
    first += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

absl::Status CheckLayoutOf(const ModelSpec& spec, const Layout& layout) {
  if (layout.invariant && HasExperts(spec)) {
    return absl::UnimplementedError(
        "--tp-invariant: this model has mixtures of experts, which add up over experts before "
        "ranks "
        "do; leave the option out");
  }
  HEDDLE_RETURN_IF_ERROR(CheckRecurrences(spec, layout));
  HEDDLE_RETURN_IF_ERROR(CheckLayerInputs(spec, layout));
  const std::vector<int32_t>& counts = layout.stage_layers;
  if (counts.empty()) return absl::OkStatus();
  const bool all_count =
      std::all_of(counts.begin(), counts.end(), [](int32_t n) { return n >= 0; });
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (all_count && sum == spec.n_layers() && static_cast<int32_t>(counts.size()) == layout.pp) {
    return CheckStageBorders(spec, counts);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--pp-layers is ", absl::StrJoin(counts, ","), "; it must be ", layout.pp,
                   layout.pp == 1 ? " number" : " numbers", " (--pp) with the sum ",
                   spec.n_layers(), ", the layers of this model"));
}

absl::Status CheckSplits(const ModelSpec& spec, const LoadOptions& options) {
  const bool has_state =
      std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& layer) {
        return layer.attention.recurrence.shape.taps > 0 || layer.attention.conv.taps > 0 ||
               layer.attention.wkv.is_here();
      });
  if (!options.splits_steps || options.layout.tp == 1 || !has_state) return absl::OkStatus();
  return absl::UnimplementedError(
      "--tune-profile with --tp: steps of models with recurrent layers or convolutions run whole; "
      "leave the profile out");
}

std::string LayoutText(const Layout& layout) {
  std::string text;
  if (layout.tp > 1) absl::StrAppend(&text, "--tp ", layout.tp);
  if (layout.pp > 1) absl::StrAppend(&text, text.empty() ? "" : " ", "--pp ", layout.pp);
  return text;
}

CutBlocks CutBlocksOf(const Checkpoint& checkpoint, const ModelDescription& model,
                      const WeightPolicy& policy) {
  CutBlocks blocks;
  blocks.down_orders.reserve(model.spec.layers.size());
  for (int32_t layer = 0; layer < model.spec.n_layers(); ++layer) {
    const LayerSpec& spec = model.spec.layers[layer];
    const LayerNames names = model.names.Layer(layer, spec);
    blocks.out = std::lcm(blocks.out, BlockOf(checkpoint, names.o, policy));
    blocks.down = std::lcm(blocks.down, BlockOf(checkpoint, names.down, policy, /*in_order=*/true));
    blocks.down_orders.push_back(StoredOrderOf(checkpoint, names.down));
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

kernels::CpuDeviceOptions CpuOfRank(const LoadOptions& options, int32_t rank) {
  kernels::CpuDeviceOptions cpu = options.cpu;
  const int32_t world = options.layout.world();
  if (world == 1) return cpu;
  if (!options.rank_cpus.empty()) {
    const auto own = static_cast<int32_t>(CpusOf(options, rank).size());
    cpu.num_threads = cpu.num_threads > 0 ? std::min(cpu.num_threads, own) : own;
    return cpu;
  }
  if (options.meeting != nullptr) return cpu;
  const int32_t all =
      cpu.num_threads > 0 ? cpu.num_threads : kernels::cpu::FindUsableCpus().num_cores;
  cpu.num_threads = std::max(1, all / world + (rank < all % world ? 1 : 0));
  return cpu;
}

std::vector<ModelSpec> SpecsOfRanks(const ModelSpec& model, std::span<const Share> shares) {
  std::vector<ModelSpec> specs;
  if (shares.size() <= 1) return specs;
  for (size_t i = 0; i < shares.size(); ++i) {
    specs.push_back(SpecOfShare(model, shares, static_cast<int32_t>(i)));
  }
  return specs;
}

absl::StatusOr<std::unique_ptr<RankWorker>> LoadOwnRank(const LoadOptions& options,
                                                        const ModelInfo& info,
                                                        const MakeWeights& make_weights,
                                                        std::unique_ptr<kernels::Device> device) {
  HEDDLE_RETURN_IF_ERROR(MeetOthers(options, info, *device));
  RankWorker::Parts parts;
  parts.device = std::move(device);
  return MakeWorker(options, info, make_weights, options.meeting->rank(), std::move(parts));
}

absl::StatusOr<LoadedRanks> LoadRanks(const LoadOptions& options, const ModelInfo& info,
                                      const MakeWeights& make_weights, kernels::Device& head) {
  LoadedRanks loaded;
  const int32_t world = options.layout.world();
  if (world == 1) {
    HEDDLE_ASSIGN_OR_RETURN(loaded.head, make_weights(head, 0));
    return loaded;
  }
  if (options.meeting != nullptr) {
    HEDDLE_RETURN_IF_ERROR(MeetOthers(options, info, head));
    HEDDLE_ASSIGN_OR_RETURN(loaded.head,
                            OnCpusOfHead(options, [&] { return make_weights(head, 0); }));
    HEDDLE_ASSIGN_OR_RETURN(loaded.others, options.meeting->Others(info.capacity.limits));
    return loaded;
  }
  const Meetings meetings(options.layout);
  // Whoever cannot join does not let the others wait.
  const auto given_up = [&](const absl::Status& why) {
    if (!why.ok()) meetings.Abort(why);
    return why;
  };
  std::vector<std::future<absl::StatusOr<std::unique_ptr<RankWorker>>>> pending;
  for (int32_t rank = 1; rank < world; ++rank) {
    pending.push_back(std::async(std::launch::async, [&, rank] {
      auto worker = LoadWorker(options, info, make_weights, rank, meetings);
      static_cast<void>(given_up(worker.status()));
      return worker;
    }));
  }
  TellRoom(options, info, 0, head);
  const auto load_head = [&]() -> absl::StatusOr<ModelWeights> {
    HEDDLE_RETURN_IF_ERROR(given_up(meetings.Join(head, 0)));
    return OnCpusOfHead(options, [&] { return make_weights(head, 0); });
  };
  absl::StatusOr<ModelWeights> own = load_head();
  std::vector<std::unique_ptr<RankWorker>> workers;
  absl::Status status = own.status();
  for (auto& loading : pending) {
    absl::StatusOr<std::unique_ptr<RankWorker>> worker = loading.get();
    status.Update(worker.status());
    if (worker.ok()) workers.push_back(*std::move(worker));
  }
  HEDDLE_RETURN_IF_ERROR(status);
  loaded.head = *std::move(own);
  const int32_t max_steps = SpecOfShare(info.model.spec, info.shares, 0).steps_in_flight();
  loaded.others = std::make_unique<RankThreads>(std::move(workers), meetings.OfEachGroup(),
                                                options.rank_cpus, max_steps);
  return loaded;
}

}  // namespace heddle::engine
