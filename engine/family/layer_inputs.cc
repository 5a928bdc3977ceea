#include "engine/family/layer_inputs.h"

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"

namespace heddle::engine {
namespace {

// `key` appears in messages.
absl::Status ShareKeys(const ConfigSource& source, std::string_view key, int64_t count,
                       ModelSpec* spec) {
  const int32_t n_layers = spec->n_layers();
  if (count < 0 || count >= n_layers) {
    return source.Error(key, base::StrCat(count), base::StrCat("from 0 to ", n_layers - 1));
  }
  const int32_t first = n_layers - static_cast<int32_t>(count);
  for (int32_t i = first; i < n_layers; ++i) {
    AttentionSpec& attention = spec->layers[static_cast<size_t>(i)].attention;
    int32_t from = first - 1;
    while (from >= 0 &&
           spec->layers[static_cast<size_t>(from)].attention.window != attention.window) {
      --from;
    }
    if (from < 0) {
      return source.Error(key, base::StrCat(count),
                          base::StrCat("fewer, so that layer ", i,
                                       " finds one before them that sees as far as it does"));
    }
    const int32_t head_dim = spec->layers[static_cast<size_t>(from)].attention.head_dim;
    if (attention.head_dim != head_dim) {
      return source.Error(key, base::StrCat(count),
                          base::StrCat("fewer, or the same size of heads in layers ", i, " and ",
                                       from, ", which have ", attention.head_dim, " and ", head_dim,
                                       ": the first has the keys of the second"));
    }
    attention.kv_layer = from;
    attention.n_kv_heads = 0;
    attention.value_norm = attention.keys_are_values = false;
  }
  return absl::OkStatus();
}

// Rows of a table for all layers side by side.
absl::Status SetDim(const ConfigSource& source, std::string_view key, int64_t dim,
                    ModelSpec* spec) {
  if (dim < 0 || dim * spec->n_layers() > kMaxInter) {
    return source.Error(key, base::StrCat(dim),
                        base::StrCat("from 0 to ", kMaxInter / spec->n_layers()));
  }
  spec->layer_input_dim = static_cast<int32_t>(dim);
  return absl::OkStatus();
}

}  // namespace

void NameLayerInputs(NameMap* names) {
  names->layer_inputs = "embed_tokens_per_layer.weight";
  names->layer_inputs_in = "per_layer_model_projection.weight";
  names->layer_inputs_norm = "per_layer_projection_norm.weight";
  names->layer.input_gate = "layers.{}.per_layer_input_gate.weight";
  names->layer.input_out = "layers.{}.per_layer_projection.weight";
  names->layer.input_post_norm = "layers.{}.post_per_layer_input_norm.weight";
}

void NameGgufLayerInputs(NameMap* names) {
  names->layer_inputs = "per_layer_token_embd.weight";
  names->layer_inputs_in = "per_layer_model_proj.weight";
  names->layer_inputs_norm = "per_layer_proj_norm.weight";
  names->layer.input_gate = "blk.{}.inp_gate.weight";
  names->layer.input_out = "blk.{}.proj.weight";
  names->layer.input_post_norm = "blk.{}.post_norm.weight";
}

absl::Status ReadLayerInputs(const JsonSource& config, int32_t absent_vocab, ModelSpec* spec) {
  constexpr std::string_view kDim = "hidden_size_per_layer_input";
  int64_t dim = 256;  // Gemma3nTextConfig, Gemma4TextConfig
  if (config.IsNull(kDim)) dim = 0;
  if (config.Has(kDim)) {
    HEDDLE_ASSIGN_OR_RETURN(dim, config.Int(kDim));
  }
  HEDDLE_ASSIGN_OR_RETURN(spec->layer_input_vocab,
                          config.DimOr("vocab_size_per_layer_input", kMaxVocab, absent_vocab));
  return SetDim(config, kDim, dim, spec);
}

absl::Status ReadGgufLayerInputs(const GgufSource& source, const TensorFinder& find,
                                 ModelSpec* spec) {
  constexpr std::string_view kDim = "embedding_length_per_layer_input";
  spec->layer_input_vocab = spec->vocab;
  const CheckpointTensor* table = find("per_layer_token_embd.weight");
  if (table != nullptr && table->shape.size() == 2 && table->shape[0] <= kMaxVocab) {
    spec->layer_input_vocab = static_cast<int32_t>(table->shape[0]);
  }
  int64_t dim = 0;
  if (source.Has(kDim)) {
    HEDDLE_ASSIGN_OR_RETURN(dim, source.Int(kDim));
  }
  return SetDim(source, kDim, dim, spec);
}

absl::Status ReadSharedKeys(const JsonSource& config, int64_t absent, ModelSpec* spec) {
  constexpr std::string_view kKey = "num_kv_shared_layers";
  int64_t count = absent;
  if (config.Has(kKey)) {
    HEDDLE_ASSIGN_OR_RETURN(count, config.Int(kKey));
  }
  return ShareKeys(config, kKey, count, spec);
}

// Early files have the number as a float.
absl::Status ReadGgufSharedKeys(const GgufSource& source, ModelSpec* spec) {
  constexpr std::string_view kKey = "attention.shared_kv_layers";
  double count = 0;
  if (source.Has(kKey)) {
    HEDDLE_ASSIGN_OR_RETURN(count, source.Float(kKey));
  }
  if (count < 0 || count > kMaxLayers ||
      count != static_cast<double>(static_cast<int64_t>(count))) {
    return source.Error(kKey, base::StrCat(count), "a number of layers");
  }
  return ShareKeys(source, kKey, static_cast<int64_t>(count), spec);
}

absl::StatusOr<std::vector<int64_t>> NumbersOfLayers(const GgufSource& source, std::string_view key,
                                                     size_t n_layers) {
  if (!source.IsArray(key)) {
    HEDDLE_ASSIGN_OR_RETURN(const int64_t value, source.Int(key));
    return std::vector<int64_t>(n_layers, value);
  }
  HEDDLE_ASSIGN_OR_RETURN(std::vector<int64_t> values, source.Ints(key));
  if (values.size() == n_layers) return values;
  return source.Error(key, base::StrCat("an array of ", values.size()),
                      base::StrCat("one of ", n_layers, ", one per layer"));
}

}  // namespace heddle::engine
