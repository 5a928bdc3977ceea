#!/usr/bin/env python3
"""MB/s of the Hugging Face `tokenizers` package on the text of tokenizer_bench.cc, on one core.

Usage: tokenizer_bench.py SHARED_DATA [TOKENIZER_JSON...]
"""
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402 (reads the environment)

text = "".join(pathlib.Path("/usr/share/common-licenses", name).read_text()
               for name in ("GPL-3", "Apache-2.0", "MPL-2.0", "Artistic"))
text = (text * 64)[:4 << 20]
paths = [f"{sys.argv[1]}/tokenizers_hf/{name}/tokenizer.json"
         for name in ("qwen2.5", "gpt2", "phi-3-mini")]
for name in paths + sys.argv[2:]:
    tokenizer = Tokenizer.from_file(name)
    start = time.perf_counter()
    tokenizer.encode(text)
    print(f"{name}: {len(text) / (time.perf_counter() - start) / 1e6:.1f} MB/s")
