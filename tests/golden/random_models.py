#!/usr/bin/env python3
"""Tiny models of every family with unusual settings, served, beside Hugging Face transformers.

    tests/golden/random_models.py --heddle build/heddle [--seed 1] [--rounds 1] [FAMILY...]

Each model is a case of make_model_goldens.py with other numbers of heads, sizes, windows and ties, drawn from the seed, and random
weights, saved as transformers saves it. The server answers prompts of 1, 17, 100 and 700 tokens with 40 greedy tokens; transformers
reads each answer once, in float32. Printed are models whose log-probabilities differ by more than 2e-4 or whose token is not the
best one by more than that, and those that the server refuses; the status is 1 if there are any. For every night, with a new seed;
the versions are those of requirements.txt.
"""

import argparse
import copy
import http.client
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

import make_model_goldens as models  # noqa: E402
from ports import reserve_port  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = SOURCE / "tests/golden/tokenizers/wordpiece.json"
LENGTHS = (1, 17, 100, 700)
TOKENS = 40
BOUND = 2e-4
VOCAB = 512
# Cases that are stored in another format, or run under another class than their folder's.
SKIPPED = ("run_config", "gguf", "dtype")


def draw_sizes(draw, config):
    """Other sizes than the case's, as far as its keys have them."""
    config = copy.deepcopy(config)
    config["vocab_size"] = VOCAB
    config["eos_token_id"] = 2
    for key in ("max_position_embeddings", "n_positions"):
        if key in config:
            config[key] = 1024
    if "num_attention_heads" not in config or "block_configs" in config:
        return config
    kv = draw.choice((1, 2, 3))
    heads = kv * draw.choice((1, 3, 5, 7)) if config.get("num_key_value_heads") else draw.choice((3, 5, 6))
    own_dim = "head_dim" in config
    dim = draw.choice((8, 24, 40)) if own_dim else draw.choice((8, 16, 24))
    if "kv_lora_rank" in config:
        kv = heads
    config["num_attention_heads"] = heads
    if config.get("num_key_value_heads"):
        config["num_key_value_heads"] = kv
    if own_dim:
        config["head_dim"] = dim
    if not own_dim and "kv_lora_rank" not in config:
        config["hidden_size"] = heads * dim
    elif own_dim:
        config["hidden_size"] = draw.choice((40, 72, 88, 120))
    if config.get("intermediate_size"):
        config["intermediate_size"] = draw.choice((56, 104, 136))
    if config.get("sliding_window"):
        config["sliding_window"] = draw.choice((3, 9, 33, 130))
    if "tie_word_embeddings" in config and config["model_type"] not in ("phi", "gemma2", "gemma3_text"):
        config["tie_word_embeddings"] = draw.random() < 0.5
    return config


def build(config, seed):
    torch.manual_seed(seed)
    parsed = transformers.AutoConfig.for_model(**copy.deepcopy(
        {k: v for k, v in config.items() if k != "quantization_config"}))
    model = transformers.AutoModelForCausalLM.from_config(
        parsed, attn_implementation="eager", experts_implementation="eager").to(torch.float32).eval()
    with torch.no_grad():
        for name, parameter in list(model.named_parameters()) + models.routing_biases(model):
            if name.endswith(("act_fn.beta", "act_fn.eps")):
                continue
            scale, offset = models.scale_and_offset(name, list(parameter.shape)[-2:])
            parameter.copy_(torch.empty_like(parameter).uniform_(-scale, scale) + offset)
    return model


class Server:
    def __init__(self, heddle, folder):
        self.port = reserve_port()
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            [heddle, "serve", folder, "--port", str(self.port), "--threads", "1", "--kv-type", "f32"],
            stdout=self.log, stderr=self.log)

    def wait(self):
        """Whether it serves; otherwise the log says why."""
        for _ in range(300):
            if self.process.poll() is not None:
                return False
            try:
                link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
                link.request("GET", "/health")
                return link.getresponse().status == 200
            except OSError:
                time.sleep(0.05)
        return False

    def why(self):
        self.log.seek(0)
        return self.log.read().strip().splitlines()[-1:]

    def greedy(self, prompt):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = dict(prompt=prompt, max_tokens=TOKENS, temperature=0, logprobs=1,
                    ignore_eos=True, return_token_ids=True)
        link.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(link.getresponse().read())
        if "choices" not in answer:
            raise RuntimeError(answer)
        choice = answer["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def compare(model, server, config):
    """The largest difference of a log-probability, and of a token's to the best one's."""
    worst = short = 0.0
    for length in LENGTHS:
        prompt = [(17 * i * i + 29 * i + 11 * length) % VOCAB for i in range(length)]
        tokens, logprobs = server.greedy(prompt)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0]
        rows = logits[length - 1:].log_softmax(-1)
        for row, token, logprob in zip(rows, tokens, logprobs):
            worst = max(worst, abs(float(row[token]) - logprob))
            short = max(short, float(row.max() - row[token]))
    return worst, short


def check(options, name, case, draw, seed):
    config = draw_sizes(draw, case["config"])
    try:
        model = build(config, seed)
    except Exception as why:  # a class that has no such model
        print(f"{name}: not built: {type(why).__name__} {str(why)[:120]}")
        return True
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model.save_pretrained(folder)
        shutil.copy(TOKENIZER, folder / "tokenizer.json")
        server = Server(options.heddle, folder)
        try:
            if not server.wait():
                print(f"{name}: refused: {server.why()}")
                return False
            worst, short = compare(model, server, config)
        finally:
            server.stop()
    good = worst <= BOUND and short <= BOUND
    if not good or options.verbose:
        sizes = {k: config.get(k) for k in ("hidden_size", "num_attention_heads", "num_key_value_heads",
                                            "head_dim", "sliding_window", "tie_word_embeddings")}
        print(f"{name}: {worst:.2e}, {short:.2e} {'' if good else 'WRONG '}{sizes}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heddle", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    wrong = count = 0
    for name in options.families or models.CASES:
        case = models.CASES[name]
        config = case["config"]
        if any(key in case for key in SKIPPED) or "text_config" in config or "quantization_config" in config:
            continue
        for i in range(options.rounds):
            seed = options.seed * 1000 + i
            count += 1
            wrong += not check(options, name, case, random.Random(f"{name} {seed}"), seed)
    print(f"{count} models of seed {options.seed}, {wrong} wrong or refused")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
