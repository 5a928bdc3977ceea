#!/usr/bin/env python3
"""Writes a Hugging Face folder with random BF16 weights in the shape of TinyLlama-1.1B (2.2 GB), for
measuring how long loading takes and how much memory:

    tests/bench/make_random_model.py FOLDER [TOKENIZER]
    tests/bench/load_bench.py build/heddle FOLDER [--bench]

TOKENIZER, a tokenizer.json that is copied, is what `heddle serve` needs besides. Needs numpy. Values are uniform; a few MB of them are repeated, since only bytes matter here.
"""

import json
import pathlib
import shutil
import struct
import sys

import numpy as np

HIDDEN, INTER, LAYERS, VOCAB, HEADS, KV_HEADS = 2048, 5632, 22, 32064, 32, 4
CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=HIDDEN,
              intermediate_size=INTER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
              num_key_value_heads=KV_HEADS, vocab_size=VOCAB, max_position_embeddings=2048,
              rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False,
              torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2)


def shapes():
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (HIDDEN,)
        yield prefix + "post_attention_layernorm.weight", (HIDDEN,)
        for name, shape in (("self_attn.q_proj", (HIDDEN, HIDDEN)), ("self_attn.k_proj", (kv, HIDDEN)),
                            ("self_attn.v_proj", (kv, HIDDEN)), ("self_attn.o_proj", (HIDDEN, HIDDEN)),
                            ("mlp.gate_proj", (INTER, HIDDEN)), ("mlp.up_proj", (INTER, HIDDEN)),
                            ("mlp.down_proj", (HIDDEN, INTER))):
            yield f"{prefix}{name}.weight", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if len(sys.argv) > 2:
        shutil.copy(sys.argv[2], folder / "tokenizer.json")
    header, at = {}, 0
    for name, shape in shapes():
        size = int(np.prod(shape)) * 2
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size])
        at += size
    values = np.random.default_rng(1).uniform(-0.03, 0.03, 4 << 20).astype("<f4")
    pool = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes():
            left = int(np.prod(shape)) * 2
            while left > 0:
                out.write(pool[:left])
                left -= min(left, len(pool))
    print(f"{folder}: {at / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
