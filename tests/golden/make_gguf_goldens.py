#!/usr/bin/env python3
"""What GGUF files of tiny models hold, for tests/model/gguf_models_test.cc.

For each case a config.json, its tensors as in make_model_goldens.py, and the GGUF file that
llama.cpp's converter makes of them: architecture, metadata, and for every tensor of the file how it
comes from the folder's. Names of tensors and keys are those of the `gguf` package. No logits: the
test compares the file with the folder, and the folder's logits have goldens of their own.

Run with the versions in requirements.txt: ./make_gguf_goldens.py
"""

import copy
import json
import math

import gguf
import torch
import transformers

import make_model_goldens as models
import synthetic_weights

ARCH = gguf.MODEL_ARCH
KEYS = gguf.Keys


def gemma(config):
    return dict(config, query_pre_attn_scalar=config["head_dim"], num_hidden_layers=7)


def delta_keys(config, interval):
    heads = config["linear_num_value_heads"]
    return [(KEYS.SSM.CONV_KERNEL, config["linear_conv_kernel_dim"]),
            (KEYS.SSM.STATE_SIZE, config["linear_key_head_dim"]),
            (KEYS.SSM.GROUP_COUNT, config["linear_num_key_heads"]),
            (KEYS.SSM.TIME_STEP_RANK, heads),
            (KEYS.SSM.INNER_SIZE, heads * config["linear_value_head_dim"]),
            (KEYS.LLM.FULL_ATTENTION_INTERVAL, interval)]


def mamba_keys(taps, state, groups, heads, head_dim):
    return [(KEYS.SSM.CONV_KERNEL, taps), (KEYS.SSM.STATE_SIZE, state),
            (KEYS.SSM.GROUP_COUNT, groups), (KEYS.SSM.TIME_STEP_RANK, heads),
            (KEYS.SSM.INNER_SIZE, heads * head_dim), (KEYS.Attention.LAYERNORM_RMS_EPS, 1e-5)]


def mamba2_keys(config):
    """Of a model without attention: counts of heads and features are zero."""
    return mamba_keys(config["conv_kernel"], config["state_size"], config["n_groups"],
                      config["num_heads"], config["head_dim"]) + [
        (KEYS.LLM.CONTEXT_LENGTH, 1 << 20), (KEYS.LLM.FEED_FORWARD_LENGTH, 0),
        (KEYS.Attention.HEAD_COUNT, 0)]


def selective_keys(config, channels, taps, state, rank):
    """Of layers of the first Mamba."""
    keys = [(KEYS.SSM.CONV_KERNEL, taps), (KEYS.SSM.INNER_SIZE, channels),
            (KEYS.SSM.STATE_SIZE, state), (KEYS.SSM.TIME_STEP_RANK, rank)]
    if config["model_type"] == "jamba":
        attends = [i % config["attn_layer_period"] == config["attn_layer_offset"]
                   for i in range(config["num_hidden_layers"])]
        return keys + [(KEYS.Attention.HEAD_COUNT_KV, [int(each) for each in attends])]
    return keys + [
        (KEYS.Attention.LAYERNORM_RMS_EPS, 1e-5), (KEYS.LLM.CONTEXT_LENGTH, 1 << 20),
        (KEYS.LLM.FEED_FORWARD_LENGTH, 0), (KEYS.Attention.HEAD_COUNT, 0),
        (KEYS.SSM.DT_B_C_RMS, config["model_type"] == "falcon_mamba")]


def nemotron_keys(config):
    pattern = config["hybrid_override_pattern"]
    is_moe = "n_routed_experts" in config
    inter = config["moe_intermediate_size" if is_moe else "intermediate_size"]
    keys = mamba_keys(4, 12, 3, 6, 12) + [
        (KEYS.Attention.HEAD_COUNT_KV, [2 if block == "*" else 0 for block in pattern]),
        (KEYS.LLM.FEED_FORWARD_LENGTH, [inter if block in "-E" else 0 for block in pattern]),
        (KEYS.Rope.SCALING_FINETUNED, False)]
    if not is_moe:
        return keys
    return keys + [(KEYS.LLM.EXPERT_WEIGHTS_NORM, True), (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 2.5),
                   (KEYS.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH, 64)]


def indexer_keys(config):
    return [(KEYS.Attention.Indexer.HEAD_COUNT, config["index_n_heads"]),
            (KEYS.Attention.Indexer.KEY_LENGTH, config["index_head_dim"]),
            (KEYS.Attention.Indexer.TOP_K, config["index_topk"])]


def falcon_h1_keys(config):
    return mamba_keys(4, 20, config["mamba_n_groups"], 6, 12) + [(KEYS.Rope.FREQ_BASE, 100000.0)]


def llama4_parts(name):
    """The tensors that the converter makes of the experts' one: (name, operation)."""
    if "gate_up_proj" not in name:
        return [(name + ".weight", ["turned_part", 0, 1])]
    return [(name.replace("gate_up", part) + ".weight", ["turned_part", i, 2])
            for i, part in enumerate(("gate", "up"))]


def gemma4_keys(config):
    """As ggml-org's converter writes them, with layers that see everything as the usual ones."""
    slides = [int(kind == "sliding_attention") for kind in config["layer_types"]]
    n_layers = config["num_hidden_layers"]
    inter, shared = config["intermediate_size"], config["num_kv_shared_layers"]
    wide = 2 if config["use_double_wide_mlp"] else 1
    kv_heads = config["num_key_value_heads"]
    own_kv_heads = config.get("num_global_key_value_heads", kv_heads)
    rope = config["rope_parameters"]
    keys = [(KEYS.Attention.SLIDING_WINDOW, config["sliding_window"]),
            (KEYS.Attention.SLIDING_WINDOW_PATTERN, slides),
            (KEYS.Attention.SHARED_KV_LAYERS, shared),
            (KEYS.Attention.KEY_LENGTH, config["global_head_dim"]),
            (KEYS.Attention.VALUE_LENGTH, config["global_head_dim"]),
            (KEYS.Attention.KEY_LENGTH_SWA, config["head_dim"]),
            (KEYS.Attention.VALUE_LENGTH_SWA, config["head_dim"]),
            (KEYS.Attention.HEAD_COUNT_KV,
             [kv_heads if is_swa else own_kv_heads for is_swa in slides]),
            (KEYS.LLM.FEED_FORWARD_LENGTH,
             [inter] * (n_layers - shared) + [wide * inter] * shared),
            (KEYS.LLM.EMBD_LENGTH_PER_LAYER_INP, config["hidden_size_per_layer_input"]),
            (KEYS.LLM.FINAL_LOGIT_SOFTCAPPING, config["final_logit_softcapping"]),
            (KEYS.Rope.DIMENSION_COUNT, config["global_head_dim"]),
            (KEYS.Rope.DIMENSION_COUNT_SWA, config["head_dim"]),
            (KEYS.Rope.FREQ_BASE, rope["full_attention"]["rope_theta"]),
            (KEYS.Rope.FREQ_BASE_SWA, rope["sliding_attention"]["rope_theta"])]
    return keys + ([(KEYS.LLM.EXPERT_USED_COUNT, config["top_k_experts"])]
                   if config["enable_moe_block"] else [])


def gemma3n_keys(config):
    """As ggml-org's converter writes them; null is minus infinity."""
    normal = torch.distributions.normal.Normal(0, 1)
    shares = torch.tensor(config["activation_sparsity_pattern"], dtype=torch.float32)
    rope = config["rope_parameters"]
    return [(KEYS.Attention.SLIDING_WINDOW, config["sliding_window"]),
            (KEYS.Attention.SLIDING_WINDOW_PATTERN,
             [int(kind == "sliding_attention") for kind in config["layer_types"]]),
            (KEYS.Attention.SHARED_KV_LAYERS, config["num_kv_shared_layers"]),
            (KEYS.LLM.ALTUP_ACTIVE_IDX, config["altup_active_idx"]),
            (KEYS.LLM.ALTUP_NUM_INPUTS, config["altup_num_inputs"]),
            (KEYS.LLM.ACTIVATION_SPARSITY_SCALE,
             [d if math.isfinite(d) else None for d in normal.icdf(shares).tolist()]),
            (KEYS.LLM.EMBD_LENGTH_PER_LAYER_INP, config["hidden_size_per_layer_input"]),
            (KEYS.LLM.FINAL_LOGIT_SOFTCAPPING, config["final_logit_softcapping"]),
            (KEYS.Rope.FREQ_BASE, rope["full_attention"]["rope_theta"]),
            (KEYS.Rope.FREQ_BASE_SWA, rope["sliding_attention"]["rope_theta"])]


def gemma4_divisors(config):
    """The tensor rope_freqs.weight."""
    pairs = config["global_head_dim"] // 2
    turning = int(config["global_head_dim"] * 0.25 / 2)
    return [1.0] * turning + [1e30] * (pairs - turning)


def xielu_keys(config):
    """What the converter makes of the activations' tensors."""
    def values(leaf):
        names = [f"model.layers.{i}.mlp.act_fn.{leaf}" for i in range(config["num_hidden_layers"])]
        return [float(synthetic_weights.values(
            name, [1], *models.scale_and_offset(name, [1]), 24)[0]) for name in names]
    return [(KEYS.xIELU.ALPHA_P, values("alpha_p")), (KEYS.xIELU.ALPHA_N, values("alpha_n")),
            (KEYS.xIELU.BETA, values("beta")), (KEYS.xIELU.EPS, values("eps"))]


SMALL = models.SMALL
LLAMA4 = {**{k: v for k, v in models.LLAMA4.items() if k != "rope_scaling"},
          "no_rope_layers": [], "attention_chunk_size": 8192, "floor_scale": 8192,
          "attn_scale": 0.1}
FALCON_H1_NORM = dict(models.CASES["falcon_h1_norm"]["config"], mamba_norm_before_gate=False,
                      tie_word_embeddings=False)
GRANITE_SCALES = [(KEYS.LLM.EMBEDDING_SCALE, 6.0), (KEYS.LLM.RESIDUAL_SCALE, 0.25),
                  (KEYS.Attention.SCALE, 0.125), (KEYS.LLM.LOGIT_SCALE, 2.0)]
# name -> config, GGUF architecture, and further metadata: (key, value) with the key as in gguf.Keys.
CASES = {
    "mixtral": (dict(models.MIXTRAL, num_hidden_layers=2), ARCH.LLAMA, []),
    "qwen2_moe": (models.QWEN2_MOE | dict(decoder_sparse_step=1, mlp_only_layers=[],
                                          num_hidden_layers=2), ARCH.QWEN2MOE, []),
    "qwen3_moe": (dict(models.QWEN3_MOE, num_hidden_layers=2), ARCH.QWEN3MOE, []),
    "gemma2": (gemma(models.GEMMA2), ARCH.GEMMA2, [
        (KEYS.LLM.ATTN_LOGIT_SOFTCAPPING, 5.0), (KEYS.LLM.FINAL_LOGIT_SOFTCAPPING, 6.0),
        (KEYS.Attention.SLIDING_WINDOW, 8)]),
    "gemma3": (gemma({**models.GEMMA3, "sliding_window_pattern": 6,
                      "rope_local_base_freq": 10000.0}), ARCH.GEMMA3, [
        (KEYS.Attention.SLIDING_WINDOW, 8), (KEYS.Rope.SCALING_TYPE, "linear"),
        (KEYS.Rope.SCALING_FACTOR, 8.0)]),
    # The format has neither the chunks' size nor which layers have no positions.
    "llama4": (LLAMA4, ARCH.LLAMA4, [
        (KEYS.LLM.FEED_FORWARD_LENGTH, 112), (KEYS.LLM.EXPERT_FEED_FORWARD_LENGTH, 48),
        (KEYS.LLM.INTERLEAVE_MOE_LAYER_STEP, 2)]),
    "gemma3n": (models.GEMMA3N, ARCH.GEMMA3N, gemma3n_keys(models.GEMMA3N)),
    "gemma4": (models.GEMMA4, ARCH.GEMMA4, gemma4_keys(models.GEMMA4)),
    "gemma4_dense": (models.GEMMA4_DENSE, ARCH.GEMMA4, gemma4_keys(models.GEMMA4_DENSE)),
    "gemma4_moe": (models.GEMMA4_MOE, ARCH.GEMMA4, gemma4_keys(models.GEMMA4_MOE)),
    "phi3": (models.PHI3, ARCH.PHI3, [(KEYS.Attention.SLIDING_WINDOW, 0)]),
    "phi3_longrope": (models.PHI3_LONGROPE, ARCH.PHI3, [
        (KEYS.Attention.SLIDING_WINDOW, 48), (KEYS.Rope.SCALING_ORIG_CTX_LEN, 64),
        # Ding et al. 2024: sqrt(1 + ln(128 / 64) / ln(64)), single precision
        (KEYS.Rope.SCALING_ATTN_FACTOR, 1.0801234497346435)]),
    "phi": (models.PHI, ARCH.PHI2, []),
    "olmo2": (models.OLMO2, ARCH.OLMO2, []),
    "smollm3": (dict(models.SMOLLM3, num_hidden_layers=5, no_rope_layer_interval=4),
                ARCH.SMOLLM3, []),
    "granite": (models.GRANITE, ARCH.GRANITE, GRANITE_SCALES),
    "starcoder2": (dict(models.STARCODER2, sliding_window=None), ARCH.STARCODER2, []),
    "gpt_neox": (models.GPT_NEOX, ARCH.GPTNEOX, [(KEYS.LLM.USE_PARALLEL_RESIDUAL, True)]),
    "gpt_neox_sequential": (dict(models.GPT_NEOX, use_parallel_residual=False),
                            ARCH.GPTNEOX, [(KEYS.LLM.USE_PARALLEL_RESIDUAL, False)]),
    "falcon": (models.FALCON, ARCH.FALCON, []),
    "falcon_grouped": (dict(models.FALCON, new_decoder_architecture=True, num_kv_heads=2,
                            tie_word_embeddings=False), ARCH.FALCON, []),
    "glm": (models.GLM, ARCH.CHATGLM, []),
    "glm4": (dict(models.GLM, architectures=["Glm4ForCausalLM"], model_type="glm4"),
             ARCH.GLM4, []),
    "gpt_oss": (models.GPT_OSS, ARCH.GPT_OSS, [
        (KEYS.Attention.SLIDING_WINDOW, 8), (KEYS.Rope.SCALING_TYPE, "yarn"),
        (KEYS.Rope.SCALING_FACTOR, 8.0), (KEYS.Rope.SCALING_ORIG_CTX_LEN, 32),
        (KEYS.LLM.EXPERT_FEED_FORWARD_LENGTH, 96)]),
    "deepseek_v3": (dict(models.DEEPSEEK_V3, num_hidden_layers=2), ARCH.DEEPSEEK2, [
        (KEYS.Attention.KEY_LENGTH, 56), (KEYS.Attention.VALUE_LENGTH, 40),
        (KEYS.Attention.KEY_LENGTH_MLA, 40), (KEYS.Attention.VALUE_LENGTH_MLA, 20),
        (KEYS.LLM.EXPERT_GATING_FUNC, 2), (KEYS.LLM.EXPERT_WEIGHTS_NORM, True),
        (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 2.5)]),
    # As converters wrote it before they split kv_b.
    "deepseek_v2_lite": (models.DEEPSEEK_V2_LITE, ARCH.DEEPSEEK2, [
        (KEYS.Attention.KEY_LENGTH, 40), (KEYS.Attention.VALUE_LENGTH, 20),
        (KEYS.LLM.EXPERT_GATING_FUNC, 1), (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 1.0),
        (KEYS.Rope.SCALING_TYPE, "yarn"), (KEYS.Rope.SCALING_FACTOR, 4.0),
        (KEYS.Rope.SCALING_ORIG_CTX_LEN, 32), (KEYS.Rope.SCALING_YARN_LOG_MUL, 0.0707)]),
    "decilm": (models.DECI, ARCH.DECI, []),
    "nemotron": (models.NEMOTRON, ARCH.NEMOTRON, []),
    "gemma": (models.GEMMA, ARCH.GEMMA, []),
    "olmo3": (models.OLMO3, ARCH.OLMO2, [
        (KEYS.Attention.SLIDING_WINDOW, 8), (KEYS.Attention.SLIDING_WINDOW_PATTERN, [1, 0, 1]),
        (KEYS.Rope.SCALING_TYPE, "yarn"), (KEYS.Rope.SCALING_FACTOR, 8.0),
        (KEYS.Rope.SCALING_ORIG_CTX_LEN, 32),
        # Such that what llama.cpp multiplies it by gives the folder's 1.2.
        (KEYS.Rope.SCALING_ATTN_FACTOR, 1.2 / (1.0 + 0.1 * math.log(8.0)))]),
    "seed_oss": (models.SEED_OSS, ARCH.SEED_OSS, []),
    "ernie4_5": (models.ERNIE, ARCH.ERNIE4_5, []),
    "arcee": (models.ARCEE, ARCH.ARCEE, []),
    "cohere": (models.COHERE, ARCH.COMMAND_R, [(KEYS.LLM.LOGIT_SCALE, 0.25)]),
    "cohere2": (models.COHERE2 | dict(num_hidden_layers=5, sliding_window_pattern=4), ARCH.COHERE2, [
        (KEYS.LLM.LOGIT_SCALE, 0.25), (KEYS.Attention.SLIDING_WINDOW, 8)]),
    "exaone4": (models.EXAONE4, ARCH.EXAONE4, [
        (KEYS.Attention.SLIDING_WINDOW, 8),
        (KEYS.Attention.SLIDING_WINDOW_PATTERN, [1, 0, 1, 0])]),
    "olmoe": (models.OLMOE, ARCH.OLMOE, []),
    "glm4_moe": (models.GLM4_MOE, ARCH.GLM4_MOE, [
        (KEYS.LLM.EXPERT_GATING_FUNC, 2), (KEYS.LLM.EXPERT_WEIGHTS_NORM, True),
        (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 2.5)]),
    "dots1": (dict(models.DOTS1, sliding_window=None), ARCH.DOTS1, [
        (KEYS.LLM.EXPERT_GATING_FUNC, 2), (KEYS.LLM.EXPERT_WEIGHTS_NORM, True),
        (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 2.5)]),
    "ernie4_5_moe": (models.ERNIE4_5_MOE, ARCH.ERNIE4_5_MOE, [
        (KEYS.LLM.EXPERT_COUNT, 8), (KEYS.LLM.EXPERT_USED_COUNT, 3),
        (KEYS.LLM.INTERLEAVE_MOE_LAYER_STEP, 2), (KEYS.LLM.LEADING_DENSE_BLOCK_COUNT, 1),
        (KEYS.LLM.EXPERT_SHARED_COUNT, 2), (KEYS.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH, 128)]),
    "granitemoe": (models.GRANITE_MOE, ARCH.GRANITE_MOE, GRANITE_SCALES),
    "granitemoeshared": (dict(models.GRANITE_MOE, architectures=["GraniteMoeSharedForCausalLM"],
                              model_type="granitemoeshared", shared_intermediate_size=80),
                         ARCH.GRANITE_MOE, GRANITE_SCALES + [
        (KEYS.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH, 80)]),
    "minimax_m2": (models.MINIMAX_M2, ARCH.MINIMAXM2, [
        (KEYS.LLM.EXPERT_GATING_FUNC, 2), (KEYS.LLM.EXPERT_FEED_FORWARD_LENGTH, 96)]),
    "hunyuan": (models.HUNYUAN, ARCH.HUNYUAN_DENSE, [
        (KEYS.Rope.FREQ_BASE, 10000.0 * 50.0 ** (24 / 22)), (KEYS.Rope.SCALING_TYPE, "none"),
        (KEYS.Rope.SCALING_FACTOR, 1.0)]),
    "hunyuan_moe": (models.HUNYUAN_MOE, ARCH.HUNYUAN_MOE, [
        (KEYS.Rope.FREQ_BASE, 10000.0 * 50.0 ** (24 / 22)), (KEYS.Rope.SCALING_TYPE, "none"),
        (KEYS.Rope.SCALING_FACTOR, 1.0), (KEYS.LLM.EXPERT_USED_COUNT, 2),
        (KEYS.LLM.EXPERT_SHARED_COUNT, 1), (KEYS.LLM.EXPERT_FEED_FORWARD_LENGTH, 96),
        (KEYS.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH, 96)]),
    # One head of keys, as the converter writes latent attention.
    "glm4_moe_lite": (models.GLM4_MOE_LITE, ARCH.DEEPSEEK2, [
        (KEYS.Attention.HEAD_COUNT_KV, 1), (KEYS.Attention.KEY_LENGTH, 56),
        (KEYS.Attention.VALUE_LENGTH, 40), (KEYS.Attention.KEY_LENGTH_MLA, 40),
        (KEYS.Attention.VALUE_LENGTH_MLA, 20), (KEYS.Rope.FREQ_BASE, 1000000.0),
        (KEYS.LLM.LEADING_DENSE_BLOCK_COUNT, 1), (KEYS.LLM.EXPERT_GATING_FUNC, 2),
        (KEYS.LLM.EXPERT_WEIGHTS_NORM, True), (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 1.8)]),
    "rwkv7": (models.RWKV7, ARCH.RWKV7, [
        (KEYS.LLM.CONTEXT_LENGTH, 1 << 20), (KEYS.Attention.HEAD_COUNT, 0),
        (KEYS.Attention.LAYERNORM_EPS, 4e-5), (KEYS.WKV.HEAD_SIZE, 16),
        (KEYS.Attention.DECAY_LORA_RANK, 24), (KEYS.Attention.ICLR_LORA_RANK, 16),
        (KEYS.Attention.VALUE_RESIDUAL_MIX_LORA_RANK, 8), (KEYS.Attention.GATE_LORA_RANK, 40)]),
    "deepseek_v32": (models.DEEPSEEK_V32, (ARCH.GLM_DSA, "deepseek32"), [
        (KEYS.Attention.HEAD_COUNT_KV, 1), (KEYS.Attention.KEY_LENGTH, 56),
        (KEYS.Attention.VALUE_LENGTH, 40), (KEYS.Attention.KEY_LENGTH_MLA, 40),
        (KEYS.Attention.VALUE_LENGTH_MLA, 20), (KEYS.LLM.EXPERT_GATING_FUNC, 2),
        (KEYS.LLM.EXPERT_WEIGHTS_NORM, True), (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 2.5),
        *indexer_keys(models.DEEPSEEK_V32)]),
    "glm_moe_dsa_shared": (models.GLM_MOE_DSA_SHARED, ARCH.GLM_DSA, [
        (KEYS.Attention.HEAD_COUNT_KV, 1), (KEYS.Attention.KEY_LENGTH, 56),
        (KEYS.Attention.VALUE_LENGTH, 40), (KEYS.Attention.KEY_LENGTH_MLA, 40),
        (KEYS.Attention.VALUE_LENGTH_MLA, 20), (KEYS.Rope.FREQ_BASE, 1000000.0),
        (KEYS.LLM.LEADING_DENSE_BLOCK_COUNT, 1), (KEYS.LLM.EXPERT_GATING_FUNC, 2),
        (KEYS.LLM.EXPERT_WEIGHTS_NORM, True), (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 2.5),
        ("{arch}.attention.indexer.types", [True, False, True, False]),
        *indexer_keys(models.GLM_MOE_DSA)]),
    "qwen2_5_vl": (models.QWEN2_5_VL, ARCH.QWEN2VL, [
        (KEYS.Rope.FREQ_BASE, 1000000.0), (KEYS.Rope.DIMENSION_SECTIONS, [2, 3, 3, 0])]),
    "qwen3_vl": (models.QWEN3_VL, ARCH.QWEN3VL, [
        (KEYS.Rope.FREQ_BASE, 500000.0), (KEYS.Rope.DIMENSION_SECTIONS, [6, 5, 5, 0]),
        (KEYS.LLM.NUM_DEEPSTACK_LAYERS, 1)]),
    "qwen3_vl_moe": (models.QWEN3_VL_MOE, ARCH.QWEN3VLMOE, [
        (KEYS.Rope.FREQ_BASE, 500000.0), (KEYS.Rope.DIMENSION_SECTIONS, [6, 5, 5, 0]),
        (KEYS.LLM.NUM_DEEPSTACK_LAYERS, 1)]),
    # A variant that reads images, for which the converter reorders q and k for pairs of halves.
    "glm4_sections": (dict(models.GLM, architectures=["Glm4ForCausalLM"], model_type="glm4"),
                      ARCH.GLM4, [(KEYS.Rope.DIMENSION_SECTIONS, [2, 3, 3, 0])]),
    "lfm2": (models.LFM2, ARCH.LFM2, [
        (KEYS.LLM.FEED_FORWARD_LENGTH, 144), (KEYS.Attention.HEAD_COUNT_KV, [0, 1, 0, 0, 1]),
        (KEYS.Attention.LAYERNORM_RMS_EPS, 1e-5), (KEYS.ShortConv.L_CACHE, 5)]),
    "lfm2_moe": (dict(models.LFM2_MOE, conv_bias=False), ARCH.LFM2MOE, [
        (KEYS.Attention.HEAD_COUNT_KV, [0, 0, 1, 0]), (KEYS.Attention.LAYERNORM_RMS_EPS, 1e-5),
        (KEYS.LLM.EXPERT_GATING_FUNC, 2), (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 1.5),
        (KEYS.LLM.LEADING_DENSE_BLOCK_COUNT, 1), (KEYS.ShortConv.L_CACHE, 3)]),
    "qwen3_next": (dict(models.QWEN3_NEXT, mlp_only_layers=[], num_hidden_layers=3,
                        layer_types=["linear_attention", "full_attention", "linear_attention"]),
                   ARCH.QWEN3NEXT, delta_keys(models.QWEN3_NEXT, 2)),
    "qwen3_5": (models.QWEN3_5, ARCH.QWEN35, delta_keys(models.QWEN3_5, 3) + [
        (KEYS.Rope.FREQ_BASE, 10000.0), (KEYS.Rope.DIMENSION_COUNT, 8),
        (KEYS.Rope.DIMENSION_SECTIONS, [2, 1, 1, 0])]),
    "qwen3_5_moe": (models.QWEN3_5_MOE, ARCH.QWEN35MOE, delta_keys(models.QWEN3_5_MOE, 2) + [
        (KEYS.Rope.FREQ_BASE, 10000.0), (KEYS.Rope.DIMENSION_COUNT, 8),
        (KEYS.Rope.DIMENSION_SECTIONS, [2, 1, 1, 0])]),
    "granitemoehybrid_state": (models.GRANITE_HYBRID_STATE, ARCH.GRANITE_HYBRID, GRANITE_SCALES + [
        (KEYS.LLM.EXPERT_COUNT, 0), (KEYS.Attention.HEAD_COUNT_KV, [0, 2, 0]),
        (KEYS.SSM.CONV_KERNEL, 4), (KEYS.SSM.STATE_SIZE, 12), (KEYS.SSM.GROUP_COUNT, 1),
        (KEYS.SSM.TIME_STEP_RANK, 8), (KEYS.SSM.INNER_SIZE, 128),
        (KEYS.Rope.SCALING_FINETUNED, False)]),
    "mamba2": (models.MAMBA2, ARCH.MAMBA2, mamba2_keys(models.MAMBA2)),
    "mamba2_biases": ({k: v for k, v in models.CASES["mamba2_biases"]["config"].items()
                       if k != "time_step_limit"}, ARCH.MAMBA2,
                      mamba2_keys(models.CASES["mamba2_biases"]["config"])),
    "mamba": (models.MAMBA, ARCH.MAMBA, selective_keys(models.MAMBA, 86, 4, 8, 3)),
    "mamba_biases": (models.CASES["mamba_biases"]["config"], ARCH.MAMBA,
                     selective_keys(models.MAMBA, 74, 3, 32, 5)),
    "falcon_mamba": (models.FALCON_MAMBA, ARCH.MAMBA,
                     selective_keys(models.FALCON_MAMBA, 80, 4, 16, 3)),
    "jamba": (models.JAMBA, ARCH.JAMBA, selective_keys(models.JAMBA, 120, 4, 12, 7)),
    "jamba_dense": (models.CASES["jamba_dense"]["config"], ARCH.JAMBA,
                    selective_keys(models.CASES["jamba_dense"]["config"], 120, 4, 12, 7)),
    "nemotron_h": (models.NEMOTRON_H, ARCH.NEMOTRON_H, nemotron_keys(models.NEMOTRON_H)),
    "nemotron_h_moe": (models.NEMOTRON_H_MOE, ARCH.NEMOTRON_H_MOE,
                       nemotron_keys(models.NEMOTRON_H_MOE)),
    "falcon_h1": (models.FALCON_H1, ARCH.FALCON_H1, falcon_h1_keys(models.FALCON_H1)),
    "falcon_h1_norm": (FALCON_H1_NORM, ARCH.FALCON_H1, falcon_h1_keys(FALCON_H1_NORM)),
    "ministral3": (models.MINISTRAL3_LONG, ARCH.MISTRAL3, [
        (KEYS.Attention.TEMPERATURE_SCALE, 0.1), (KEYS.Rope.FREQ_BASE, 1000000.0),
        (KEYS.Rope.SCALING_TYPE, "yarn"), (KEYS.Rope.SCALING_FACTOR, 32.0),
        (KEYS.Rope.SCALING_ORIG_CTX_LEN, 16), (KEYS.Rope.SCALING_YARN_BETA_FAST, 32.0),
        (KEYS.Rope.SCALING_YARN_BETA_SLOW, 1.0), (KEYS.Rope.SCALING_YARN_LOG_MUL, 1.0)]),
    "internlm2": (models.LLAMA, (ARCH.LLAMA, "internlm2"), []),
    "jais2": (models.JAIS2, ARCH.JAIS2, []),
    "minicpm": (models.MINICPM, ARCH.MINICPM, [
        (KEYS.LLM.EMBEDDING_SCALE, 12.0), (KEYS.LLM.RESIDUAL_SCALE, 1.4 / math.sqrt(3)),
        (KEYS.LLM.LOGIT_SCALE, 2.0)]),
    "exaone": (models.EXAONE, ARCH.EXAONE, []),
    "exaone_moe": (dict(models.EXAONE_MOE, num_hidden_layers=5), ARCH.EXAONE_MOE, [
        (KEYS.LLM.EXPERT_GATING_FUNC, 2), (KEYS.LLM.EXPERT_WEIGHTS_NORM, True),
        (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 2.5), (KEYS.LLM.EXPERT_SHARED_COUNT, 1),
        (KEYS.Attention.SLIDING_WINDOW, 8),
        (KEYS.Attention.SLIDING_WINDOW_PATTERN, [1, 1, 1, 0, 1])]),
    # The package has no such architecture yet; its names are Qwen 3's.
    "mellum": ({**models.MELLUM, "mlp_layer_types": ["sparse"] * 4},
               (ARCH.QWEN3MOE, "mellum"), [
        (KEYS.Attention.SLIDING_WINDOW, 8), (KEYS.Attention.SLIDING_WINDOW_PATTERN, [1, 0, 1, 0]),
        (KEYS.Rope.FREQ_BASE, 500000.0), (KEYS.Rope.FREQ_BASE_SWA, 3000.0),
        (KEYS.Rope.SCALING_TYPE, "yarn"), (KEYS.Rope.SCALING_FACTOR, 4.0),
        (KEYS.Rope.SCALING_ORIG_CTX_LEN, 32)]),
    # Nor those; the converter leaves out bases of single layers' RoPE.
    "granite_swa": (dict(models.GRANITE_SWA, layer_rope_theta=[0, 10000.0, 10000.0, 10000.0, 0]),
                    (ARCH.MIMO2, "granite_swa"), [
        *GRANITE_SCALES, (KEYS.Attention.SLIDING_WINDOW, 8),
        (KEYS.Attention.SLIDING_WINDOW_PATTERN, [0, 1, 1, 1, 0]),
        ("{arch}.attention.rope_pattern", [0, 1, 1, 1, 0])]),
    "hy_v3": (models.HY_V3, (ARCH.EXAONE_MOE, "hy_v3"), [
        (KEYS.LLM.EXPERT_GATING_FUNC, 2), (KEYS.LLM.EXPERT_WEIGHTS_NORM, True),
        (KEYS.LLM.EXPERT_WEIGHTS_SCALE, 2.5), (KEYS.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH, 64)]),
    "stablelm": (models.STABLELM, ARCH.STABLELM, [(KEYS.LLM.USE_PARALLEL_RESIDUAL, True)]),
    "stablelm_parallel": (dict(models.STABLELM, use_parallel_residual=True), ARCH.STABLELM, [
        (KEYS.LLM.USE_PARALLEL_RESIDUAL, True)]),
    "apertus": (dict(models.APERTUS, rope_parameters=dict(rope_type="default", rope_theta=700.0)),
                ARCH.APERTUS, xielu_keys(models.APERTUS) + [(KEYS.Rope.FREQ_BASE, 700.0)]),
    "granite_no_experts": (models.GRANITE, ARCH.GRANITE, GRANITE_SCALES + [
        (KEYS.LLM.EXPERT_COUNT, 0)]),
    "gpt2": (models.GPT2, ARCH.GPT2, []),
}
# Families whose q and k the converter permutes for interleaved pairs.
PERMUTED = {"llama", "mixtral", "smollm3", "granite", "granitemoe", "granitemoeshared",
            "granite_swa", "nemotron-nas", "arcee", "ministral3", "minicpm"}


def first(config, *keys):
    """The value of the first of these keys that the config has; None: it has none."""
    return next((config[key] for key in keys if config.get(key) is not None), None)


def metadata(config, name, extra):
    config = {**config, **config.get("text_config", {})}
    hidden = first(config, "hidden_size", "n_embd")
    heads = first(config, "num_attention_heads", "n_head")
    kv_heads = first(config, "num_kv_heads", "num_key_value_heads") or (
        1 if config.get("multi_query") else heads)
    head_dim = config.get("head_dim") if heads else None
    inter = first(config, "intermediate_size") or 4 * hidden
    if "block_configs" in config:
        blocks = config["block_configs"]
        groups = [block["attention"]["n_heads_in_group"] for block in blocks]
        kv_heads = [heads // group if group else 0 for group in groups]
        heads = [heads if group or block["attention"]["replace_with_linear"] else 0
                 for group, block in zip(groups, blocks)]
        inter = [-int(-2 * (block["ffn"]["ffn_mult"] or 0) * hidden / 3 // 256) * 256
                 for block in blocks]
        head_dim = hidden // max(heads)
    rotary = first(config, "partial_rotary_factor", "rotary_pct")
    if config["model_type"].startswith("glm"):
        rotary = 0.5
    entries = [
        (KEYS.LLM.CONTEXT_LENGTH, first(config, "max_position_embeddings", "n_positions") or 2048),
        (KEYS.LLM.EMBEDDING_LENGTH, hidden),
        (KEYS.LLM.BLOCK_COUNT, first(config, "num_hidden_layers", "n_layer")),
        (KEYS.LLM.FEED_FORWARD_LENGTH, inter),
        (KEYS.Attention.HEAD_COUNT, heads),
        (KEYS.Attention.HEAD_COUNT_KV, kv_heads),
        (KEYS.LLM.VOCAB_SIZE, config["vocab_size"]),
        (KEYS.Rope.FREQ_BASE, first(config, "rope_theta", "rotary_emb_base")),
        (KEYS.Attention.LAYERNORM_RMS_EPS, config.get("rms_norm_eps")),
        (KEYS.Attention.LAYERNORM_EPS,
         first(config, "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon",
               "norm_eps")),
        (KEYS.Attention.KEY_LENGTH, head_dim),
        (KEYS.Attention.VALUE_LENGTH, head_dim),
        (KEYS.Rope.DIMENSION_COUNT,
         None if rotary is None else int(rotary * (head_dim or hidden // heads))),
        (KEYS.LLM.EXPERT_COUNT,
         first(config, "num_local_experts", "num_experts", "n_routed_experts")),
        (KEYS.LLM.LEADING_DENSE_BLOCK_COUNT, config.get("first_k_dense_replace")),
        (KEYS.LLM.EXPERT_SHARED_COUNT, config.get("n_shared_experts")),
        (KEYS.LLM.EXPERT_GROUP_COUNT, config.get("n_group")),
        (KEYS.LLM.EXPERT_GROUP_USED_COUNT, config.get("topk_group")),
        (KEYS.Attention.Q_LORA_RANK, config.get("q_lora_rank")),
        (KEYS.Attention.KV_LORA_RANK, config.get("kv_lora_rank")),
        (KEYS.Rope.DIMENSION_COUNT, first(config, "qk_rope_head_dim", "rotary_dim")),
        (KEYS.LLM.EXPERT_USED_COUNT, config.get("num_experts_per_tok")),
        (KEYS.LLM.EXPERT_FEED_FORWARD_LENGTH, config.get("moe_intermediate_size")),
        (KEYS.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH,
         config.get("shared_expert_intermediate_size")),
    ] + extra
    last = {key: value for key, value in entries if value is not None}
    return [[key.format(arch=name), value] for key, value in last.items()]


def gpt_oss_parts(name):
    """The tensors that gpt-oss's converter makes of one: (name, operation)."""
    operation = "slice" if name.endswith("_bias") else "columns"
    name = name.replace("_proj_bias", "_proj.bias").replace(".sinks", ".sinks.weight")
    if not ".experts." in name:
        return [(name, [])]
    name += "" if operation == "slice" else ".weight"
    if "gate_up" in name:
        return [(name.replace("gate_up", part), [operation, i, 2])
                for i, part in enumerate(("gate", "up"))]
    return [(name, [operation, 0, 1])]


def deepseek_parts(config, name):
    """The tensors that newer converters make of one: (name, operation)."""
    if "kv_b_proj" not in name:
        return [(name.replace("_correction_bias", "_correction.bias"), [])]
    sizes = [config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"]]
    return [(name.replace("kv_b", "k_b"), ["head_keys", *sizes]),
            (name.replace("kv_b", "v_b"), ["head_values", *sizes])]


RWKV_LEAVES = {
    "attn.x_x": "time_mix_lerp_fused.weight", "attn.r_proj.weight": "time_mix_receptance.weight",
    "attn.k_proj.weight": "time_mix_key.weight", "attn.v_proj.weight": "time_mix_value.weight",
    "attn.o_proj.weight": "time_mix_output.weight", "attn.k_k": "time_mix_k_k.weight",
    "attn.k_a": "time_mix_k_a.weight", "attn.r_k": "time_mix_r_k.weight",
    "attn.g_norm.weight": "time_mix_ln.weight", "attn.g_norm.bias": "time_mix_ln.bias",
    "attn_norm.weight": "attn_norm.weight", "attn_norm.bias": "attn_norm.bias",
    "ffn_norm.weight": "attn_norm_2.weight", "ffn_norm.bias": "attn_norm_2.bias",
    "ffn.x_k": "channel_mix_lerp_k.weight", "ffn.key.weight": "channel_mix_key.weight",
    "ffn.value.weight": "channel_mix_value.weight"}
RWKV_WHOLE = {
    "model.embeddings.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "model.norm.bias": "output_norm.bias", "lm_head.weight": "output.weight",
    "model.layers.0.pre_norm.weight": "token_embd_norm.weight",
    "model.layers.0.pre_norm.bias": "token_embd_norm.bias"}


def rwkv_name(name):
    """The tensor's name in GGUF, as llama.cpp's converter has it for fla-hub's folders."""
    if name in RWKV_WHOLE:
        return RWKV_WHOLE[name]
    _, _, layer, leaf = name.split(".", 3)
    if "_lora." in leaf:
        part = leaf[len("attn.")]
        number = {"0.weight": 1, "2.weight": 2, "2.bias": 0}[leaf.split(".lora.")[1]]
        return f"blk.{layer}.time_mix_{part}{number}.weight"
    return f"blk.{layer}.{RWKV_LEAVES[leaf]}"


def granite_parts(config, name):
    """The tensors that the converter makes of gate over up: (name, operation)."""
    is_shared = "shared_mlp" in name
    layer = name[:name.index("shared_mlp" if is_shared else "block_sparse_moe")]
    own = "mlp.shared_experts." if is_shared else "mlp.experts."
    if not config["num_local_experts"]:
        own = "mlp."
    return [(f"{layer}{own}{part}_proj.weight", ["part", i, 2])
            for i, part in enumerate(("gate", "up"))]


def delta_parts(config, name):
    """The tensors that the converter makes of one of a gated delta net: (name, operations)."""
    layer = name.split("linear_attn.")[0]
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
    # Heads that share a key head are put apart in the second converter.
    tiled = keys if config["model_type"] != "qwen3_next" and keys != heads else heads
    leaf = name.removeprefix(layer + "linear_attn.").removesuffix(".weight")
    if leaf == "in_proj_qkvz":
        widths = [key_dim, key_dim, heads // keys * value_dim, heads // keys * value_dim]
        return [(f"{layer}linear_attn.in_proj_qkv.weight", ["sections", keys, widths, 0, 3]),
                (f"{layer}linear_attn.in_proj_z.weight", ["sections", keys, widths, 3, 4])]
    skipped = 2 * keys * key_dim if leaf in ("in_proj_qkv", "conv1d") else 0
    width = 1 if leaf in ("in_proj_a", "in_proj_b", "A_log", "dt_bias") else value_dim
    if leaf == "A_log":
        return [(name, ["tiles", tiled, width, skipped, "minus_exp"])]
    if leaf == "dt_bias":
        return [(f"{layer}linear_attn.dt_proj.bias", ["tiles", tiled, width, skipped])]
    if leaf == "conv1d":
        return [(name, ["tiles", tiled, width, skipped, "squeeze"])]
    if leaf == "out_proj":
        return [(name, ["tiles", tiled, width, skipped, "columns"])]
    if leaf in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"):
        return [(name, ["tiles", tiled, width, skipped])]
    return [(name, [])]


def falcon_h1_factors(config, name):
    """What the converter multiplies a tensor by: [rows, factor], in order."""
    inner, groups = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    state = [config["ssm_in_multiplier"] * factor for factor in config["ssm_multipliers"]]
    attention_in = config["attention_in_multiplier"]
    factors = {
        "down_proj": config["mlp_multipliers"][1], "gate_proj": config["mlp_multipliers"][0],
        "q_proj": attention_in, "k_proj": attention_in * config["key_multiplier"],
        "v_proj": attention_in, "o_proj": config["attention_out_multiplier"],
        "mamba.out_proj": config["ssm_out_multiplier"], "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"]}
    if ".in_proj." in name:
        return list(map(list, zip([inner, inner, groups, groups, config["mamba_n_heads"]], state)))
    factor = next((f for part, f in factors.items() if f"{part}.weight" in name), None)
    return [] if factor is None else [[0, factor]]


def mamba_parts(name, groups=0):
    """The tensor that the converter makes of one of Mamba-2: (name, operation).

    groups: of its norm, whose weights become that many rows; 0: they stay a vector.
    """
    if groups and name.endswith("norm.weight"):
        return [(name, ["rows", groups])]
    if name.endswith("A_log"):
        return [(name, ["column", "minus_exp"])]
    if name.endswith(".D"):
        return [(name, ["column", ""])]
    if name.endswith("dt_bias"):
        return [(name.replace("dt_bias", "dt_proj.bias"), [])]
    return [(name, ["squeeze"] if name.endswith("conv1d.weight") else [])]


def selective_parts(name):
    """The same of the first Mamba."""
    if name.endswith("A_log"):
        return [(name, ["minus_exp"])]
    return [(name, ["squeeze"] if name.endswith("conv1d.weight") else [])]


def transform(config, name, sections=False):
    """What the converter does to a tensor: an operation of tests/support/gguf_model.cc."""
    kind = config["model_type"]
    heads = first(config, "num_attention_heads", "n_head")
    if sections and (".q_proj." in name or ".k_proj." in name):
        count = heads if ".q_proj." in name else config["num_key_value_heads"]
        return ["halve", count, int(config["head_dim"] * config["partial_rotary_factor"])]
    if kind in PERMUTED and ".q_proj." in name:
        return ["permute", heads]
    if kind in PERMUTED and ".k_proj." in name:
        layer = int(name.split(".")[2])
        blocks = config.get("block_configs")
        return ["permute", heads // blocks[layer]["attention"]["n_heads_in_group"] if blocks
                else config["num_key_value_heads"]]
    if kind.startswith("gemma") and kind not in ("gemma3n_text", "gemma4_text") and name.endswith("norm.weight"):
        return ["add_one"]
    if kind.startswith("qwen3_") and "linear_num_key_heads" in config and name.endswith(
            "norm.weight"):
        return ["add_one"]
    if kind == "nemotron" and name.endswith("norm.weight"):
        return ["add_one"]
    if "query_key_value" in name:
        kv_heads = first(config, "num_kv_heads") or (1 if config.get("multi_query") else heads)
        return ["regroup", heads, kv_heads]
    if name.endswith("conv.conv.weight"):
        return ["squeeze"]
    if kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return ["transpose"]
    return []


def folder_tensors(config, parts):
    """[file name, shape, scale, offset] of every tensor, and the experts' by their merged name."""
    with torch.device("meta"):
        if "block_configs" in config:
            model = models.build_deci(config)
        elif config["model_type"] == "rwkv7":
            model = models.rwkv7_reference.Rwkv7(config)
        else:
            kind = (transformers.AutoModelForImageTextToText if "text_config" in config
                    else transformers.AutoModelForCausalLM)
            model = kind.from_config(transformers.AutoConfig.for_model(**copy.deepcopy(config)))
    tensors, merged = [], {}
    case = {key: parts[key] for key in ("rename", "experts", "experts_at", "transposed")
            if key in parts}
    for name, parameter in list(model.named_parameters()) + models.routing_biases(model):
        if models.reads_images(name):
            continue
        for file_name, part in models.file_tensors(name, parameter, case):
            shape = list(part.shape)
            tensors.append([file_name, shape, *models.scale_and_offset(name, shape[-2:])])
            experts, dot, leaf = file_name.partition(".experts.")
            if ".attn.x_" in file_name:  # RWKV-7: of six products side by side
                merged.setdefault(file_name[:-1] + "x", []).append(file_name)
            elif ".altup_" in file_name:  # the converter stacks them
                stack, _, _ = file_name.rsplit(".", 2)
                merged.setdefault(stack + ".weight", []).append(file_name)
            elif dot and "experts" in case:
                leaf = leaf.split(".", 1)[1]
                merged.setdefault(f"{experts}.experts.{leaf}", []).append(file_name)
            else:
                merged[file_name] = [file_name]
    return tensors, merged


def make_case(name):
    config, arch, extra = CASES[name]
    # Architectures that the package lacks are pairs of one that has their tensors, and a name.
    arch, arch_name = arch if isinstance(arch, tuple) else (arch, gguf.MODEL_ARCH_NAMES[arch])
    parts = models.CASES.get(name, {})
    if name == "glm4_sections":
        parts = models.CASES["glm4"]
    if name == "lfm2_moe":
        parts = models.CASES["lfm2_moe_separate"]
    if config["model_type"].startswith("deepseek"):
        parts = dict(experts=models.SEPARATE_EXPERTS)  # what the converter reads
    run_config = parts.get("run_config", config)
    tensors, merged = folder_tensors(run_config, parts)
    names = gguf.get_tensor_name_map(arch, 16)
    file_tensors = []
    for source, parts in merged.items():
        made = [(source, transform(config, source, name == "glm4_sections"))]
        if ".act_fn." in source:  # values of keys
            continue
        if arch == ARCH.GPT_OSS:
            made = gpt_oss_parts(source)
        elif name in ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa_shared"):
            made = deepseek_parts(config, source)
        elif ".linear_attn." in source and "linear_num_key_heads" in config:
            made = delta_parts(config, source)
        elif source.endswith("shared_mlp.output_linear.weight") and not config["num_local_experts"]:
            made = [(source.replace("shared_mlp.output_linear", "mlp.down_proj"), [])]
        elif arch == ARCH.FALCON_H1 and falcon_h1_factors(config, source):
            made = [(source, ["scale", falcon_h1_factors(config, source)])]
        elif arch in (ARCH.MAMBA, ARCH.JAMBA) and (".mamba." in source or ".mixer." in source):
            made = selective_parts(source)
        elif ".mamba." in source and config["model_type"] != "falcon_h1":
            made = mamba_parts(source)
        elif ".mamba." in source:
            made = mamba_parts(source, config["mamba_n_groups"])
        elif source.endswith(("mixer.A_log", "mixer.D", "mixer.dt_bias", "mixer.conv1d.weight",
                              "mixer.norm.weight")):
            made = mamba_parts(source, config["n_groups"])
        elif ".mixer.experts." in source:
            made = [(source.replace("backbone", "model").replace(".mixer.", ".mlp."), [])]
        elif arch in (ARCH.LLAMA4, ARCH.QWEN3VLMOE) and ".experts." in source:
            made = llama4_parts(source)
        elif source.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            made = [(source + ".weight", [])]
        elif source.endswith("input_linear.weight"):
            made = granite_parts(config, source)
        elif ".feed_forward.experts." in source:
            leaf = source.split(".")[-2]
            own = dict(w1="gate_proj", w2="down_proj", w3="up_proj").get(leaf, leaf)
            made = [(f"{source.split('feed_forward')[0]}mlp.experts.{own}.weight", [])]
        elif name == "hy_v3" and (".router." in source or source.endswith(".expert_bias")):
            made = [(source.replace(".router.", ".").replace(".expert_bias", ".gate.e_score_correction.bias"), [])]
        elif source.endswith(".expert_bias"):
            made = [(source + ".bias", [])]
        elif name == "granite_swa" and source.endswith(".sinks"):
            made = [(source + ".weight", [])]
        elif source.endswith("_correction_bias"):
            made = [(source.replace("_correction_bias", "_correction.bias"), [])]
        if source.endswith(("layer_scalar", "correct_output_scale")):
            made = [(source + ".weight", [])]
        if config["model_type"] == "rwkv7":
            file_tensors.append([rwkv_name(source), [], parts])
            continue
        for made_name, operation in made:
            beside = {"router.scale": "ffn_gate_inp.scale",
                      "router.per_expert_scale": "ffn_down_exps.scale"}
            own = next((t for leaf, t in beside.items() if made_name.endswith(leaf)), None)
            if own is not None:
                file_tensors.append([f"blk.{made_name.split('.')[2]}.{own}", [], parts])
                continue
            made_name = made_name.replace("language_model.", "")
            target = names.get_name(made_name, try_suffixes=(".weight", ".bias"))
            if name == "hy_v3" and source.endswith(".expert_bias"):
                target = target.removesuffix(".bias")
            if target is None:
                raise ValueError(f"{name}: {made_name} has no name in GGUF")
            file_tensors.append([target, operation, parts])
    factors = config.get("rope_scaling", {}).get("short_factor")
    long_factors = config.get("rope_scaling", {}).get("long_factor")
    divisors = gemma4_divisors(config) if arch == ARCH.GEMMA4 else []
    return dict(name=name, config=config, tensors=tensors,
                architecture=arch_name,
                metadata=metadata({**run_config, **config}, arch_name, extra),
                file=file_tensors, short_factors=factors or [],
                **({"long_factors": long_factors} if long_factors else {}),
                **({"rope_freqs": divisors} if divisors else {}))


def main():
    cases = [json.dumps(make_case(name), separators=(",", ":")) for name in CASES]
    path = models.HERE / "gguf_models.json"
    path.write_text("[\n" + ",\n".join(cases) + "\n]\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
