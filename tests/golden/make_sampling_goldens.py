#!/usr/bin/env python3
"""What sampling parameters leave of a distribution, by the logits processors of transformers in
float64: the golden of tests/model/sampling_distribution_test.cc. Presence and frequency penalties,
which transformers lacks, by OpenAI's formula."""

import json
import pathlib

import numpy as np
import torch
from transformers.generation import logits_process as lp

HERE = pathlib.Path(__file__).parent
VOCAB = 48
PROMPT = [3, 17, 17, 5]
GENERATED = [9, 9, 9, 21, 5]
EOS = [1, 2]


def logits(seed: int, spread: float) -> list[float]:
    """Values that F32 holds exactly."""
    rng = np.random.default_rng(seed)
    return [float(x) for x in np.round(rng.normal(size=VOCAB) * spread * 256) / 256]


def penalised(case: dict, scores: torch.Tensor) -> torch.Tensor:
    ids = torch.tensor([PROMPT + GENERATED])
    own = torch.tensor([GENERATED])
    if bias := case.get("logit_bias"):
        scores = lp.SequenceBiasLogitsProcessor([[[t], b] for t, b in bias])(own, scores)
    if "repetition_penalty" in case:
        scores = lp.RepetitionPenaltyLogitsProcessor(case["repetition_penalty"])(ids, scores)
    counts = torch.bincount(own[0], minlength=VOCAB).to(scores.dtype)
    scores = scores - case.get("frequency_penalty", 0.0) * counts
    scores = scores - case.get("presence_penalty", 0.0) * (counts > 0)
    if words := case.get("bad_words"):
        scores = lp.NoBadWordsLogitsProcessor(words, eos_token_id=None)(own, scores)
    if least := case.get("min_tokens"):
        scores = lp.MinNewTokensLengthLogitsProcessor(len(PROMPT), least, EOS)(ids, scores)
    return scores


def filtered(case: dict, scores: torch.Tensor) -> torch.Tensor:
    warpers = [
        ("temperature", lp.TemperatureLogitsWarper),
        ("top_k", lp.TopKLogitsWarper),
        ("top_p", lp.TopPLogitsWarper),
        ("min_p", lp.MinPLogitsWarper),
        ("typical_p", lp.TypicalLogitsWarper),
    ]
    for name, warper in warpers:
        if name in case:
            scores = warper(case[name])(None, scores)
    return scores


CASES = [
    (dict(), 1.5),
    (dict(temperature=0.6), 1.5),
    (dict(temperature=1.7), 2.5),
    (dict(top_k=5), 1.0),
    (dict(top_p=0.8), 1.5),
    (dict(min_p=0.12), 1.5),
    (dict(typical_p=0.05), 2.0),
    (dict(typical_p=0.4), 2.0),
    (dict(typical_p=0.9), 1.0),
    (dict(typical_p=0.3), 4.0),
    (dict(typical_p=0.97), 4.0),
    (dict(typical_p=0.5, temperature=0.7), 2.0),
    (dict(typical_p=0.6, top_k=20), 1.5),
    (dict(typical_p=0.7, top_p=0.9), 1.5),
    (dict(typical_p=0.5, min_p=0.05), 1.5),
    (dict(temperature=0.8, top_k=30, top_p=0.95, min_p=0.02, typical_p=0.8), 1.5),
    (dict(temperature=1.3, top_k=12, top_p=0.85, min_p=0.1), 1.5),
    (dict(repetition_penalty=1.4), 2.0),
    (dict(repetition_penalty=0.8), 2.0),
    (dict(presence_penalty=1.2), 1.0),
    (dict(frequency_penalty=-0.5), 1.0),
    (dict(presence_penalty=-0.7, frequency_penalty=0.4, repetition_penalty=1.2), 1.5),
    (dict(logit_bias=[[4, 3.0], [9, -1.5]]), 1.0),
    # The sign that a repetition penalty goes by is that of the biased logit.
    (dict(logit_bias=[[9, 4.0], [21, -4.0], [5, 2.0]], repetition_penalty=1.6), 1.0),
    (dict(bad_words=[[7], [5, 8], [9, 21, 5, 30], [21, 11], [9, 5, 12]]), 0.5),
    (dict(min_tokens=6), 0.5),
    (dict(min_tokens=5), 0.5),
    (dict(temperature=0.9, top_k=25, top_p=0.9, min_p=0.03, typical_p=0.85,
          repetition_penalty=1.15, presence_penalty=0.3, frequency_penalty=0.2,
          logit_bias=[[9, 1.0], [40, 2.0]], bad_words=[[5, 40]], min_tokens=8), 1.5),
]


def main() -> None:
    cases = []
    for i, (case, spread) in enumerate(CASES):
        row = logits(i, spread)
        scores = filtered(case, penalised(case, torch.tensor([row], dtype=torch.float64)))
        p = scores.softmax(-1)[0].tolist()
        kept = {str(t): round(x, 9) for t, x in enumerate(p) if x > 0}
        cases.append(dict(params=case, logits=row, probabilities=kept))
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    head = json.dumps(dict(prompt=PROMPT, generated=GENERATED, eos=EOS))[:-1]
    (HERE / "sampling.json").write_text(f'{head}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
