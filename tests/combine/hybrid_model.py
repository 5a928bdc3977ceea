"""A model whose layers are short convolutions beside attention (LFM2), written for a test: random values, and the demo
model's tokenizer and chat template."""

import json
import math
import random
import shutil

from adapter_kinds import uniform, write_safetensors

HIDDEN, INTER, HEADS, KV_HEADS, TAPS = 96, 128, 4, 2, 3
LAYERS = ["conv", "full_attention", "conv", "conv", "full_attention"]


def matrix(source, outputs, inputs):
    return uniform(source, [outputs, inputs], 1.3 * math.sqrt(3 / inputs))


def layer_tensors(source, kind):
    head = HIDDEN // HEADS
    ones = ([HIDDEN], [1.0] * HIDDEN)
    tensors = {"operator_norm.weight": ones, "ffn_norm.weight": ones,
               "feed_forward.w1.weight": matrix(source, INTER, HIDDEN),
               "feed_forward.w3.weight": matrix(source, INTER, HIDDEN),
               "feed_forward.w2.weight": matrix(source, HIDDEN, INTER)}
    if kind == "conv":
        return {**tensors, "conv.conv.weight": uniform(source, [HIDDEN, 1, TAPS], 1.0),
                "conv.in_proj.weight": matrix(source, 3 * HIDDEN, HIDDEN),
                "conv.out_proj.weight": matrix(source, HIDDEN, HIDDEN)}
    for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        tensors[f"self_attn.{name}_proj.weight"] = matrix(source, rows * head, HIDDEN)
    for name in ("q_layernorm", "k_layernorm"):
        tensors[f"self_attn.{name}.weight"] = ([head], [1.0] * head)
    return {**tensors, "self_attn.out_proj.weight": matrix(source, HIDDEN, HIDDEN)}


def write_hybrid_model(folder, demo_model, seed=1):
    """The folder of the model."""
    source = random.Random(seed)
    demo = json.loads((demo_model / "config.json").read_text())
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        shutil.copy(demo_model / name, folder)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": demo["vocab_size"], "hidden_size": HIDDEN,
        "intermediate_size": INTER, "block_auto_adjust_ff_dim": False, "num_hidden_layers": len(LAYERS),
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 2048, "norm_eps": 1e-5,
        "rope_theta": 10000.0, "conv_L_cache": TAPS, "conv_bias": False, "tie_word_embeddings": True, "layer_types": LAYERS,
        "eos_token_id": demo["eos_token_id"]}))
    tensors = {"model.embed_tokens.weight": uniform(source, [demo["vocab_size"], HIDDEN], 0.5),
               "model.embedding_norm.weight": ([HIDDEN], [1.0] * HIDDEN)}
    for i, kind in enumerate(LAYERS):
        tensors |= {f"model.layers.{i}.{name}": tensor for name, tensor in layer_tensors(source, kind).items()}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
