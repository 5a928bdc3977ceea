// The rows of the family table: what sets a family of checkpoints apart from others, as data.
// describe_config.cc and describe_gguf.cc read it. Private to engine/family.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "engine/family/name_map.h"
#include "engine/files/checkpoint.h"
#include "engine/model/model_spec.h"
#include "engine/model/pooled_output.h"

namespace heddle::engine {

class GgufSource;
class JsonSource;

// Finds a tensor by name in any of the model's files; nullptr if there is none.
using TensorFinder = std::function<const CheckpointTensor*(std::string_view)>;

// A property of the architecture: fixed for a family, or a boolean key of config.json.
struct Flag {
  enum class Rule : uint8_t { kNever, kAlways, kKey };
  Rule rule = Rule::kNever;
  std::string_view key = {};
  bool absent = false;  // the value if config.json lacks the key

  static constexpr Flag Never() { return {}; }
  static constexpr Flag Always() { return {Rule::kAlways}; }
  static constexpr Flag Key(std::string_view key, bool absent) { return {Rule::kKey, key, absent}; }
};

// How a family's config.json says which layers attend to a sliding window.
enum class WindowRule : uint8_t {
  kNone,         // never: a "sliding_window" in config.json has no effect
  kAllLayers,    // sliding_window, unless null
  kUpperLayers,  // use_sliding_window, sliding_window, max_window_layers; or layer_types
  kPattern       // sliding_window in the layers of layer_types, or in all but every n-th
};

// Keys of config.json, as this family spells them.
struct ConfigKeys {
  std::string_view hidden = "hidden_size";
  std::string_view n_layers = "num_hidden_layers";
  std::string_view layer_list = {};  // whose length counts where n_layers is absent; empty: none
  std::string_view n_heads = "num_attention_heads";
  std::string_view n_kv_heads = "num_key_value_heads";
  std::string_view head_dim = "head_dim";
  std::string_view inter = "intermediate_size";
  std::string_view max_context = "max_position_embeddings";
  std::string_view norm_eps = "rms_norm_eps";
  std::string_view activation = "hidden_act";
  std::string_view rope_theta = "rope_theta";
  std::string_view rotary_part = "partial_rotary_factor";
};

// The RoPE of layers with a window.
enum class WindowRope : uint8_t {
  kSame,      // that of all layers
  kOwnTheta,  // a theta of its own, "rope_local_base_freq", without scaling
  kUnscaled,  // the theta of all layers, without scaling
};

struct Family {
  std::string_view name;
  std::string_view model_type;                           // config.json
  std::span<const std::string_view> architectures;       // config.json; the first is the usual one
  std::span<const std::string_view> gguf_architectures;  // general.architecture
  std::string_view unless_key = {};  // the row is not for a config.json that has this key
  ConfigKeys keys;

  // Defaults of keys that config.json may leave out: those of transformers' config class.
  std::string_view activation = "silu";
  double norm_eps = 1e-6;
  bool tied_embeddings = false;
  int32_t n_heads = 0;         // 0: required
  int32_t n_kv_heads = 0;      // 0: n_heads
  int32_t vocab = 0;           // 0: required
  int32_t head_dim = 0;        // 0: hidden / heads
  int32_t sliding_window = 0;  // kAllLayers, kPattern; 0: none
  int32_t window_pattern = 0;  // kPattern: each n-th layer sees all; 0: none does
  double rope_theta = 10000.0;
  double rotary_part = 1.0;
  bool fixed_ntk = false;  // RoPE of type "ntk" is stretched alike for texts of any length
  std::string_view absent_rope = {};  // parameters of RoPE if config.json has none; JSON
  int32_t max_context = 0;            // 0: required
  int32_t inter_per_hidden = 0;  // inter = this x hidden where config.json has none; 0: required
  bool inter_lists = false;      // inter may be a list, one per layer, which `refine` reads

  NormKind norm = NormKind::kRms;
  float norm_weight_offset = 0.0f;
  bool pre_norm = true;
  bool post_norm = false;
  bool gated = true;
  bool attends = true;  // false: no layer has heads or an MLP, and no key says how many
  bool rope = true;     // false: learned positions
  Flag qkv_bias;
  Flag out_bias;
  Flag mlp_bias;
  QkNorm qk_norm = QkNorm::kNone;
  WindowRule window = WindowRule::kNone;
  WindowRope window_rope = WindowRope::kSame;
  RopeLayout rope_layout = RopeLayout::kHalf;
  // The order of q and k rows in GGUF: llama's converter permutes them for interleaved pairs.
  RopeLayout gguf_rope_layout = RopeLayout::kHalf;

  // Prefix of the names in safetensors, except lm_head's. A checkpoint that was saved from the bare
  // decoder lacks it. "{}" in a layer's names is its index.
  std::string_view prefix;
  const NameMap* names = nullptr;
  // The names if each layer's experts are stacked in one tensor, as transformers 5 keeps them in
  // memory; nullptr: no experts.
  const NameMap* stacked_names = nullptr;
  // The names if config.json says that the experts are in ExpertLayout::kMxfp4.
  const NameMap* mxfp4_names = nullptr;
  // The layers behind the pooled state of the family's class of ...ForSequenceClassification;
  // nullptr: one matrix behind the last token's.
  absl::Status (*classifier)(const JsonSource& config, std::string_view prefix, int32_t hidden,
                             int32_t n_labels, PooledOutput* output) = nullptr;
  bool is_encoder = false;        // none of its classes writes text
  bool gguf_renormalise = false;  // default in GGUF: weights of a row's experts sum to one

  // Refines the spec and the pattern of names, or refuses what config.json asks for and this
  // family's row cannot express; nullptr: nothing to do.
  absl::Status (*refine)(const JsonSource& config, ModelSpec* spec, NameMap* names) = nullptr;
  // The same for GGUF files.
  absl::Status (*refine_gguf)(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names) = nullptr;
};

std::span<const Family> FamilyTable();

}  // namespace heddle::engine
