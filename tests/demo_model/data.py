"""Turns samples into training rows: tokens, the document each is in, and which are learned."""

import itertools
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Iterator

import numpy as np
from tokenizers import Tokenizer

import corpus


ROW_LENGTHS = (128, 192, 256, 1024)
SKIPS = 8  # documents that no longer fit before a batch counts as full


@dataclass
class Batch:
    """All [rows, length]. `learned[i, j]` says that the token at j is to be predicted from j - 1."""
    ids: np.ndarray
    documents: np.ndarray
    learned: np.ndarray


def encode(tokenizer: Tokenizer, samples: list[corpus.Sample]) -> list[tuple[list[int], list[bool]]]:
    pieces = [(index, text, learned) for index, sample in enumerate(samples)
              for text, learned in corpus.segments(sample)]
    encoded = tokenizer.encode_batch([text for _, text, _ in pieces], add_special_tokens=False)
    documents: list[tuple[list[int], list[bool]]] = [([], []) for _ in samples]
    for (index, _, learned), encoding in zip(pieces, encoded):
        ids, marks = documents[index]
        ids += encoding.ids
        marks += [learned] * len(encoding.ids)
    return documents


def empty(rows: int, length: int) -> Batch:
    shape = (rows, length)
    return Batch(np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, bool))


def pack(documents: list, rows: int, length: int) -> tuple[list[Batch], list]:
    """Fills rows with whole documents, first fit. Returns full batches and the documents left over."""
    batches, batch, space = [], empty(rows, length), [length] * rows
    queue, placed, skipped, number = deque(documents), [], [], 0
    while queue:
        ids, marks = queue.popleft()
        row = next((r for r in range(rows) if space[r] >= len(ids)), None)
        if row is None:
            skipped.append((ids, marks))
            if len(skipped) == SKIPS:
                batches.append(batch)
                batch, space, placed = empty(rows, length), [length] * rows, []
                queue.extendleft(reversed(skipped))
                skipped = []
            continue
        start, number = length - space[row], number + 1
        end = start + len(ids)
        batch.ids[row, start:end], batch.documents[row, start:end] = ids, number
        batch.learned[row, start:end] = marks
        batch.learned[row, start] = False  # nothing before it in its document predicts it
        space[row] -= len(ids)
        placed.append((ids, marks))
    return batches, placed + skipped


def batches(tokenizer: Tokenizer, seed: int, tokens: int) -> Iterator[Batch]:
    """An endless stream, fixed by the seed. A document goes to the shortest kind of row it fits in,
    since attention costs the square of a row's length; what fits in none is left out."""
    stream, rng = corpus.samples(seed, held_out=False), Random(seed)
    waiting: dict[int, list] = {length: [] for length in ROW_LENGTHS}
    while True:
        for document in encode(tokenizer, list(itertools.islice(stream, 4096))):
            length = next((n for n in ROW_LENGTHS if len(document[0]) <= n), None)
            if length:
                waiting[length].append(document)
        ready = []
        for length in ROW_LENGTHS:
            full, waiting[length] = pack(waiting[length], tokens // length, length)
            ready += full
        rng.shuffle(ready)
        yield from ready
