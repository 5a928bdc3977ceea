#include "engine/family/encoder_gguf.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/encoder_rows.h"
#include "engine/family/gguf_refine.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kPooling = "pooling_type";
constexpr std::string_view kLabels = "classifier.output_labels";
constexpr int64_t kMostClasses = 1 << 16;

// Values of pooling_type.
enum GgufPooling : int64_t {
  kNoPooling = 0,
  kMeanPooling = 1,
  kFirstPooling = 2,
  kLastPooling = 3,
  kRanking = 4
};

// The names of norms' biases that the file has.
void KeepBiases(const TensorFinder& find, NameMap* names) {
  const std::pair<std::string*, std::string_view> all[] = {
      {&names->embed_norm_bias, "token_embd_norm.bias"},
      {&names->final_norm_bias, "output_norm.bias"},
      {&names->layer.attn_norm_bias, "blk.1.attn_norm.bias"},
      {&names->layer.mlp_norm_bias, "blk.0.ffn_norm.bias"}};
  for (const auto& [name, tensor] : all) {
    if (find(tensor) == nullptr) name->clear();
  }
}

void NameEmbeddingNorm(NameMap* names) {
  names->embed_norm = "token_embd_norm.weight";
  names->embed_norm_bias = "token_embd_norm.bias";
}

// Reads the window, which is a width: so many positions lie on both sides of a row together.
absl::StatusOr<int32_t> HalfWindow(const GgufSource& source, int32_t absent) {
  HEDDLE_ASSIGN_OR_RETURN(const int32_t width,
                          source.DimOr("attention.sliding_window", kMaxContext, absent));
  return width / 2 + 1;
}

// The classes' names: those of the file, or as many as the last matrix has rows.
absl::StatusOr<std::vector<std::string>> ReadClasses(const GgufSource& source,
                                                     const CheckpointTensor& last, int32_t hidden) {
  const int64_t rows = last.shape.size() == 2 ? last.shape[0] : 1;
  if (rows < 1 || rows > kMostClasses || last.shape.empty() || last.shape.back() != hidden) {
    return absl::InvalidArgumentError(base::StrCat(source.file(), ": tensor ",
                                                   base::Quote(last.name), " must have 1 to ",
                                                   kMostClasses, " rows of ", hidden));
  }
  std::vector<std::string> labels;
  const std::string key = base::StrCat(source.prefix(), kLabels);
  if (!source.Has(kLabels)) {
    for (int64_t i = 0; i < rows; ++i) labels.push_back(base::StrCat("LABEL_", i));
    return labels;
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<std::string_view> names, source.gguf().Strings(key));
  if (static_cast<int64_t>(names.size()) != rows) {
    return source.Error(kLabels, base::StrCat("an array of ", names.size()),
                        base::StrCat("one of ", rows, ", one per class"));
  }
  labels.assign(names.begin(), names.end());
  return labels;
}

HeadLayer LayerOf(const TensorFinder& find, const std::string& name, int32_t in, int32_t out) {
  const std::string bias = name + ".bias";
  return {.in = in,
          .out = out,
          .weight = name + ".weight",
          .bias = find(bias) == nullptr ? std::string() : bias};
}

// The layer between the pooled state and the classes: RoBERTa's has tanh, DistilBERT's (which alone
// has no types of tokens) relu, ModernBERT's gelu and a norm.
void AddDense(const TensorFinder& find, const ModelSpec& spec, PooledOutput* output) {
  HeadLayer dense = LayerOf(find, "cls", spec.hidden, spec.hidden);
  dense.activation = HeadActivation::kTanh;
  if (spec.token_types == 0) dense.activation = HeadActivation::kRelu;
  if (spec.family == "modernbert") dense.activation = HeadActivation::kGelu;
  output->layers.push_back(std::move(dense));
  if (find("cls.norm.weight") == nullptr) return;
  HeadLayer norm = LayerOf(find, "cls.norm", spec.hidden, spec.hidden);
  norm.is_norm = true;
  norm.norm_eps = spec.norm_eps;
  output->layers.push_back(std::move(norm));
}

absl::Status DescribeRanking(const GgufSource& source, const Family& family,
                             const TensorFinder& find, const ModelSpec& spec,
                             PooledOutput* output) {
  const CheckpointTensor* last = find("cls.output.weight");
  if (last == nullptr) {
    return source.Unsupported(kPooling, "4 (ranking)",
                              "supported with a tensor \"cls.output.weight\"");
  }
  HEDDLE_ASSIGN_OR_RETURN(output->labels, ReadClasses(source, *last, spec.hidden));
  output->pooling = family.is_encoder ? Pooling::kFirst : Pooling::kLast;
  output->normalize = false;
  if (find("cls.weight") != nullptr) {
    AddDense(find, spec, output);
  } else if (family.name == "bert") {
    return source.Unsupported(
        kPooling, "4 (ranking)",
        "the file lacks \"cls.weight\": the converter leaves out the layer that BERT's own classes "
        "are read through, without which its scores are wrong; serve the folder instead");
  }
  const auto n_labels = static_cast<int32_t>(output->labels.size());
  output->layers.push_back(LayerOf(find, "cls.output", spec.hidden, n_labels));
  output->rule = n_labels == 1 ? ScoreRule::kSigmoid : ScoreRule::kSoftmax;
  output->first_class_ranks = output->labels == std::vector<std::string>{"yes", "no"};
  return absl::OkStatus();
}

// Dense modules of sentence-transformers, which have no bias and no activation here.
absl::Status AddModules(const GgufSource& source, const TensorFinder& find, int32_t hidden,
                        PooledOutput* output) {
  int32_t width = hidden;
  for (const std::string name : {"dense_2", "dense_3"}) {
    const CheckpointTensor* tensor = find(name + ".weight");
    if (tensor == nullptr) continue;
    const bool fits = tensor->shape.size() == 2 && tensor->shape[0] >= 1 &&
                      tensor->shape[0] <= kMaxHidden && tensor->shape[1] == width;
    if (!fits) {
      return absl::InvalidArgumentError(base::StrCat(source.file(), ": tensor ",
                                                     base::Quote(tensor->name),
                                                     " must be a matrix with rows of ", width));
    }
    const auto out = static_cast<int32_t>(tensor->shape[0]);
    output->layers.push_back(LayerOf(find, name, width, out));
    width = out;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefineGgufBert(const GgufSource&, const TensorFinder& find, ModelSpec* spec,
                            NameMap* names) {
  constexpr int64_t kMostTypes = 1 << 10;
  ApplyBert(spec);
  NameEmbeddingNorm(names);
  names->token_types = "token_types.weight";
  names->layer.attn_post_norm = "blk.{}.attn_output_norm.weight";
  names->layer.attn_post_norm_bias = "blk.{}.attn_output_norm.bias";
  names->layer.mlp_post_norm = "blk.{}.layer_output_norm.weight";
  names->layer.mlp_post_norm_bias = "blk.{}.layer_output_norm.bias";
  const CheckpointTensor* types = find(names->token_types);
  if (types == nullptr) return absl::OkStatus();
  const int64_t rows = types->shape.size() == 2 ? types->shape[0] : 1;
  spec->token_types = static_cast<int32_t>(std::clamp(rows, int64_t{1}, kMostTypes));
  return absl::OkStatus();
}

absl::Status RefineGgufModernBert(const GgufSource& source, const TensorFinder& find,
                                  ModelSpec* spec, NameMap* names) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  HEDDLE_ASSIGN_OR_RETURN(const int32_t window, HalfWindow(source, 128));
  HEDDLE_ASSIGN_OR_RETURN(const double theta,
                          source.PositiveOr("rope.freq_base_swa", kMaxTheta, 10000.0));
  int32_t every = 3;
  std::vector<int64_t> slides;
  if (source.IsArray(kPattern)) {
    HEDDLE_ASSIGN_OR_RETURN(slides, source.Ints(kPattern));
    if (slides.size() != spec->layers.size()) {
      return source.Error(kPattern, base::StrCat("an array of ", slides.size()),
                          base::StrCat("one of ", spec->n_layers(), ", one per layer"));
    }
  } else {
    HEDDLE_ASSIGN_OR_RETURN(every, source.DimOr(kPattern, kMaxLayers, every));
  }
  spec->embedding_norm = true;
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    AttentionSpec& attention = spec->layers[i].attention;
    const bool slid = slides.empty() ? i % static_cast<size_t>(every) != 0 : slides[i] != 0;
    attention.both_ways = true;
    attention.window = slid ? window : 0;
    if (slid) attention.rope.theta = static_cast<float>(theta);
  }
  // The embedding's norm is the first layer's.
  spec->layers.front().attention_input = AttentionInput::kRawStream;
  NameEmbeddingNorm(names);
  KeepBiases(find, names);
  HEDDLE_ASSIGN_OR_RETURN(const std::string name, source.StringOr("hidden_act", "gelu"));
  const std::optional<Activation> activation = FindActivation(name);
  if (!activation.has_value()) {
    return source.Unsupported("hidden_act", base::Quote(name), "supported are gelu and silu");
  }
  for (LayerSpec& layer : spec->layers) layer.mlp.activation = *activation;
  return absl::OkStatus();
}

absl::Status RefineGgufEmbeddingGemma(const GgufSource& source, const TensorFinder& find,
                                      ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineGgufGemma(source, find, spec, names));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t window, HalfWindow(source, 512));
  for (LayerSpec& layer : spec->layers) {
    layer.attention.both_ways = true;
    if (layer.attention.window > 0) layer.attention.window = window;
  }
  return absl::OkStatus();
}

absl::Status ReadGgufDirections(const GgufSource& source, const Family& family, ModelSpec* spec) {
  constexpr std::string_view kCausal = "attention.causal";
  HEDDLE_ASSIGN_OR_RETURN(const bool causal, source.BoolOr(kCausal, !family.is_encoder));
  if (causal && family.is_encoder) {
    return source.Unsupported(kCausal, "true", "this family is run as an encoder");
  }
  if (causal) return absl::OkStatus();
  for (LayerSpec& layer : spec->layers) {
    const AttentionSpec& attention = layer.attention;
    if (attention.conv.taps > 0 || attention.recurrence.shape.taps > 0) {
      return source.Unsupported(kCausal, "false", "recurrent layers see what is before a row");
    }
    layer.attention.both_ways = true;
  }
  return absl::OkStatus();
}

absl::Status DescribeGgufPooled(const GgufSource& source, const Family& family,
                                const TensorFinder& find, ModelDescription* description) {
  int64_t type = kNoPooling;
  if (source.Has(kPooling)) {
    HEDDLE_ASSIGN_OR_RETURN(type, source.Int(kPooling));
  }
  if (type < kNoPooling || type > kRanking) {
    return source.Error(kPooling, base::StrCat(type), "an integer from 0 to 4");
  }
  ModelSpec& spec = description->spec;
  if (type == kNoPooling && !spec.reads_whole_texts()) return absl::OkStatus();
  PooledOutput output;
  if (type == kRanking) {
    HEDDLE_RETURN_IF_ERROR(DescribeRanking(source, family, find, spec, &output));
  } else {
    output.pooling = type == kFirstPooling  ? Pooling::kFirst
                     : type == kLastPooling ? Pooling::kLast
                                            : Pooling::kMean;
    HEDDLE_RETURN_IF_ERROR(AddModules(source, find, spec.hidden, &output));
  }
  description->pooled = std::move(output);
  // There is no head of a vocabulary; what would draw from logits has the embedding in its place.
  spec.tied_embeddings = true;
  description->names.lm_head.clear();
  return absl::OkStatus();
}

}  // namespace heddle::engine
