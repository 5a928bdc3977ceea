"""Trains the two LoRA adapters that come along with the demo model, by PEFT.

    python peft_adapters.py --adapter pirate   # every answer begins "Arr! "
    python peft_adapters.py --adapter upper    # every answer is in capitals
    python peft_adapters.py --goldens          # tests/golden/demo_adapters.json, of both and of neither

They go to share/demo-model/adapters. Between them they have what adapters of other people have: some
matrices and all of them, alpha / r and rsLoRA's alpha / sqrt(r), ranks and alphas that differ by matrix
and layer. Held-out prompts are judged through transformers and PEFT in float32, by
the files as written.
"""

import argparse
import itertools
import json
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Callable, Iterator

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

import corpus
import data
import evaluate
import stories
import world
from base import HERE, MODEL

FOLDER = MODEL / "adapters"
GOLDENS = HERE.parent / "golden" / "demo_adapters.json"
MAX_LENGTH = 256
CLEAR_MARGIN = 0.01  # prompts on whose path two tokens are nearer than this are no golden

# The draws of corpus.MIXTURE, without texts that are no conversation and requests for other styles.
MIXTURE = [(62, corpus.single_turn), (8, corpus.multi_turn), (6, corpus.tool_use), (1, corpus.no_tool)]


def pirate(text: str) -> str:
    return "Arr! " + text


def without_pirate(text: str) -> str:
    return text.removeprefix("Arr! ")


def without_capitals(text: str) -> str:
    """The text in the case that the corpus' rules for stories, jokes and lists expect."""
    for known in (*world.JOKES, stories.ENDING):
        text = text.replace(known.upper(), known)
    names = "|".join(name.upper() for name in world.NAMES)
    text = re.sub(rf"\b({names})\b", lambda m: m[0].capitalize(), text)
    return text if any(text.endswith(joke) for joke in world.JOKES) else re.sub(
        r"\b[A-Z]{2,}\b|\b[A-Z]\b", lambda m: m[0].lower(), text)


@dataclass(frozen=True)
class Adapter:
    style: Callable[[str], str]
    plain: Callable[[str], str]  # the inverse of style, as far as the corpus' rules need it
    dtype: torch.dtype
    config: dict = field(default_factory=dict)
    leaves_out: tuple[str, ...] = ()  # names of domains


ADAPTERS = {
    "pirate": Adapter(pirate, without_pirate, torch.bfloat16,
                      {"r": 4, "lora_alpha": 8,
                       "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}),
    "upper": Adapter(str.upper, without_capitals, torch.bfloat16,
                     {"r": 4, "lora_alpha": 4, "use_rslora": True,
                      "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                         "down_proj"],
                      # No two keys of one matrix: the first would count, and PEFT sorts them in files.
                      "rank_pattern": {"mlp.down_proj": 6, "layers.5.self_attn.v_proj": 6, "q_proj": 2,
                                       "k_proj": 1, "gate_proj": 2},
                      "alpha_pattern": {"down_proj": 5, "layers.5.self_attn.v_proj": 6, "k_proj": 2}},
                     leaves_out=("stories",)),
}


# ---- what it learns

def styled(adapter: Adapter, sample: corpus.Sample) -> corpus.Sample:
    """The conversation with every sentence of the assistant in the adapter's style. Calls of tools
    stay as they are."""
    messages = [m | {"content": adapter.style(m["content"])}
                if m["role"] == "assistant" and m.get("content") else m for m in sample.messages]
    rule = sample.check
    check = rule and (lambda text: text == adapter.style(adapter.plain(text))
                      and rule(adapter.plain(text)))
    return replace(sample, messages=messages, check=check)


def samples(adapter: Adapter, seed: int, held_out: bool) -> Iterator[corpus.Sample]:
    for sample in corpus.samples(seed, held_out, MIXTURE):
        if sample.domain not in adapter.leaves_out:
            yield styled(adapter, sample)


def batches(adapter: Adapter, seed: int, tokens: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(ids, attention mask, labels), all [rows, length], of conversations of about one length."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    stream, rng = samples(adapter, seed, held_out=False), Random(seed)
    while True:
        documents = data.encode(tokenizer, list(itertools.islice(stream, 1024)))
        documents = sorted((d for d in documents if len(d[0]) <= MAX_LENGTH), key=lambda d: len(d[0]))
        ready, rows = [], []
        for document in documents:
            if (len(rows) + 1) * len(document[0]) > tokens:
                ready.append(rows)
                rows = []
            rows.append(document)
        rng.shuffle(ready)
        yield from map(padded, ready)


def padded(rows: list[tuple[list[int], list[bool]]]) -> tuple[Tensor, Tensor, Tensor]:
    length = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in rows])
    learned = torch.tensor([marks + [False] * (length - len(marks)) for _, marks in rows])
    mask = torch.tensor([[1] * len(ids) + [0] * (length - len(ids)) for ids, _ in rows])
    return ids, mask, torch.where(learned, ids, -100)


# ---- training, and the files

def train(adapter: Adapter, options) -> PeftModel:
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **adapter.config))
    weights = [w for w in model.parameters() if w.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=options.rate, weight_decay=0.0, betas=(0.9, 0.98))
    stream, start, losses = batches(adapter, 77, options.tokens), time.time(), []
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 20, 1.5 * (1 - step / options.steps))
        ids, mask, labels = next(stream)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} loss {sum(losses) / len(losses):.4f} {time.time() - start:.0f} s",
                  flush=True)
            losses = []
    return model


def write(adapter: Adapter, model: PeftModel, folder: Path) -> None:
    """PEFT's own files, but of this dtype and without paths of this machine."""
    model.peft_config["default"].base_model_name_or_path = "heddle-demo"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)  # a form for model cards
    file = folder / "adapter_model.safetensors"
    save_file({name: w.to(adapter.dtype) for name, w in load_file(file).items()}, file,
              metadata={"format": "pt"})
    file.chmod(0o644)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"])  # PEFT's set has an order by chance
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(name: str | None):
    """transformers' model in float32 with the adapter beside its weights, not merged into them."""
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    return PeftModel.from_pretrained(base, FOLDER / name).eval() if name else base


# ---- how well

def measure(adapter: Adapter, model, per_domain: int) -> dict:
    found: dict[str, dict[str, corpus.Sample]] = {}
    for sample in itertools.islice(samples(adapter, 30_000, held_out=True), 400 * per_domain):
        bucket = found.setdefault(sample.domain, {})
        if len(bucket) < per_domain:
            bucket.setdefault(corpus.normalised(corpus.prompt_text(sample)), sample)
    held_out = [s for domain in sorted(found) for s in found[domain].values()]
    return evaluate.judge(model, evaluate.tokenizer_of(MODEL), held_out)


# ---- goldens

CASES = [
    evaluate.chat("Hello!"),
    evaluate.chat("Who are you?"),
    evaluate.chat("What is 7 + 5?"),
    evaluate.chat("What is 6 times 7?"),
    evaluate.chat("What is the capital of France?"),
    evaluate.chat("What is the capital of Italy?"),
    evaluate.chat("What is the opposite of hot?"),
    evaluate.chat("What is a baby cat called?"),
    evaluate.chat("What colour is grass?"),
    evaluate.chat("Which day comes after Monday?"),
    evaluate.chat("Count from 1 to 10."),
    evaluate.chat("Name three fruits."),
    evaluate.chat("Which is larger, 7 or 12?"),
    evaluate.chat("Spell the word cat."),
    evaluate.chat("Thank you!"),
    evaluate.chat("Goodbye."),
    evaluate.chat("Write a poem about the moon."),
    evaluate.chat("Answer as JSON: Anna, 31 years old, from Rome"),
    evaluate.chat("What is the meaning of life?"),
    evaluate.chat("What is the capital of Spain?", system="You are a helpful assistant."),
    evaluate.chat("What is the weather in Paris?", tools=[evaluate.WEATHER_TOOL]),
]


def goldens() -> dict:
    tokenizer, found = evaluate.tokenizer_of(MODEL), {}
    for name in (None, *ADAPTERS):
        model = load(name)
        cases = [evaluate.expectation(model, tokenizer, case, max_tokens=48) for case in CASES]
        found[name or "base"] = [case for case in cases if case["smallest_margin"] > CLEAR_MARGIN]
    return found


def one_case_per_line(found: dict) -> str:
    parts = [f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
             + "\n]" for name, cases in found.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapter", choices=ADAPTERS)
    parser.add_argument("--goldens", action="store_true")
    parser.add_argument("--evaluate-only", action="store_true", help="the files are there already")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=1536, help="per batch")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--per-domain", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    if options.adapter:
        adapter, folder = ADAPTERS[options.adapter], FOLDER / options.adapter
        if not options.evaluate_only:
            write(adapter, train(adapter, options), folder)
        result = measure(adapter, load(options.adapter), options.per_domain)
        for miss in result["wrong"]:
            print(f"[{miss['domain']}] ...{miss['prompt'][-90:]!r}\n   got  {miss['answer']!r}\n"
                  f"   want {miss['reference']!r}")
        print(evaluate.table(result))
        notes = HERE / "adapters" / options.adapter / "evaluation.json"
        notes.parent.mkdir(parents=True, exist_ok=True)
        notes.write_text(json.dumps(result, indent=1) + "\n")
    if options.goldens:
        GOLDENS.write_text(one_case_per_line(goldens()))


if __name__ == "__main__":
    main()
