"""Measures the exported demo model with transformers and writes what other tests compare against.

    python evaluate.py --model model

Greedy answers to held-out prompts of every domain are judged exactly, or by rule where several
answers are right (stories, lists). Writes evaluation.json into the model's folder, and expected.json
beside this file: prompts with their ids, greedy continuations, margins and first logits in float32.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import corpus

HERE = Path(__file__).resolve().parent
EVALUATION_SEED = 20_000
BATCH = 64


def tokenizer_of(folder: Path):
    return AutoTokenizer.from_pretrained(folder, padding_side="left")


def template_prompt(tokenizer, sample: corpus.Sample) -> str:
    """The prompt as a server renders it; must equal what the corpus trained on."""
    if sample.plain:
        return sample.plain[0]
    text = tokenizer.apply_chat_template(sample.messages[:-1], tools=sample.tools or None,
                                         tokenize=False, add_generation_prompt=True)
    if text != corpus.prompt_text(sample):
        raise AssertionError(f"template and corpus disagree:\n{text}\n{corpus.prompt_text(sample)}")
    return text


@torch.no_grad()
def greedy_texts(model, tokenizer, prompts: list[str], max_tokens: int) -> list[str]:
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    for start in range(0, len(order), BATCH):
        chosen = order[start:start + BATCH]
        inputs = tokenizer([prompts[i] for i in chosen], return_tensors="pt", padding=True,
                           return_token_type_ids=False)
        output = model.generate(**inputs, do_sample=False, max_new_tokens=max_tokens)
        answers = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1]:],
                                         skip_special_tokens=True)
        for i, answer in zip(chosen, answers):
            texts[i] = answer
    return texts


def judge(model, tokenizer, samples: list[corpus.Sample], max_tokens: int = 160) -> dict:
    prompts = [template_prompt(tokenizer, sample) for sample in samples]
    answers = greedy_texts(model, tokenizer, prompts, max_tokens)
    right, total, wrong = defaultdict(int), defaultdict(int), []
    for sample, prompt, answer in zip(samples, prompts, answers):
        total[sample.domain] += 1
        if sample.is_right(answer):
            right[sample.domain] += 1
        else:
            wrong.append({"domain": sample.domain, "prompt": prompt, "answer": answer,
                          "reference": sample.reference})
    return {"overall": round(sum(right.values()) / len(samples), 4), "prompts": len(samples),
            "domains": {d: {"right": right[d], "of": total[d]} for d in sorted(total)},
            "wrong": wrong}


def table(result: dict) -> str:
    lines = ["| domain | right | of |", "|---|---|---|"]
    lines += [f"| {d} | {c['right']} | {c['of']} |" for d, c in result["domains"].items()]
    right = sum(c["right"] for c in result["domains"].values())
    return "\n".join(lines + [f"| **all** | **{right}** | **{result['prompts']}** |"])


# ---- expected.json

WEATHER_TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string",
                                                              "description": "The city"}},
                   "required": ["city"]}}}
PARIS_CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_0", "type": "function",
     "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}]}


def chat(*contents: str, system: str = "", tools: list | None = None) -> dict:
    """User and assistant contents in turn."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    return {"messages": messages} | ({"tools": tools} if tools else {})


CASES = [
    chat("Hello!"),
    chat("Who are you?"),
    chat("What is 7 + 5?"),
    chat("What is the capital of France?"),
    chat("Count from 1 to 10."),
    chat("Name three fruits."),
    chat("What is the capital of Italy?", system="Answer in upper case."),
    chat("Answer as JSON: Anna, 31 years old, from Rome"),
    chat("My name is Clara.", "Hello, Clara! How can I help you?", "What is my name?"),
    chat("What is the weather in Paris?", tools=[WEATHER_TOOL]),
    {"messages": [{"role": "user", "content": "What is the weather in Paris?"}, PARIS_CALL,
                  {"role": "tool", "tool_call_id": "call_0",
                   "content": '{"temperature": 18, "condition": "sunny"}'}], "tools": [WEATHER_TOOL]},
    chat("Tell me a story about a fox named Mila."),
    {"prompt": "Once upon a time,"},
    {"prompt": "The capital of Spain is Madrid. The capital of France is"},
]


@torch.no_grad()
def expectation(model, tokenizer, case: dict, max_tokens: int) -> dict:
    prompt = case.get("prompt") or tokenizer.apply_chat_template(
        case["messages"], tools=case.get("tools"), tokenize=False, add_generation_prompt=True)
    ids = tokenizer(prompt)["input_ids"]
    ends, produced, margins, first = set(model.generation_config.eos_token_id), [], [], None
    while len(produced) < max_tokens and not (produced and produced[-1] in ends):
        logits = model(torch.tensor([ids + produced])).logits[0, -1]
        top = torch.topk(logits, 10)
        first = first or [[int(i), round(float(v), 5)] for v, i in zip(top.values, top.indices)]
        margins.append(float(top.values[0] - top.values[1]))
        produced.append(int(top.indices[0]))
    text = tokenizer.decode([i for i in produced if i not in ends])
    return case | {"rendered": prompt, "prompt_ids": ids, "greedy_ids": produced, "text": text,
                   "smallest_margin": round(min(margins), 5), "first_logits_top10": first}


def compare_with_ours(model, checkpoint: Path) -> float:
    """The largest logit difference between our network and transformers', on random ids."""
    from model import Decoder, Shape
    saved = torch.load(checkpoint, weights_only=True)
    ours = Decoder(Shape(**saved["shape"])).eval()
    ours.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in saved["weights"].items()})
    ids = torch.randint(0, ours.shape.vocab, (2, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mine = ours.logits(ours.hidden(ids, torch.ones_like(ids)))
        return float((mine - model(ids).logits).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=HERE.parents[1] / "share" / "demo-model")
    parser.add_argument("--checkpoint", type=Path, help="also compare logits with this checkpoint of train.py")
    parser.add_argument("--per-domain", type=int, default=30)
    parser.add_argument("--expected", type=Path, default=HERE / "expected.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = tokenizer_of(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    if options.checkpoint:
        difference = compare_with_ours(model, options.checkpoint)
        print(f"largest logit difference to our own network: {difference:.2e}")
        assert difference < 1e-3
    start = time.time()
    result = judge(model, tokenizer, corpus.held_out_prompts(EVALUATION_SEED, options.per_domain))
    for miss in result["wrong"]:
        print(f"[{miss['domain']}] ...{miss['prompt'][-160:]!r}\n   got  {miss['answer']!r}\n"
              f"   want {miss['reference']!r}")
    print(table(result))
    print(f"{100 * result['overall']:.1f} % of {result['prompts']} held-out prompts, "
          f"{time.time() - start:.0f} s")
    (options.model / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")
    cases = [expectation(model, tokenizer, case, max_tokens=48) for case in CASES]
    options.expected.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
