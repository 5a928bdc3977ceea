"""Questions for several sums, and answers to them in branches, as Multiverse's and as ThreadWeaver's models write: what
parallel.py trains on and what servers are asked (thinking_serve_test.py and orchestrators_test.py in tests/conformance)."""

from dataclasses import dataclass
from random import Random
from typing import Iterator

import corpus
import questions

COUNTS = [2, 2, 3, 3, 4]
FRAMES = ["Work out {}.", "Solve {}.", "Compute {}.", "Tell me {}."]


@dataclass
class Trace:
    question: str
    outlines: list[str]  # "3 + 4"
    results: list[int]

    @property
    def outline_lines(self) -> str:
        return "".join(f"<Outline>{i}: {text}</Outline>\n" for i, text in enumerate(self.outlines, 1))

    def branches(self, end: str) -> list[str]:
        """Behind the header with the number, which the server puts in."""
        return [f" {text} = {result}.{end}" for text, result in zip(self.outlines, self.results)]

    # Multiverse

    @property
    def goal(self) -> str:
        return f"<Goal>\n{self.outline_lines}</Goal>"

    @property
    def paths(self) -> list[str]:
        return self.branches("</Path>")

    @property
    def conclusion(self) -> str:
        return f"{', '.join(map(str, self.results[:-1]))} and {self.results[-1]}."

    @property
    def answer(self) -> str:
        """The whole text, with what the server puts in."""
        paths = "".join(f"<Path>\n{i}:{path}\n" for i, path in enumerate(self.paths, 1))
        return f"{self.goal}\n{paths}<Conclusion>\n{self.conclusion}"

    # ThreadWeaver

    @property
    def plan(self) -> str:
        return f"<Parallel>\n<Outlines>\n{self.outline_lines}</Outlines>"

    @property
    def threads(self) -> list[str]:
        return self.branches("</Thread>")

    @property
    def joined(self) -> str:
        """What the orchestrator makes of the threads."""
        return "\n" + "".join(f"<Thread>\n{i}:{thread}" for i, thread in enumerate(self.threads, 1)) + "\n"

    @property
    def boxed(self) -> str:
        return ",".join(map(str, self.results))

    @property
    def ending(self) -> str:
        return f"</Parallel>\n</think>\\boxed{{{self.boxed}}}"


def listed(texts: list[str]) -> str:
    return ", ".join(f"{i}: {text}" for i, text in enumerate(texts, 1))


def draw(rng: Random, count: int, held_out: bool) -> Trace:
    """A question for `count` sums."""
    while True:
        drawn = [questions.operands(rng) for _ in range(count)]
        outlines = [f"{a} {operator} {b}" for operator, a, b, _ in drawn]
        question = rng.choice(FRAMES).format(listed(outlines))
        if corpus.is_held_out_turn(question) == held_out:
            return Trace(question, outlines, [result for *_, result in drawn])


def held_out(seed: int) -> Iterator[Trace]:
    rng = Random(seed)
    while True:
        yield draw(rng, rng.choice(COUNTS), held_out=True)
