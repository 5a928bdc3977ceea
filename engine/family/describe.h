// The steps that reading config.json and reading GGUF metadata share. Private to engine/family.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/family/config_source.h"
#include "engine/family/family_table.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/files/gguf.h"

namespace heddle::engine {

// At least ten times any published model's; keeps products of two within int64.
inline constexpr int64_t kMaxHidden = 1 << 20;
inline constexpr int64_t kMaxInter = 1 << 22;
inline constexpr int64_t kMaxVocab = 1 << 24;
inline constexpr int64_t kMaxLayers = 1 << 12;
inline constexpr int64_t kMaxHeads = 1 << 14;
inline constexpr int64_t kMaxHeadDim = 1 << 14;
inline constexpr int64_t kMaxContext = 1 << 30;
inline constexpr int64_t kMaxSegments = 1 << 12;
inline constexpr double kMaxTheta = 1e12;
inline constexpr double kMaxFactor = 1e6;

// The tables of segments, where a checkpoint of a family with llama's names has them.
inline constexpr std::string_view kSegmentNames = "layers.{}.self_attn.seg_embeddings.weight";

// Hyperparameters as read, before they become a spec; except for windows, the same for all layers.
struct Hyperparameters {
  int32_t hidden = 0;
  int32_t n_layers = 0;
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t inter = 0;
  int32_t vocab = 0;
  int32_t max_context = 0;
  int32_t long_context = 0;  // ModelSpec::long_context
  double norm_eps = 0.0;
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  RopeSpec rope;
  std::optional<RopeSpec> window_rope;  // of layers with a window, if different
  std::vector<int32_t> windows;         // [n_layers], 0: none; empty: none at all
};

// The values of a family without attention, whose refine function takes them from all layers.
void SetNoHeads(Hyperparameters* values);

// The configuration of a Hugging Face folder. A model that also reads images keeps its decoder's
// keys in config.json's "text_config" or "llm_config".
struct ConfigParts {
  JsonSource decoder;     // config.json, or the object in it
  JsonSource whole;       // config.json
  JsonSource generation;  // generation_config.json
};

// Finds the family by the decoder's architectures and model_type, or by GGUF's
// general.architecture. UNIMPLEMENTED names the supported ones and the nearest.
absl::StatusOr<const Family*> FindFamily(const JsonSource& config);
absl::StatusOr<const Family*> FindGgufFamily(const GgufFile& gguf, std::string_view architecture);

// Refuses sizes that contradict each other. Keys are those of `source` and appear in messages.
absl::Status CheckHeads(const ConfigSource& source, std::string_view heads_key,
                        std::string_view kv_heads_key, const Hyperparameters& values);

// The kernels' activation that transformers calls `name`, or none.
std::optional<Activation> FindActivation(std::string_view name);

// A decoder that was trained further as a model of embeddings may see the whole text from every row
// (transformers' masking_utils.py; gte-Qwen2). The key means something else in configurations of
// networks that draft.
absl::Status ReadDirections(const JsonSource& config, const Family& family, ModelSpec* spec);

// A list of widths of layers. REQUIRES: the key has an array.
absl::StatusOr<std::vector<int32_t>> ReadDims(const JsonSource& config, std::string_view key);

// Granite's scale factors, named by what they multiply; logits are divided by theirs.
// Scores grow with the logarithm of the position from `length` on (kernels::SharpenArgs, offset 0);
// beta 0: they do not.
void SharpenBeyond(double beta, int32_t length, ModelSpec* spec);

struct GraniteScales {
  double embedding = 1.0;
  double residual = 1.0;
  double attention = 1.0;
  double logits = 1.0;
};
void ApplyGraniteScales(const GraniteScales& scales, ModelSpec* spec);

void ApplyGptOss(ModelSpec* spec);

// Turns all layers' attention into latent attention; scores are also scaled by `sharpness`.
void ApplyLatentAttention(const MlaSpec& mla, double sharpness, ModelSpec* spec);
// Refuses indexers that do not fit the latent attention; the keys are those of the two sizes.
absl::Status CheckIndexer(const ConfigSource& source, std::string_view dim_key,
                          std::string_view rank_key, const IndexerSpec& indexer,
                          const MlaSpec& mla);
// Gives layers an indexer of their own where `own` [layers] says so, or the choice of the last one
// before them.
void ApplyIndexers(const IndexerSpec& indexer, const std::vector<bool>& own, ModelSpec* spec);
// Refuses impossible groups of experts; the keys appear in messages.
absl::Status CheckGroups(const ConfigSource& source, std::string_view groups_key,
                         std::string_view top_groups_key, const MoeSpec& moe);

// Refuses a top_k above the number of experts. `key` is that of top_k.
absl::Status CheckTopK(const ConfigSource& source, std::string_view key, const MoeSpec& moe);

ModelSpec MakeSpec(const Family& family, const Hyperparameters& values);

// `pattern` with the prefix, without the names of what the spec does not have.
NameMap MakeNames(const NameMap& pattern, std::string_view prefix, const ModelSpec& spec);

// The description of a folder whose tensors are named by `pattern` (one of the family's) behind the
// prefix.
absl::StatusOr<ModelDescription> DescribeConfigWithNames(const Family& family,
                                                         const ConfigParts& config,
                                                         const NameMap& pattern,
                                                         std::string_view prefix);

// `like`: the architecture whose row of the table applies; empty: the file's own.
absl::StatusOr<ModelDescription> DescribeGguf(const GgufFile& gguf, const TensorFinder& find,
                                              std::string_view like = {});

// Adds the experts of a GGUF file to the spec; layers with a router have them.
absl::Status ReadGgufExperts(const GgufSource& source, const Family& family,
                             const TensorFinder& find, ModelSpec* spec);

// Reads RoPE from config.json: from `rope_scaling`, or from transformers 5's `rope_parameters`.
absl::StatusOr<RopeSpec> ReadRope(const JsonSource& config, const Family& family, int32_t head_dim,
                                  int32_t max_context);
// Reads the RoPE of layers with a sliding window (Family::window_rope).
absl::StatusOr<RopeSpec> ReadWindowRope(const JsonSource& config, const Family& family,
                                        const Hyperparameters& values);

}  // namespace heddle::engine
