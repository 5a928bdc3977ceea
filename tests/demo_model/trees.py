"""What Medusa heads gain on held-out answers as chains and as trees of guesses, by replay.

    python trees.py [--heads ../../share/demo-model/medusa]

Each answer is followed token by token, as a server does that verifies guesses: behind a pass, the
heads guess from the last accepted token's hidden state; the next pass has a row for each guess that
pays, and brings one token more than were right. A step of k rows takes 1 + 0.1 (k - 1) times as long
as one of a single row (the CPU's curve: 8 rows at 1.7), and more than 16 rows 0.05 more each. How
likely a guess is right is read off the half of the answers that is not replayed, by place and by the
head's own probability.

A chain has the best guess of each place. A tree may have any of the four best at each place below
any node. Both take nodes in the order of their survival, as long as tokens per time rise.
"""

import argparse
import heapq
import itertools
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

import corpus
import data
from base import HERE, MODEL, load_base

RANKS = 4  # of the guesses at a place
BINS = 12


def step_cost(rows: int) -> float:
    return 1 + 0.1 * (rows - 1) + 0.05 * max(0, rows - 16)


def load_heads(folder: Path) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    weights = {n: w.float() for n, w in load_file(folder / "medusa_lm_head.safetensors").items()}
    heads = []
    while f"{len(heads)}.0.linear.weight" in weights:
        k, layers = len(heads), []
        while f"{k}.{len(layers)}.linear.weight" in weights:
            prefix = f"{k}.{len(layers)}.linear"
            layers.append((weights[f"{prefix}.weight"], weights[f"{prefix}.bias"]))
        heads.append((layers, weights.get(f"{k}.{len(layers)}.weight")))
    return heads


@torch.no_grad()
def answers(folder: Path, count: int) -> list[dict]:
    """Of each answer its tokens, and at each place what the heads say of the places behind the next
    token: the RANKS best and their probabilities, [tokens, heads, RANKS]."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    base, heads = load_base(), load_heads(folder)
    samples = itertools.islice(corpus.samples(60_000, held_out=True), 4 * count)
    documents = [d for d in data.encode(tokenizer, list(samples)) if len(d[0]) <= 256][:count]
    found = []
    for batch in data.pack(documents, 8, 256)[0]:
        ids, where = torch.from_numpy(batch.ids), torch.from_numpy(batch.documents)
        learned = torch.from_numpy(batch.learned)
        hidden = base.hidden(ids, where)
        guesses, shares = [], []
        for layers, output in heads:
            x = hidden
            for weight, bias in layers:
                x = x + F.silu(F.linear(x, weight, bias))
            best = F.softmax(F.linear(x, base.embedding.weight if output is None else output),
                             -1).topk(RANKS, -1)
            guesses.append(best.indices)
            shares.append(best.values)
        guesses, shares = torch.stack(guesses, 2), torch.stack(shares, 2)
        for row in range(ids.shape[0]):
            at = 0
            while at < ids.shape[1]:  # runs of learned tokens of one document
                end = at
                while end < ids.shape[1] and learned[row, end] and where[row, end] == where[row, at]:
                    end += 1
                if end - at >= 8:  # the state before a token says what follows it
                    found.append({"tokens": ids[row, at:end].tolist(),
                                  "guesses": guesses[row, at - 1:end - 1].tolist(),
                                  "shares": shares[row, at - 1:end - 1].tolist()})
                at = max(end, at + 1)
    return found


def bin_of(share: float) -> int:
    return min(BINS - 1, int(share * BINS))


def calibrate(found: list[dict]) -> list:
    """[place][bin] how often a guess was right, those before it on its path being right."""
    places = len(found[0]["guesses"][0])
    tried = [[1.0] * BINS for _ in range(places)]
    right = [[(b + 0.5) / BINS for b in range(BINS)] for _ in range(places)]
    for answer in found:
        tokens = answer["tokens"]
        for at in range(len(tokens) - 1):
            for place in range(min(places, len(tokens) - at - 1)):
                truth, hit = tokens[at + 1 + place], False
                for rank in range(RANKS):
                    share_bin = bin_of(answer["shares"][at][place][rank])
                    is_right = answer["guesses"][at][place][rank] == truth
                    tried[place][share_bin] += 1
                    right[place][share_bin] += is_right
                    hit = hit or is_right
                if not hit:
                    break
    return [[r / t for r, t in zip(rs, ts)] for rs, ts in zip(right, tried)]


def choose(shares: list, calibration: list, ranks: int, pass_cost: float, places: int) -> set:
    """The nodes to verify, as paths of ranks."""
    def survival(path: tuple, parent: float) -> float:
        place = len(path) - 1
        return parent * calibration[place][bin_of(shares[place][path[-1]])]

    heap = [(-survival((rank,), 1.0), (rank,)) for rank in range(ranks)]
    heapq.heapify(heap)
    taken, best, tokens = [], 0, 1.0
    best_rate = 1.0 / (step_cost(1) + pass_cost)
    while heap:
        negative, path = heapq.heappop(heap)
        taken.append(path)
        tokens -= negative
        rate = tokens / (step_cost(1 + len(taken)) + pass_cost)
        if rate > best_rate:
            best, best_rate = len(taken), rate
        if len(path) < places:
            for rank in range(ranks):
                below = path + (rank,)
                heapq.heappush(heap, (-survival(below, -negative), below))
        if len(taken) > 24:
            break
    return set(taken[:best])


def replay(found: list[dict], calibration: list, ranks: int, pass_cost: float, places: int,
           fixed: set | None = None) -> dict:
    steps, tokens_done, time, rows = 0, 0, 0.0, 0
    for answer in found:
        tokens, at = answer["tokens"], 0
        while at < len(tokens) - 1:  # the token at `at` is drawn; guesses are for those behind
            nodes = fixed
            if nodes is None:
                nodes = choose(answer["shares"][at], calibration, ranks, pass_cost, places)
            path = ()
            while len(path) < places and at + 1 + len(path) < len(tokens):
                truth, place = tokens[at + 1 + len(path)], len(path)
                rank = next((r for r in range(RANKS)
                             if answer["guesses"][at][place][r] == truth), None)
                if rank is None or path + (rank,) not in nodes:
                    break
                path += (rank,)
            steps += 1
            rows += len(nodes)
            gained = min(1 + len(path), len(tokens) - 1 - at)
            tokens_done += gained
            time += step_cost(1 + len(nodes)) + pass_cost
            at += gained
    return {"tokens_per_step": round(tokens_done / steps, 3), "guesses": round(rows / steps, 2),
            "gain": round(tokens_done / time, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=Path, default=MODEL / "medusa")
    parser.add_argument("--count", type=int, default=1200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = answers(options.heads, options.count)
    learnt, replayed = found[::2], found[1::2]
    calibration = calibrate(learnt)
    places = len(calibration)
    print(f"{len(replayed)} answers of {sum(len(a['tokens']) for a in replayed)} tokens, {places} heads")
    for pass_cost in (0.0, 0.1, 0.25):  # of all heads, against a step of one row
        for name, ranks in (("chain", 1), ("two", 2), ("tree", RANKS)):
            print(pass_cost, name, replay(replayed, calibration, ranks, pass_cost, places))
    for length in range(1, places + 1):
        chain = {(0,) * n for n in range(1, length + 1)}
        print("fixed chain", length, replay(replayed, calibration, 1, 0.0, length, chain))
        print("  and the second at the first place", length,
              replay(replayed, calibration, 1, 0.0, length, chain | {(1,)}))


if __name__ == "__main__":
    main()
