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
#include "engine/model/exchange_vocabulary.h"
#include "engine/model/load.h"
#include "engine/text/tokenizer.h"

namespace heddle::engine {
namespace {

// Files of one vocabulary differ in padding by no more, and may name the first ids differently.
constexpr int32_t kMostPadding = 128;
constexpr TokenId kFirstCompared = 5;
// With fewer tokens in common than such a part of the smaller vocabulary, hardly anything can be
// guessed.
constexpr int32_t kLeastCommonPart = 16;

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
  // `common`: what `model` guesses of its target's tokens, if it has a tokenizer of its own, of
  // `own_vocab` tokens; or nullptr.
  DraftModelSource(Checkpoint checkpoint, ModelDescription model, const CommonTokens* common,
                   int32_t own_vocab)
      : checkpoint_(std::move(checkpoint)), model_(std::move(model)) {
    traits_.kind = "draft";
    traits_.text = absl::StrCat("draft model ", checkpoint_.path().string(), " (",
                                model_.spec.family, ", ", model_.spec.n_layers(), " layers, ",
                                base::ShowBytes(checkpoint_.total_bytes()), ")");
    traits_.kv_layers = KvLayers(model_.spec);
    traits_.vocab = model_.spec.vocab;
    if (common != nullptr) {
      traits_.guessable = common->guessable;
      absl::StrAppend(&traits_.text, ", by ", common->num_guessable, " of its ", own_vocab,
                      " tokens, which the model has too");
    }
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

std::optional<TokenId> FirstOf(const std::vector<TokenId>& ids) {
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

bool Differ(std::optional<TokenId> a, std::optional<TokenId> b) { return a && b && *a != *b; }

bool HaveSameTokens(const TokensOfModel& draft, const TokensOfModel& target) {
  const text::Tokenizer& own = draft.tokenizer;
  const text::Tokenizer& others = target.tokenizer;
  if (std::abs(draft.vocab - target.vocab) > kMostPadding) return false;
  if (std::abs(own.vocab_size() - others.vocab_size()) > kMostPadding) return false;
  if (Differ(own.bos_id(), others.bos_id())) return false;
  if (Differ(FirstOf(own.eos_ids()), FirstOf(others.eos_ids()))) return false;
  const TokenId common = std::min(own.vocab_size(), others.vocab_size());
  for (TokenId id = kFirstCompared; id < common; ++id) {
    if (own.TokenText(id) != others.TokenText(id)) return false;
  }
  return true;
}

absl::Status CheckCommon(const std::string& draft_path, const std::string& target_path,
                         const CommonTokens& common, const TokensOfModel& draft,
                         const TokensOfModel& target) {
  const int32_t smaller = std::min(draft.vocab, target.vocab);
  if (common.num_guessable >= smaller / kLeastCommonPart) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the draft model ", draft_path, " has another vocabulary than ", target_path, ", and only ",
      common.num_guessable, " tokens in common with it, of ", draft.vocab, " and ", target.vocab,
      ". A draft model of another tokenizer needs a ", kLeastCommonPart,
      "th of the smaller vocabulary in common; best are models of one family"));
}

std::unique_ptr<DraftSource> MakeSource(Checkpoint checkpoint, ModelDescription draft,
                                        const CommonTokens* common) {
  const int32_t own_vocab = draft.spec.vocab;
  if (common != nullptr) ExchangeVocabulary(common->draft_ids, &checkpoint, &draft);
  return std::make_unique<DraftModelSource>(std::move(checkpoint), std::move(draft), common,
                                            own_vocab);
}

absl::Status OpenDraftFiles(const std::filesystem::path& path,
                            std::optional<Checkpoint>* checkpoint, ModelDescription* draft) {
  HEDDLE_ASSIGN_OR_RETURN(Checkpoint opened, OpenCheckpoint(path));
  HEDDLE_ASSIGN_OR_RETURN(*draft, Describe(opened));
  HEDDLE_RETURN_IF_ERROR(ValidateTensors(opened, *draft));
  checkpoint->emplace(std::move(opened));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DraftSource>> OpenDraftModel(const std::filesystem::path& path,
                                                            const Checkpoint& target,
                                                            const ModelDescription& model) {
  std::optional<Checkpoint> checkpoint;
  ModelDescription draft;
  HEDDLE_RETURN_IF_ERROR(OpenDraftFiles(path, &checkpoint, &draft));
  HEDDLE_ASSIGN_OR_RETURN(const auto own, text::LoadTokenizer(path));
  HEDDLE_ASSIGN_OR_RETURN(const auto others, text::LoadTokenizer(target.path()));
  const TokensOfModel tokens{*own, draft.spec.vocab};
  const TokensOfModel target_tokens{*others, model.spec.vocab};
  if (HaveSameTokens(tokens, target_tokens)) {
    return MakeSource(*std::move(checkpoint), std::move(draft), nullptr);
  }
  const CommonTokens common = FindCommonTokens(tokens, target_tokens);
  HEDDLE_RETURN_IF_ERROR(
      CheckCommon(path.string(), target.path().string(), common, tokens, target_tokens));
  return MakeSource(*std::move(checkpoint), std::move(draft), &common);
}

absl::StatusOr<std::unique_ptr<DraftSource>> OpenDraftModelAs(const std::filesystem::path& path,
                                                              const CommonTokens* common) {
  std::optional<Checkpoint> checkpoint;
  ModelDescription draft;
  HEDDLE_RETURN_IF_ERROR(OpenDraftFiles(path, &checkpoint, &draft));
  return MakeSource(*std::move(checkpoint), std::move(draft), common);
}

}  // namespace heddle::engine
