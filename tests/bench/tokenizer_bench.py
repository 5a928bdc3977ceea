#!/usr/bin/env python3
"""MB/s of the Hugging Face `tokenizers` package on the text of tokenizer_bench.cc, on one core; for
files that it does not read (tokenizer.model) of Google's `sentencepiece`.

Usage: tokenizer_bench.py SHARED_DATA [TOKENIZER_JSON_OR_MODEL...]; HEDDLE_BENCH_TEXT=FILE for another
text. The text is encoded in parts of 16 KiB, as long prompts are, and as a whole; the better of two.
"""
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402 (reads the environment)

TEXT_BYTES, PART_BYTES = 4 << 20, 16 << 10


def english_text() -> str:
    if path := os.environ.get("HEDDLE_BENCH_TEXT"):
        text = pathlib.Path(path).read_text()
    else:
        text = "".join(pathlib.Path("/usr/share/common-licenses", name).read_text()
                       for name in ("GPL-3", "Apache-2.0", "MPL-2.0", "Artistic"))
    return (text * (TEXT_BYTES // len(text) + 1))[:TEXT_BYTES]


def encoder_of(path: str):
    if path.endswith(".model"):
        import sentencepiece
        return sentencepiece.SentencePieceProcessor(model_file=path).encode
    return Tokenizer.from_file(path).encode


def speed(encode, texts: list[str]) -> float:
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        for text in texts:
            encode(text)
        seconds.append(time.perf_counter() - start)
    return sum(len(text) for text in texts) / min(seconds) / 1e6


def main() -> None:
    text = english_text()
    parts = [text[at:at + PART_BYTES] for at in range(0, len(text), PART_BYTES)]
    paths = [f"{sys.argv[1]}/tokenizers_hf/{name}/tokenizer.json"
             for name in ("qwen2.5", "gpt2", "phi-3-mini")]
    for path in paths + sys.argv[2:]:
        encode = encoder_of(path)
        print(f"{path}: parts {speed(encode, parts):.1f} MB/s, whole {speed(encode, [text]):.1f} MB/s",
              flush=True)


if __name__ == "__main__":
    main()
