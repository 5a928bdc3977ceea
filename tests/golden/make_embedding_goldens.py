"""Writes tests/golden/embeddings.json: embeddings of texts by transformers, for the demo model.

    python tests/golden/make_embedding_goldens.py        (needs transformers and torch)

Per text: token ids, and the final normed hidden state of the last token, of the first, and the mean of
all, each scaled to length 1 and rounded to six digits.
"""

import json
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "share" / "demo-model"
TEXTS = ["Once upon a time", "What is 7 + 5?", "The weather in Kyoto is mild. " * 12]


def unit(vector):
    return [round(x, 6) for x in (vector / vector.norm()).tolist()]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        with torch.no_grad():
            hidden = model.base_model(torch.tensor([ids])).last_hidden_state[0]
        cases.append({"text": text, "ids": ids, "last": unit(hidden[-1]), "first": unit(hidden[0]),
                      "mean": unit(hidden.mean(0))})
    (ROOT / "tests" / "golden" / "embeddings.json").write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main()
