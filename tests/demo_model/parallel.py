"""Trains LoRA adapters of the demo model that think in branches.

    python parallel.py --format multiverse                                  # adapters/multiverse
    python parallel.py --format multiverse --resume --steps 1800 --rate 2e-3
    python parallel.py --format threadweaver                                # adapters/threadweaver

Asked for several sums with numbers, they write an outline of each, work them out side by side, each in a
branch that does not see the others, and put the results together (traces.py). What the server puts in is
given, not learned.

Multiverse's branches have the masks and the positions that a server gives them: all paths begin at one
position, and what follows them stands behind the longest. A third of the training is the same text in one
piece, all of which the model writes itself. ThreadWeaver's branches read what its orchestrator sends: the
outlines and one thread, or the outlines with all threads one behind the other. Its marks are tokens of
their own (marks.py).

The demo model has never seen "<" and ">", whose embeddings are alike: the embedding and the head have
factors, too.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Callable

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

import corpus
import marks
import traces
from adapters import Adapter, LoraLinear, write
from base import HERE, MODEL, load_base
from model import LAYER_NAMES, Decoder, rotary_table
from traces import Trace

ADAPTER = Adapter(lambda qa: qa.answer, lambda text: True, 16, 32, ("q", "k", "v", "o", "gate", "up", "down"))
BEFORE, BEHIND = 0, -1  # the paths; a path is its number


@dataclass
class Row:
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    paths: list[int] = field(default_factory=list)
    learned: list[bool] = field(default_factory=list)


class Writer:
    """Makes a row of texts."""

    def __init__(self, tokenizer: Tokenizer, trace: Trace):
        self.tokenizer, self.row = tokenizer, Row()
        chat = corpus.Sample("parallel", [corpus.user(trace.question), corpus.assistant("")])
        self.add(corpus.prompt_text(chat), False)

    def add(self, text: str, learned: bool, path: int = BEFORE, position: int | None = None) -> int:
        """Returns the position behind the text, which is encoded by itself."""
        ids, row = self.tokenizer.encode(text, add_special_tokens=False).ids, self.row
        begin = (row.positions[-1] + 1 if row.positions else 0) if position is None else position
        row.ids.extend(ids)
        row.positions.extend(range(begin, begin + len(ids)))
        row.paths.extend([path] * len(ids))
        row.learned.extend([learned] * len(ids))
        return begin + len(ids)


def in_one_piece(tokenizer: Tokenizer, trace: Trace) -> Row:
    writer = Writer(tokenizer, trace)
    writer.add(trace.goal, True)
    writer.add("\n", True)
    for number, path in enumerate(trace.paths, 1):
        writer.add(f"<Path>\n{number}:", True)
        writer.add(path, True)
        writer.add("\n", True)
    writer.add("<Conclusion>\n", True)
    writer.add(trace.conclusion + corpus.IM_END, True)
    return writer.row


def in_branches(tokenizer: Tokenizer, trace: Trace) -> Row:
    writer = Writer(tokenizer, trace)
    writer.add(trace.goal, True)
    fork = behind = writer.add("\n", False)
    for number, path in enumerate(trace.paths, 1):
        at = writer.add(f"<Path>\n{number}:", False, number, fork)
        at = writer.add(path, True, number, at)
        behind = max(behind, writer.add("\n", False, number, at))
    at = writer.add("<Conclusion>\n", False, BEHIND, behind)
    writer.add(trace.conclusion + corpus.IM_END, True, BEHIND, at)
    return writer.row


def in_one_thread(tokenizer: Tokenizer, trace: Trace, number: int) -> Row:
    writer = Writer(tokenizer, trace)
    writer.add(trace.plan, True)
    writer.add(f"\n<Thread>\n{number}:", False)
    writer.add(trace.threads[number - 1], True)
    return writer.row


def behind_threads(tokenizer: Tokenizer, trace: Trace) -> Row:
    writer = Writer(tokenizer, trace)
    writer.add(trace.plan, True)
    writer.add(trace.joined, False)
    writer.add(trace.ending + corpus.IM_END, True)
    return writer.row


def training_row(form: str, tokenizer: Tokenizer, trace: Trace, rng: Random) -> Row:
    if form == "multiverse":
        return (in_one_piece if rng.random() < 1 / 3 else in_branches)(tokenizer, trace)
    if rng.random() < 0.5:
        return behind_threads(tokenizer, trace)
    return in_one_thread(tokenizer, trace, rng.randint(1, len(trace.outlines)))


def served_rows(form: str, tokenizer: Tokenizer, trace: Trace) -> list[Row]:
    """All that a server computes of the answer."""
    if form == "multiverse":
        return [in_branches(tokenizer, trace)]
    numbers = range(1, len(trace.outlines) + 1)
    return [*(in_one_thread(tokenizer, trace, number) for number in numbers), behind_threads(tokenizer, trace)]


def batch(rows: list[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids, positions [n, length], mask [n, 1, length, length], learned [n, length]"""
    length = max(len(row.ids) for row in rows)

    def padded(values: list, fill: int) -> Tensor:
        return torch.tensor([v + [fill] * (length - len(v)) for v in values])

    paths = padded([row.paths for row in rows], BEHIND)
    query, key = paths[:, :, None], paths[:, None, :]
    sees = (key == BEFORE) | (key == query) | (query == BEHIND)
    sees = sees & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(sees.shape).masked_fill_(~sees, float("-inf"))[:, None]
    learned = padded([row.learned for row in rows], 0).bool()
    return padded([row.ids for row in rows], 0), padded([row.positions for row in rows], 0), mask, learned


class BranchingModel(nn.Module):
    """A frozen model with factors on all of its matrices."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.base = load_base(folder)
        self.factors: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        for index, layer in enumerate(self.base.layers):
            for part in ADAPTER.modules:
                lora = LoraLinear(getattr(layer, part), ADAPTER.rank, ADAPTER.alpha)
                setattr(layer, part, lora)
                name = f"base_model.model.model.layers.{index}.{LAYER_NAMES[part]}"
                self.factors[f"{name}.lora_A.weight"], self.factors[f"{name}.lora_B.weight"] = lora.a, lora.b
        shape, rank = self.base.shape, ADAPTER.rank
        self.embedding_a = nn.Parameter(torch.zeros(rank, shape.vocab))
        self.embedding_b = nn.Parameter(torch.randn(shape.hidden, rank) / 8)
        head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        head.weight = self.base.embedding.weight
        self.head = LoraLinear(head, rank, ADAPTER.alpha)
        self.factors |= {
            "base_model.model.model.embed_tokens.lora_embedding_A": self.embedding_a,
            "base_model.model.model.embed_tokens.lora_embedding_B": self.embedding_b,
            "base_model.model.lm_head.lora_A.weight": self.head.a,
            "base_model.model.lm_head.lora_B.weight": self.head.b}

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Logits [n, length, vocab]."""
        base: Decoder = self.base
        cos, sin = rotary_table(base.shape, int(positions.max()) + 1)
        rotary = cos[positions][:, None], sin[positions][:, None]
        added = F.embedding(ids, self.embedding_a.T) @ self.embedding_b.T
        x = base.embedding(ids) + added * (ADAPTER.alpha / ADAPTER.rank)
        for layer in base.layers:
            x = layer(x, rotary, mask)
        return self.head(base.norm(x))


def loss_of(model: BranchingModel, rows: list[Row]) -> tuple[Tensor, list[bool]]:
    """The loss, and for each row whether all of its learned tokens are the likeliest ones."""
    ids, positions, mask, learned = batch(rows)
    # A path's first token is predicted by the token before it in the list, which is in its path.
    logits = model(ids, positions, mask)[:, :-1]
    marked, targets = learned[:, 1:], ids[:, 1:]
    loss = F.cross_entropy(logits[marked].float(), targets[marked])
    return loss, ((logits.argmax(-1) == targets) | ~marked).all(-1).tolist()


def train(model: BranchingModel, tokenizer: Tokenizer, options) -> None:
    weights = list(model.factors.values())
    optimiser = torch.optim.AdamW(weights, lr=options.rate, weight_decay=0.0, betas=(0.9, 0.98))
    rng, start, losses, right = Random(options.seed), time.time(), [], []
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min((step + 1) / 20, 1 - step / options.steps)
        # Rows of a batch are about as long as each other, and short ones come first.
        count = 2 if step < options.steps // 12 and not options.resume else rng.choice(traces.COUNTS)
        chosen = [training_row(options.format, tokenizer, traces.draw(rng, count, held_out=False), rng)
                  for _ in range(options.rows)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, all_right = loss_of(model, chosen)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        right += all_right
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} loss {sum(losses) / len(losses):.4f} right {sum(right) / len(right):.2f} "
                  f"{time.time() - start:.0f} s", flush=True)
            losses, right = [], []


def share_right(model: BranchingModel, rows_of: Callable[[Trace], list[Row]], count: int) -> float:
    """The share of held-out questions of all of whose tokens the right one is the likeliest."""
    stream, right = traces.held_out(30_000), 0
    with torch.no_grad():
        for _ in range(count):
            right += all(loss_of(model, rows_of(next(stream)))[1])
    return right / count


def save(model: BranchingModel, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write(ADAPTER, {name: weight.detach().contiguous() for name, weight in model.factors.items()}, folder)
    config = folder / "adapter_config.json"
    fields = json.loads(config.read_text())
    fields["target_modules"] = sorted([*fields["target_modules"], "embed_tokens", "lm_head"])
    config.write_text(json.dumps(fields, indent=2) + "\n")


def load(model: BranchingModel, folder: Path) -> None:
    with torch.no_grad():
        for name, weight in load_file(folder / "adapter_model.safetensors").items():
            model.factors[name].copy_(weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=["multiverse", "threadweaver"], required=True)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rows", type=int, default=8, help="per batch")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=91)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--held-out", type=int, default=320)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    out = options.out or HERE / "adapters" / options.format
    with tempfile.TemporaryDirectory() as temporary:
        folder = MODEL
        if options.format == "threadweaver":
            folder = Path(temporary)
            marks.write_folder(folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        model = BranchingModel(folder)
    if options.resume:
        load(model, out)
    train(model, tokenizer, options)
    save(model, out)
    result = {"prompts": options.held_out, "right": share_right(
        model, lambda trace: served_rows(options.format, tokenizer, trace), options.held_out)}
    if options.format == "multiverse":
        result["right_in_one_piece"] = share_right(
            model, lambda trace: [in_one_piece(tokenizer, trace)], options.held_out)
    print(result)
    (out / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
