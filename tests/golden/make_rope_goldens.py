#!/usr/bin/env python3
"""Inverse frequencies by Hugging Face transformers: the golden of tests/model/rope_test.cc.

Each case is a config.json as published (or a variant of one), and what transformers makes of it.
"""

import copy
import json
import pathlib

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = pathlib.Path(__file__).parent

BASE = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=32000,
            hidden_size=2048, intermediate_size=5632, num_hidden_layers=1, num_attention_heads=16,
            num_key_value_heads=4, rms_norm_eps=1e-5, max_position_embeddings=32768)

CASES = {
    "default": dict(BASE, rope_theta=10000.0),
    "theta is absent": dict(BASE),
    "a head of 80": dict(BASE, head_dim=80, rope_theta=1000000.0),
    "Llama 3.1 8B": dict(
        BASE, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8,
        max_position_embeddings=131072, rope_theta=500000.0,
        rope_scaling=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=8192, rope_type="llama3")),
    "Llama 3.2 1B": dict(
        BASE, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
        max_position_embeddings=131072, rope_theta=500000.0,
        rope_scaling=dict(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=8192, rope_type="llama3")),
    "Llama 4 Scout, which has no frequencies between": dict(
        BASE, head_dim=128, max_position_embeddings=131072, rope_theta=500000.0,
        rope_scaling=dict(factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
                          original_max_position_embeddings=8192, rope_type="llama3")),
    "linear, in the old spelling": dict(
        BASE, rope_theta=10000, rope_scaling=dict(type="linear", factor=8.0)),
    "linear, in the new spelling": dict(
        BASE, rope_parameters=dict(rope_type="linear", factor=4, rope_theta=50000.0)),
    "dynamic, up to the trained context": dict(
        BASE, rope_theta=10000.0, rope_scaling=dict(type="dynamic", factor=2.0)),
    "Qwen 2.5 with YaRN": dict(
        BASE, hidden_size=3584, num_attention_heads=28, rope_theta=1000000.0,
        rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "YaRN with mscale": dict(
        BASE, head_dim=64, rope_theta=10000,
        rope_scaling=dict(type="yarn", beta_fast=32, beta_slow=1, factor=40, mscale=1.0,
                          mscale_all_dim=0.8, original_max_position_embeddings=4096)),
    "YaRN without truncation": dict(
        BASE, head_dim=64, max_position_embeddings=131072,
        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, beta_fast=32.0, beta_slow=1.0,
                             factor=32.0, original_max_position_embeddings=4096, truncate=False)),
    "YaRN with an attention factor": dict(
        BASE, rope_scaling=dict(rope_type="yarn", factor=2.0, attention_factor=1.25,
                                original_max_position_embeddings=16384)),
}

LONGROPE = dict(BASE, hidden_size=512, rope_theta=10000.0, max_position_embeddings=16384,
                rope_scaling=dict(
                    rope_type="longrope", original_max_position_embeddings=4096,
                    short_factor=[1.0 + 0.0625 * i for i in range(16)],
                    long_factor=[1.0 + 0.5 * i for i in range(16)]))


def frequencies(config: dict, seq_len=None):
    parsed = transformers.AutoConfig.for_model(**copy.deepcopy(config))
    kind = parsed.rope_parameters["rope_type"]
    if kind == "default":
        inv_freq, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(parsed)
    else:
        inv_freq, factor = ROPE_INIT_FUNCTIONS[kind](parsed, seq_len=seq_len)
    # Nine digits tell any two float32 apart.
    return [float(f"{x:.9g}") for x in inv_freq.tolist()], factor


def main() -> None:
    cases = []
    for name, config in CASES.items():
        inv_freq, factor = frequencies(config)
        cases.append(dict(name=name, config=config, inv_freq=inv_freq, attention_factor=factor))
    long_freq, factor = frequencies(LONGROPE, seq_len=8192)
    longrope = dict(theta=10000.0, rotary_dim=32, inv_freq=long_freq,
                    divisors=LONGROPE["rope_scaling"]["long_factor"], attention_factor=factor)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    text = (f'{{"transformers":"{transformers.__version__}",\n"cases":[\n{lines}],\n'
            f'"longrope":{json.dumps(longrope, separators=(",", ":"))}}}\n')
    (HERE / "rope.json").write_text(text)


if __name__ == "__main__":
    main()
