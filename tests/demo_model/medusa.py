"""Trains Medusa heads (Cai et al., 2024) on the frozen demo model: head k predicts the token k + 1
places after the next one, from the same hidden state that predicts the next.

    python medusa.py
    python medusa.py --share-output --heads 4 --layers 2 --steps 900 --rate 4e-3 \
        --out ../../share/demo-model/medusa

A head is some layers x + SiLU(W x + b), then a matrix to the vocabulary; names as in the paper's own
checkpoints ("K.J.linear.weight", "K.J.linear.bias", "K.LAYERS.weight"). With --share-output the matrix
is the model's own, and heads have none, as in LoRAX's version 2. The accuracy on held-out answers is
measured.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Iterator

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

import corpus
import data
from base import HERE, MODEL, load_base
from model import Decoder

FOLDER = HERE / "medusa"


class Head(nn.Module):
    def __init__(self, base: Decoder, layers: int, shares_output: bool):
        super().__init__()
        hidden = base.shape.hidden
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        for layer in self.layers:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.output = nn.Parameter(base.embedding.weight.clone(), requires_grad=not shares_output)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return F.linear(x, self.output)


def targets(batch: data.Batch, ahead: int) -> tuple[Tensor, Tensor]:
    """Ids at `ahead` places after each position, and where they are learned ones of its document."""
    ids, documents = torch.from_numpy(batch.ids), torch.from_numpy(batch.documents)
    learned = torch.from_numpy(batch.learned)
    same = documents[:, :-ahead] == documents[:, ahead:]
    return ids[:, ahead:], same & learned[:, ahead:] & learned[:, 1:][:, :same.shape[1]]


def states(base: Decoder, batch: data.Batch) -> Tensor:
    with torch.no_grad():
        return base.hidden(torch.from_numpy(batch.ids), torch.from_numpy(batch.documents))


def held_out_batches(tokenizer: Tokenizer, count: int) -> Iterator[data.Batch]:
    samples = itertools.islice(corpus.samples(40_000, held_out=True), 2000)
    documents = [d for d in data.encode(tokenizer, list(samples)) if len(d[0]) <= 256]
    yield from data.pack(documents, 8, 256)[0][:count]


@torch.no_grad()
def accuracy(base: Decoder, heads: nn.ModuleList, batches: list[data.Batch]) -> list[float]:
    """Of the base (the next token) and of each head: the share of tokens that its best guess hits."""
    right, total = [0] * (len(heads) + 1), [0] * (len(heads) + 1)
    for batch in batches:
        hidden = states(base, batch)
        for k, head in enumerate([base.logits, *heads]):
            wanted, where = targets(batch, k + 1)
            guessed = head(hidden[:, :wanted.shape[1]][where]).argmax(-1)
            right[k] += int((guessed == wanted[where]).sum())
            total[k] += int(where.sum())
    return [round(r / t, 4) for r, t in zip(right, total)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--tokens", type=int, default=2048, help="per batch")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--share-output", action="store_true", help="no matrices to the vocabulary")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(4)
    options.out.mkdir(exist_ok=True)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    base = load_base()
    heads = nn.ModuleList(Head(base, options.layers, options.share_output) for _ in range(options.heads))
    learned = [parameter for parameter in heads.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(learned, lr=options.rate, weight_decay=0.0)
    stream, start, losses = data.batches(tokenizer, 78, options.tokens), time.time(), []
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 20, 2 * (1 - step / options.steps))
        batch, loss = next(stream), torch.zeros(())
        hidden = states(base, batch)
        for k, head in enumerate(heads):
            wanted, where = targets(batch, k + 2)
            loss = loss + F.cross_entropy(head(hidden[:, :wanted.shape[1]][where]), wanted[where])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item() / len(heads))
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {sum(losses) / len(losses):.4f} {time.time() - start:.0f} s",
                  flush=True)
            losses = []
    weights = {}
    for k, head in enumerate(heads):
        for j, layer in enumerate(head.layers):
            weights |= {f"{k}.{j}.linear.weight": layer.weight, f"{k}.{j}.linear.bias": layer.bias}
        if not options.share_output:
            weights[f"{k}.{options.layers}.weight"] = head.output
    save_file({n: w.detach().to(torch.bfloat16).contiguous() for n, w in weights.items()},
              options.out / "medusa_lm_head.safetensors", metadata={"format": "pt"})
    config = {"medusa_num_heads": options.heads, "medusa_num_layers": options.layers,
              "base_model_name_or_path": "heddle-demo"}
    if options.share_output:
        config["version"] = 2
    (options.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shares = accuracy(base, heads, list(held_out_batches(tokenizer, 40)))
    result = {"next_token": shares[0], "heads": shares[1:]}
    print(result)
    (options.out / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
