// Medusa: heads on the model's final hidden state, each of which guesses the token at one more
// place. A head is some residual blocks x + silu(W x + b) and a matrix to the vocabulary.
// Source: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
// Heads", 2024; the tensors' names are those of its code (github.com/FasterDecoding/Medusa).
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/heads/head_tensors.h"
#include "engine/heads/open_heads.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

// Published heads are 3 to 5, with one block each.
constexpr int32_t kMaxHeads = 64;
constexpr int32_t kMaxBlocks = 64;

struct MedusaHeadNames {
  std::vector<std::pair<std::string, std::string>> blocks;  // weight and bias of each
  std::string output;                                       // empty: the model's head
};

class MedusaNetwork final : public DraftNetwork {
 public:
  struct Head {
    std::vector<LinearWeights> blocks;
    std::unique_ptr<kernels::PackedWeight> output;  // null: the model's
  };

  static absl::StatusOr<std::unique_ptr<MedusaNetwork>> Create(kernels::Device& device,
                                                               std::vector<Head> heads,
                                                               const ModelSpec& spec,
                                                               const ModelWeights& model,
                                                               int32_t max_batch_tokens) {
    std::unique_ptr<MedusaNetwork> network(new MedusaNetwork(std::move(heads), spec, model));
    network->dtype_ = device.activation_dtype();
    const int64_t row_bytes = kernels::RowBytes(network->dtype_, spec.hidden);
    HEDDLE_ASSIGN_OR_RETURN(network->states_, device.Allocate(max_batch_tokens * row_bytes));
    for (auto* buffer :
         {&network->outputs_, &network->work_[0], &network->work_[1], &network->normed_}) {
      HEDDLE_ASSIGN_OR_RETURN(*buffer, device.Allocate(DraftLogits::kMaxRows * row_bytes));
    }
    return network;
  }

  // All heads read the same rows.
  void Forward(kernels::Ops& ops, const DraftPass& pass) override {
    HEDDLE_CHECK(pass.number == 0, "Medusa heads guess in the first pass");
    if (pass.n_chains == 0) return;
    ops.GatherLogitRows(pass.features, Rows(*states_, 0, pass.n_chains));
  }

  // With the model's own matrix, it is read once for all heads.
  void Logits(kernels::Ops& ops, const DraftLogits& logits) override {
    const Tensor x = Rows(*states_, logits.first_chain, logits.n_chains);
    const auto first = static_cast<size_t>(logits.first_guess);
    for (int32_t i = 0; i < logits.n_guesses; ++i) {
      const Head& head = heads_[first + static_cast<size_t>(i)];
      const Tensor y = Rows(*outputs_, i * logits.n_chains, logits.n_chains);
      RunBlocks(ops, head, x, y);
      if (head.output == nullptr) continue;
      Tensor out = logits.out;
      out.rows = logits.n_chains;
      out.data = logits.out.row<float>(i * logits.n_chains);
      ops.Linear({.x = y, .weight = head.output.get(), .out = out, .out_f32 = true});
    }
    if (heads_.front().output == nullptr) {
      ops.Linear({.x = Rows(*outputs_, 0, logits.out.rows),
                  .weight = model_.head(),
                  .out = logits.out,
                  .out_f32 = true});
    }
    if (spec_.logit_scale != 1.0f || spec_.logit_softcap > 0.0f) {
      ops.ScaleLogits(logits.out, spec_.logit_scale, spec_.logit_softcap);
    }
  }

 private:
  MedusaNetwork(std::vector<Head> heads, const ModelSpec& spec, const ModelWeights& model)
      : heads_(std::move(heads)), spec_(spec), model_(model) {}

  // y = x behind the head's blocks.
  void RunBlocks(kernels::Ops& ops, const Head& head, Tensor x, Tensor y) {
    if (head.blocks.empty()) return ops.CopyRows(x, y);
    for (size_t i = 0; i < head.blocks.size(); ++i) {
      const LinearWeights& block = head.blocks[i];
      const bool is_last = i + 1 == head.blocks.size();
      const Tensor out = is_last ? y : Rows(*work_[i % 2], 0, x.rows);
      ops.Linear({.x = x,
                  .weight = block.matrix.get(),
                  .bias = block.bias.data(),
                  .activation = Activation::kSilu,
                  .out = out});
      // Only the first half of this norm is used: residual += x.
      ops.Norm({.x = x, .residual = out, .eps = spec_.norm_eps, .out = Rows(*normed_, 0, x.rows)});
      x = out;
    }
  }

  Tensor Rows(kernels::Buffer& buffer, int32_t first, int64_t count) const {
    auto* data =
        static_cast<char*>(buffer.data()) + first * kernels::RowBytes(dtype_, spec_.hidden);
    return {data, count, spec_.hidden, spec_.hidden};
  }

  const std::vector<Head> heads_;
  const ModelSpec& spec_;
  const ModelWeights& model_;
  kernels::DType dtype_ = kernels::DType::kF32;  // of activations
  std::unique_ptr<kernels::Buffer> states_;      // [max_batch_tokens, hidden] of the chains
  // [DraftLogits::kMaxRows, hidden]: behind the blocks of each head, between blocks, and
  // what a norm writes that nobody reads.
  std::unique_ptr<kernels::Buffer> outputs_;
  std::unique_ptr<kernels::Buffer> work_[2];
  std::unique_ptr<kernels::Buffer> normed_;
};

class MedusaSource final : public DraftSource {
 public:
  MedusaSource(Checkpoint file, std::vector<MedusaHeadNames> heads, const ModelDescription& model)
      : file_(std::move(file)), heads_(std::move(heads)), hidden_(model.spec.hidden) {
    traits_ = {.kind = "medusa",
               .features = {DraftTraits::kFinalNormed},
               .reads_next_token = true,
               .guesses_per_pass = static_cast<int32_t>(heads_.size()),
               .vocab = model.spec.vocab,
               .shares_head =
                   std::any_of(heads_.begin(), heads_.end(),
                               [](const MedusaHeadNames& head) { return head.output.empty(); })};
    traits_.text =
        base::StrCat(heads_.size(), heads_.size() == 1 ? " Medusa head" : " Medusa heads",
                     heads_.front().output.empty() ? " on the model's own matrix, " : ", ",
                     base::ShowBytes(WeightBytes(nullptr)));
  }

  const DraftTraits& traits() const override { return traits_; }

  int64_t WeightBytes(const kernels::Device* device) const override {
    std::vector<std::string> names;
    for (const MedusaHeadNames& head : heads_) {
      for (const auto& [weight, bias] : head.blocks) names.insert(names.end(), {weight, bias});
      names.push_back(head.output);
    }
    return PackedBytes(file_, names, device);
  }

  int64_t WorkspaceBytes(int32_t max_batch_tokens, kernels::DType activations) const override {
    constexpr int64_t kBuffers = 4;  // beside the states
    return (max_batch_tokens + kBuffers * DraftLogits::kMaxRows) *
           kernels::RowBytes(activations, hidden_);
  }

  absl::StatusOr<std::unique_ptr<DraftNetwork>> Load(kernels::Device& device, const ModelSpec& spec,
                                                     const ModelWeights& model,
                                                     int32_t max_batch_tokens) override {
    std::vector<MedusaNetwork::Head> heads;
    for (const MedusaHeadNames& names : heads_) {
      MedusaNetwork::Head& head = heads.emplace_back();
      for (const auto& [weight, bias] : names.blocks) {
        LinearWeights& block = head.blocks.emplace_back();
        HEDDLE_ASSIGN_OR_RETURN(block.matrix, LoadMatrix(device, file_, weight));
        if (bias.empty()) continue;
        HEDDLE_ASSIGN_OR_RETURN(block.bias, LoadVector(device, file_, bias));
      }
      if (names.output.empty()) continue;
      HEDDLE_ASSIGN_OR_RETURN(head.output, LoadMatrix(device, file_, names.output));
    }
    return MedusaNetwork::Create(device, std::move(heads), spec, model, max_batch_tokens);
  }

 private:
  const Checkpoint file_;
  const std::vector<MedusaHeadNames> heads_;
  const int64_t hidden_;
  DraftTraits traits_;
};

// Finds the tensors of head `index`; absent if there is no such head.
absl::StatusOr<std::optional<MedusaHeadNames>> FindHead(const Checkpoint& file,
                                                        const std::string& prefix, int32_t index,
                                                        const ModelSpec& spec) {
  MedusaHeadNames head;
  const std::string own = base::StrCat(prefix, index, ".");
  for (int32_t j = 0; j <= kMaxBlocks; ++j) {
    const std::string block = base::StrCat(own, j, ".");
    const std::string weight = block + "linear.weight";
    const std::string bias = block + "linear.bias";
    const std::string output = block + "weight";
    if (file.Find(weight) != nullptr && j < kMaxBlocks) {
      HEDDLE_RETURN_IF_ERROR(
          CheckTensor(file, weight, {spec.hidden, spec.hidden}, "the model's hidden, hidden"));
      const bool has_bias = file.Find(bias) != nullptr;
      if (has_bias) {
        HEDDLE_RETURN_IF_ERROR(CheckTensor(file, bias, {spec.hidden}, "the model's hidden"));
      }
      head.blocks.emplace_back(weight, has_bias ? bias : "");
      continue;
    }
    if (file.Find(output) != nullptr) {
      HEDDLE_RETURN_IF_ERROR(
          CheckTensor(file, output, {spec.vocab, spec.hidden}, "the model's vocabulary, hidden"));
      head.output = output;
    }
    break;
  }
  if (head.blocks.empty() && head.output.empty()) return std::nullopt;
  return head;
}

// Every tensor has to have a place in a head.
absl::Status CheckAllUsed(const Checkpoint& file, const std::vector<MedusaHeadNames>& heads) {
  size_t used = 0;
  for (const MedusaHeadNames& head : heads) {
    for (const auto& [weight, bias] : head.blocks) used += bias.empty() ? 1 : 2;
    used += head.output.empty() ? 0 : 1;
  }
  if (used == file.tensors().size()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const MedusaHeadNames& head : heads) {
    for (const auto& [weight, bias] : head.blocks) names.insert(names.end(), {weight, bias});
    names.push_back(head.output);
  }
  std::sort(names.begin(), names.end());
  for (const CheckpointTensor& tensor : file.tensors()) {
    if (std::binary_search(names.begin(), names.end(), std::string(tensor.name))) continue;
    return HeadError(file, base::StrCat("tensor ", base::Quote(tensor.name), " belongs to none of ",
                                        heads.size(),
                                        " Medusa heads, whose tensors are "
                                        "HEAD.BLOCK.linear.weight, HEAD.BLOCK.linear.bias and "
                                        "HEAD.BLOCKS.weight, counted from 0"));
  }
  return absl::OkStatus();
}

// Medusa's own code saves a pickle, which may run any code when it is read.
absl::Status RefusePickle(const std::filesystem::path& folder) {
  std::error_code error;
  for (const char* name :
       {"medusa_lm_head.safetensors", "model.safetensors", "model.safetensors.index.json"}) {
    if (std::filesystem::exists(folder / name, error)) return absl::OkStatus();
  }
  const std::filesystem::path pickle = folder / "medusa_lm_head.pt";
  if (!std::filesystem::exists(pickle, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(base::StrCat(
      pickle.string(), " is a pickle, which may run any code when it is read. Where you trust it, ",
      "convert it: python -c 'import torch; from safetensors.torch import save_file; ",
      "save_file({k: v.clone() for k, v in torch.load(\"medusa_lm_head.pt\", "
      "map_location=\"cpu\", ",
      "weights_only=True).items()}, \"medusa_lm_head.safetensors\")'"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DraftSource>> OpenMedusa(const std::filesystem::path& path,
                                                        const ModelDescription& model) {
  HEDDLE_RETURN_IF_ERROR(RefusePickle(path));
  HEDDLE_ASSIGN_OR_RETURN(Checkpoint file, OpenCheckpoint(path));
  // Some save all of it as a part of a model.
  const std::string prefix =
      file.Find("medusa_head.0.0.linear.weight") != nullptr ? "medusa_head." : "";
  std::vector<MedusaHeadNames> heads;
  for (int32_t i = 0; i < kMaxHeads; ++i) {
    HEDDLE_ASSIGN_OR_RETURN(std::optional<MedusaHeadNames> head,
                            FindHead(file, prefix, i, model.spec));
    if (!head.has_value()) break;
    if (!heads.empty() && heads.front().output.empty() != head->output.empty()) {
      return HeadError(file, base::StrCat("head ", i, " has ", head->output.empty() ? "no" : "a",
                                          " matrix to the vocabulary, unlike the heads before"));
    }
    heads.push_back(*std::move(head));
  }
  if (heads.empty()) {
    return HeadError(file, "has no Medusa head: tensor \"0.0.linear.weight\" is missing");
  }
  HEDDLE_RETURN_IF_ERROR(CheckAllUsed(file, heads));
  return std::make_unique<MedusaSource>(std::move(file), std::move(heads), model);
}

}  // namespace heddle::engine
