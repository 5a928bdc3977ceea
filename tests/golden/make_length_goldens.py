#!/usr/bin/env python3
"""Greedy texts of tiny models with state, by Hugging Face transformers: the goldens of
tests/model/prompt_lengths_test.cc.

For each case the model of make_model_goldens.py with room for long texts, and for prompts of 1, 17,
100 and 700 tokens the 40 tokens that follow greedily, each with its log-probability, and with how
far rounding moves that: the largest change among models in float64 whose weights are off by about
half a unit of float32's last place, and what float32 itself has changed. Every step reads the whole
text anew, in float32 with eager attention.

Run with the versions in requirements.txt: ./make_length_goldens.py
"""

import copy
import json

import torch
import transformers

import make_model_goldens as models

CASES = ["bamba", "deepseek_v32", "falcon_h1", "falcon_h1_norm", "falcon_mamba",
         "glm_moe_dsa_shared", "granitemoehybrid_groups", "granitemoehybrid_state", "jamba", "lfm2",
         "lfm2_moe", "mamba", "mamba2", "mamba2_biases", "mamba_biases", "nemotron_h",
         "nemotron_h_moe", "phi4flash", "phi4flash_biases", "qwen3_5", "qwen3_5_moe", "qwen3_next", "rwkv7"]
LENGTHS = [1, 17, 100, 700]
GREEDY_TOKENS = 40
NOISY_MODELS = 8
HALF_ULP = 2.0 ** -24


def prompt_of(length: int, vocab: int) -> list[int]:
    return [(17 * i * i + 29 * i + 11 * length) % vocab for i in range(length)]


def greedy(model, text: list[int]) -> list:
    tokens, logprobs = [], []
    with torch.no_grad():
        for _ in range(GREEDY_TOKENS):
            logits = model(torch.tensor([text + tokens]), use_cache=False).logits[0, -1]
            best = int(logits.argmax())
            tokens.append(best)
            logprobs.append(models.rounded(logits.log_softmax(-1)[best]))
    return [tokens, logprobs]


def in_float64(model, text: list[int], tokens: list[int]) -> list[float]:
    """The tokens' log-probabilities, as far as the class computes in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([text + tokens[:-1]]), use_cache=False).logits[0]
    rows = logits[len(text) - 1:].log_softmax(-1)
    return [models.rounded(row[token]) for row, token in zip(rows, tokens)]


def noisy(model, seed: int):
    generator = torch.Generator().manual_seed(seed)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.mul_(1 + HALF_ULP * noise)
    return copied


def add_spreads(model, vocab: int, texts: list) -> None:
    """Turns each log-probability into a pair with its spread; `model` is in float64."""
    models64 = [model] + [noisy(model, seed) for seed in range(NOISY_MODELS)]
    for length, tokens, logprobs in texts:
        exact, *others = [in_float64(m, prompt_of(length, vocab), tokens) for m in models64]
        for i, found in enumerate(logprobs):
            values = [found] + [other[i] for other in others]
            spread = max(abs(value - exact[i]) for value in values)
            logprobs[i] = [found, float(f"{spread:.2g}")]


def make_case(name: str) -> dict:
    case = copy.deepcopy(models.CASES[name])
    if "max_position_embeddings" in case["config"]:
        case["config"]["max_position_embeddings"] = 1024
    model, tensors, bits = models.build_model(case)
    vocab = case["config"]["vocab_size"]
    texts = [[length, *greedy(model, prompt_of(length, vocab))] for length in LENGTHS]
    add_spreads(model.double(), vocab, texts)
    print(name)
    return dict(name=name, config=case["config"], bits=bits, tensors=tensors, texts=texts)


def main() -> None:
    lines = [json.dumps(make_case(name), separators=(",", ":")) for name in CASES]
    path = models.HERE / "prompt_lengths.json"
    path.write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n'
                    + ",\n".join(lines) + "\n]}\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
