#!/usr/bin/env python3
"""heddle bench beside llama.cpp's (and ik_llama.cpp's) on the same GGUF files, taking turns in one run.

    tests/bench/peer_bench.py --llama DIR [--ik DIR] [--isa avx2] [--rounds 3] [--threads 2] MODEL.gguf ...

DIR holds llama-bench and llama-batched-bench, built for this machine (GGML_NATIVE=ON); of ik_llama.cpp llama-bench alone,
run with and without its run-time repacking, of which the better counts. A shared library in place of DIR is asked through
its C interface (peer_library.py, which says where to get some), with this Python; then one stream goes on behind the
prompt, as heddle's does, and does not begin anew. --isa: heddle's kernels. The machine's memory and clock change from
minute to minute: each round asks everybody once, and the middle of the rounds is printed, with the ratios of the middles and
the middle of the rounds' ratios. One stream, which is bound by memory, wants many short rounds: --batches "" --prompt-tokens 64
--output-tokens 48 --rounds 12.
tests/bench/serving/make_random_gguf.py and llama-quantize make files of a known shape. Python's library alone.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BATCH_PROMPT = 16


def json_lines(command):
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def heddle(options, model):
    """(figure, tokens per second) pairs, and the shares of the machine's limits."""
    command = [options.heddle, "bench", model, "--threads", options.threads, "--isa", options.isa, "--json", "--output-tokens", options.output_tokens]
    alone = json_lines([*map(str, command), "--prompt-tokens", str(options.prompt_tokens), "--batch", "1"])[0]
    many = []
    if options.batches:
        many = json_lines([*map(str, command), "--prompt-tokens", str(BATCH_PROMPT), "--batch", options.batches])
    yield "prefill", alone["prefill_tok_s"]
    yield "decode", alone["decode_tok_s"]
    for run in many:
        yield f"batch {run['batch']}", run["decode_tok_s"]
    yield "prefill, share of peak", alone["gops"] / alone["limit_gops"]
    yield "decode, share of reading", alone["read_gb_s"] / alone["limit_read_gb_s"]


def llama_bench(options, folder, model, *extra):
    command = [folder / "llama-bench", "-m", model, "-p", options.prompt_tokens, "-n", options.output_tokens, "-t", options.threads, "-r", 2, "-o", "json"]
    output = subprocess.run([*map(str, command), *extra], capture_output=True, text=True, check=True).stdout
    tests = json.loads(output[output.index("["):output.rindex("]") + 1])
    return [test["avg_ts"] for test in tests]


def library(options, path, model, *extra):
    command = [sys.executable, pathlib.Path(__file__).with_name("peer_library.py"), "--library", path, "--threads", options.threads,
               "--prompt", options.prompt_tokens, "--output", options.output_tokens, "--batch-prompt", BATCH_PROMPT, *extra, model]
    return json_lines(list(map(str, command)))[0]


def llama(options, model):
    if options.llama.is_file():
        yield from library(options, options.llama, model, "--batches", options.batches).items()
        return
    yield from zip(("prefill", "decode"), llama_bench(options, options.llama, model))
    if not options.batches:
        return
    for run in json_lines(list(map(str, [
            options.llama / "llama-batched-bench", "-m", model, "-npp", BATCH_PROMPT, "-ntg", options.output_tokens,
            "-npl", options.batches,
            "-t", options.threads, "-c", "4096", "-b", "2048", "--output-format", "jsonl"]))):
        yield f"batch {run['pl']}", run["speed_tg"]


def ik(options, model):
    if options.ik.is_file():
        plain = library(options, options.ik, model, "--batches", "")
        repacked = library(options, options.ik, model, "--batches", "", "--repack-at", options.ik_repack_at)
        yield from ((figure, max(value, repacked[figure])) for figure, value in plain.items())
        return
    plain = llama_bench(options, options.ik, model)
    repacked = llama_bench(options, options.ik, model, "-rtr", "1")
    yield from zip(("prefill", "decode"), map(max, plain, repacked))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heddle", type=pathlib.Path, default=SOURCE / "build" / "heddle")
    parser.add_argument("--llama", type=pathlib.Path)
    parser.add_argument("--ik", type=pathlib.Path)
    parser.add_argument("--ik-repack-at", type=int, default=156, help="see peer_library.py; 156 in 0.1.5")
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--output-tokens", type=int, default=24)
    parser.add_argument("--batches", default="8,16,32", help="numbers of streams; empty: none")
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    programs = {"heddle": heddle}
    if options.llama:
        programs["llama.cpp"] = llama
    if options.ik:
        programs["ik_llama.cpp"] = ik
    for model in options.models:
        figures = {}
        for _ in range(options.rounds):
            for name, program in programs.items():
                for figure, value in program(options, model):
                    figures.setdefault(figure, {}).setdefault(name, []).append(value)
        print(f"\n{pathlib.Path(model).name}, tokens/s, middle of {options.rounds} (range)", flush=True)
        for figure, by_program in figures.items():
            cells = []
            ours = statistics.median(by_program["heddle"])
            for name, values in by_program.items():
                middle = statistics.median(values)
                paired = statistics.median(a / b for a, b in zip(by_program["heddle"], values))
                ratio = "" if name == "heddle" else f", {ours / middle:.2f}x, paired {paired:.2f}x"
                text = f"{middle:.2f}" if "share" in figure else f"{middle:.1f} ({min(values):.0f}-{max(values):.0f}{ratio})"
                cells.append(f"{name} {text}")
            print(f"  {figure:26}" + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
