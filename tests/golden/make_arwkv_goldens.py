#!/usr/bin/env python3
"""Logits of tiny models with RWKV-7's time mixes between Qwen2.5's MLPs (ARWKV), which llama.cpp reads from GGUF alone, by
rwkv7_reference.py: the goldens arwkv7.json and arwkv7_plain.json of tests/model/gguf_models_test.cc.

A golden is one of make_model_goldens.py with the names and keys of its GGUF file, as gguf_models.json has them.

Run with the versions in requirements.txt: ./make_arwkv_goldens.py
"""

import json

import gguf
import numpy as np
import torch

import make_gguf_goldens
import make_model_goldens as models
import rwkv7_reference

CONFIG = dict(model_type="arwkv7", vocab_size=301, hidden_size=80, head_dim=16, intermediate_size=112, num_hidden_layers=3,
              decay_low_rank_dim=24, a_low_rank_dim=16, v_low_rank_dim=8, gate_low_rank_dim=40, norm_eps=1e-6,
              heads_norm_eps=64e-5, heads_norm=True)
CASES = {"arwkv7": CONFIG, "arwkv7_plain": dict(CONFIG, gate_low_rank_dim=0, heads_norm=False, head_dim=20)}
KEYS = gguf.Keys
MIXES = "rwkvag"
MLP = {"ffn_norm.weight": "ffn_norm.weight", "ffn.gate.weight": "ffn_gate.weight", "ffn.up.weight": "ffn_up.weight",
       "ffn.down.weight": "ffn_down.weight"}


def file_tensors(config, names):
    tensors = []
    for name in names:
        leaf = name.split(".", 3)[-1]
        if name.startswith("model.layers.") and leaf in MLP:
            tensors.append([f"blk.{name.split('.')[2]}.{MLP[leaf]}", [], [name]])
        elif ".attn.x_" not in name:
            tensors.append([make_gguf_goldens.rwkv_name(name), [], [name]])
        elif name.endswith("x_r"):
            mixes = MIXES if config["gate_low_rank_dim"] else MIXES[:-1]
            tensors.append([make_gguf_goldens.rwkv_name(name[:-1] + "x"), [], [name[:-1] + mix for mix in mixes]])
    return tensors


def make_case(name, config):
    model, tensors, bits = models.fill_model(rwkv7_reference.Rwkv7(config), dict(config=config))
    prompt = [(17 * i * i + 29 * i + 11) % config["vocab_size"] for i in range(models.PROMPT_TOKENS)]
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0].numpy()
    best = np.argsort(-logits, axis=1)[:, :models.TOP]
    metadata = {
        KEYS.LLM.CONTEXT_LENGTH: 1 << 20, KEYS.LLM.EMBEDDING_LENGTH: config["hidden_size"],
        KEYS.LLM.BLOCK_COUNT: config["num_hidden_layers"], KEYS.LLM.FEED_FORWARD_LENGTH: config["intermediate_size"],
        KEYS.LLM.VOCAB_SIZE: config["vocab_size"], KEYS.Attention.HEAD_COUNT: 0,
        KEYS.Attention.LAYERNORM_RMS_EPS: config["norm_eps"], KEYS.WKV.HEAD_SIZE: config["head_dim"],
        KEYS.Attention.DECAY_LORA_RANK: 24, KEYS.Attention.ICLR_LORA_RANK: 16,
        KEYS.Attention.VALUE_RESIDUAL_MIX_LORA_RANK: 8, KEYS.Attention.GATE_LORA_RANK: config["gate_low_rank_dim"],
        KEYS.LLM.TOKEN_SHIFT_COUNT: 1}
    golden = dict(
        name=name, config=config, dtype="F32", shards=1, bits=bits, gguf=None, tensors=tensors, architecture="arwkv7",
        metadata=[[key.format(arch="arwkv7"), value] for key, value in metadata.items()],
        file=file_tensors(config, [tensor[0] for tensor in tensors]), short_factors=[], prompt=prompt,
        top=[[[int(t), models.rounded(row[t])] for t in ids] for row, ids in zip(logits, best)],
        last=[[models.rounded(x) for x in row] for row in logits[-2:]])
    path = models.HERE / f"{name}.json"
    path.write_text(models.to_text(golden))
    print(f"{path.name}: {path.stat().st_size} bytes, logits {logits.min():.2f}..{logits.max():.2f}")


def main():
    for name, config in CASES.items():
        make_case(name, config)


if __name__ == "__main__":
    main()
