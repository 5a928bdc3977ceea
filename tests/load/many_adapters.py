"""Thousands of adapters on the disk, asked for as Zipf's law says, on a server whose KV memory has room for few.

    many_adapters.py [--adapters 2000] [--pool 60] [--rank 8] [--requests 1000] [--clients 16] [--rounds 3]
                     [--folder DIR] [--model MODEL] [-- FLAGS of heddle serve]

Makes the adapters (all linears, small random factors), and drives three servers in turns with the same requests:

    few       as many adapters as the pool has room for, in that pool
    many      all adapters, in that pool
    resident  all adapters, in a pool that has room for them all

and prints of the medians over the rounds: throughput of `many` in that of `few` (goal: at least 0.9), and the 90th
percentile of the time to the first token of `many` in that of `resident` (goal: at most 3). Before each round every
server is asked once for each adapter that it will be asked for, so the host's memory is warm and the disk is not what
is measured; --cold leaves that out. With the defaults it takes about ten minutes on two quiet cores, and 0.6 GB of disk.
"""

import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import statistics
import struct
import sys
import tempfile
import time

from common import Daemon

DEMO = pathlib.Path(__file__).resolve().parents[2] / "share" / "demo-model"
WORDS = "the a sun moon dog cat tree house red blue small warm day night story garden sings runs sees likes".split()


def linears(config):
    """(name, inputs, outputs) of the linears of one layer."""
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries = config["num_attention_heads"] * width
    keys = config.get("num_key_value_heads", config["num_attention_heads"]) * width
    return [("self_attn.q_proj", hidden, queries), ("self_attn.k_proj", hidden, keys),
            ("self_attn.v_proj", hidden, keys), ("self_attn.o_proj", queries, hidden),
            ("mlp.gate_proj", hidden, inter), ("mlp.up_proj", hidden, inter), ("mlp.down_proj", inter, hidden)]


def small_values(dice, count):
    """BF16 numbers whose magnitude is from 2^-9 to 2^-7: no answer becomes nonsense, and no two are alike."""
    data = bytearray(dice.randbytes(2 * count))
    data[1::2] = bytes(data[1::2]).translate(bytes(0x3B | byte & 0x80 for byte in range(256)))
    return bytes(data)


def write_adapter(folder, config, rank, seed):
    """An adapter in PEFT's layout; one that is there already is left alone."""
    if (folder / "adapter_model.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(seed)
    header, parts, end = {}, [], 0
    for layer in range(config["num_hidden_layers"]):
        for name, inputs, outputs in linears(config):
            for factor, shape in (("A", [rank, inputs]), ("B", [outputs, rank])):
                part = small_values(dice, shape[0] * shape[1])
                key = f"base_model.model.model.layers.{layer}.{name}.lora_{factor}.weight"
                header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + len(part)]}
                parts.append(part)
                end += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": rank,
        "target_modules": [name.rsplit(".", 1)[1] for name, _, _ in linears(config)]}))
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def zipf(dice, adapters, count):
    """Numbers of adapters: the k-th in proportion to 1/k."""
    weights = [1 / (k + 1) for k in range(adapters)]
    return dice.choices(range(adapters), weights, k=count)


def ask(port, name, prompt, tokens):
    """(seconds to the first token, tokens) of a streamed answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        began = time.perf_counter()
        body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, (name, response.status, response.read())
        first, seen = None, 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            if first is None:
                first = time.perf_counter() - began
            usage = json.loads(line[6:]).get("usage")
            seen = usage["completion_tokens"] if usage else seen
        return first, seen
    finally:
        connection.close()


class Variant:
    def __init__(self, name, adapters, pages, options):
        self.name, self.adapters, self.pages, self.options = name, adapters, pages, options
        self.rounds = []

    def run(self, number, folder, page_bytes):
        options = self.options
        dice = random.Random(1000 * number)
        # The same prompts and lengths for all; which adapter has which request depends on how many there are.
        prompts = [" ".join(dice.choices(WORDS, k=dice.randint(10, 60))) for _ in range(options.requests)]
        lengths = [dice.randint(8, 24) for _ in prompts]
        chosen = zipf(random.Random(number), self.adapters, options.requests)
        flags = ["--lora-dir", str(folder), "--max-lora-rank", str(options.rank), "--log-level", "error",
                 "--kv-memory", str(self.pages * page_bytes), "--lora-host-memory", "16GiB", *options.flags]
        with Daemon(*flags, model=options.model) as daemon, \
                concurrent.futures.ThreadPoolExecutor(options.clients) as clients:
            if not options.cold:
                warm = sorted(set(chosen))
                list(clients.map(lambda k: ask(daemon.port, f"adapter-{k}", "the", 1), warm))
            before = daemon.stats()["adapters"]
            began = time.perf_counter()
            answers = list(clients.map(
                lambda i: ask(daemon.port, f"adapter-{chosen[i]}", prompts[i], lengths[i]), range(len(prompts))))
            seconds = time.perf_counter() - began
            after = daemon.stats()["adapters"]
        firsts = sorted(first for first, _ in answers)
        uses = after["uses"] - before["uses"]
        self.rounds.append({
            "tokens_per_s": sum(tokens for _, tokens in answers) / seconds,
            "ttft_ms_p50": 1000 * firsts[len(firsts) // 2],
            "ttft_ms_p90": 1000 * firsts[len(firsts) * 9 // 10],
            "ttft_ms_max": 1000 * firsts[-1],
            "in_pool": (after["hits"] - before["hits"]) / max(1, uses),
            "pages_loaded": after["pages_loaded"] - before["pages_loaded"]})
        print(json.dumps({"round": number, "variant": self.name, **self.rounds[-1]}), flush=True)

    def median(self, name):
        return statistics.median(entry[name] for entry in self.rounds)


def page_sizes(folder, options):
    """(bytes of a page of the pool, pages of an adapter), as a server tells them."""
    flags = ["--lora-dir", str(folder), "--max-lora-rank", str(options.rank), "--log-level", "error",
             "--kv-memory", "64MiB", *options.flags]
    with Daemon(*flags, model=options.model) as daemon:
        ask(daemon.port, "adapter-0", "the", 1)
        adapters = daemon.stats()["adapters"]
    return adapters["bytes"] // adapters["pages"], adapters["pages"]


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("adapters", 2000), ("pool", 60), ("rank", 8), ("requests", 1000), ("clients", 16),
                          ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--model", type=pathlib.Path, default=DEMO)
    parser.add_argument("--folder", type=pathlib.Path, help="where the adapters are kept for the next time")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    config = json.loads((options.model / "config.json").read_text())
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or pathlib.Path(temporary)
        for k in range(options.adapters):
            write_adapter(folder / f"adapter-{k}", config, options.rank, seed=k)
        page_bytes, each = page_sizes(folder, options)
        small, large = options.pool * each, 2 * options.adapters * each
        few = Variant("few", options.pool, small, options)
        many = Variant("many", options.adapters, small, options)
        resident = Variant("resident", options.adapters, large, options)
        for number in range(options.rounds):
            turns = [few, many, resident]
            for variant in turns[number % 3:] + turns[:number % 3]:
                variant.run(number, folder, page_bytes)
    throughput = many.median("tokens_per_s") / few.median("tokens_per_s")
    first_token = many.median("ttft_ms_p90") / resident.median("ttft_ms_p90")
    print(json.dumps({"adapter_pages": each, "page_bytes": page_bytes, "pool_pages": small,
                      "throughput_many_in_few": throughput, "ttft_p90_many_in_resident": first_token}))
    print(f"throughput {throughput:.2f} (goal 0.90), p90 of the first token x {first_token:.2f} (goal 3)",
          file=sys.stderr)


if __name__ == "__main__":
    main()
