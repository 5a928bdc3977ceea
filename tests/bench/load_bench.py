#!/usr/bin/env python3
"""How long `heddle serve` takes until it is ready, and the memory that it has had until then:

    tests/bench/load_bench.py PROGRAM MODEL [--bench] [options of the command]

From the start of the process to the first 200 of GET /health; best of three, from a page cache that
the first run has filled. Memory is that of the process itself, from /proc: the most that was ever
resident, and what is resident once it is ready, without the pages of mapped files (which are the
page cache's) and with them. With --bench `heddle bench` in its place, with one token of one prompt of
one token, to its end; for models without a tokenizer.
"""

import http.client
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from ports import reserve_port  # noqa: E402

MIB = 1024.0  # of the kB that /proc has
FIELDS = ("VmHWM", "VmRSS", "RssAnon")


def status_of(pid: int) -> dict[str, float]:
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(values[name].split()[0]) / MIB for name in FIELDS}


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def serve(program: str, model: str, options: list[str]) -> tuple[float, dict[str, float]]:
    port = reserve_port()
    command = [program, "serve", model, "--host", "127.0.0.1", "--port", str(port), *options]
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(port):
            if child.poll() is not None:
                sys.exit(f"{' '.join(command)} ended: {child.returncode}")
            time.sleep(0.005)
        return time.monotonic() - begin, status_of(child.pid)
    finally:
        child.terminate()
        child.wait()


def bench(program: str, model: str, options: list[str]) -> tuple[float, dict[str, float]]:
    command = [program, "bench", model, "--prompt-tokens", "1", "--output-tokens", "1", *options]
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{command[0]} failed: {status}")
    return time.monotonic() - begin, {"VmHWM": usage.ru_maxrss / MIB}


def main() -> None:
    program, model, *options = sys.argv[1:]
    measure = bench if "--bench" in options else serve
    options = [option for option in options if option != "--bench"]
    runs = [measure(program, model, options) for _ in range(3)]
    seconds, _ = min(runs, key=lambda run: run[0])
    memory = ", ".join(f"{name} {max(run[1][name] for run in runs):.0f} MiB" for name in runs[0][1])
    print(f"{seconds:.2f} s; {memory}")


if __name__ == "__main__":
    main()
