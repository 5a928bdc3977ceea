"""How often the draft model's best token is the base model's, on held-out answers.

    python agreement.py     # writes draft/agreement.json

The share bounds what speculation with this pair can gain: of k drafted tokens, about share^k are
accepted under greedy decoding.
"""

import itertools
import json

import torch
from tokenizers import Tokenizer

import corpus
import data
from base import HERE, MODEL, load_base

DRAFT = HERE / "draft"


@torch.no_grad()
def agreement(rows: int = 400) -> dict:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    base, draft = load_base(), load_base(DRAFT)
    samples = itertools.islice(corpus.samples(50_000, held_out=True), 4 * rows)
    documents = [d for d in data.encode(tokenizer, list(samples)) if len(d[0]) <= 256]
    same, runs, total, position = 0, [0] * 4, 0, [0] * 4
    for batch in data.pack(documents, 8, 256)[0][: rows // 8]:
        ids, where = torch.from_numpy(batch.ids), torch.from_numpy(batch.documents)
        learned = torch.from_numpy(batch.learned)[:, 1:]
        best = [m.logits(m.hidden(ids, where))[:, :-1].argmax(-1) for m in (base, draft)]
        equal = (best[0] == best[1]) & learned
        same += int(equal.sum())
        total += int(learned.sum())
        for k in range(len(runs)):  # k + 1 tokens in a row
            windows = learned.unfold(1, k + 1, 1).all(-1)
            runs[k] += int((equal.unfold(1, k + 1, 1).all(-1) & windows).sum())
            position[k] += int(windows.sum())
    return {"tokens": total, "agreement": round(same / total, 4),
            "runs_of_1_to_4": [round(r / p, 4) for r, p in zip(runs, position)]}


def main() -> None:
    torch.set_num_threads(1)
    result = agreement()
    print(result)
    (DRAFT / "agreement.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
