#!/usr/bin/env python3
"""Logits of branches side by side in models with sliding windows: the golden of joined_rows_test.cc.

The models are those of make_model_goldens.py, with their weights. Branches begin at one position and
do not see each other; what follows them begins behind the largest of their positions and sees all of
them. A layer's window counts positions: a token sees what is less than `window` positions before
its own. Here that is transformers with
explicit masks, one for each kind of layer, and explicit positions; float64 on the CPU, because in
float32 transformers' own sums are off by up to 3e-5 of a logit (Gemma 3), more than the test allows.

Run with the versions in requirements.txt: ./make_window_join_goldens.py
"""

import contextlib

import numpy as np
import torch
import transformers

import make_model_goldens as goldens

# Longer and shorter than the windows, which are 8 positions.
PROMPT, BRANCHES, TAIL = 13, (12, 3, 7), 9
MODELS = ["mistral_window", "qwen2_window", "gemma2", "gemma3", "gpt_oss"]


@contextlib.contextmanager
def in_float64():
    """Where models' code says float32 (norms, softmax, angles), it computes in float64."""
    kept = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept


def layout():
    """Branch (0: none) and position of each token."""
    branch, positions = [0] * PROMPT, list(range(PROMPT))
    for number, length in enumerate(BRANCHES, 1):
        branch += [number] * length
        positions += range(PROMPT, PROMPT + length)
    behind = PROMPT + max(BRANCHES)
    return branch + [0] * TAIL, positions + list(range(behind, behind + TAIL))


def additive(sees):
    mask = torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, torch.finfo(torch.float32).min)
    return mask[None, None]


def masks(config):
    """What attention_mask takes: one mask, or one for each kind of layer."""
    branch, positions = (torch.tensor(x) for x in layout())
    tail = torch.arange(len(branch)) >= len(branch) - TAIL
    sees = (branch[:, None] == branch[None]) | (branch[None] == 0) | tail[:, None]
    sees &= torch.ones_like(sees).tril()
    within = positions[:, None] - positions[None] < config["sliding_window"]
    if config["model_type"] == "mistral":
        return additive(sees & within)
    return dict(full_attention=additive(sees), sliding_attention=additive(sees & within))


def joined(name: str) -> dict:
    case = goldens.CASES[name]
    model, _, _ = goldens.build_model(case)
    vocab = case["config"]["vocab_size"]
    _, positions = layout()
    tokens = [(13 * i * i + 31 * i + 7) % vocab for i in range(len(positions))]
    model = model.double()
    with torch.no_grad(), in_float64():
        logits = model(torch.tensor([tokens]), attention_mask=masks(case["config"]),
                       position_ids=torch.tensor([positions])).logits[0].numpy()
    best = np.argsort(-logits, axis=1)[:, :goldens.TOP]
    print(f"{name}: logits {logits.min():.2f}..{logits.max():.2f}")
    return dict(
        tokens=tokens,
        top=[[[int(t), goldens.rounded(row[t])] for t in ids] for row, ids in zip(logits, best)],
        last=[[goldens.rounded(x) for x in row] for row in logits[-2:]])


def main() -> None:
    golden = dict(transformers=transformers.__version__, prompt=PROMPT, branches=list(BRANCHES))
    golden.update((name, joined(name)) for name in MODELS)
    path = goldens.HERE / "window_joins.json"
    path.write_text(goldens.to_text(golden))
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
