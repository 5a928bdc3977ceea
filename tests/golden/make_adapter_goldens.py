#!/usr/bin/env python3
"""Logits of tiny models with LoRA adapters by Hugging Face PEFT: tests/adapter/peft_golden_test.cc.

Writes adapters.json: for each case its base (a case of make_model_goldens.py), adapter_config.json
and the names and shapes of the factors as PEFT saves them, and the best logits at each position of
the base's prompt. The factors' values come from synthetic_weights.py. Everything in float32 on the
CPU with eager attention.

Run with the versions in requirements.txt: ./make_adapter_goldens.py
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
from safetensors.torch import load_file

import make_model_goldens as bases
import synthetic_weights

HERE = pathlib.Path(__file__).parent
BITS = 6  # exact in BF16
# Matrices of which adapters are not supported, and those of towers that read images.
EXCLUDED = r".*(kv_b_proj|vision_tower|multi_modal_projector).*"

PLAIN = dict(r=4, lora_alpha=8)
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LATENT = ["q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]
DELTA = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "in_proj_qkvz", "in_proj_ba",
         "out_proj"]
ROUTER = r"mlp\.gate$"
DEEPSEEK = ROUTER + r"|(layers\.0\.mlp|shared_experts)\.\w+_proj$"

# name -> base, LoraConfig, and "merged": an expression for modules that this release of PEFT cannot
# adapt without the experts, as earlier ones could: their factors are added to the weights.
CASES = {
    "llama": dict(base="llama", config=dict(
        r=4, lora_alpha=6, use_rslora=True,
        rank_pattern={"layers.1.self_attn.q_proj": 7, "q_proj": 2, r".*\.[02]\.mlp\..*": 3},
        alpha_pattern={"o_proj": 9, r"layers.0.self_attn.(q|o)_proj": 5})),
    "llama_some": dict(base="llama", config=dict(
        r=3, lora_alpha=9, target_modules=["q_proj", "v_proj"], layers_to_transform=[0, 2])),
    "qwen2": dict(base="qwen2", config=PLAIN),
    "qwen3": dict(base="qwen3", config=PLAIN),
    "mistral": dict(base="mistral", config=PLAIN),
    "mistral3_images": dict(base="mistral3_images", config=PLAIN),
    "gemma2": dict(base="gemma2", config=PLAIN),
    "gemma3_images": dict(base="gemma3_images", config=PLAIN),
    "phi3": dict(base="phi3", config=PLAIN),
    "olmo2": dict(base="olmo2", config=PLAIN),
    "smollm3": dict(base="smollm3", config=PLAIN),
    "granite": dict(base="granite", config=PLAIN),
    "starcoder2": dict(base="starcoder2", config=PLAIN),
    "gpt2": dict(base="gpt2", config=dict(PLAIN, fan_in_fan_out=True)),
    "gpt2_bare": dict(base="gpt2_bare", config=dict(PLAIN, fan_in_fan_out=True)),
    "gpt_neox": dict(base="gpt_neox", config=PLAIN),
    "gpt_neox_sequential": dict(base="gpt_neox_sequential", config=PLAIN),
    "falcon": dict(base="falcon", config=PLAIN),
    "falcon_grouped": dict(base="falcon_grouped", config=PLAIN),
    "falcon_sequential": dict(base="falcon_sequential", config=PLAIN),
    "glm4": dict(base="glm4", config=PLAIN),
    "nemotron": dict(base="nemotron", config=PLAIN),
    "decilm": dict(base="decilm", config=PLAIN),
    "lfm2": dict(base="lfm2", config=PLAIN),
    # PEFT adapts no out_proj of models that it knows as Mamba's.
    "mamba2": dict(base="mamba2", config=dict(PLAIN, target_modules=["in_proj"])),
    "nemotron_h": dict(base="nemotron_h", config=dict(
        PLAIN, target_modules=["in_proj", "q_proj", "up_proj", "down_proj"])),
    "falcon_h1": dict(base="falcon_h1", config=dict(
        PLAIN, target_modules=ATTENTION + ["in_proj", "gate_proj", "down_proj"])),
    "granitemoehybrid_groups": dict(base="granitemoehybrid_groups",
                                    config=dict(PLAIN, target_modules=["in_proj", "out_proj"])),
    "phi4flash": dict(base="phi4flash", config=dict(
        PLAIN, target_modules=["Wqkv", "in_proj", "out_proj", "fc1", "fc2"])),
    "qwen3_5": dict(base="qwen3_5", config=dict(PLAIN, target_modules=DELTA + ["down_proj"])),
    "qwen3_next": dict(base="qwen3_next", config=dict(PLAIN, target_modules=DELTA)),
    "qwen3_next_gates": dict(base="qwen3_next", config=dict(PLAIN, target_modules=ATTENTION)),
    "mixtral": dict(base="mixtral", config=dict(PLAIN, target_modules=ATTENTION),
                    merged=ROUTER),
    "qwen2_moe": dict(base="qwen2_moe", config=PLAIN, merged=ROUTER),
    "qwen3_moe": dict(base="qwen3_moe", config=dict(PLAIN, target_modules=ATTENTION),
                      merged=ROUTER),
    "gpt_oss": dict(base="gpt_oss", config=PLAIN),
    "deepseek_v2": dict(base="deepseek_v2", config=dict(PLAIN, target_modules=LATENT),
                        merged=DEEPSEEK),
    "deepseek_v2_lite": dict(base="deepseek_v2_lite",
                             config=dict(PLAIN, target_modules=LATENT), merged=DEEPSEEK),
    "deepseek_v3": dict(base="deepseek_v3", config=dict(PLAIN, target_modules=LATENT),
                        merged=DEEPSEEK),
}


def factor(name: str, shape) -> tuple[torch.Tensor, float]:
    """A keeps the size of its input, B A x is about as large as the matrix's own product."""
    scale = bases.power_of_two((3.0 / shape[1]) ** 0.5)
    if ".lora_B." in name:
        scale /= 8.0
    return torch.from_numpy(synthetic_weights.values(name, shape, scale, 0.0, BITS)), scale


def set_factors(model) -> list:
    """Fills the adapter; returns [name, shape, scale] of each factor."""
    tensors = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" not in name:
                continue
            name = name.replace(".default.", ".")
            values, scale = factor(name, list(parameter.shape))
            parameter.copy_(values)
            tensors.append([name, list(parameter.shape), scale])
    return tensors


def merge(model, modules: str, config: dict) -> list:
    tensors = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            module = name.removesuffix(".weight")
            if "lora_" in name or not re.search(modules, module):
                continue
            outputs, inputs = parameter.shape
            pair = []
            for part, shape in (("A", [config["r"], inputs]), ("B", [outputs, config["r"]])):
                key = f"{module}.lora_{part}.weight"
                values, scale = factor(key, shape)
                pair.append(values)
                tensors.append([key, shape, scale])
            parameter += config["lora_alpha"] / config["r"] * (pair[1] @ pair[0])
    assert tensors
    return tensors


def save_and_load(model, tensors: list, base, folder: str):
    """The adapter as PEFT reads it from the files that it wrote, which sort the patterns."""
    model.save_pretrained(folder, save_embedding_layers=False)
    saved = load_file(f"{folder}/adapter_model.safetensors")
    assert set(saved) == {name for name, *_ in tensors}
    for name, shape, _ in tensors:
        assert torch.equal(saved[name], factor(name, shape)[0])
    config = json.loads(pathlib.Path(folder, "adapter_config.json").read_text())
    config["target_modules"].sort()  # from a set
    return peft.PeftModel.from_pretrained(base, folder).eval(), config


def logits_of(model, prompt: list) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0].numpy()


def make_case(case: dict) -> dict:
    base, _, _ = bases.build_model(bases.CASES[case["base"]])
    prompt = json.loads((HERE / f"{case['base']}.json").read_text())["prompt"]
    wanted = dict(dict(target_modules="all-linear", exclude_modules=EXCLUDED), **case["config"])
    model = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**wanted))
    tensors = set_factors(model)
    before = logits_of(base, prompt)
    with tempfile.TemporaryDirectory() as folder:
        model, config = save_and_load(model, tensors, base, folder)
    if "merged" in case:
        tensors += merge(model, case["merged"], case["config"])
    logits = logits_of(model, prompt)
    best = np.argsort(-logits, axis=1)[:, :bases.TOP]
    print(f"{len(tensors)} factors, logits {logits.min():.2f}..{logits.max():.2f}, "
          f"changed by {np.abs(logits - before).mean():.2f}")
    return dict(base=case["base"], config=config, tensors=tensors,
                top=[[[int(t), bases.rounded(row[t])] for t in ids]
                     for row, ids in zip(logits, best)])


def main() -> None:
    goldens = dict(peft=peft.__version__, transformers=transformers.__version__, bits=BITS)
    for name, case in CASES.items():
        print(f"{name}: ", end="", flush=True)
        goldens[name] = make_case(case)
    path = HERE / "adapters.json"
    path.write_text(bases.to_text(goldens))
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
