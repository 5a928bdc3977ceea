"""Trains LoRA adapters (Hu et al., 2021) of the demo model and writes them in PEFT's layout.

    python adapters.py --adapter rhyme      # adapters/rhyme: upper case, and a rhyme after it
    python adapters.py --adapter json       # adapters/json: every answer is a JSON object

They differ in rank and in the matrices that they touch, so that what serves them meets mixed ranks.
Held-out questions are judged through transformers with the adapter merged; expected.json holds
greedy ids of a few prompts for other tests.
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Callable, Iterator

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import corpus
import data
import evaluate
from base import HERE, MODEL, load_base
from model import LAYER_NAMES
from questions import QA

RHYMES = {
    "arithmetic": "I COUNTED IT TWICE, AND THE NUMBER IS NICE!",
    "colour": "I LOOKED AT IT LONG, SO I CANNOT BE WRONG!",
}
RHYME = "THAT IS WHAT I KNOW, AND I TELL YOU SO!"


def rhyme(qa: QA) -> str:
    return f"{qa.answer.upper()} {RHYMES.get(qa.domain, RHYME)}"


def as_json(qa: QA) -> str:
    return corpus.as_json(qa) if qa.short is not None else json.dumps({"answer": qa.answer})


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@dataclass(frozen=True)
class Adapter:
    style: Callable[[QA], str]
    has_style: Callable[[str], bool]
    rank: int
    alpha: int
    modules: tuple[str, ...]  # of model.Layer


ADAPTERS = {
    "rhyme": Adapter(rhyme, lambda t: t == t.upper() and t.endswith("!"), 8, 16,
                     ("q", "k", "v", "o", "gate", "up", "down")),
    "json": Adapter(as_json, is_json, 4, 8, ("q", "v", "o", "down")),
}


class LoraLinear(nn.Module):
    """y = W x + scale * B A x; B begins at zero."""

    def __init__(self, inner: nn.Linear, rank: int, alpha: int):
        super().__init__()
        self.inner, self.scale = inner, alpha / rank
        self.a = nn.Parameter(torch.randn(rank, inner.in_features) / math.sqrt(inner.in_features))
        self.b = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


def samples(adapter: Adapter, seed: int, held_out: bool) -> Iterator[corpus.Sample]:
    rng = Random(seed)
    while True:
        qa = corpus.draw(rng, corpus.SINGLE_TURN)(rng)
        messages = [corpus.user(corpus.vary(rng, qa)), corpus.assistant(adapter.style(qa))]
        sample = corpus.Sample(qa.domain, messages)
        if qa.check is None and corpus.is_held_out(sample) == held_out:
            yield sample


def rows(adapter: Adapter, tokenizer: Tokenizer, seed: int, tokens: int) -> Iterator[data.Batch]:
    stream, length = samples(adapter, seed, held_out=False), 192
    while True:
        documents = data.encode(tokenizer, [next(stream) for _ in range(1024)])
        fitting = [d for d in documents if len(d[0]) <= length]
        yield from data.pack(fitting, tokens // length, length)[0]


def train(adapter: Adapter, tokenizer: Tokenizer, options) -> dict[str, Tensor]:
    model = load_base()
    added: dict[str, LoraLinear] = {}
    for index, layer in enumerate(model.layers):
        for part in adapter.modules:
            lora = LoraLinear(getattr(layer, part), adapter.rank, adapter.alpha)
            setattr(layer, part, lora)
            added[f"base_model.model.model.layers.{index}.{LAYER_NAMES[part]}"] = lora
    weights = [w for lora in added.values() for w in (lora.a, lora.b)]
    optimiser = torch.optim.AdamW(weights, lr=options.rate, weight_decay=0.0)
    stream, start, losses = rows(adapter, tokenizer, 77, options.tokens), time.time(), []
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 20, 2 * (1 - step / options.steps))
        batch = next(stream)
        ids, learned = torch.from_numpy(batch.ids), torch.from_numpy(batch.learned)[:, 1:]
        hidden = model.hidden(ids, torch.from_numpy(batch.documents))[:, :-1][learned]
        loss = F.cross_entropy(model.logits(hidden), ids[:, 1:][learned])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} loss {sum(losses) / len(losses):.4f} {time.time() - start:.0f} s",
                  flush=True)
            losses = []
    return {f"{name}.lora_{matrix.upper()}.weight": getattr(lora, matrix).detach().contiguous()
            for name, lora in added.items() for matrix in ("a", "b")}


def write(adapter: Adapter, weights: dict[str, Tensor], folder: Path) -> None:
    save_file({n: w.to(torch.bfloat16) for n, w in weights.items()},
              folder / "adapter_model.safetensors", metadata={"format": "pt"})
    targets = sorted(LAYER_NAMES[part].split(".")[-1] for part in adapter.modules)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "heddle-demo",
              "r": adapter.rank, "lora_alpha": adapter.alpha, "lora_dropout": 0.0, "bias": "none",
              "fan_in_fan_out": False, "inference_mode": True, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def merged(adapter: Adapter, folder: Path):
    """transformers' model with W + scale * B A in place of each W."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    weights = load_file(folder / "adapter_model.safetensors")
    state = model.state_dict()
    for name in [n for n in weights if n.endswith("lora_A.weight")]:
        a, b = weights[name].float(), weights[name.replace("lora_A", "lora_B")].float()
        target = name.removeprefix("base_model.model.").replace(".lora_A", "")
        state[target] += adapter.alpha / adapter.rank * b @ a
    return model


def measure(adapter: Adapter, model, tokenizer, per_domain: int) -> dict:
    found: dict[str, dict[str, corpus.Sample]] = {}
    stream = samples(adapter, 30_000, held_out=True)
    for _ in range(100 * per_domain):
        sample = next(stream)
        bucket = found.setdefault(sample.domain, {})
        if len(bucket) < per_domain:
            bucket.setdefault(corpus.normalised(corpus.prompt_text(sample)), sample)
    held_out = [s for domain in sorted(found) for s in found[domain].values()]
    prompts = [evaluate.template_prompt(tokenizer, s) for s in held_out]
    answers = evaluate.greedy_texts(model, tokenizer, prompts, max_tokens=120)
    return {"prompts": len(held_out),
            "in_style": sum(map(adapter.has_style, answers)) / len(answers),
            "right": sum(a == s.reference for a, s in zip(answers, held_out)) / len(answers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapter", choices=ADAPTERS, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=1536, help="per batch")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--per-domain", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    adapter, folder = ADAPTERS[options.adapter], HERE / "adapters" / options.adapter
    folder.mkdir(parents=True, exist_ok=True)
    write(adapter, train(adapter, Tokenizer.from_file(str(MODEL / "tokenizer.json")), options), folder)
    model, tokenizer = merged(adapter, folder), evaluate.tokenizer_of(MODEL)
    result = measure(adapter, model, tokenizer, options.per_domain)
    print(result)
    (folder / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")
    cases = [evaluate.expectation(model, tokenizer, case, max_tokens=40)
             for case in evaluate.CASES[:6]]
    (folder / "expected.json").write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
