#!/usr/bin/env python3
"""Logits of tiny models with everything that PEFT's LoRA adapters may change beside plain linears:
tests/adapter/adapter_kinds_test.cc.

Writes adapter_kinds.json in the form of adapters.json (make_adapter_goldens.py), with an offset
beside each tensor's scale, and with several adapters and their weights for sets. Everything in
float32 on the CPU with eager attention.

Run with the versions in requirements.txt: ./make_adapter_kind_goldens.py
"""

import copy
import json
import pathlib
import re
import tempfile

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import make_adapter_goldens as plain
import make_model_goldens as bases
import synthetic_weights

HERE = pathlib.Path(__file__).parent
BITS = plain.BITS

PLAIN = dict(r=4, lora_alpha=8)
NORMS = ["input_layernorm", "post_attention_layernorm", "norm"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

# name -> base, LoraConfig; or "experts": per-expert modules, whose factors are added to the weights.
CASES = {
    "embedding": dict(base="llama", config=dict(PLAIN, target_modules=["embed_tokens", "q_proj"])),
    "embedding_tied": dict(base="qwen2", config=dict(PLAIN, target_modules=["embed_tokens"])),
    "embedding_scaled": dict(base="gemma2", config=dict(
        PLAIN, target_modules=["embed_tokens", "down_proj"])),
    "embedding_granite": dict(base="granite", config=dict(
        PLAIN, use_rslora=True, target_modules=["embed_tokens"])),
    "head": dict(base="llama", config=dict(PLAIN, target_modules=["lm_head", "v_proj"])),
    "head_tied": dict(base="gemma2", config=dict(PLAIN, target_modules=["lm_head"])),
    "bias_all": dict(base="starcoder2", config=dict(
        PLAIN, bias="all", target_modules=["q_proj", "v_proj", "c_fc"])),
    "bias_all_qkv": dict(base="gpt_neox", config=dict(
        PLAIN, bias="all", target_modules=["query_key_value"])),
    "bias_lora_only": dict(base="gpt2", config=dict(
        PLAIN, bias="lora_only", fan_in_fan_out=True, target_modules=["c_attn", "c_fc"])),
    "bias_all_qwen": dict(base="qwen2", config=dict(
        PLAIN, bias="all", target_modules=["o_proj"])),
    "bias_of_b": dict(base="llama", config=dict(
        PLAIN, lora_bias=True, target_modules=["q_proj", "up_proj", "o_proj"])),
    "saved_norms": dict(base="llama", config=dict(
        PLAIN, target_modules=["q_proj"], modules_to_save=NORMS)),
    "saved_norms_gemma": dict(base="gemma2", config=dict(
        PLAIN, target_modules=["q_proj"], modules_to_save=NORMS + [
            "pre_feedforward_layernorm", "post_feedforward_layernorm"])),
    "saved_norms_falcon": dict(base="falcon", config=dict(
        PLAIN, target_modules=["dense"], modules_to_save=["input_layernorm", "ln_f"])),
    "saved_head": dict(base="llama", config=dict(
        PLAIN, target_modules=["o_proj"], modules_to_save=["lm_head"])),
    "saved_embedding": dict(base="llama", config=dict(
        PLAIN, target_modules=["o_proj"], modules_to_save=["embed_tokens", "lm_head"])),
    "dora": dict(base="llama", config=dict(
        PLAIN, use_dora=True, use_rslora=True, target_modules="all-linear",
        rank_pattern={"q_proj": 2})),
    "dora_fused": dict(base="phi3", config=dict(
        PLAIN, use_dora=True, target_modules="all-linear")),
    "dora_biases": dict(base="qwen2", config=dict(
        PLAIN, use_dora=True, bias="all", target_modules="all-linear")),
    "dora_transposed": dict(base="gpt2", config=dict(
        PLAIN, use_dora=True, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"])),
    "dora_tables": dict(base="llama", config=dict(
        PLAIN, use_dora=True, target_modules=["embed_tokens", "lm_head", "k_proj"])),
    "dora_latent": dict(base="deepseek_v2", config=dict(
        PLAIN, use_dora=True, target_modules=plain.LATENT)),
    "latent": dict(base="deepseek_v2", config=dict(
        PLAIN, target_modules=plain.LATENT + ["kv_b_proj"])),
    "latent_lite": dict(base="deepseek_v2_lite", config=dict(
        PLAIN, target_modules=["kv_b_proj"])),
    "latent_v3": dict(base="deepseek_v3", config=dict(PLAIN, target_modules=["kv_b_proj"])),
    "experts_mixtral": dict(base="mixtral", config=dict(
        r=2, lora_alpha=6, target_modules=["q_proj"], target_parameters=EXPERTS)),
    "experts_qwen3": dict(base="qwen3_moe", config=dict(
        r=3, lora_alpha=6, target_modules=["q_proj"], target_parameters=EXPERTS)),
    "experts_qwen2_down": dict(base="qwen2_moe", config=dict(
        r=3, lora_alpha=6, target_modules=["o_proj"], target_parameters=EXPERTS[1:])),
    "experts_gpt_oss": dict(base="gpt_oss", config=dict(
        r=2, lora_alpha=6, target_modules=["o_proj"], target_parameters=EXPERTS)),
    "experts_deepseek": dict(base="deepseek_v3", config=dict(
        r=2, lora_alpha=6, target_modules=["o_proj"], target_parameters=EXPERTS)),
    "experts_each": dict(base="mixtral", config=dict(PLAIN, target_modules=["v_proj"]),
                         experts="model.layers.{}.block_sparse_moe.experts.{}.w{}"),
}

# Sets: members' configurations and weights.
SETS = {
    "set": dict(base="llama", weights=[0.75, -0.5], configs=[
        dict(PLAIN, target_modules=["q_proj", "down_proj", "lm_head"]),
        dict(r=3, lora_alpha=9, target_modules=["q_proj", "o_proj", "lm_head"])]),
}


def values(name: str, shape, scale: float, offset: float) -> torch.Tensor:
    return torch.from_numpy(synthetic_weights.values(name, shape, scale, offset, BITS))


def shape_of_values(name: str, tensor: torch.Tensor, base: str) -> tuple[float, float]:
    """Scale and offset of a tensor that PEFT saved."""
    shape = list(tensor.shape)
    if "lora_magnitude_vector" in name:
        offset = round(float(tensor.mean()) * 64) / 64
        return bases.power_of_two(offset / 4), offset
    if "lora_embedding_A" in name:
        return 0.25, 0.0
    if "lora_embedding_B" in name:
        return 0.125, 0.0
    if name.endswith(".bias"):
        return 0.25, 0.0
    if "lora_" in name:
        scale = bases.power_of_two((3.0 / shape[-1]) ** 0.5)
        return (scale / 8 if ".lora_B." in name else scale), 0.0
    if len(shape) == 1:  # a norm
        return 0.25, (0.0 if base.startswith("gemma") else 1.0)
    return bases.power_of_two((3.0 / shape[-1]) ** 0.5), 0.0


def make_adapter(base, base_name: str, config: dict, folder: str) -> tuple[dict, list]:
    """Writes the adapter as PEFT would; its configuration and its tensors."""
    model = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**config))
    model.save_pretrained(folder)
    path = f"{folder}/adapter_model.safetensors"
    tensors, kept = [], {}
    for name, tensor in load_file(path).items():
        scale, offset = shape_of_values(name, tensor, base_name)
        tensors.append([name, list(tensor.shape), scale, offset])
        # The base's own embedding, which PEFT saves beside its factors, stays as it is.
        if not name.endswith(".base_layer.weight"):
            kept[name] = values(*tensors[-1])
    save_file(kept, path)
    saved = json.loads(pathlib.Path(folder, "adapter_config.json").read_text())
    for field in ("target_modules", "modules_to_save", "target_parameters"):
        if isinstance(saved.get(field), list):
            saved[field].sort()
    return saved, tensors


def add_experts(model, config: dict, pattern: str) -> list:
    """Factors of single experts (gate w1, up w3, down w2), added to the stacked parameters."""
    tensors = []
    with torch.no_grad():
        for layer, block in enumerate(model.base_model.model.model.layers):
            experts = block.mlp.experts
            inter = experts.down_proj.shape[2]
            for e in range(experts.down_proj.shape[0]):
                targets = {1: experts.gate_up_proj[e, :inter], 3: experts.gate_up_proj[e, inter:],
                           2: experts.down_proj[e]}
                for w, matrix in targets.items():
                    pair = []
                    for part, shape in (("A", [config["r"], matrix.shape[1]]),
                                        ("B", [matrix.shape[0], config["r"]])):
                        key = ("base_model.model." + pattern.format(layer, e, w)
                               + f".lora_{part}.weight")
                        scale, offset = shape_of_values(key, torch.empty(shape), "")
                        tensors.append([key, shape, scale, offset])
                        pair.append(values(*tensors[-1]))
                    matrix += config["lora_alpha"] / config["r"] * (pair[1] @ pair[0])
    return tensors


def golden_of(logits: np.ndarray) -> list:
    best = np.argsort(-logits, axis=1)[:, :bases.TOP]
    return [[[int(t), bases.rounded(row[t])] for t in ids] for row, ids in zip(logits, best)]


def report(name: str, tensors: list, logits, before) -> None:
    print(f"{name}: {len(tensors)} tensors, logits {logits.min():.2f}..{logits.max():.2f}, "
          f"changed by {np.abs(logits - before).mean():.2f}", flush=True)


def make_case(name: str, case: dict) -> dict:
    base, _, _ = bases.build_model(bases.CASES[case["base"]])
    prompt = json.loads((HERE / f"{case['base']}.json").read_text())["prompt"]
    before = plain.logits_of(base, prompt)
    with tempfile.TemporaryDirectory() as folder:
        config, tensors = make_adapter(base, case["base"], case["config"], folder)
        model = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()
    if "experts" in case:
        tensors += add_experts(model, case["config"], case["experts"])
    logits = plain.logits_of(model, prompt)
    report(name, tensors, logits, before)
    return dict(base=case["base"], config=config, tensors=tensors, top=golden_of(logits))


def make_set(name: str, case: dict) -> dict:
    base, _, _ = bases.build_model(bases.CASES[case["base"]])
    prompt = json.loads((HERE / f"{case['base']}.json").read_text())["prompt"]
    before = plain.logits_of(base, prompt)
    members, model = [], None
    for index, config in enumerate(case["configs"]):
        with tempfile.TemporaryDirectory() as folder:
            saved, tensors = make_adapter(base, case["base"], config, folder)
            # The second member's values differ from the first's in their sign alone where both have
            # the same shape: rename them.
            if model is None:
                model = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder, "m0")
            else:
                model.load_adapter(folder, f"m{index}")
        members.append(dict(config=saved, tensors=tensors))
    model.add_weighted_adapter([f"m{i}" for i in range(len(members))], case["weights"], "all",
                               combination_type="cat")
    model.set_adapter("all")
    logits = plain.logits_of(model.eval(), prompt)
    report(name, members[0]["tensors"], logits, before)
    return dict(base=case["base"], members=members, weights=case["weights"], top=golden_of(logits))


def main() -> None:
    goldens = dict(peft=peft.__version__, transformers=transformers.__version__, bits=BITS)
    for name, case in CASES.items():
        goldens[name] = make_case(name, case)
    for name, case in SETS.items():
        goldens[name] = make_set(name, case)
    path = HERE / "adapter_kinds.json"
    path.write_text(bases.to_text(goldens))
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
