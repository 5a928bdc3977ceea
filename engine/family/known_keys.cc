#include "engine/family/known_keys.h"

#include <algorithm>
#include <string>

#include "base/message.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

// Keys of config.json that no forward pass reads, or only while a model is trained or converted.
// A row of the table may still read one of them: the list is asked about those that none has read.
constexpr std::string_view kHarmless[] = {
    // Keys that say what the file is, and which program wrote it.
    "_name_or_path", "_attn_implementation", "_attn_implementation_autoset", "architectures",
    "auto_map", "dtype", "model_type", "tokenizer_class", "torch_dtype", "transformers_version",
    "transformers.js_config", "unsloth_fixed", "unsloth_version", "use_cache", "use_flash_attn",
    "attn_implementation", "library_name", "license", "quantization", "quantization_config",
    "compression_config", "cache_implementation", "model_max_length", "max_sequence_length",
    "seq_length", "tokenizer_model_max_length", "torchscript", "use_bfloat16",
    "chunk_size_feed_forward", "pruned_heads", "gradient_checkpointing",
    "keys_to_ignore_at_inference", "max_length", "min_length", "vocab_file", "data_type",
    "ignore_index", "for_llm_compressor", "tf_legacy_loss", "pad_vocab_size_multiple",
    "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "use_xentropy", "mask_token_id",
    // Training.
    "aux_loss_alpha", "ep_size", "init_method", "moe_capacity", "moe_norm_min",
    "initializer_factor", "initializer_range", "init_std", "block_mlp_init_scale",
    "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init",

    "num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
    "num_mtp_modules", "num_mtp_layers", "index_share_for_mtp_iteration", "mtp_transformer_layers",
    "use_mtp", "output_attentions", "output_hidden_states", "output_router_logits",
    "pretraining_tp", "return_dict", "router_aux_loss_coef", "router_jitter_noise",
    "router_z_loss_coef", "seq_aux", "z_loss_coefficient", "moe_aux_loss_coeff", "label_smoothing",
    "attention_dropout", "attention_dropout_prob", "attn_pdrop", "classifier_dropout",
    "classifier_dropout_prob", "embd_pdrop", "embedding_dropout", "embed_dropout", "hidden_dropout",
    "hidden_dropout_prob", "resid_pdrop", "residual_dropout", "resid_dropout", "ffn_dropout",
    "token_dropout", "rope_dropout",
    // Tokens, and the defaults of generation that older files keep here.
    "bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "unk_token_id", "bos_token", "eos_token", "pad_token", "unk_token", "suppress_tokens",
    "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids",
    "do_sample", "early_stopping", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "diversity_penalty", "encoder_no_repeat_ngram_size",
    "no_repeat_ngram_size", "num_beams", "num_beam_groups", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "exponential_decay_length_penalty", "remove_invalid_values",
    "max_new_tokens", "prefix",
    // Other heads than that of the language model.
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type", "output_past", "sinusoidal_pos_embds", "tie_weights_",
    "qa_dropout", "seq_classif_dropout", "dropout", "attention_probs_dropout_prob",
    "initializer_cutoff_factor", "decoder_bias", "classifier_pooling", "classifier_bias",
    "classifier_activation", "deterministic_flash_attn", "sparse_prediction",
    "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad", "mlp_dropout",
    "cls_token_id", "compile", "finetuning_task", "id2label", "label2id", "num_labels",
    "problem_type", "task_specific_params", "summary_activation", "summary_first_dropout",
    "summary_last_dropout", "generator_size", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "sbert_ce_default_activation_function", "sentence_transformers",
    "tie_encoder_decoder", "is_encoder_decoder", "is_decoder", "cross_attention_hidden_size",
    "n_ctx",
    // Images: for text alone all sections of RoPE are alike.
    "vision_config", "image_token_id", "video_token_id", "vision_start_token_id",
    "vision_end_token_id", "vision_token_id", "image_token_index", "boi_token_index",
    "eoi_token_index", "mm_tokens_per_image", "mrope_section", "mrope_interleaved",
    // Keys from which others of the file follow, or at which the family's class does not look.
    "head_dim", "hidden_act", "intermediate_size", "num_key_value_heads", "num_kv_heads",
    "sliding_window", "max_window_layers", "qk_head_dim", "layer_norm_eps", "layer_norm_epsilon",
    "rms_norm_eps", "norm_eps", "norm_epsilon", "rope_theta", "rope_scaling", "rope_parameters",
    "rope_local_base_freq", "attn_logit_softcapping", "_sliding_window_pattern",
    "sliding_window_pattern", "original_max_position_embeddings", "no_rope_layer_interval",
    "rope_ratio", "reorder_and_upcast_attn", "attention_softmax_in_fp32",
    "scale_attention_softmax_in_fp32",

    "num_experts_per_token", "experts_per_token", "initial_context_length", "norm_topk_prob",
    "n_group", "topk_group", "type_vocab_size",

    // Types that programs compute routers and states in; here they are F32.
    "moe_router_dtype", "mamba_ssm_dtype",

    // Within the parameters of RoPE: those of other types than the one that is chosen, and of texts
    // beyond the length that is served.
    "rope_type", "type", "factor", "finetuned", "long_factor", "long_mscale", "short_mscale",
    "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "low_freq_factor",
    "high_freq_factor", "truncate", "max_position_embeddings"};

// Keys that are harmless with one value.
struct OnlyValue {
  std::string_view key;
  std::string_view value;  // JSON
};
constexpr OnlyValue kHarmlessValues[] = {{"attention_bias", "false"},
                                         {"mlp_bias", "false"},
                                         {"use_bias", "false"},
                                         {"bias", "false"},
                                         {"qkv_bias", "false"},
                                         {"lm_head_bias", "false"},
                                         {"add_cross_attention", "false"},
                                         {"use_sliding_window", "false"},
                                         {"use_bidirectional_attention", "false"},
                                         {"alibi", "false"},
                                         {"use_mrope", "false"},
                                         {"rope_interleave", "true"},
                                         {"rope_interleaved", "false"},
                                         {"is_llama_config", "true"},
                                         {"rope_percent", "0.5"},
                                         {"scoring_func", "\"sigmoid\""},
                                         {"scoring_func", "\"softmax\""},
                                         {"scoring_func", "\"noaux_tc\""},
                                         {"topk_method", "\"noaux_tc\""},
                                         {"moe_gate", "\"topk\""},
                                         {"moe_use_aux_free", "true"},
                                         {"normalization_function", "\"rmsnorm\""},
                                         {"moe_layer_freq", "1"},
                                         {"mlp_only_layers", "[]"},
                                         {"output_gate_type", "\"swish\""},
                                         {"output_gate_type", "\"silu\""},
                                         {"shared_expert_intermediate_size", "0"},
                                         {"shared_intermediate_size", "0"},
                                         {"num_local_experts", "0"},
                                         {"num_experts", "0"},
                                         {"use_qk_norm", "true"},
                                         {"qk_norm_type", "\"per_layer\""},
                                         {"use_routing_bias", "true"},
                                         {"tie_word_embeddings", "false"},
                                         {"mlp_type", "\"default\""},
                                         {"norm_type", "\"layer_norm\""},
                                         {"scale_attn_weights", "true"},
                                         {"multi_query", "false"},
                                         {"parallel_block_tied_norm", "false"},
                                         {"scale_attn_by_inverse_layer_idx", "false"},
                                         {"apply_residual_connection_post_layernorm", "false"},
                                         {"final_logit_softcapping", "0.0"},
                                         {"hidden_activation", "\"gelu_pytorch_tanh\""},
                                         {"partial_rotary_factor", "1.0"},
                                         {"rotary_pct", "1.0"},
                                         {"full_attn_mod", "1"},
                                         {"interpolate_factor", "1"},
                                         {"layer_switch", "4"},
                                         {"order_of_interleaved_layers", "\"local_attn_first\""},
                                         {"position_embedding_type", "\"rope_gptj\""},
                                         {"use_embedding_sharing", "true"},
                                         {"use_gated_activation", "true"},
                                         {"use_parallel_block", "true"},
                                         {"use_parallel_embedding", "true"},
                                         {"use_pos_enc", "true"},
                                         {"block_use_swiglu", "true"}};

// Keys that are harmless with the value of another one, under which their family's class reads it.
struct SecondName {
  std::string_view key;
  std::string_view first;
};
constexpr SecondName kSecondNames[] = {{"num_experts", "n_routed_experts"},
                                       {"num_local_experts", "n_routed_experts"},
                                       {"sliding_window_size", "sliding_window"}};

bool IsSecondName(const JsonSource& source, std::string_view key, const json& value) {
  return std::any_of(std::begin(kSecondNames), std::end(kSecondNames), [&](const SecondName& name) {
    const json* first = name.key == key ? source.Find(name.first) : nullptr;
    return first != nullptr && *first == value;
  });
}

bool IsHarmless(std::string_view key, const json& value) {
  if (std::find(std::begin(kHarmless), std::end(kHarmless), key) != std::end(kHarmless))
    return true;
  // Every layer sees everything: what is so without the list.
  if (key == "layer_types" && value.is_array()) {
    return std::all_of(value.begin(), value.end(),
                       [](const json& type) { return type == "full_attention"; });
  }
  // MiniMax: no layer has linear attention.
  if (key == "attn_type_list" && value.is_array()) {
    return std::all_of(value.begin(), value.end(), [](const json& type) { return type == 1; });
  }
  return std::any_of(
      std::begin(kHarmlessValues), std::end(kHarmlessValues),
      [&](const OnlyValue& only) { return only.key == key && value == json::parse(only.value); });
}

// Keys of GGUF, behind the architecture's name, that leave the arithmetic as it is.
constexpr std::string_view kHarmlessGguf[] = {
    "vocab_size", "tensor_data_layout", "pooling_type", "decoder_start_token_id", "features_length",
    "classifier.output_labels", "leading_dense_block_count", "nextn_predict_layers",
    "attention.indexer.index_share_mtp",
    // Read where they apply: without experts, windows, scaling or latent attention they say
    // nothing.
    "dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out", "expert_count",
    "expert_used_count", "expert_shared_count", "expert_feed_forward_length",
    "interleave_moe_layer_step",  // a layer has experts where the file has their tensors
    "expert_shared_feed_forward_length", "expert_group_count", "expert_group_used_count",
    "expert_gating_func", "expert_weights_norm", "expert_weights_scale", "feed_forward_length",
    "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.sliding_window",
    "attention.sliding_window_pattern", "attention.key_length", "attention.value_length",
    "attention.key_length_mla", "attention.value_length_mla", "attention.q_lora_rank",
    "attention.kv_lora_rank", "rope.dimension_count", "rope.freq_base", "rope.scale_linear",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.finetuned", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow", "attn_logit_softcapping"};

struct OnlyNumber {
  std::string_view key;
  double value;
};
constexpr OnlyNumber kHarmlessGgufValues[] = {{"attention.clamp_kqv", 0},
                                              {"attention.max_alibi_bias", 0},
                                              {"attention.scale", 0},
                                              {"embedding_scale", 1},
                                              {"residual_scale", 1},
                                              {"logit_scale", 1},
                                              {"use_parallel_residual", 1},
                                              {"final_logit_softcapping", 0},
                                              {"attention.temperature_scale", 0},
                                              {"moe_every_n_layers", 1},
                                              {"rope.scaling.yarn_log_multiplier", 0}};

bool IsHarmlessGguf(const GgufSource& source, std::string_view key) {
  if (std::find(std::begin(kHarmlessGguf), std::end(kHarmlessGguf), key) !=
      std::end(kHarmlessGguf)) {
    return true;
  }
  for (const OnlyNumber& only : kHarmlessGgufValues) {
    if (only.key != key) continue;
    if (const auto number = source.Float(key); number.ok() && *number == only.value) return true;
    if (const auto flag = source.Bool(key); flag.ok() && *flag == (only.value != 0)) return true;
  }
  return false;
}

constexpr std::string_view kWhy =
    "nothing reads it, and it is not among the keys that are known to change no result";

}  // namespace

absl::Status RefuseUnreadKeys(const JsonSource& config) {
  for (const auto& [source, key, value] : config.Unread()) {
    // engine/files/quantized reads what is in there.
    if (source.prefix().find("quantization_config.") != std::string::npos) continue;
    if (IsHarmless(key, *value) || IsSecondName(source, key, *value)) continue;
    return source.Unsupported(key, JsonSource::Show(*value), kWhy);
  }
  return absl::OkStatus();
}

absl::Status RefuseUnreadKeys(const GgufSource& source) {
  for (const std::string& key : source.Unread()) {
    if (!IsHarmlessGguf(source, key)) return source.Unsupported(key, "set", kWhy);
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
