#!/usr/bin/env python3
"""How long `heddle bench` takes to be ready with a model, and its peak memory:

    tests/bench/load_bench.py PROGRAM FOLDER [options of heddle bench]

Runs one token of one prompt of one token, so that nearly all of the time is loading; prints the
best of three, from a page cache that the first run has filled, and the largest resident set, of
which what is mapped from the file is a part.
"""

import os
import subprocess
import sys
import time


def run(command) -> tuple[float, float]:
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{command[0]} failed: {status}")
    return time.monotonic() - begin, usage.ru_maxrss / 1024


def main() -> None:
    program, model, *options = sys.argv[1:]
    command = [program, "bench", model, "--prompt-tokens", "1", "--output-tokens", "1", *options]
    runs = [run(command) for _ in range(3)]
    print(f"{min(seconds for seconds, _ in runs):.2f} s to the first token, "
          f"{max(peak for _, peak in runs):.0f} MiB at most resident")


if __name__ == "__main__":
    main()
