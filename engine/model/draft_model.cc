#include "engine/model/draft_model.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/model/capacity.h"
#include "engine/model/decoder.h"
#include "engine/model/load.h"
#include "engine/text/tokenizer.h"

namespace heddle::engine {
namespace {

// Files of one vocabulary differ in padding by no more, and may name the first ids differently.
constexpr int32_t kMostPadding = 128;
constexpr TokenId kFirstCompared = 5;

class DraftModel final : public DraftNetwork {
 public:
  static absl::StatusOr<std::unique_ptr<DraftNetwork>> Create(kernels::Device& device,
                                                              ModelSpec spec, ModelWeights weights,
                                                              int32_t max_batch_tokens) {
    auto network = std::unique_ptr<DraftModel>(new DraftModel(std::move(spec), std::move(weights)));
    HEDDLE_ASSIGN_OR_RETURN(
        network->decoder_,
        Decoder::Create(device, network->spec_, network->weights_, max_batch_tokens));
    return network;
  }

  void Forward(kernels::Ops& ops, const DraftPass& pass) override {
    decoder_->SetFirstKvLayer(pass.first_kv_layer);
    decoder_->Forward(ops, pass.n_rows, pass.n_chains, *pass.cache);
  }

  void Logits(kernels::Ops& ops, const DraftLogits& logits) override {
    decoder_->Logits(ops, logits.first_chain, logits.out);
  }

 private:
  DraftModel(ModelSpec spec, ModelWeights weights)
      : spec_(std::move(spec)), weights_(std::move(weights)) {}

  const ModelSpec spec_;
  const ModelWeights weights_;
  std::unique_ptr<Decoder> decoder_;
};

class DraftModelSource final : public DraftSource {
 public:
  DraftModelSource(Checkpoint checkpoint, ModelDescription model)
      : checkpoint_(std::move(checkpoint)), model_(std::move(model)) {
    traits_.kind = "draft";
    traits_.text = absl::StrCat("draft model ", checkpoint_.path().string(), " (",
                                model_.spec.family, ", ", model_.spec.n_layers(), " layers, ",
                                base::ShowBytes(checkpoint_.total_bytes()), ")");
    traits_.kv_layers = KvLayers(model_.spec);
    traits_.vocab = model_.spec.vocab;
    if (model_.spec.learned_positions) traits_.max_context = model_.spec.max_context;
  }

  const DraftTraits& traits() const override { return traits_; }
  int64_t WeightBytes(const kernels::Device* device) const override {
    return KeptBytes(checkpoint_, model_, {}, device);
  }
  int64_t WorkspaceBytes(int32_t max_batch_tokens, kernels::DType activations) const override {
    return Decoder::ActivationBytes(model_.spec, max_batch_tokens, activations);
  }
  absl::StatusOr<std::unique_ptr<DraftNetwork>> Load(kernels::Device& device, const ModelSpec&,
                                                     const ModelWeights&,
                                                     int32_t max_batch_tokens) override {
    HEDDLE_ASSIGN_OR_RETURN(ModelWeights weights, LoadWeights(device, checkpoint_, model_));
    return DraftModel::Create(device, model_.spec, std::move(weights), max_batch_tokens);
  }

 private:
  const Checkpoint checkpoint_;
  const ModelDescription model_;
  DraftTraits traits_;
};

// Names of the drafter's and the model's files in messages.
struct Pair {
  std::string draft;
  std::string target;
};

absl::Status Differs(const Pair& files, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the draft model ", files.draft, " has another vocabulary than ", files.target, ": ",
      std::string(what),
      ". A draft model must have the model's own tokens, as smaller models of one family do"));
}

absl::Status CheckSizes(const Pair& files, int32_t draft, int32_t target) {
  if (std::abs(draft - target) <= kMostPadding) return absl::OkStatus();
  return Differs(files, absl::StrCat(draft, " tokens, not ", target));
}

absl::Status CheckEnds(const Pair& files, std::string_view name, std::optional<TokenId> draft,
                       std::optional<TokenId> target) {
  if (draft == target || !draft || !target) return absl::OkStatus();
  return Differs(files,
                 absl::StrCat("its ", std::string(name), " is token ", *draft, ", not ", *target));
}

absl::Status CheckTokens(const Pair& files, const text::Tokenizer& draft,
                         const text::Tokenizer& target) {
  const auto first = [](const std::vector<TokenId>& ids) {
    return ids.empty() ? std::nullopt : std::optional(ids.front());
  };
  HEDDLE_RETURN_IF_ERROR(CheckSizes(files, draft.vocab_size(), target.vocab_size()));
  HEDDLE_RETURN_IF_ERROR(CheckEnds(files, "BOS", draft.bos_id(), target.bos_id()));
  HEDDLE_RETURN_IF_ERROR(CheckEnds(files, "EOS", first(draft.eos_ids()), first(target.eos_ids())));
  const TokenId common = std::min(draft.vocab_size(), target.vocab_size());
  for (TokenId id = kFirstCompared; id < common; ++id) {
    if (draft.TokenText(id) == target.TokenText(id)) continue;
    return Differs(files, absl::StrCat("token ", id, " is \"", std::string(draft.TokenText(id)),
                                       "\", not \"", std::string(target.TokenText(id)), "\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DraftSource>> OpenDraftModel(const std::filesystem::path& path,
                                                            const Checkpoint& target,
                                                            const ModelDescription& model,
                                                            VocabularyCheck check) {
  HEDDLE_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(path));
  HEDDLE_ASSIGN_OR_RETURN(ModelDescription draft, Describe(checkpoint));
  HEDDLE_RETURN_IF_ERROR(ValidateTensors(checkpoint, draft));
  const Pair files{path.string(), target.path().string()};
  HEDDLE_RETURN_IF_ERROR(CheckSizes(files, draft.spec.vocab, model.spec.vocab));
  if (check == VocabularyCheck::kTokens) {
    HEDDLE_ASSIGN_OR_RETURN(const auto own, text::LoadTokenizer(path));
    HEDDLE_ASSIGN_OR_RETURN(const auto others, text::LoadTokenizer(target.path()));
    HEDDLE_RETURN_IF_ERROR(CheckTokens(files, *own, *others));
  }
  return std::make_unique<DraftModelSource>(std::move(checkpoint), std::move(draft));
}

}  // namespace heddle::engine
