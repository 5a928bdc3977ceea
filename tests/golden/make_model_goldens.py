#!/usr/bin/env python3
"""Logits of tiny models by Hugging Face transformers: the goldens of tests/model/golden_test.cc.

Writes one JSON file per case into this folder: config.json and generation_config.json as a user's
folder has them, the tensors (name, shape, scale, offset; the values come from synthetic_weights.py),
a prompt, the best logits at each of its positions and all logits at the last two. Everything in
float32 on the CPU with eager attention.

Run with the versions in requirements.txt: ./make_model_goldens.py [CASE...]
"""

import copy
import json
import math
import pathlib
import sys
import types

import gguf
import numpy as np
import torch
import transformers
from transformers.models.llama import modeling_llama
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import phi4flash_reference
import quantised_layers
import rwkv7_reference
import synthetic_weights

HERE = pathlib.Path(__file__).parent
TOP = 4  # logits kept at each position
PROMPT_TOKENS = 40

LLAMA = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=301, hidden_size=96,
    intermediate_size=160, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
    max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu",
    tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
SMALL_LLAMA = dict(LLAMA, hidden_size=64, intermediate_size=96, num_attention_heads=4)
MIXTRAL = dict(SMALL_LLAMA, architectures=["MixtralForCausalLM"], model_type="mixtral",
               num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
QWEN2_MOE = dict(SMALL_LLAMA, architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe",
                 num_hidden_layers=4, moe_intermediate_size=64, num_experts=6,
                 num_experts_per_tok=3, shared_expert_intermediate_size=128, decoder_sparse_step=2,
                 mlp_only_layers=[3], norm_topk_prob=False, rms_norm_eps=1e-6)
QWEN3_MOE = dict(SMALL_LLAMA, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe",
                 head_dim=32, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=3,
                 norm_topk_prob=True, mlp_only_layers=[], rms_norm_eps=1e-6)
GPT_OSS = dict(
    SMALL_LLAMA, architectures=["GptOssForCausalLM"], model_type="gpt_oss", head_dim=32,
    intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
    attention_bias=True, swiglu_limit=7.0, rope_theta=150000.0, max_position_embeddings=256,
    rope_scaling=dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                      original_max_position_embeddings=32),
    layer_types=["sliding_attention", "full_attention", "sliding_attention"])
DEEPSEEK = dict(
    SMALL_LLAMA, num_key_value_heads=4, num_hidden_layers=3, rms_norm_eps=1e-6, kv_lora_rank=40,
    q_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=20,
    moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
    first_k_dense_replace=1, norm_topk_prob=False)
DEEPSEEK_V2 = dict(DEEPSEEK, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2",
                   topk_method="group_limited_greedy", n_group=4, topk_group=2,
                   routed_scaling_factor=4.0)
DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V2, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
    "num_hidden_layers": 2, "routed_scaling_factor": 1.0,
    "rope_scaling": dict(type="yarn", factor=4.0, original_max_position_embeddings=32,
                         beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707)}
DEEPSEEK_V3 = dict(DEEPSEEK, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3",
                   n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5)


def deci_block(group, multiplier, linear=False):
    """An entry of block_configs; None: the layer lacks that block."""
    return dict(
        attention=dict(n_heads_in_group=group, no_op=group is None and not linear,
                       replace_with_linear=linear),
        ffn=dict(ffn_mult=multiplier, no_op=multiplier is None, replace_with_linear=False))


DECI = dict(SMALL_LLAMA, architectures=["DeciLMForCausalLM"], model_type="nemotron-nas",
            num_key_value_heads=None, intermediate_size=None, num_hidden_layers=5,
            block_configs=[deci_block(None, 2.5), deci_block(2, 6.5), deci_block(4, None),
                           deci_block(None, 1.0, linear=True), deci_block(1, 5.0)])
NEMOTRON = {
    **SMALL_LLAMA, "architectures": ["NemotronForCausalLM"], "model_type": "nemotron",
    "hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5}
MISTRAL = dict(LLAMA, architectures=["MistralForCausalLM"], model_type="mistral", vocab_size=288,
               hidden_size=64, num_attention_heads=4, num_key_value_heads=1, sliding_window=None)
QWEN2 = dict(LLAMA, architectures=["Qwen2ForCausalLM"], model_type="qwen2", vocab_size=320,
             hidden_size=64, intermediate_size=224, num_attention_heads=4, num_key_value_heads=2,
             rms_norm_eps=1e-6, rope_theta=1000000.0, use_sliding_window=False,
             sliding_window=131072, max_window_layers=3, tie_word_embeddings=True,
             bos_token_id=None, eos_token_id=[3, 5])
QWEN3 = dict(QWEN2, architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=32,
             attention_bias=False)
GPT2 = dict(
    architectures=["GPT2LMHeadModel"], model_type="gpt2", vocab_size=257, n_positions=64, n_ctx=64,
    n_embd=64, n_layer=3, n_head=4, n_inner=None, activation_function="gelu_new",
    layer_norm_epsilon=1e-5, bos_token_id=256, eos_token_id=256)
SMALL = dict(LLAMA, hidden_size=64, intermediate_size=96, num_attention_heads=4, pad_token_id=0)
GEMMA2 = dict(SMALL, architectures=["Gemma2ForCausalLM"], model_type="gemma2", head_dim=32,
              hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=24, sliding_window=8,
              attn_logit_softcapping=5.0, final_logit_softcapping=6.0, num_hidden_layers=4,
              tie_word_embeddings=True)
GEMMA3 = dict(SMALL, architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", head_dim=32,
              hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=24, sliding_window=8,
              sliding_window_pattern=3, num_hidden_layers=4, rope_theta=100000.0,
              rope_local_base_freq=5000.0, rope_scaling=dict(rope_type="linear", factor=8.0),
              tie_word_embeddings=True)
GEMMA3_NESTED = {
    **{k: v for k, v in GEMMA3.items() if not k.startswith("rope_")},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": dict(
        full_attention=dict(rope_type="linear", factor=4.0, rope_theta=200000.0),
        sliding_attention=dict(rope_type="default", rope_theta=3000.0))}
# Embeddings of single layers, shared keys and wide MLPs as in the small models.
GEMMA4 = dict(
    SMALL, architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", head_dim=24,
    global_head_dim=40, num_hidden_layers=6, num_key_value_heads=2, sliding_window=8,
    layer_types=["sliding_attention", "full_attention"] * 3,
    hidden_activation="gelu_pytorch_tanh", hidden_size_per_layer_input=12,
    vocab_size_per_layer_input=301, num_kv_shared_layers=2, use_double_wide_mlp=True,
    attention_k_eq_v=False, enable_moe_block=False, final_logit_softcapping=6.0,
    tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters=dict(
        full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25,
                            rope_theta=100000.0),
        sliding_attention=dict(rope_type="default", rope_theta=5000.0)))
for key in ("rope_theta", "hidden_act"):
    del GEMMA4[key]
# One matrix for keys and values, as in the large models.
GEMMA4_DENSE = dict(GEMMA4, num_attention_heads=6, num_key_value_heads=3, num_hidden_layers=4,
                    layer_types=["sliding_attention", "sliding_attention", "full_attention",
                                 "full_attention"],
                    num_global_key_value_heads=1, attention_k_eq_v=True,
                    hidden_size_per_layer_input=0, num_kv_shared_layers=0,
                    use_double_wide_mlp=False, use_bidirectional_attention="vision")
GEMMA4_MOE = dict(GEMMA4_DENSE, enable_moe_block=True, num_experts=5, top_k_experts=2,
                  moe_intermediate_size=48)
# Chunks shorter than the prompt, layers without positions, dense layers among experts.
LLAMA4 = dict(
    SMALL, architectures=["Llama4ForCausalLM"], model_type="llama4_text", head_dim=20,
    num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=4, intermediate_size=48,
    intermediate_size_mlp=112, num_local_experts=5, num_experts_per_tok=2,
    interleave_moe_layer_step=2, no_rope_layers=[1, 1, 0, 1], attention_chunk_size=7,
    attn_temperature_tuning=True, floor_scale=5, attn_scale=0.3, use_qk_norm=True,
    rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                      original_max_position_embeddings=32))
# One expert for each row, and no norms of queries and keys, as in the larger model.
LLAMA4_PLAIN = dict(LLAMA4, use_qk_norm=False, num_experts_per_tok=1, moe_layers=[0, 1, 3],
                    no_rope_layers=[], no_rope_layer_interval=2, attn_temperature_tuning=False,
                    num_attention_heads=4, num_key_value_heads=4)
# The prompt has tokens that the table of layers' inputs lacks.
GEMMA3N = dict(
    {k: v for k, v in GEMMA4.items() if k in SMALL or k in (
        "head_dim", "hidden_activation", "layer_types", "num_kv_shared_layers", "sliding_window",
        "final_logit_softcapping", "hidden_size_per_layer_input")},
    architectures=["Gemma3nForCausalLM"], model_type="gemma3n_text",
    layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    intermediate_size=[96, 96, 80, 80, 96, 72], vocab_size_per_layer_input=290,
    activation_sparsity_pattern=[0.95, 0.6, 0.0, 0.0, 0.3, 0.8], laurel_rank=9,
    altup_num_inputs=4, altup_active_idx=0, altup_correct_scale=True, altup_coef_clip=120.0,
    rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=100000.0),
                         sliding_attention=dict(rope_type="default", rope_theta=5000.0)))
# The text of a model that reads images, with the keys of published models, another active stream
# and a scale of corrections that is stored but not applied.
GEMMA3N_IMAGES = dict(
    architectures=["Gemma3nForConditionalGeneration"], model_type="gemma3n", boi_token_id=255999,
    eos_token_id=[2, 3], vision_config=dict(model_type="gemma3n_vision"),
    audio_config=dict(model_type="gemma3n_audio"),
    text_config={
        **{k: v for k, v in GEMMA3N.items() if k not in (
            "architectures", "rope_parameters", "layer_types", "activation_sparsity_pattern",
            "tie_word_embeddings", "final_logit_softcapping", "hidden_activation")},
        "intermediate_size": 96, "num_kv_shared_layers": 1, "altup_num_inputs": 3,
        "altup_active_idx": 1, "altup_lr_multiplier": 1.0, "altup_correct_scale": False,
        "query_pre_attn_scalar": 24, "rope_theta": 200000.0, "rope_local_base_freq": 3000.0,
        "rope_scaling": None})
# As the published models say it, which leave most of the text's sizes to the class's defaults.
GEMMA3_IMAGES = dict(
    architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", boi_token_index=290,
    eoi_token_index=291, image_token_index=292, mm_tokens_per_image=4, eos_token_id=[2, 7],
    text_config={k: v for k, v in GEMMA3.items() if k not in (
        "architectures", "bos_token_id", "eos_token_id", "tie_word_embeddings")},
    vision_config=dict(model_type="siglip_vision_model", hidden_size=32, intermediate_size=48,
                       num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14))
MISTRAL3_IMAGES = dict(
    architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3",
    image_token_index=10, tie_word_embeddings=False,
    text_config={k: v for k, v in MISTRAL.items() if k not in ("architectures", "vocab_size")}
    | dict(vocab_size=288, head_dim=32, num_hidden_layers=2),
    vision_config=dict(model_type="pixtral", hidden_size=32, intermediate_size=48, head_dim=16,
                       num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14))
QWEN_VISION = dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=14,
                   spatial_merge_size=2, temporal_patch_size=2)
QWEN2_5_VL = dict(
    architectures=["Qwen2_5_VLForConditionalGeneration"], model_type="qwen2_5_vl",
    image_token_id=280, video_token_id=281, vision_start_token_id=282, vision_end_token_id=283,
    tie_word_embeddings=True, text_config={
        **{k: v for k, v in QWEN2.items() if k not in (
            "architectures", "rope_theta", "tie_word_embeddings")},
        "model_type": "qwen2_5_vl_text", "num_hidden_layers": 2, "vocab_size": 288,
        "rope_parameters": dict(rope_type="default", rope_theta=1000000.0,
                                mrope_section=[2, 3, 3])},
    vision_config=dict(QWEN_VISION, model_type="qwen2_5_vl", window_size=56, out_hidden_size=64,
                       fullatt_block_indexes=[0]))
QWEN3_VL = dict(
    architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl",
    image_token_id=280, video_token_id=281, vision_start_token_id=282, vision_end_token_id=283,
    tie_word_embeddings=False, text_config={
        **{k: v for k, v in QWEN3.items() if k not in (
            "architectures", "rope_theta", "tie_word_embeddings", "use_sliding_window",
            "sliding_window", "max_window_layers")},
        "model_type": "qwen3_vl_text", "num_hidden_layers": 2, "vocab_size": 288,
        "rope_parameters": dict(rope_type="default", rope_theta=500000.0,
                                mrope_section=[6, 5, 5], mrope_interleaved=True)},
    vision_config=dict(QWEN_VISION, model_type="qwen3_vl", out_hidden_size=64,
                       num_position_embeddings=16, deepstack_visual_indexes=[0]))
QWEN3_VL_MOE = {
    **QWEN3_VL, "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "model_type": "qwen3_vl_moe", "text_config": {
        **QWEN3_VL["text_config"], "model_type": "qwen3_vl_moe_text", "num_experts": 6,
        "num_experts_per_tok": 3, "moe_intermediate_size": 40, "decoder_sparse_step": 1,
        "mlp_only_layers": []},
    "vision_config": dict(QWEN3_VL["vision_config"], model_type="qwen3_vl_moe")}
PHI3 = dict(SMALL, architectures=["Phi3ForCausalLM"], model_type="phi3", sliding_window=None)
PHI3_LONGROPE = dict(
    PHI3, original_max_position_embeddings=64, sliding_window=48, partial_rotary_factor=0.75,
    tie_word_embeddings=True, rope_scaling=dict(
        type="longrope", short_factor=[1.0, 1.25, 1.5, 2.0, 3.0, 4.5],
        long_factor=[2.0, 3.0, 4.0, 6.0, 8.0, 12.0]))
PHI = dict(SMALL, architectures=["PhiForCausalLM"], model_type="phi", hidden_act="gelu_new",
           layer_norm_eps=1e-5, partial_rotary_factor=0.5, qk_layernorm=False)
OLMO2 = dict(SMALL, architectures=["Olmo2ForCausalLM"], model_type="olmo2")
SMOLLM3 = dict(SMALL, architectures=["SmolLM3ForCausalLM"], model_type="smollm3",
               num_hidden_layers=4, no_rope_layer_interval=2, tie_word_embeddings=True,
               use_sliding_window=False)
GRANITE = dict(SMALL, architectures=["GraniteForCausalLM"], model_type="granite",
               embedding_multiplier=6.0, residual_multiplier=0.25, attention_multiplier=0.125,
               logits_scaling=2.0, attention_bias=False, mlp_bias=False)
MINISTRAL = dict(SMALL, architectures=["MinistralForCausalLM"], model_type="ministral",
                 head_dim=32, sliding_window=8, layer_types=[
                     "full_attention", "sliding_attention", "sliding_attention"])
STARCODER2 = dict(SMALL, architectures=["Starcoder2ForCausalLM"], model_type="starcoder2",
                  hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5, sliding_window=16,
                  use_bias=True, tie_word_embeddings=True)
GPT_NEOX = dict(
    architectures=["GPTNeoXForCausalLM"], model_type="gpt_neox", vocab_size=288, hidden_size=64,
    intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, hidden_act="gelu",
    max_position_embeddings=128, layer_norm_eps=1e-5, rotary_pct=0.25, rotary_emb_base=10000,
    use_parallel_residual=True, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
FALCON = dict(
    architectures=["FalconForCausalLM"], model_type="falcon", vocab_size=288, hidden_size=64,
    num_hidden_layers=3, num_attention_heads=4, multi_query=True, parallel_attn=True, bias=False,
    alibi=False, new_decoder_architecture=False, layer_norm_epsilon=1e-5, bos_token_id=1,
    eos_token_id=1)
GLM = dict(SMALL, architectures=["GlmForCausalLM"], model_type="glm", head_dim=32,
           attention_bias=True, partial_rotary_factor=0.5, rms_norm_eps=1.5625e-07)

GEMMA = dict(SMALL, architectures=["GemmaForCausalLM"], model_type="gemma", head_dim=32,
             hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True)
OLMO3 = dict(SMALL, architectures=["Olmo3ForCausalLM"], model_type="olmo3", sliding_window=8,
             rope_theta=500000.0,  # transformers has no other theta for layers with a window
             max_position_embeddings=256, rope_scaling=dict(
                 rope_type="yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=32.0,
                 beta_slow=1.0, attention_factor=1.2),
             layer_types=["sliding_attention", "full_attention", "sliding_attention"])
SEED_OSS = dict(SMALL, architectures=["SeedOssForCausalLM"], model_type="seed_oss", head_dim=24,
                attention_bias=True, attention_out_bias=False, mlp_bias=False)
ERNIE = dict(SMALL, architectures=["Ernie4_5ForCausalLM"], model_type="ernie4_5", head_dim=24,
             use_bias=False, tie_word_embeddings=True, rope_theta=500000.0)
ARCEE = dict(SMALL, architectures=["ArceeForCausalLM"], model_type="arcee", hidden_act="relu2",
             attention_bias=False, mlp_bias=False)
COHERE = {**{k: v for k, v in SMALL.items() if k != "rms_norm_eps"},
          "architectures": ["CohereForCausalLM"], "model_type": "cohere", "layer_norm_eps": 1e-5,
          "logit_scale": 0.25, "use_qk_norm": False, "tie_word_embeddings": True}
COHERE2 = dict(COHERE, architectures=["Cohere2ForCausalLM"], model_type="cohere2",
               num_hidden_layers=4, sliding_window=8, sliding_window_pattern=2)
del COHERE2["use_qk_norm"]
EXAONE4 = dict(SMALL, architectures=["Exaone4ForCausalLM"], model_type="exaone4", head_dim=24,
               num_hidden_layers=4, sliding_window=8, sliding_window_pattern="LG", layer_types=[
                   "sliding_attention", "full_attention"] * 2)
OLMOE = dict(SMALL, architectures=["OlmoeForCausalLM"], model_type="olmoe", num_experts=6,
             num_experts_per_tok=3, norm_topk_prob=False, clip_qkv=None, num_hidden_layers=2)
GLM4_MOE = dict(
    SMALL, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", head_dim=32,
    attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5, moe_intermediate_size=64,
    n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, routed_scaling_factor=2.5,
    n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=True,
    num_nextn_predict_layers=1)
# Keys and values of 3 heads are as wide as no product of their parts.
GLM4_MOE_LITE = {
    **{k: v for k, v in DEEPSEEK.items() if k not in ("rope_theta", "first_k_dense_replace")},
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
    "num_attention_heads": 3, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.8,
    "rope_parameters": dict(rope_type="default", rope_theta=1000000.0)}
# Prompts are longer than what indexers choose. With fewer heads many scores would be zero, and whoever chooses the first of equal
# ones would be right: classes of transformers and of ours do not choose the same then.
DEEPSEEK_V32 = dict(DEEPSEEK_V3, architectures=["DeepseekV32ForCausalLM"],
                    model_type="deepseek_v32", index_topk=11, index_n_heads=19, index_head_dim=24)
GLM_MOE_DSA = {
    **{k: v for k, v in DEEPSEEK.items() if k not in ("rope_theta", "first_k_dense_replace")},
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa",
    "num_attention_heads": 5, "num_key_value_heads": 5, "rms_norm_eps": 1e-5, "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "mlp_layer_types": ["dense", "sparse", "sparse"], "first_k_dense_replace": 1,
    "index_topk": 13, "index_n_heads": 21, "index_head_dim": 40,
    "rope_parameters": dict(rope_type="default", rope_theta=1000000.0)}
GLM_MOE_DSA_SHARED = dict(
    GLM_MOE_DSA, num_hidden_layers=4, mlp_layer_types=["dense"] + ["sparse"] * 3,
    indexer_types=["full", "shared", "full", "shared"])
# Not in transformers: rwkv7_reference.py. The heads' norm has the epsilon that llama.cpp writes into its code.
RWKV7 = dict(
    architectures=["RWKV7ForCausalLM"], model_type="rwkv7", vocab_size=301, hidden_size=80, head_dim=16, num_heads=None,
    intermediate_size=112, hidden_ratio=4.0, num_hidden_layers=3, decay_low_rank_dim=24, a_low_rank_dim=16,
    v_low_rank_dim=8, gate_low_rank_dim=40, hidden_act="sqrelu", norm_first=True, norm_bias=True, norm_eps=4e-5,
    attn=None, attn_mode="chunk", fuse_norm=False, value_dim=[80, 80, 80], max_position_embeddings=2048,
    tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
# Not in transformers: phi4flash_reference.py. Three pairs of queries to one of keys, channels of no whole blocks, windows shorter than prompts.
PHI4FLASH = dict(
    architectures=["Phi4FlashForCausalLM"], model_type="phi4flash", vocab_size=289, hidden_size=60, intermediate_size=88,
    num_hidden_layers=8, num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=1024, layer_norm_eps=1e-5,
    hidden_act="silu", sliding_window=9, mb_per_layer=2, mamba_d_state=12, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=7,
    mamba_conv_bias=True, mamba_proj_bias=False, mlp_bias=False, lm_head_bias=False, rope_theta=10000.0, attention_dropout=0.0,
    embd_pdrop=0.0, resid_pdrop=0.0, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
# Heads of 4, a state that registers hold, biases where the published model has none and none where it has, no window.
PHI4FLASH_BIASES = dict(
    PHI4FLASH, hidden_size=40, num_hidden_layers=12, num_attention_heads=10, num_key_value_heads=10, mamba_d_state=16,
    mamba_d_conv=3, mamba_dt_rank="auto", mamba_conv_bias=False, mamba_proj_bias=True, lm_head_bias=True, sliding_window=None,
    tie_word_embeddings=False)
DOTS1 = dict(
    SMALL, architectures=["Dots1ForCausalLM"], model_type="dots1", head_dim=32,
    moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
    routed_scaling_factor=2.5, n_group=4, topk_group=2, first_k_dense_replace=1,
    norm_topk_prob=True, sliding_window=8, max_window_layers=2, num_hidden_layers=3,
    scoring_func="noaux_tc", rms_norm_eps=1e-5)
# 5 heads over 1, taps beyond the published 3, a width that block_auto_adjust_ff_dim rounds.
LFM2 = dict(
    architectures=["Lfm2ForCausalLM"], model_type="lfm2", vocab_size=289, hidden_size=80,
    intermediate_size=168, num_hidden_layers=5, num_attention_heads=5, num_key_value_heads=1,
    max_position_embeddings=1024, norm_eps=1e-5, rope_theta=10000.0, conv_L_cache=5,
    conv_bias=False, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.1,
    block_multiple_of=24, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    layer_types=["conv", "full_attention", "conv", "conv", "full_attention"])
LFM2_MOE = {
    **{k: v for k, v in LFM2.items() if not k.startswith("block_")},
    "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "conv_L_cache": 3,
    "conv_bias": True, "num_hidden_layers": 4, "moe_intermediate_size": 48, "num_experts": 6,
    "num_experts_per_tok": 3, "num_dense_layers": 1, "use_expert_bias": True,
    "norm_topk_prob": True, "routed_scaling_factor": 1.5, "tie_word_embeddings": True,
    "layer_types": ["conv", "conv", "full_attention", "conv"]}
# 4 heads of state over 2 of keys, parts of 16 positions and a half, a gate beside odd heads.
QWEN3_NEXT = dict(
    architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", vocab_size=289, hidden_size=64,
    intermediate_size=96, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
    head_dim=24, rms_norm_eps=1e-5, rope_theta=10000.0, partial_rotary_factor=0.25,
    max_position_embeddings=1024, linear_num_value_heads=4, linear_num_key_heads=2,
    linear_key_head_dim=12, linear_value_head_dim=20, linear_conv_kernel_dim=4, num_experts=5,
    num_experts_per_tok=3, moe_intermediate_size=40, shared_expert_intermediate_size=56,
    norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], tie_word_embeddings=False,
    layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"])
QWEN3_5 = dict(
    architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", vocab_size=289,
    hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-6, max_position_embeddings=1024,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25,
                         mrope_section=[2, 1, 1], mrope_interleaved=True),
    linear_num_value_heads=6, linear_num_key_heads=2, linear_key_head_dim=16,
    linear_value_head_dim=16, linear_conv_kernel_dim=3, tie_word_embeddings=True,
    full_attention_interval=3)
QWEN3_5_MOE = {
    **{k: v for k, v in QWEN3_5.items() if k != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 3, "linear_num_value_heads": 3, "linear_num_key_heads": 3,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 32, "full_attention_interval": 2}
ERNIE4_5_MOE = dict(
    SMALL, architectures=["Ernie4_5_MoeForCausalLM"], model_type="ernie4_5_moe", use_bias=False,
    moe_intermediate_size=64, moe_num_experts=8, moe_k=3, moe_num_shared_experts=2,
    moe_layer_start_index=1, moe_layer_end_index=3, moe_layer_interval=2, moe_norm_min=1e-12,
    moe_capacity=[8, 8, 8], moe_gate="topk", moe_use_aux_free=True, num_hidden_layers=4,
    tie_word_embeddings=True)
GRANITE_MOE = dict(
    SMALL, architectures=["GraniteMoeForCausalLM"], model_type="granitemoe", num_local_experts=6,
    num_experts_per_tok=3, num_hidden_layers=2, embedding_multiplier=6.0, residual_multiplier=0.25,
    attention_multiplier=0.125, logits_scaling=2.0, tie_word_embeddings=True)
GRANITE_HYBRID = dict(
    GRANITE_MOE, architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid",
    shared_intermediate_size=80, layer_types=["attention"] * 2, num_local_experts=0,
    num_experts_per_tok=0, intermediate_size=80, position_embedding_type="rope", mamba_n_heads=4,
    mamba_d_head=32, mamba_expand=2, mamba_d_state=16, mamba_d_conv=4, mamba_n_groups=1,
    mamba_chunk_size=256, mamba_conv_bias=True, mamba_proj_bias=False,
    normalization_function="rmsnorm", init_method="mup")
# 8 heads of state over one of keys; 4 in the other.
GRANITE_HYBRID_STATE = dict(
    {k: v for k, v in GRANITE_HYBRID.items() if k != "mamba_d_head"}, num_hidden_layers=3,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
    position_embedding_type="nope", mamba_n_heads=8, mamba_d_state=12, mamba_n_groups=1)
# Three groups of two heads, which nothing but recurrences reads.
MAMBA2 = dict(
    architectures=["Mamba2ForCausalLM"], model_type="mamba2", vocab_size=289, hidden_size=48,
    num_hidden_layers=3, num_heads=6, head_dim=16, expand=2, n_groups=3, state_size=12,
    conv_kernel=4, chunk_size=32, layer_norm_epsilon=1e-5, use_bias=False, use_conv_bias=True,
    hidden_act="silu", tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
# Channels are no whole blocks of 16 or 8.
MAMBA = dict(
    architectures=["MambaForCausalLM"], model_type="mamba", vocab_size=289, hidden_size=43,
    num_hidden_layers=3, state_size=8, expand=2, conv_kernel=4, layer_norm_epsilon=1e-5,
    use_bias=False, use_conv_bias=True, hidden_act="silu", tie_word_embeddings=False,
    time_step_rank=3, bos_token_id=1, eos_token_id=2)
FALCON_MAMBA = dict(
    MAMBA, architectures=["FalconMambaForCausalLM"], model_type="falcon_mamba", hidden_size=40,
    num_hidden_layers=2, state_size=16, expand=16, intermediate_size=80, time_step_rank="auto",
    mixer_rms_eps=1e-6)
JAMBA = dict(
    architectures=["JambaForCausalLM"], model_type="jamba", vocab_size=289, hidden_size=60,
    intermediate_size=88, num_hidden_layers=4, num_attention_heads=5, num_key_value_heads=1,
    max_position_embeddings=1024, rms_norm_eps=1e-6, num_experts=5, num_experts_per_tok=2,
    expert_layer_period=2, expert_layer_offset=1, attn_layer_period=3, attn_layer_offset=1,
    mamba_d_state=12, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=7, mamba_conv_bias=True,
    mamba_proj_bias=False, hidden_act="silu", tie_word_embeddings=False, bos_token_id=1,
    eos_token_id=2)
BAMBA = dict(
    architectures=["BambaForCausalLM"], model_type="bamba", vocab_size=289, hidden_size=60,
    intermediate_size=88, num_hidden_layers=4, num_attention_heads=5, num_key_value_heads=1,
    attn_layer_indices=[1], max_position_embeddings=1024, rms_norm_eps=1e-5,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0), mamba_n_heads=10,
    mamba_d_head=12, mamba_expand=2, mamba_d_state=20, mamba_d_conv=4, mamba_n_groups=2,
    mamba_chunk_size=32, mamba_conv_bias=True, mamba_proj_bias=False, tie_word_embeddings=False,
    bos_token_id=1, eos_token_id=2)
# Heads of recurrences are not as wide as the stream, and those of attention neither.
NEMOTRON_H = dict(
    architectures=["NemotronHForCausalLM"], model_type="nemotron_h", vocab_size=289,
    hidden_size=56, intermediate_size=72, hybrid_override_pattern="M*-M-", num_hidden_layers=5,
    num_attention_heads=6, num_key_value_heads=2, head_dim=20, max_position_embeddings=1024,
    layer_norm_epsilon=1e-5, ssm_state_size=12, mamba_num_heads=6, mamba_head_dim=12, n_groups=3,
    conv_kernel=4, chunk_size=32, expand=2, use_conv_bias=True, use_bias=False, mlp_bias=False,
    mlp_hidden_act="relu2", mamba_hidden_act="silu", tie_word_embeddings=False, bos_token_id=1,
    eos_token_id=2)
NEMOTRON_H_MOE = {
    **NEMOTRON_H, "hybrid_override_pattern": "MEM*E", "n_routed_experts": 6,
    "num_experts_per_tok": 3, "moe_intermediate_size": 40, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 64, "routed_scaling_factor": 2.5, "n_group": 1,
    "topk_group": 1, "norm_topk_prob": True}
FALCON_H1 = dict(
    architectures=["FalconH1ForCausalLM"], model_type="falcon_h1", vocab_size=289, hidden_size=60,
    intermediate_size=88, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1,
    head_dim=12, max_position_embeddings=1024, rms_norm_eps=1e-5,
    rope_parameters=dict(rope_type="default", rope_theta=100000.0), mamba_d_ssm=72,
    mamba_n_heads=6, mamba_d_head=12, mamba_expand=2, mamba_d_state=20, mamba_d_conv=4,
    mamba_n_groups=1, mamba_chunk_size=32, mamba_conv_bias=True, mamba_proj_bias=False,
    mamba_rms_norm=False, mamba_norm_before_gate=False, tie_word_embeddings=False,
    attention_in_multiplier=0.75, attention_out_multiplier=1.25, key_multiplier=0.5,
    ssm_in_multiplier=1.25, ssm_out_multiplier=0.75, embedding_multiplier=1.5,
    lm_head_multiplier=0.625, mlp_multipliers=[0.75, 1.25],
    ssm_multipliers=[0.75, 1.25, 0.875, 1.5, 0.5], bos_token_id=1, eos_token_id=2)
MINIMAX_M2 = dict(
    SMALL, architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", head_dim=32,
    rotary_dim=16, num_local_experts=6, num_experts_per_tok=3, num_hidden_layers=2,
    rope_theta=5000000.0, scoring_func="sigmoid", use_qk_norm=True, use_routing_bias=True,
    qk_norm_type="per_layer", router_jitter_noise=0.0)
HUNYUAN = {
    **{k: v for k, v in SMALL.items() if k != "rope_theta"},
    "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense",
    "head_dim": 24, "attention_bias": False, "tie_word_embeddings": True,
    "rope_parameters": dict(rope_type="dynamic", rope_theta=10000.0, alpha=50.0, factor=1.0,
                            beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)}
HUNYUAN_MOE = dict(HUNYUAN, architectures=["HunYuanMoEV1ForCausalLM"], model_type="hunyuan_v1_moe",
                   num_experts=5, moe_topk=2, num_attention_heads=6, num_key_value_heads=2,
                   rope_parameters=dict(type="dynamic", rope_type="dynamic", rope_theta=10000.0,
                                        alpha=50.0, factor=1.0))
MINISTRAL3 = {
    **{k: v for k, v in SMALL.items() if k != "rope_theta"},
    "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "head_dim": 24,
    "sliding_window": None, "max_position_embeddings": 512, "rope_parameters": dict(
        type="yarn", rope_type="yarn", rope_theta=1000000.0, factor=4.0,
        original_max_position_embeddings=128, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
        mscale_all_dim=1.0, llama_4_scaling_beta=0.1)}
QWEN3_MOE_LOCAL = {("num_local_experts" if k == "num_experts" else k): v
                   for k, v in QWEN3_MOE.items()}
GPT_OSS_PLAIN = {k: v for k, v in GPT_OSS.items() if k != "rope_scaling"}

# Scores grow within the prompt.
MINISTRAL3_LONG = dict(MINISTRAL3, rope_parameters=dict(
    MINISTRAL3["rope_parameters"], factor=32.0, original_max_position_embeddings=16))
INTERNLM3 = dict(SMALL, architectures=["InternLM3ForCausalLM"], model_type="internlm3", head_dim=24,
                 qkv_bias=True, bias=True)
IQUEST = dict(SMALL, architectures=["IQuestCoderForCausalLM"], model_type="iquestcoder",
              head_dim=24, clip_qkv=None, use_sliding_window=False)
JAIS2 = {**{k: v for k, v in SMALL.items() if k != "rms_norm_eps"},
         "architectures": ["Jais2ForCausalLM"], "model_type": "jais2", "hidden_act": "relu2",
         "layer_norm_eps": 1e-5, "attention_bias": True, "mlp_bias": True}
HELIUM = dict(SMALL, architectures=["HeliumForCausalLM"], model_type="helium", head_dim=16,
              rms_norm_eps=1e-8, rope_theta=100000.0)
CWM = {**{k: v for k, v in SMALL.items() if k != "rope_theta"},
       "architectures": ["CwmForCausalLM"], "model_type": "cwm", "head_dim": 24,
       "num_hidden_layers": 5, "sliding_window": 8}
YOUTU = {k: v for k, v in DEEPSEEK.items() if k not in (
    "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
    "first_k_dense_replace", "norm_topk_prob")} | dict(
        architectures=["YoutuForCausalLM"], model_type="youtu", tie_word_embeddings=True)
VAULT_GEMMA = dict(GEMMA2, architectures=["VaultGemmaForCausalLM"], model_type="vaultgemma")
HYPERCLOVAX = dict(SMALL, architectures=["HyperCLOVAXForCausalLM"], model_type="hyperclovax",
                   head_dim=24, embedding_multiplier=6.0, residual_multiplier=1.0,
                   attention_multiplier=0.125, logits_scaling=0.25, use_post_norm=True)
GRANITE_SWA = dict(
    SMALL, architectures=["GraniteSWAForCausalLM"], model_type="granite_swa", num_hidden_layers=5,
    embedding_multiplier=6.0, residual_multiplier=0.25, attention_multiplier=0.125,
    logits_scaling=2.0, sliding_window=8, tie_word_embeddings=True,
    layer_rope_theta=[0, 10000.0, 500.0, 10000.0, 0])
# MiniCPM's own code is not part of transformers; its scales are Granite's.
MINICPM = dict(SMALL, architectures=["MiniCPMForCausalLM"], model_type="minicpm", scale_emb=12,
               scale_depth=1.4, dim_model_base=32, tie_word_embeddings=True)
MINICPM_RUN = dict(
    SMALL, architectures=["GraniteForCausalLM"], model_type="granite", embedding_multiplier=12.0,
    residual_multiplier=1.4 / math.sqrt(3), attention_multiplier=0.25, logits_scaling=2.0,
    tie_word_embeddings=True)
# Nor is that of MiMo, which is Qwen2.
MIMO_RUN = dict(QWEN2, tie_word_embeddings=False, num_hidden_layers=2)
MIMO = dict(MIMO_RUN, architectures=["MiMoForCausalLM"], model_type="mimo", attention_bias=True, head_dim=16,
            num_nextn_predict_layers=1)
# Nor is that of EXAONE 3, which is Llama's under other names.
EXAONE = dict(
    architectures=["ExaoneForCausalLM"], model_type="exaone", vocab_size=301, hidden_size=64,
    intermediate_size=96, num_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    max_position_embeddings=128, layer_norm_epsilon=1e-5, rope_theta=10000.0,
    activation_function="silu", embed_dropout=0.0, attention_dropout=0.0,
    tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
EXAONE_RENAME = {
    "model.embed_tokens": "transformer.wte", "model.layers.": "transformer.h.",
    "model.norm": "transformer.ln_f", "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn.": "attn.attention.", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    "mlp.gate_proj": "mlp.c_fc_0", "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj"}
SIGMOID_MOE = dict(SMALL, head_dim=24, moe_intermediate_size=64, num_experts_per_tok=3,
                   norm_topk_prob=True, routed_scaling_factor=2.5)
EXAONE_MOE = dict(
    SIGMOID_MOE, architectures=["ExaoneMoeForCausalLM"], model_type="exaone_moe",
    num_hidden_layers=4, num_experts=8, num_shared_experts=1, n_group=1, topk_group=1,
    first_k_dense_replace=1, sliding_window=8, sliding_window_pattern=4)
SOLAR_OPEN = {**{k: v for k, v in SIGMOID_MOE.items() if k != "intermediate_size"},
              "architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open",
              "num_hidden_layers": 2, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 2,
              "topk_group": 1, "attention_bias": True, "rope_theta": 1000000.0}
HY_V3 = {**{k: v for k, v in SIGMOID_MOE.items()
            if k not in ("norm_topk_prob", "routed_scaling_factor")},
         "architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "num_experts": 8,
         "num_shared_experts": 1, "router_scaling_factor": 2.5}
HY_V3_RENAME = {".mlp.gate.weight": ".mlp.router.gate.weight",
                ".mlp.e_score_correction_bias": ".mlp.expert_bias",
                ".mlp.shared_experts.": ".mlp.shared_mlp."}
MELLUM = {**{k: v for k, v in QWEN3_MOE.items()
             if k not in ("mlp_only_layers", "rope_theta", "norm_topk_prob")},
          "architectures": ["MellumForCausalLM"], "model_type": "mellum", "num_hidden_layers": 4,
          "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8,
          "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
          "rope_parameters": dict(
              full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=4.0,
                                  original_max_position_embeddings=32),
              sliding_attention=dict(rope_type="default", rope_theta=3000.0))}
STABLELM = {**{k: v for k, v in SMALL.items() if k != "rms_norm_eps"},
            "architectures": ["StableLmForCausalLM"], "model_type": "stablelm",
            "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "use_qkv_bias": True,
            "use_parallel_residual": False, "qk_layernorm": False}
GLM_VISION = dict(QWEN_VISION, model_type="glm4v_vision", out_hidden_size=64, image_size=28)
GLM_ROPE = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5,
                mrope_section=[2, 3, 3])
GLM4V = dict(
    architectures=["Glm4vForConditionalGeneration"], model_type="glm4v", image_token_id=280,
    video_token_id=281, image_start_token_id=282, image_end_token_id=283,
    video_start_token_id=284, video_end_token_id=285, tie_word_embeddings=False,
    text_config={**{k: v for k, v in SMALL.items() if k not in (
        "architectures", "rope_theta", "tie_word_embeddings")}, "model_type": "glm4v_text",
        "num_hidden_layers": 2, "hidden_size": 128, "rope_parameters": GLM_ROPE},
    vision_config=dict(GLM_VISION, out_hidden_size=128))
GLM4V_MOE = dict(
    GLM4V, architectures=["Glm4vMoeForConditionalGeneration"], model_type="glm4v_moe",
    text_config={**{k: v for k, v in GLM4_MOE.items() if k not in (
        "architectures", "rope_theta", "tie_word_embeddings", "use_qk_norm",
        "partial_rotary_factor", "num_nextn_predict_layers")}, "model_type": "glm4v_moe_text",
        "num_hidden_layers": 2, "rope_parameters": GLM_ROPE},
    vision_config=dict(GLM_VISION, model_type="glm4v_moe_vision"))
APERTUS = dict(SMALL, architectures=["ApertusForCausalLM"], model_type="apertus", head_dim=24,
               hidden_act="xielu", post_norm=False, qk_norm=True)
SMOLVLM = dict(
    architectures=["SmolVLMForConditionalGeneration"], model_type="smolvlm", image_token_id=290,
    scale_factor=2, tie_word_embeddings=False, pad_token_id=0,
    text_config=dict(SMALL, num_hidden_layers=2),
    vision_config=dict(model_type="smolvlm_vision", hidden_size=32, intermediate_size=48,
                       num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=4))

# The names of each expert's parts in transformers' stacked gate_up_proj and down_proj.
SEPARATE_EXPERTS = [["mlp.experts.{e}.gate_proj.weight", "mlp.experts.{e}.up_proj.weight"],
                    ["mlp.experts.{e}.down_proj.weight"]]

MIXTRAL_RENAME = {".mlp.gate.": ".block_sparse_moe.gate."}
MINIMAX_RENAME = {".mlp.gate.": ".block_sparse_moe.gate.",
                  ".mlp.e_score_correction_bias": ".block_sparse_moe.e_score_correction_bias"}
ERNIE_RENAME = {".mlp.gate.moe_statics.": ".mlp.moe_statics."}
GRANITE_RENAME = {".experts.gate_up_proj": ".input_linear.weight",
                  ".experts.down_proj": ".output_linear.weight",
                  ".router.weight": ".router.layer.weight"}
MIXTRAL_EXPERTS = [["block_sparse_moe.experts.{e}.w1.weight",
                    "block_sparse_moe.experts.{e}.w3.weight"],
                   ["block_sparse_moe.experts.{e}.w2.weight"]]
NEMOTRON_RENAME = {"model.": "backbone."}
NEMOTRON_EXPERTS = [["mixer.experts.{e}.up_proj.weight"], ["mixer.experts.{e}.down_proj.weight"]]
JAMBA_EXPERTS = [["feed_forward.experts.{e}.gate_proj.weight",
                  "feed_forward.experts.{e}.up_proj.weight"],
                 ["feed_forward.experts.{e}.down_proj.weight"]]
LFM2_EXPERTS = [["feed_forward.experts.{e}.w1.weight", "feed_forward.experts.{e}.w3.weight"],
                ["feed_forward.experts.{e}.w2.weight"]]
# Activations in 8 bits could choose other experts; here both are always chosen.
TWO_EXPERTS = dict(MIXTRAL, num_hidden_layers=2, num_local_experts=2)
FP8 = dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[32, 32])

# name -> config and how the checkpoint is stored: "prefix" is left out of the names in the file,
# "run_config" is what transformers runs where it lacks the class, "rename" gives parts of names that
# differ there, "experts" the names of experts' tensors where each
# has its own, "transposed" that stacked ones have inputs before outputs,
# "dtype" and "shards" say how safetensors are written, "gguf" that the weights are those of this
# GGUF type, dequantised.
CASES = {
    "llama": dict(config=LLAMA, shards=2),
    "llama3_rope": dict(config=dict(
        LLAMA, hidden_size=64, num_attention_heads=4, head_dim=24, attention_bias=True,
        mlp_bias=True, tie_word_embeddings=True, rope_theta=500000.0,
        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                          high_freq_factor=4.0, original_max_position_embeddings=16))),
    "llama_linear_rope": dict(config={
        **{k: v for k, v in LLAMA.items() if k != "rope_theta"}, "num_hidden_layers": 2,
        "rope_parameters": dict(rope_type="linear", factor=2.5, rope_theta=20000.0)}),
    "llama_yarn_rope": dict(config=dict(
        LLAMA, num_hidden_layers=2,
        rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32))),
    "llama_ladder": dict(config=dict(LLAMA, ladder_residual=True)),
    "llama_bf16": dict(config=dict(LLAMA, num_hidden_layers=2, tie_word_embeddings=True),
                       dtype="BF16"),
    "llama_f16": dict(config=dict(LLAMA, num_hidden_layers=2), dtype="F16"),
    "llama_q8_0": dict(config=LLAMA, gguf="Q8_0"),
    "llama_q4_0": dict(config=LLAMA, gguf="Q4_0"),
    "mistral": dict(config=MISTRAL),
    "mistral_window": dict(config=dict(MISTRAL, sliding_window=8)),
    "qwen2": dict(config=QWEN2),
    "qwen2_window": dict(config=dict(QWEN2, use_sliding_window=True, sliding_window=8,
                                     max_window_layers=1, tie_word_embeddings=False)),
    "qwen2_q8_0": dict(config=QWEN2, gguf="Q8_0"),
    "qwen3": dict(config=QWEN3),
    "mixtral": dict(config=MIXTRAL, rename=MIXTRAL_RENAME, experts=MIXTRAL_EXPERTS),
    "mixtral_stacked": dict(config=dict(MIXTRAL, num_hidden_layers=2)),
    "qwen2_moe": dict(config=QWEN2_MOE, experts=SEPARATE_EXPERTS),
    "qwen3_moe": dict(config=QWEN3_MOE, experts=SEPARATE_EXPERTS),
    "qwen3_moe_stacked": dict(config=dict(QWEN3_MOE, num_hidden_layers=2, norm_topk_prob=False)),
    "gpt_oss": dict(config=GPT_OSS),
    "gpt_oss_mxfp4": dict(config=dict(GPT_OSS, num_hidden_layers=2,
                                      layer_types=["sliding_attention", "full_attention"],
                                      quantization_config=dict(quant_method="mxfp4"))),
    "llama_gptq": dict(config=dict(LLAMA, rope_theta=500.0, quantization_config=dict(
        quant_method="gptq", bits=4, group_size=32, desc_act=True, sym=False))),
    "mixtral_gptq": dict(config=dict(TWO_EXPERTS, quantization_config=dict(
        quant_method="gptq", bits=4, group_size=32, desc_act=True, sym=False)),
        rename=MIXTRAL_RENAME, experts=MIXTRAL_EXPERTS),
    "mixtral_awq": dict(config=dict(TWO_EXPERTS, quantization_config=dict(
        quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm")),
        rename=MIXTRAL_RENAME, experts=MIXTRAL_EXPERTS),
    "mixtral_w4a16": dict(config=dict(TWO_EXPERTS, quantization_config=dict(
        quant_method="compressed-tensors", format="pack-quantized", config_groups=dict(
            group_0=dict(targets=["Linear"], weights=dict(
                num_bits=4, type="int", symmetric=True, strategy="group", group_size=32))))),
        rename=MIXTRAL_RENAME, experts=MIXTRAL_EXPERTS),
    "qwen3_moe_nvfp4": dict(config=dict(
        QWEN3_MOE, num_hidden_layers=2, num_experts=2, num_experts_per_tok=2,
        quantization_config=dict(quant_method="modelopt", quant_algo="NVFP4", group_size=16)),
        experts=SEPARATE_EXPERTS),
    "qwen3_moe_fp8": dict(config=dict(QWEN3_MOE, num_hidden_layers=2, quantization_config=FP8),
                          experts=SEPARATE_EXPERTS),
    "deepseek_v3_fp8": dict(config=dict(
        DEEPSEEK_V3, num_hidden_layers=2, kv_lora_rank=64, q_lora_rank=64, v_head_dim=24,
        quantization_config=FP8), experts=SEPARATE_EXPERTS),
    "deepseek_v2": dict(config=DEEPSEEK_V2, experts=SEPARATE_EXPERTS),
    "deepseek_v2_lite": dict(config=DEEPSEEK_V2_LITE),
    "deepseek_v3": dict(config=DEEPSEEK_V3, experts=SEPARATE_EXPERTS),
    "decilm": dict(config=DECI),
    "nemotron": dict(config=NEMOTRON),
    "gpt2": dict(config=GPT2),
    "gpt2_bare": dict(config=dict(GPT2, n_inner=96, activation_function="gelu", n_layer=2,
                                  scale_attn_by_inverse_layer_idx=True), prefix="transformer."),
    "gemma2": dict(config=GEMMA2),
    "gemma3": dict(config=GEMMA3),
    "llama4": dict(config=LLAMA4),
    "llama4_plain": dict(config=LLAMA4_PLAIN),
    "gemma4": dict(config=GEMMA4),
    "gemma4_dense": dict(config=GEMMA4_DENSE),
    "gemma4_moe": dict(config=GEMMA4_MOE),
    "gemma3_layer_types": dict(config=GEMMA3_NESTED),
    "gemma3n": dict(config=GEMMA3N),
    "gemma3n_images": dict(config=GEMMA3N_IMAGES, text_alone=True, rename={
        "model.": "model.language_model."}),
    "gemma3_images": dict(config=GEMMA3_IMAGES, rename={
        "model.language_model.": "language_model.model."}),
    "gemma3_images_moved": dict(config=GEMMA3_IMAGES),
    "mistral3_images": dict(config=MISTRAL3_IMAGES, rename={
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head."}),
    "phi3": dict(config=PHI3),
    "phi3_longrope": dict(config=PHI3_LONGROPE),
    # Longer than the original context: all positions have the angles for long texts.
    "phi3_longrope_long": dict(config=PHI3_LONGROPE, prompt_tokens=100),
    "phi": dict(config=PHI),
    "olmo2": dict(config=OLMO2),
    "smollm3": dict(config=SMOLLM3),
    "granite": dict(config=GRANITE),
    "ministral": dict(config=MINISTRAL),
    "starcoder2": dict(config=STARCODER2),
    "gpt_neox": dict(config=GPT_NEOX, rename={"lm_head.weight": "embed_out.weight"}),
    "gpt_neox_sequential": dict(config=dict(GPT_NEOX, use_parallel_residual=False, rotary_pct=1.0,
                                            num_hidden_layers=2),
                                rename={"lm_head.weight": "embed_out.weight"}),
    "falcon": dict(config=FALCON),
    "falcon_grouped": dict(config=dict(FALCON, new_decoder_architecture=True, num_kv_heads=2,
                                       num_hidden_layers=2, tie_word_embeddings=False)),
    "falcon_sequential": dict(config=dict(FALCON, multi_query=False, parallel_attn=False,
                                          bias=True, num_hidden_layers=2)),
    "gemma": dict(config=GEMMA),
    "gemma3_softcap": dict(config=dict(GEMMA3, attn_logit_softcapping=2.0, num_hidden_layers=2)),
    "olmo3": dict(config=OLMO3),
    "seed_oss": dict(config=SEED_OSS),
    "ernie4_5": dict(config=ERNIE),
    "arcee": dict(config=ARCEE),
    "cohere": dict(config=COHERE),
    "cohere2": dict(config=COHERE2),
    "exaone4": dict(config=EXAONE4),
    "olmoe": dict(config=OLMOE, experts=SEPARATE_EXPERTS),
    "glm4_moe": dict(config=GLM4_MOE, experts=SEPARATE_EXPERTS),
    "glm4_moe_lite": dict(config=GLM4_MOE_LITE, experts=SEPARATE_EXPERTS),
    "deepseek_v32": dict(config=DEEPSEEK_V32, experts=SEPARATE_EXPERTS),
    "rwkv7": dict(config=RWKV7),
    "phi4flash": dict(config=PHI4FLASH),
    "phi4flash_biases": dict(config=PHI4FLASH_BIASES),
    "glm_moe_dsa": dict(config=GLM_MOE_DSA, experts=SEPARATE_EXPERTS),
    "glm_moe_dsa_shared": dict(config=GLM_MOE_DSA_SHARED, experts=SEPARATE_EXPERTS),
    "qwen2_5_vl": dict(config=QWEN2_5_VL),
    "qwen3_vl": dict(config=QWEN3_VL),
    "qwen3_vl_moe": dict(config=QWEN3_VL_MOE, transposed=True),
    "dots1": dict(config=DOTS1, experts=SEPARATE_EXPERTS),
    "ernie4_5_moe": dict(config=ERNIE4_5_MOE, rename=ERNIE_RENAME, experts=SEPARATE_EXPERTS),
    "granitemoe": dict(config=GRANITE_MOE, rename=GRANITE_RENAME),
    "granitemoeshared": dict(config=dict(
        GRANITE_MOE, architectures=["GraniteMoeSharedForCausalLM"], model_type="granitemoeshared",
        shared_intermediate_size=80), rename=GRANITE_RENAME),
    "granitemoehybrid": dict(config=GRANITE_HYBRID, rename=GRANITE_RENAME),
    "granitemoehybrid_experts": dict(config=dict(
        GRANITE_HYBRID, num_local_experts=6, num_experts_per_tok=3, intermediate_size=64,
        position_embedding_type="nope"), rename=GRANITE_RENAME),
    "granitemoehybrid_state": dict(config=GRANITE_HYBRID_STATE, rename=GRANITE_RENAME),
    "granitemoehybrid_groups": dict(config=dict(
        GRANITE_HYBRID_STATE, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2,
        layer_types=["linear_attention", "full_attention"], position_embedding_type="rope",
        mamba_n_groups=4, mamba_d_conv=3, mamba_conv_bias=False, mamba_proj_bias=True,
        time_step_limit=[0.1, 0.9]), rename=GRANITE_RENAME),
    "mamba2": dict(config=MAMBA2),
    "mamba2_biases": dict(config=dict(
        MAMBA2, num_hidden_layers=2, n_groups=1, use_bias=True, use_conv_bias=False,
        conv_kernel=3, tie_word_embeddings=True, time_step_limit=[0.1, 0.9])),
    "mamba": dict(config=MAMBA),
    "mamba_biases": dict(config=dict(
        MAMBA, num_hidden_layers=2, hidden_size=37, state_size=32, time_step_rank=5, use_bias=True,
        use_conv_bias=False, conv_kernel=3, tie_word_embeddings=True)),
    "falcon_mamba": dict(config=FALCON_MAMBA),
    "jamba": dict(config=JAMBA, experts=JAMBA_EXPERTS, experts_at="feed_forward.experts."),
    "jamba_stacked": dict(config=dict(
        JAMBA, num_hidden_layers=3, expert_layer_offset=0, mamba_proj_bias=True,
        mamba_conv_bias=False, mamba_d_conv=3, tie_word_embeddings=True)),
    "jamba_dense": dict(config=dict(JAMBA, num_hidden_layers=2, num_experts=1,
                                    num_experts_per_tok=1)),
    "bamba": dict(config=BAMBA),
    "nemotron_h": dict(config=NEMOTRON_H, rename=NEMOTRON_RENAME),
    "nemotron_h_moe": dict(config=NEMOTRON_H_MOE, rename=NEMOTRON_RENAME,
                           experts=NEMOTRON_EXPERTS, experts_at="mixer.experts."),
    "falcon_h1": dict(config=FALCON_H1),
    "falcon_h1_norm": dict(config=dict(
        FALCON_H1, num_hidden_layers=2, mamba_rms_norm=True, mamba_norm_before_gate=True,
        mamba_n_groups=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        tie_word_embeddings=True)),
    "minimax_m2": dict(config=MINIMAX_M2, rename=MINIMAX_RENAME, experts=MIXTRAL_EXPERTS),
    "hunyuan": dict(config=HUNYUAN),
    "hunyuan_moe": dict(config=HUNYUAN_MOE, experts=SEPARATE_EXPERTS),
    "hunyuan_moe_stacked": dict(config=dict(HUNYUAN_MOE, num_hidden_layers=2)),
    "ministral3": dict(config=MINISTRAL3),
    "ministral3_long": dict(config=MINISTRAL3_LONG),
    "internlm3": dict(config=INTERNLM3),
    "iquestcoder": dict(config=IQUEST),
    "jais2": dict(config=JAIS2),
    "helium": dict(config=HELIUM),
    "cwm": dict(config=CWM),
    "youtu": dict(config=YOUTU),
    "vaultgemma": dict(config=VAULT_GEMMA),
    "hyperclovax": dict(config=HYPERCLOVAX),
    "hyperclovax_plain": dict(config={
        **{k: v for k, v in HYPERCLOVAX.items() if k != "attention_multiplier"},
        "residual_multiplier": 0.25, "use_post_norm": False, "num_hidden_layers": 2}),
    "granite_swa": dict(config=GRANITE_SWA),
    "minicpm": dict(config=MINICPM, run_config=MINICPM_RUN),
    "mimo": dict(config=MIMO, run_config=MIMO_RUN),
    "exaone": dict(config=EXAONE, run_config=SMALL, rename=EXAONE_RENAME),
    "exaone_moe": dict(config=EXAONE_MOE, experts=SEPARATE_EXPERTS, rename={
        ".mlp.gate.e_score_correction_bias": ".mlp.e_score_correction_bias"}),
    "solar_open": dict(config=SOLAR_OPEN, experts=SEPARATE_EXPERTS),
    "hy_v3": dict(config=HY_V3, rename=HY_V3_RENAME, experts=SEPARATE_EXPERTS),
    "mellum": dict(config=MELLUM, experts=SEPARATE_EXPERTS),
    "stablelm": dict(config=STABLELM),
    "stablelm_parallel": dict(config=dict(STABLELM, use_parallel_residual=True,
                                          use_qkv_bias=False)),
    "apertus": dict(config=APERTUS),
    "smolvlm": dict(config=SMOLVLM),
    "glm4v": dict(config=GLM4V),
    "glm4v_moe": dict(config=GLM4V_MOE, experts=SEPARATE_EXPERTS),
    "qwen3_moe_local": dict(config=dict(QWEN3_MOE_LOCAL, num_hidden_layers=2),
                            experts=SEPARATE_EXPERTS),
    "gpt_oss_default_rope": dict(config=dict(
        GPT_OSS_PLAIN, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])),
    "lfm2": dict(config=LFM2),
    "lfm2_first": dict(config={
        **{k: v for k, v in LFM2.items() if k not in ("layer_types", "tie_word_embeddings")},
        "num_hidden_layers": 3, "full_attn_idxs": [1], "conv_bias": True, "tie_embedding": True,
        "block_auto_adjust_ff_dim": False, "intermediate_size": 96, "block_ff_dim": 72,
        "num_attention_heads": 4, "num_key_value_heads": 2, "conv_dim": 80, "num_heads": 4,
        "block_norm_eps": 1e-5, "theta": 10000.0}),
    "lfm2_moe": dict(config=LFM2_MOE),
    "lfm2_moe_separate": dict(
        config=dict(LFM2_MOE, num_hidden_layers=3, use_expert_bias=False, conv_bias=False,
                    layer_types=["full_attention", "conv", "conv"]),
        experts=LFM2_EXPERTS, experts_at="feed_forward.experts."),
    "qwen3_next": dict(config=QWEN3_NEXT, experts=SEPARATE_EXPERTS),
    "qwen3_5": dict(config=QWEN3_5),
    "qwen3_5_moe": dict(config=QWEN3_5_MOE),
    "glm": dict(config=GLM),
    "glm4": dict(config=dict(GLM, architectures=["Glm4ForCausalLM"], model_type="glm4")),
}


def power_of_two(value: float) -> float:
    return 2.0 ** round(math.log2(value))


def scale_and_offset(name: str, shape) -> tuple[float, float]:
    """Activations stay near unit size, and no term of the forward is negligible."""
    altup = {"modality_router.weight": (8.0, 0.0), "prediction_coefs.weight": (0.25, 0.0),
             "correction_coefs.weight": (0.5, 0.0), "correct_output_scale": (0.25, 1.0)}
    for ending, values in altup.items():
        if name.endswith(ending):
            return values
    if "altup_" in name:
        return power_of_two(math.sqrt(3.0 / min(shape))), 0.0
    if ".x_" in name or name.endswith((".k_a", ".k_k")):  # RWKV-7
        return 0.5, 0.5
    if ".lambda_" in name:  # differential attention
        return 0.5, 0.0
    if "subln" in name:
        return 0.25, 1.0
    if name.endswith("w_lora.lora.2.bias"):
        return 2.0, -1.0
    if name.endswith("act_fn.beta"):
        return 0.0, 0.5
    if name.endswith("act_fn.eps"):
        return 0.0, -2.0 ** -20
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return 0.25, 1.0
    if "norm" in name or "ln_" in name:
        return 0.25, (0.0 if name.endswith("bias") else 1.0)
    if len(shape) == 1 or name.endswith(("e_score_correction_bias", "expert_bias")):
        return 0.25, 0.0
    if "embed" in name or "wte" in name:
        return 0.5, 0.0
    if "wpe" in name:
        return 0.25, 0.0
    return power_of_two(math.sqrt(3.0 / min(shape))), 0.0


def stored(values: np.ndarray, case: dict) -> np.ndarray:
    """What a reader of the stored weights sees."""
    quantization = case.get("gguf")
    if quantization is None or values.ndim == 1:
        return values
    kind = gguf.GGMLQuantizationType[quantization]
    return gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)


def file_tensors(name: str, parameter, case: dict):
    """Where a parameter lies in the file: names, and for each the part of the parameter."""
    for before, after in case.get("rename", {}).items():
        name = name.replace(before, after)
    name = name.removeprefix(case.get("prefix", ""))
    if case.get("transposed") and ".experts." in name:
        return [(name, parameter.transpose(1, 2))]
    layer, dot, leaf = name.partition(case.get("experts_at", "mlp.experts."))
    if "experts" not in case or not dot:
        return [(name, parameter)]
    parts = case["experts"][0 if leaf in ("gate_up_proj", "up_proj") else 1]
    return [(layer + part.replace("{e}", str(e)), half)
            for e in range(parameter.shape[0])
            for part, half in zip(parts, parameter[e].chunk(len(parts), dim=0))]


def set_mxfp4(name: str, parameter) -> list:
    """Fills the experts' [experts, inputs, outputs] from blocks and scales, as transformers does."""
    experts, inputs, outputs = parameter.shape
    blocks = [f"{name}_blocks", [experts, outputs, inputs // 32, 16], 128.0, 128.0, "U8", 8]
    scales = [f"{name}_scales", [experts, outputs, inputs // 32], 2.0, 122.0, "U8", 2]
    values = [torch.from_numpy(synthetic_weights.values(*tensor[:4], tensor[5]).astype(np.uint8))
              for tensor in (blocks, scales)]
    parameter.copy_(convert_moe_packed_tensors(*values, dtype=torch.float32))
    return [blocks, scales]


class NoAttention(torch.nn.Module):
    def forward(self, hidden_states, **kwargs):
        return torch.zeros_like(hidden_states), None


class LinearAttention(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.linear_attn = torch.nn.Linear(hidden, hidden, bias=False)

    def forward(self, hidden_states, **kwargs):
        return self.linear_attn(hidden_states), None


class NoMlp(torch.nn.Module):
    def forward(self, hidden_states):
        return torch.zeros_like(hidden_states)


def build_deci(config: dict):
    """Llama's model of transformers with the layers that block_configs asks for.

    The class itself is not in transformers: it comes with the checkpoints.
    """
    llama = {k: v for k, v in config.items() if k not in ("block_configs", "architectures")}
    llama.update(model_type="llama", num_key_value_heads=config["num_attention_heads"],
                 intermediate_size=1)
    base = transformers.AutoConfig.for_model(**llama)
    base._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(base, attn_implementation="eager")
    for i, (layer, block) in enumerate(zip(model.model.layers, config["block_configs"])):
        own = copy.deepcopy(base)
        attention, ffn = block["attention"], block["ffn"]
        if attention["replace_with_linear"]:
            layer.self_attn = LinearAttention(base.hidden_size)
        elif attention["no_op"]:
            layer.self_attn = NoAttention()
            layer.input_layernorm = torch.nn.Identity()
        else:
            own.num_key_value_heads = base.num_attention_heads // attention["n_heads_in_group"]
            layer.self_attn = modeling_llama.LlamaAttention(own, i)
        if ffn["no_op"]:
            layer.mlp = NoMlp()
            layer.post_attention_layernorm = torch.nn.Identity()
        else:
            width = int(2 * ffn["ffn_mult"] * base.hidden_size / 3)
            own.intermediate_size = (width + 255) // 256 * 256
            layer.mlp = modeling_llama.LlamaMLP(own)
    return model


def wire_as_ladder(model) -> None:
    """Ladder residuals (Zhang et al. 2025): a block reads the stream without what the last block has given."""
    def forward(tokens):
        base = model.model
        stream = base.embed_tokens(tokens)
        n = tokens.shape[1]
        angles = base.rotary_emb(stream, torch.arange(n)[None])
        mask = torch.full((1, 1, n, n), torch.finfo(torch.float32).min).triu(1)
        late = torch.zeros_like(stream)
        for layer in base.layers:
            given = layer.self_attn(hidden_states=layer.input_layernorm(stream), position_embeddings=angles,
                                    attention_mask=mask)[0]
            stream, late = stream + late, given
            given = layer.mlp(layer.post_attention_layernorm(stream))
            stream, late = stream + late, given
        return types.SimpleNamespace(logits=model.lm_head(base.norm(stream + late)))

    model.forward = forward


def routing_biases(model):
    """Buffers that are weights."""
    return [(name, buffer) for name, buffer in model.named_buffers()
            if name.endswith(("e_score_correction_bias", "feed_forward.expert_bias",
                              "layer_scalar", "act_fn.beta", "act_fn.eps"))]


def build_model(case: dict):
    if "block_configs" in case["config"]:
        return fill_model(build_deci(case["config"]), case)
    if case["config"]["model_type"] == "rwkv7":
        return fill_model(rwkv7_reference.Rwkv7(case["config"]), case)
    if case["config"]["model_type"] == "phi4flash":
        return fill_model(phi4flash_reference.Phi4Flash(case["config"]), case)
    # A copy: transformers completes the dictionaries inside.
    text_alone = case.get("text_alone", False)
    whole = case.get("run_config", case["config"])
    given = copy.deepcopy(whole["text_config"] if text_alone else whole)
    config = transformers.AutoConfig.for_model(
        **{k: v for k, v in given.items() if k != "quantization_config"})
    if "text_config" in case["config"] and not text_alone:
        model = transformers.AutoModelForImageTextToText.from_config(config,
                                                                     attn_implementation="eager")
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager",
                                                              experts_implementation="eager")
    if case["config"].get("ladder_residual"):
        wire_as_ladder(model)
    return fill_model(model, case)


def reads_images(name: str) -> bool:
    return any(part in name for part in (
        "vision_tower.", "multi_modal_projector.", ".visual.", "vision_model.", "connector."))


def fill_model(model, case: dict):
    quantization = case["config"].get("quantization_config", {}).get("quant_method")
    model = model.to(torch.float32).eval()
    bits = 6 if case.get("dtype") else 24  # exact in BF16 and F16, also with an offset of 1
    tensors = []
    with torch.no_grad():
        for name, parameter in list(model.named_parameters()) + routing_biases(model):
            if reads_images(name):
                continue
            if quantization == "mxfp4" and parameter.ndim == 3:
                tensors += set_mxfp4(name, parameter)
                continue
            for file_name, part in file_tensors(name, parameter, case):
                shape = list(part.shape)
                if quantization in quantised_layers.METHODS and quantised_layers.is_quantised(
                        file_name):
                    parts, values = quantised_layers.layer(quantization, file_name, *shape)
                    part.copy_(torch.from_numpy(values))
                    tensors += parts
                    continue
                scale, offset = scale_and_offset(name, shape[-2:])
                values = synthetic_weights.values(file_name, shape, scale, offset, bits)
                part.copy_(torch.from_numpy(stored(values, case)))
                tensors.append([file_name, shape, scale, offset])
    return model, tensors, bits


def rounded(value: float) -> float:
    return float(f"{value:.7g}")


def llama3_divisors(config: dict) -> list[float]:
    """The table rope_freqs.weight that llama.cpp's converter writes for Llama 3's scaling."""
    rope = config["rope_scaling"]
    dim = config["head_dim"]
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / dim)
        low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]
                  ) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        if wavelength < high:
            divisors.append(1.0)
        elif wavelength > low:
            divisors.append(rope["factor"])
        else:
            divisors.append(1.0 / ((1 - smooth) / rope["factor"] + smooth))
    return divisors


def make_case(name: str, case: dict) -> None:
    model, tensors, bits = build_model(case)
    vocab = case["config"].get("text_config", case["config"])["vocab_size"]
    prompt = [(17 * i * i + 29 * i + 11) % vocab for i in range(case.get("prompt_tokens", PROMPT_TOKENS))]
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0].numpy()
    best = np.argsort(-logits, axis=1)[:, :TOP]
    golden = dict(
        name=name, transformers=transformers.__version__, config=case["config"],
        dtype=case.get("dtype", "F32"), shards=case.get("shards", 1), bits=bits,
        gguf=case.get("gguf"), tensors=tensors, prompt=prompt,
        top=[[[int(t), rounded(row[t])] for t in ids] for row, ids in zip(logits, best)],
        last=[[rounded(x) for x in row] for row in logits[-2:]])
    if case["config"].get("rope_scaling", {}).get("rope_type") == "llama3":
        golden["rope_divisors"] = llama3_divisors(case["config"])
    path = HERE / f"{name}.json"
    path.write_text(to_text(golden))
    print(f"{path.name}: {path.stat().st_size} bytes, logits {logits.min():.2f}..{logits.max():.2f}")


def to_text(golden: dict) -> str:
    """One line per entry: small, and a change shows as the lines that changed."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
             for key, value in golden.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    for name in sys.argv[1:] or CASES:
        make_case(name, CASES[name])


if __name__ == "__main__":
    main()
