#!/usr/bin/env python3
"""Embeddings of many texts by a server beside torch, taking turns in one run.

    tests/bench/encoder_bench.py --heddle build/heddle [--shape minilm] [--rounds 5] [--threads 2] [--dtype float32]

An encoder of a published shape with random weights is written to a folder, served, and asked for the embeddings of short
texts (a query's length), of passages, and of both mixed, from a few connections; torch runs transformers' class on the same
tokens, sorted by length and padded in batches of 32 as sentence-transformers does, without its tokenizer's time. Each round asks
both once; the medians are printed, in texts and tokens a second, with the share of the matrix products' time at torch's own peak
(the better of two square products). Needs torch, transformers and safetensors (tests/golden/requirements.txt).
"""

import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from ports import reserve_port  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# Class, hidden, layers, heads, features: those of all-MiniLM-L6-v2, bge-base and bge-large,
# multilingual-e5-base, ModernBERT-base, and all-mpnet-base-v2.
SHAPES = dict(
    minilm=("bert", 384, 6, 12, 1536), base=("bert", 768, 12, 12, 3072),
    large=("bert", 1024, 24, 16, 4096), e5=("xlm-roberta", 768, 12, 12, 3072),
    modernbert=("modernbert", 768, 22, 12, 1152), mpnet=("mpnet", 768, 12, 12, 3072))
# Settings of a class's configuration beside its sizes; vocabularies hold the tokenizer's ids.
OWN = {"xlm-roberta": dict(vocab_size=250002, max_position_embeddings=514, type_vocab_size=1),
       "modernbert": dict(vocab_size=50368), "mpnet": dict(vocab_size=30527)}
WORDS = dict(short=(4, 14), passages=(90, 220))
CONNECTIONS = 4
PER_REQUEST = 64
TORCH_BATCH = 32


def write_model(folder, shape, dtype):
    kind, hidden, layers, heads, features = SHAPES[shape]
    config = transformers.AutoConfig.for_model(
        kind, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=features, **OWN.get(kind, dict(vocab_size=30522)))
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).to(dtype).eval()
    model.save_pretrained(folder)
    shutil.copy(SOURCE / "tests/golden/tokenizers/wordpiece.json", folder / "tokenizer.json")
    return model


def texts_of(kind, count, seed):
    draw = random.Random(seed)
    words = "the of and to in is was for that with as on by at from his her an were are which".split()

    def one(low, high):
        return " ".join(draw.choice(words) for _ in range(draw.randint(low, high)))

    if kind == "mixed":
        return [one(*WORDS["passages" if i % 8 == 0 else "short"]) for i in range(count)]
    return [one(*WORDS[kind]) for _ in range(count)]


class Server:
    def __init__(self, options, folder):
        self.port = reserve_port()
        self.process = subprocess.Popen(
            [options.heddle, "serve", folder, "--port", str(self.port), "--threads", str(options.threads),
             "--weights", options.weights],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                http.client.HTTPConnection("127.0.0.1", self.port, timeout=1).request("GET", "/health")
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the server does not answer")

    def ask(self, texts):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = json.dumps(dict(input=texts, encoding_format="base64"))
        link.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        answer = link.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(content.decode())
        return json.loads(content)["usage"]["prompt_tokens"]

    def run(self, texts):
        parts = [texts[i:i + PER_REQUEST] for i in range(0, len(texts), PER_REQUEST)]
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
            tokens = sum(pool.map(self.ask, parts))
        return time.perf_counter() - begin, tokens

    def stop(self):
        self.process.terminate()
        self.process.wait()


def run_torch(model, ids):
    ids = sorted(ids, key=len)
    begin = time.perf_counter()
    with torch.inference_mode():
        for i in range(0, len(ids), TORCH_BATCH):
            batch = ids[i:i + TORCH_BATCH]
            longest = len(batch[-1])
            tokens = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
            states = model(input_ids=tokens, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(states.dtype)
            torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1)).float().numpy()
    return time.perf_counter() - begin


def peak(dtype):
    """Multiplications and additions a second of torch's products."""
    best = 0.0
    for size in (768, 1536):
        a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        for _ in range(5):
            begin = time.perf_counter()
            a @ b
            best = max(best, 2 * size**3 / (time.perf_counter() - begin))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heddle", required=True)
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--weights", default="auto", help="heddle's number format, such as int8")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    kind, hidden, layers, _, features = SHAPES[options.shape]
    # ModernBERT's MLP has a gate: a third product.
    products = 3 if kind == "modernbert" else 2
    per_token = 2 * layers * (4 * hidden * hidden + products * hidden * features)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = write_model(folder, options.shape, dtype)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        server = Server(options, folder)
        try:
            for kind in ("short", "passages", "mixed"):
                count = options.texts if kind != "passages" else options.texts // 8
                texts = texts_of(kind, count, seed=1)
                ids = [tokenizer.encode(text) for text in texts]
                server.run(texts)
                run_torch(model, ids)
                ours, torchs, peaks, tokens = [], [], [], 0
                for _ in range(options.rounds):
                    seconds, tokens = server.run(texts)
                    ours.append(seconds)
                    torchs.append(run_torch(model, ids))
                    peaks.append(peak(dtype))
                mine, other = statistics.median(ours), statistics.median(torchs)
                least = tokens * per_token / statistics.median(peaks)
                print(f"{options.shape} {options.dtype}, heddle {options.weights}, {kind}: {count} texts, {tokens} tokens; heddle {count / mine:.0f} texts/s, "
                      f"{tokens / mine:.0f} tok/s, {100 * least / mine:.0f} % of the peak; torch {count / other:.0f} texts/s, "
                      f"{100 * least / other:.0f} %; ratio {other / mine:.2f}", flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
