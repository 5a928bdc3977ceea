#include "engine/family/mamba_rows.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "engine/family/mamba_refine.h"
#include "engine/family/recent_refine.h"
#include "engine/family/recurrent_rows.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr std::string_view kMamba2Architectures[] = {"Mamba2ForCausalLM"};
constexpr std::string_view kMamba2Gguf[] = {"mamba2"};
constexpr std::string_view kBambaArchitectures[] = {"BambaForCausalLM"};
constexpr std::string_view kNemotronHArchitectures[] = {"NemotronHForCausalLM"};
constexpr std::string_view kNemotronHGguf[] = {"nemotron_h", "nemotron_h_moe"};
constexpr std::string_view kFalconH1Architectures[] = {"FalconH1ForCausalLM"};
constexpr std::string_view kFalconH1Gguf[] = {"falcon-h1"};

// The layer has no attention, and nothing in its place.
void DropAttention(LayerSpec* layer) {
  layer->attention.n_heads = layer->attention.n_kv_heads = 0;
  layer->attention.rope = RopeSpec{};
}

absl::Status RefineMamba2(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr Mamba2Keys kKeys = {.n_heads = "num_heads",
                                .n_groups = "n_groups",
                                .state = "state_size",
                                .taps = "conv_kernel",
                                .head_dim = "head_dim",
                                .expand = "expand",
                                .conv_bias = "use_conv_bias",
                                .bias = "use_bias",
                                .norm_eps = "layer_norm_epsilon",
                                .absent_groups = 8,
                                .absent_state = 128};
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence, ReadMamba2(config, kKeys, *spec));
  // The class does not look at them: it always gates and then norms.
  for (const std::string_view key : {"norm_before_gate", "rms_norm"}) {
    static_cast<void>(config.Has(key));
  }
  RecurEverywhere(recurrence, spec);
  return absl::OkStatus();
}

absl::Status RefineGgufMamba2(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence, ReadGgufMamba2(source, find, 0));
  SetGgufMamba2Names(&names->layer);
  static_cast<void>(source.Has("attention.head_count"));  // zero
  RecurEverywhere(recurrence, spec);
  return absl::OkStatus();
}

absl::Status RefineBamba(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kIndices = "attn_layer_indices";
  std::vector<bool> recurs(spec->layers.size(), true);
  if (const json* indices = config.Find(kIndices); indices != nullptr) {
    for (const json& index : indices->is_array() ? *indices : json::array({*indices})) {
      if (!index.is_number_integer() || index.get<int64_t>() < 0 ||
          index.get<int64_t>() >= spec->n_layers()) {
        return config.Error(kIndices, JsonSource::Show(*indices),
                            base::StrCat("a list of layers from 0 to ", spec->n_layers() - 1));
      }
      recurs[index.get<size_t>()] = false;
    }
  }
  // Older files say the rotated part of a head once more.
  constexpr std::string_view kRotated = "attn_rotary_emb";
  const int32_t rotary_dim = spec->layers.front().attention.rope.rotary_dim;
  HEDDLE_ASSIGN_OR_RETURN(const int32_t found, config.DimOr(kRotated, kMaxHeadDim, rotary_dim));
  if (found != rotary_dim) {
    return config.Unsupported(kRotated, base::StrCat(found),
                              base::StrCat("expected half a head (", rotary_dim, ")"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence, ReadMamba2(config, Mamba2Keys{}, *spec));
  ApplyMamba2(recurrence, recurs, spec);
  return absl::OkStatus();
}

// The kinds of blocks in Nemotron-H.
enum class Block : uint8_t { kRecurrence, kAttention, kMlp, kExperts };

// Blocks are letters of a pattern, or words of a list.
absl::StatusOr<std::vector<Block>> ReadBlocks(const JsonSource& config, int32_t n_layers) {
  constexpr std::string_view kPattern = "hybrid_override_pattern";
  constexpr std::pair<std::string_view, Block> kBlocks[] = {
      {"M", Block::kRecurrence},
      {"mamba", Block::kRecurrence},
      {"*", Block::kAttention},
      {"attention", Block::kAttention},
      {"-", Block::kMlp},
      {"mlp", Block::kMlp},
      {"E", Block::kExperts},
      {"moe", Block::kExperts},
      {"linear_attention", Block::kRecurrence},
      {"full_attention", Block::kAttention}};
  std::string_view key = kPattern;
  for (const std::string_view list : {"layer_types", "layers_block_type"}) {
    if (config.Has(list)) key = list;
  }
  const json* found = config.Find(key);
  static_cast<void>(config.Has(kPattern));
  if (found == nullptr) return config.Error(key, "missing", "a letter for each layer");
  std::vector<std::string> words;
  if (found->is_string()) {
    for (const char letter : found->get_ref<const std::string&>()) words.emplace_back(1, letter);
  } else if (found->is_array()) {
    for (const json& word : *found) words.push_back(word.is_string() ? word : json("?"));
  }
  if (static_cast<int64_t>(words.size()) != n_layers) {
    return config.Error(key, JsonSource::Show(*found), base::StrCat(n_layers, ", one per layer"));
  }
  std::vector<Block> blocks;
  for (const std::string& word : words) {
    const auto* block = std::find_if(std::begin(kBlocks), std::end(kBlocks),
                                     [&](const auto& entry) { return entry.first == word; });
    if (block == std::end(kBlocks)) {
      return config.Unsupported(key, base::Quote(word),
                                "supported are mamba, attention, mlp and moe");
    }
    blocks.push_back(block->second);
  }
  return blocks;
}

// Leaves of each layer what its block is. `moe` and `shared`: of blocks of experts.
void ApplyBlocks(const std::vector<Block>& blocks, const RecurrenceSpec& recurrence,
                 const MoeSpec& moe, int32_t shared, ModelSpec* spec) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    LayerSpec& layer = spec->layers[i];
    layer.attention.rope = RopeSpec{};  // positions are the recurrences' matter
    if (blocks[i] == Block::kRecurrence) Recur(recurrence, i, spec);
    if (blocks[i] == Block::kMlp || blocks[i] == Block::kExperts) {
      DropAttention(&layer);
    } else {
      layer.mlp.inter = 0;
    }
    if (blocks[i] != Block::kExperts) continue;
    layer.moe = moe;
    layer.mlp.inter = shared;
  }
}

absl::StatusOr<MoeSpec> ReadNemotronExperts(const JsonSource& config, const ModelSpec& spec) {
  HEDDLE_ASSIGN_OR_RETURN(
      MoeSpec moe,
      ReadSigmoidExperts(config, {.experts = 8, .top_k = 2, .inter = 7688, .renormalise = true}));
  moe.gated = false;
  moe.activation = spec.layers.front().mlp.activation;
  if (spec.layers.front().mlp.bias) {
    return config.Unsupported("mlp_bias", "true", "expected false beside experts");
  }
  if (config.Has("moe_latent_size")) {
    return config.Unsupported("moe_latent_size", JsonSource::Show(*config.Find("moe_latent_size")),
                              "it needs products before and behind the experts, which are narrower "
                              "than the stream");
  }
  return moe;
}

absl::Status RefineNemotronH(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr Mamba2Keys kKeys = {.n_heads = "mamba_num_heads",
                                .n_groups = "n_groups",
                                .state = "ssm_state_size",
                                .taps = "conv_kernel",
                                .head_dim = "mamba_head_dim",
                                .expand = {},
                                .conv_bias = "use_conv_bias",
                                .bias = "use_bias",
                                .norm_eps = "layer_norm_epsilon",
                                .activation = "mamba_hidden_act",
                                .absent_groups = 8,
                                .absent_state = 128};
  constexpr std::string_view kShared = "moe_shared_expert_intermediate_size";
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<Block> blocks, ReadBlocks(config, spec->n_layers()));
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence, ReadMamba2(config, kKeys, *spec));
  spec->tied_embeddings = false;  // the class ties nothing, whatever "tie_word_embeddings" says
  constexpr std::string_view kSkipped[] = {"attention_head_dim",
                                           "expand",
                                           "mamba_proj_bias",
                                           "moe_intermediate_size",
                                           "moe_latent_size",
                                           "moe_shared_expert_overlap",
                                           "mtp_hybrid_override_pattern",
                                           "mtp_layers_block_type",
                                           "n_routed_experts",
                                           "n_shared_experts",
                                           "num_experts_per_tok",
                                           "routed_scaling_factor",
                                           kShared};
  for (const std::string_view key : kSkipped) {
    static_cast<void>(config.Has(key));
  }
  MoeSpec moe;
  int32_t shared = 0;
  if (std::find(blocks.begin(), blocks.end(), Block::kExperts) != blocks.end()) {
    HEDDLE_ASSIGN_OR_RETURN(moe, ReadNemotronExperts(config, *spec));
    HEDDLE_ASSIGN_OR_RETURN(shared, config.DimOr(kShared, kMaxInter, 7688));
  }
  ApplyBlocks(blocks, recurrence, moe, shared, spec);
  return absl::OkStatus();
}

// A block attends where KV heads are counted, has an MLP where its features are, and recurs where
// neither is.
absl::Status RefineGgufNemotronH(const GgufSource& source, const TensorFinder& find,
                                 ModelSpec* spec, NameMap* names) {
  constexpr std::string_view kInter = "feed_forward_length";
  HEDDLE_ASSIGN_OR_RETURN(
      const std::vector<int64_t> kv_heads,
      ReadGgufKvHeads(source, spec->layers.front().attention.n_kv_heads, *spec));
  std::vector<int64_t> inter(spec->layers.size(), 0);
  if (source.IsArray(kInter)) {
    HEDDLE_ASSIGN_OR_RETURN(inter, source.Ints(kInter));
  }
  if (inter.size() < spec->layers.size()) {
    return source.Error(kInter, base::StrCat("an array of ", inter.size()),
                        base::StrCat("one of ", spec->n_layers(), ", one per layer"));
  }
  MoeSpec moe;
  std::vector<Block> blocks;
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    const bool has_experts = spec->layers[i].moe.n_experts > 0;
    blocks.push_back(kv_heads[i] > 0 ? Block::kAttention
                     : has_experts   ? Block::kExperts
                     : inter[i] > 0  ? Block::kMlp
                                     : Block::kRecurrence);
    if (has_experts) moe = spec->layers[i].moe;
  }
  moe.gated = false;
  if (!source.Has("expert_gating_func")) moe.rule.score = RouteScore::kSigmoid;
  moe.rule.group_best = 2;
  const auto first = std::find(blocks.begin(), blocks.end(), Block::kRecurrence) - blocks.begin();
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence, ReadGgufMamba2(source, find, first));
  const auto experts = std::find(blocks.begin(), blocks.end(), Block::kExperts);
  const int32_t shared =
      experts == blocks.end()
          ? 0
          : spec->layers[static_cast<size_t>(experts - blocks.begin())].mlp.inter;
  ApplyBlocks(blocks, recurrence, moe, shared, spec);
  SetGgufMamba2Names(&names->layer);
  names->layer.mlp_norm = names->layer.attn_norm;
  return absl::OkStatus();
}

// Each layer becomes two, attention and then the recurrence, which reads what attention has read.
void SetBeside(const RecurrenceSpec& recurrence, ModelSpec* spec, NameMap* names) {
  std::vector<LayerSpec> layers;
  for (const LayerSpec& layer : spec->layers) {
    layers.insert(layers.end(), 2, layer);
    layers[layers.size() - 2].mlp.inter = 0;
    layers.back().attention_input = AttentionInput::kShared;
  }
  spec->layers = std::move(layers);
  for (size_t i = 1; i < spec->layers.size(); i += 2) Recur(recurrence, i, spec);
  names->layers_of_index = 2;
}

template <size_t n>
absl::StatusOr<std::array<float, n>> ReadMultiplierList(const JsonSource& config,
                                                        std::string_view key) {
  std::array<float, n> factors;
  factors.fill(1.0f);
  const json* list = config.Find(key);
  if (list == nullptr) return factors;
  const auto is_factor = [](const json& factor) {
    return factor.is_number() && factor.get<double>() > 0 && factor.get<double>() <= kMaxFactor;
  };
  if (!list->is_array() || list->size() != n ||
      !std::all_of(list->begin(), list->end(), is_factor)) {
    return config.Error(key, JsonSource::Show(*list),
                        base::StrCat("a list of ", n, " numbers above 0"));
  }
  for (size_t i = 0; i < n; ++i) factors[i] = list->at(i).get<float>();
  return factors;
}

// Factors of what products read and give. Those of a product's input become factors of what it
// gives, and of scores, so that biases have none.
absl::Status ReadMultipliers(const JsonSource& config, RecurrenceSpec* recurrence,
                             ModelSpec* spec) {
  double attention_in = 1, attention_out = 1, key = 1, state_in = 1, state_out = 1;
  double embedding = 1, head = 1;
  const std::pair<std::string_view, double*> numbers[] = {
      {"attention_in_multiplier", &attention_in},
      {"attention_out_multiplier", &attention_out},
      {"key_multiplier", &key},
      {"ssm_in_multiplier", &state_in},
      {"ssm_out_multiplier", &state_out},
      {"embedding_multiplier", &embedding},
      {"lm_head_multiplier", &head}};
  for (const auto& [name, value] : numbers) {
    HEDDLE_ASSIGN_OR_RETURN(*value, config.PositiveOr(name, kMaxFactor, 1.0));
  }
  HEDDLE_ASSIGN_OR_RETURN(const auto mlp, ReadMultiplierList<2>(config, "mlp_multipliers"));
  HEDDLE_ASSIGN_OR_RETURN(const auto state, ReadMultiplierList<5>(config, "ssm_multipliers"));
  spec->embedding_scale = static_cast<float>(embedding);
  spec->logit_scale = static_cast<float>(head);
  for (LayerSpec& layer : spec->layers) {
    layer.attention.scale *= static_cast<float>(attention_in * attention_in * key);
    layer.attention.out_scale = static_cast<float>(attention_in * attention_out);
    layer.mlp.in_scale = mlp[0];
    layer.mlp.out_scale = mlp[1] / mlp[0];
  }
  const auto in = static_cast<float>(state_in);
  recurrence->scales = {.query = in * state[3],
                        .key = in * state[2],
                        .value = in * state[1],
                        .gate = in * state[0],
                        .step = in * state[4],
                        .out = static_cast<float>(state_out)};
  return absl::OkStatus();
}

absl::Status RefineFalconH1(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  constexpr Mamba2Keys kKeys = {.inner = "mamba_d_ssm", .absent_inner = 1024};
  HEDDLE_ASSIGN_OR_RETURN(RecurrenceSpec recurrence, ReadMamba2(config, kKeys, *spec));
  for (const std::string_view key :
       {"attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"}) {
    HEDDLE_ASSIGN_OR_RETURN(const bool has_bias, config.BoolOr(key, false));
    if (has_bias) return config.Unsupported(key, "true", "expected false");
  }
  HEDDLE_ASSIGN_OR_RETURN(const bool norms, config.BoolOr("mamba_rms_norm", false));
  HEDDLE_ASSIGN_OR_RETURN(const bool norms_first, config.BoolOr("mamba_norm_before_gate", true));
  recurrence.gates_first = !norms_first;
  if (!norms) recurrence.norm_width = 0;
  HEDDLE_RETURN_IF_ERROR(ReadMultipliers(config, &recurrence, spec));
  for (const std::string_view key : {"layer_types", "layers_block_type", "mamba_use_mlp"}) {
    static_cast<void>(config.Has(key));
  }
  SetBeside(recurrence, spec, names);
  return absl::OkStatus();
}

// The converter has multiplied weights by all factors, and gives one norm a name without an ending.
absl::Status RefineGgufFalconH1(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                                NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(const RecurrenceSpec recurrence, ReadGgufMamba2(source, find, 0));
  SetGgufMamba2Names(&names->layer);
  if (find("blk.0.ffn_norm") != nullptr) names->layer.mlp_norm = "blk.{}.ffn_norm";
  SetBeside(recurrence, spec, names);
  return absl::OkStatus();
}

const NameMap& Mamba2Names() {
  static const NameMap names = MixerNames(SetMamba2Names);
  return names;
}

const NameMap& BambaNames() {
  static const NameMap names = [] {
    NameMap bamba = LlamaNames();
    bamba.final_norm = "final_layernorm.weight";
    LayerNames& layer = bamba.layer;
    SetMamba2Names("layers.{}.mamba", &layer);
    layer.mlp_norm = "layers.{}.pre_ff_layernorm.weight";
    layer.gate = "layers.{}.feed_forward.gate_proj.weight";
    layer.up = "layers.{}.feed_forward.up_proj.weight";
    layer.down = "layers.{}.feed_forward.down_proj.weight";
    layer.gate_bias = "layers.{}.feed_forward.gate_proj.bias";
    layer.up_bias = "layers.{}.feed_forward.up_proj.bias";
    layer.down_bias = "layers.{}.feed_forward.down_proj.bias";
    return bamba;
  }();
  return names;
}

NameMap NemotronHNames(bool stacked) {
  NameMap nemotron = Mamba2Names();
  LayerNames& layer = nemotron.layer;
  layer.q = "layers.{}.mixer.q_proj.weight";
  layer.k = "layers.{}.mixer.k_proj.weight";
  layer.v = "layers.{}.mixer.v_proj.weight";
  layer.o = "layers.{}.mixer.o_proj.weight";
  layer.mlp_norm = layer.attn_norm;
  layer.up = "layers.{}.mixer.up_proj.weight";
  layer.down = "layers.{}.mixer.down_proj.weight";
  layer.up_bias = "layers.{}.mixer.up_proj.bias";
  layer.down_bias = "layers.{}.mixer.down_proj.bias";
  layer.router = "layers.{}.mixer.gate.weight";
  layer.choice_bias = "layers.{}.mixer.gate.e_score_correction_bias";
  layer.expert_up =
      stacked ? "layers.{}.mixer.experts.up_proj" : "layers.{}.mixer.experts.{e}.up_proj.weight";
  layer.expert_down = stacked ? "layers.{}.mixer.experts.down_proj"
                              : "layers.{}.mixer.experts.{e}.down_proj.weight";
  layer.shared_up = "layers.{}.mixer.shared_experts.up_proj.weight";
  layer.shared_down = "layers.{}.mixer.shared_experts.down_proj.weight";
  return nemotron;
}

Family MambaRow(Family row, std::string_view name, std::span<const std::string_view> architectures,
                std::span<const std::string_view> gguf) {
  row.name = row.model_type = name;
  row.architectures = architectures;
  row.gguf_architectures = gguf;
  row.norm_eps = 1e-5;
  row.gguf_rope_layout = RopeLayout::kHalf;
  row.qkv_bias = row.out_bias = Flag::Never();
  return row;
}

Family Mamba2Row(const Family& llama) {
  Family mamba = MambaRow(llama, "mamba2", kMamba2Architectures, kMamba2Gguf);
  mamba.attends = false;
  mamba.prefix = "backbone.";
  mamba.keys.norm_eps = "layer_norm_epsilon";
  mamba.max_context = kNoLimit;
  mamba.mlp_bias = Flag::Never();
  mamba.names = &Mamba2Names();
  mamba.refine = RefineMamba2;
  mamba.refine_gguf = RefineGgufMamba2;
  return mamba;
}

// Files in GGUF are of architecture "granitehybrid".
Family Bamba(const Family& llama) {
  Family bamba = MambaRow(llama, "bamba", kBambaArchitectures, {});
  bamba.n_kv_heads = 8;
  bamba.rotary_part = 0.5;
  bamba.max_context = 262144;
  bamba.qkv_bias = bamba.out_bias = Flag::Key("attention_bias", false);
  bamba.names = &BambaNames();
  bamba.refine = RefineBamba;
  return bamba;
}

Family NemotronH(const Family& llama) {
  static const NameMap apart = NemotronHNames(/*stacked=*/false);
  static const NameMap stacked = NemotronHNames(/*stacked=*/true);
  Family nemotron = MambaRow(llama, "nemotron_h", kNemotronHArchitectures, kNemotronHGguf);
  nemotron.prefix = "backbone.";
  nemotron.keys.norm_eps = "layer_norm_epsilon";
  nemotron.keys.activation = "mlp_hidden_act";
  nemotron.keys.layer_list = "layers_block_type";
  nemotron.activation = "relu2";
  nemotron.gated = false;
  nemotron.n_kv_heads = 8;
  nemotron.head_dim = 128;
  nemotron.max_context = 4096;
  nemotron.gguf_renormalise = true;
  nemotron.names = &apart;
  nemotron.stacked_names = &stacked;
  nemotron.refine = RefineNemotronH;
  nemotron.refine_gguf = RefineGgufNemotronH;
  return nemotron;
}

Family FalconH1(const Family& llama) {
  Family falcon = MambaRow(llama, "falcon_h1", kFalconH1Architectures, kFalconH1Gguf);
  falcon.n_kv_heads = 8;
  falcon.max_context = 8192;
  falcon.mlp_bias = Flag::Never();
  falcon.names = &BambaNames();
  falcon.refine = RefineFalconH1;
  falcon.refine_gguf = RefineGgufFalconH1;
  return falcon;
}

}  // namespace

std::vector<Family> MambaRows(const Family& llama) {
  return {Mamba2Row(llama), Bamba(llama), NemotronH(llama), FalconH1(llama)};
}

}  // namespace heddle::engine
