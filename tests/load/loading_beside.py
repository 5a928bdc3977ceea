"""How much longer steps take while adapters are loaded.

    loading_beside.py --model FOLDER [--rank 54] [--adapters 12] [--tokens 400] [-- FLAGS of heddle serve]

Serves a model with one stream, and loads adapters (by vLLM's route, one after the other, each of other files) during every
second part of it. Prints the median and the 90th percentile of the time between two tokens in both kinds of parts,
their ratio (goal: at most 1.10), and how long loads took. `tests/bench/make_random_model.py FOLDER TOKENIZER_JSON` makes a
model of TinyLlama's shape, for which rank 54 is 85 MB; the files are read once before, so that they are in the page
cache. The model's first load in a process touches memory for the first time, and is not counted.
"""

import argparse
import http.client
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time

from common import Daemon
from many_adapters import DEMO, write_adapter

PARTS = 8  # of the stream; adapters are loaded in every second one


def load(daemon, name, path):
    began = time.perf_counter()
    status, _, text = daemon.request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
    assert status == 200, text
    return time.perf_counter() - began


def stream(daemon, tokens, on_token):
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=600)
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            on_token(time.perf_counter())
    connection.close()


def measure(daemon, options, names):
    """({loads?: gaps in seconds}, seconds of loads)"""
    gaps, loads = {False: [], True: []}, []
    state = {"last": None, "count": 0, "loading": False, "ended": False}
    wanted = threading.Condition()

    def on_token(now):
        kind = state["count"] * PARTS // options.tokens % 2 == 1
        with wanted:
            changed, state["loading"] = kind != state["loading"], kind
            wanted.notify()
        if state["last"] is not None and not changed:
            gaps[kind].append(now - state["last"])
        state["last"], state["count"] = now, state["count"] + 1

    def loader():
        number = 0
        while True:
            with wanted:
                wanted.wait_for(lambda: state["loading"] or state["ended"])
                if state["ended"]:
                    return
            loads.append(load(daemon, f"loaded-{number}", names[number % len(names)]))
            number += 1

    thread = threading.Thread(target=loader)
    thread.start()
    stream(daemon, options.tokens, on_token)
    with wanted:
        state["ended"] = True
        wanted.notify()
    thread.join()
    return gaps, loads


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path, default=DEMO)
    for name, default in (("rank", 54), ("adapters", 12), ("tokens", 400)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    config = json.loads((options.model / "config.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        names = [f"adapter-{k}" for k in range(options.adapters)]
        for k, name in enumerate(names):
            write_adapter(pathlib.Path(folder) / name, config, options.rank, seed=k)
            (pathlib.Path(folder) / name / "adapter_model.safetensors").read_bytes()
        flags = ["--lora-dir", folder, "--allow-lora-updates", "--max-lora-rank", "512", "--log-level", "error",
                 "--lora-host-memory", "2GiB", *options.flags]
        with Daemon(*flags, model=options.model) as daemon:
            for name in names[:2]:
                load(daemon, f"before-{name}", name)
            stream(daemon, 20, lambda now: None)
            gaps, loads = measure(daemon, options, names)
            mib = daemon.metric("heddle_adapter_host_bytes") / 2**20
    result = {"loads": len(loads), "load_s_median": statistics.median(loads), "host_mib": mib}
    for name, values in (("alone", sorted(gaps[False])), ("loading", sorted(gaps[True]))):
        result[f"{name}_ms_p50"] = 1000 * values[len(values) // 2]
        result[f"{name}_ms_p90"] = 1000 * values[len(values) * 9 // 10]
    result["ratio_p50"] = result["loading_ms_p50"] / result["alone_ms_p50"]
    result["ratio_p90"] = result["loading_ms_p90"] / result["alone_ms_p90"]
    print(json.dumps(result))
    print(f"between tokens x {result['ratio_p50']:.2f} (goal 1.10)", file=sys.stderr)


if __name__ == "__main__":
    main()
