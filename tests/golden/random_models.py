#!/usr/bin/env python3
"""Tiny models of every family with unusual settings, served, beside Hugging Face transformers.

    tests/golden/random_models.py --heddle build/heddle [--seed 1] [--rounds 1] [FAMILY...]

Without --seed it is the day's number, so that every night has models of its own; the status is 77 where torch or transformers are missing.

Each model is a case of make_model_goldens.py with other numbers of heads, sizes, windows and ties, drawn from the seed, and random
weights, saved as transformers saves it. The server answers prompts of 1, 17, 100 and 700 tokens with 40 greedy tokens; transformers
reads each answer once in float32 and once in float64, which shows how far rounding moves it. Printed are models whose log-probabilities
differ by more than 2e-4 and twice that, or whose token is not the best one by more, and those that the server refuses; the status is 1 if
there are any. The versions are those of requirements.txt.

    tests/golden/random_models.py --write

writes the smallest of these models of seed 1 to random_models.json, with the weights of synthetic_weights.py and short texts, for
tests/model/prompt_lengths_test.cc, which runs everywhere.
"""

import argparse
import copy
import http.client
import json
import math
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

try:
    import safetensors.torch
    import torch
    import transformers

    import make_length_goldens as lengths
    import make_model_goldens as models
    import phi4flash_reference
    import rwkv7_reference
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
from ports import reserve_port  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = SOURCE / "tests/golden/tokenizers/wordpiece.json"
LENGTHS = (1, 17, 100, 700)
TOKENS = 40
BOUND = 2e-4
VOCAB = 512
WRITTEN = 24  # models of random_models.json, and beside them those of these kinds:
ALWAYS = ("rwkv7", "jamba", "deepseek_v32", "glm_moe_dsa")
DRAWS = 5  # sizes that are drawn until a class takes some
# Cases that are stored in another format, or run under another class than their folder's.
SKIPPED = ("run_config", "gguf", "dtype")
# Cases whose keys say one thing twice, or lists of one number per dimension: their sizes stay.
KEPT = ("lfm2_first", "phi3_longrope", "phi3_longrope_long")
# LongRoPE: texts up to the shorter context and longer ones have angles of their own, which the server fixes for all at its start.
CONTEXTS = {"phi3_longrope": dict(arguments=[], lengths=(1, 17)),
            "phi3_longrope_long": dict(arguments=["--max-context", "1024"], lengths=(100, 700))}


def draw_state(draw, config):
    """Sizes of selective scans."""
    prefix = "mamba_d_" if config["model_type"] in ("jamba", "phi4flash") else ""
    config[f"{prefix}state" if prefix else "state_size"] = draw.choice((5, 8, 16, 32))
    config["mamba_dt_rank" if prefix else "time_step_rank"] = draw.choice(("auto", 1, 7))
    config["mamba_proj_bias" if prefix else "use_bias"] = draw.random() < 0.5
    if not prefix:
        config["hidden_size"] = draw.choice((23, 40, 77))
        config["tie_word_embeddings"] = draw.random() < 0.5
    if "intermediate_size" in config and not prefix:
        config["intermediate_size"] = draw.choice((31, 96))


def draw_mamba_heads(draw, config):
    """Heads of Mamba-2 that together are as wide as the class wants them."""
    inner, groups = config["mamba_expand"] * config["hidden_size"], config.get("mamba_n_groups", 1)
    config["mamba_n_heads"] = draw.choice([n for n in range(groups, inner + 1, groups) if inner % n == 0 and n <= 16])
    if "mamba_d_head" in config:
        config["mamba_d_head"] = inner // config["mamba_n_heads"]


def draw_sizes(draw, config, keeps=False):
    """Other sizes than the case's, as far as its keys have them."""
    config = copy.deepcopy(config)
    config["vocab_size"] = VOCAB
    if "vocab_size_per_layer_input" in config:
        config["vocab_size_per_layer_input"] = VOCAB
    config["eos_token_id"] = 2
    for key in ("max_position_embeddings", "n_positions"):
        if key in config:
            config[key] = 1024
    if config["model_type"] == "rwkv7":
        config["head_dim"] = draw.choice((8, 24, 40, 64))
        config["hidden_size"] = config["head_dim"] * draw.choice((1, 3, 5))
        config["value_dim"] = [config["hidden_size"]] * config["num_hidden_layers"]
    if "index_topk" in config:  # prompts on both sides of it
        config["index_topk"] = draw.choice((3, 9, 33, 130, 720))
        config["index_n_heads"] = draw.choice((17, 20, 25))
        config["index_head_dim"] = config["qk_rope_head_dim"] + draw.choice((0, 8, 24))
    if keeps:
        return config
    if config["model_type"] in ("mamba", "falcon_mamba", "jamba", "phi4flash"):
        draw_state(draw, config)
    if "num_attention_heads" not in config:
        return config
    kv = draw.choice((1, 2, 3))
    heads = kv * draw.choice((1, 3, 5, 7)) if config.get("num_key_value_heads") else draw.choice((3, 5, 6))
    own_dim = "head_dim" in config
    dim = draw.choice((8, 24, 40)) if own_dim else draw.choice((8, 16, 24))
    if "kv_lora_rank" in config:
        kv = heads
    if config["model_type"] == "phi4flash":  # heads are in pairs
        kv, heads = 2 * kv, 2 * heads
    config["num_attention_heads"] = heads
    if config.get("num_key_value_heads"):
        config["num_key_value_heads"] = kv
    if own_dim:
        config["head_dim"] = dim
    if "rotary_dim" in config:
        config["rotary_dim"] = dim // 2
    # Classes ask for a multiple of heads, whatever head_dim says.
    own_width = own_dim or "kv_lora_rank" in config
    config["hidden_size"] = heads * (draw.choice((8, 16, 24)) if own_width else dim)
    if config["model_type"] in ("granitemoehybrid", "bamba"):
        draw_mamba_heads(draw, config)
    if config["model_type"] == "helium":
        config["hidden_size"] = heads * dim
    if config.get("intermediate_size"):
        config["intermediate_size"] = draw.choice((56, 104, 136))
    if config.get("sliding_window"):
        config["sliding_window"] = draw.choice((3, 9, 33, 130))
    if "tie_word_embeddings" in config and config["model_type"] not in ("phi", "gemma2", "gemma3_text"):
        config["tie_word_embeddings"] = draw.random() < 0.5
    return config


def build(config, seed):
    torch.manual_seed(seed)
    if config["model_type"] == "rwkv7":
        return fill(rwkv7_reference.Rwkv7(config).eval())
    if config["model_type"] == "phi4flash":
        return fill(phi4flash_reference.Phi4Flash(config).eval())
    parsed = transformers.AutoConfig.for_model(**copy.deepcopy(
        {k: v for k, v in config.items() if k != "quantization_config"}))
    model = transformers.AutoModelForCausalLM.from_config(
        parsed, attn_implementation="eager", experts_implementation="eager").to(torch.float32).eval()
    return fill(model)


def draw_model(draw, case, keeps, make):
    """A configuration of other sizes and what `make` makes of it, by the first draw that the class takes."""
    for left in reversed(range(DRAWS)):
        config = draw_sizes(draw, case["config"], keeps)
        try:
            return config, make(config)
        except Exception:  # sizes that the class refuses
            if left == 0:
                raise


def fill(model):
    with torch.no_grad():
        for name, parameter in list(model.named_parameters()) + models.routing_biases(model):
            if name.endswith(("act_fn.beta", "act_fn.eps")):
                continue
            scale, offset = models.scale_and_offset(name, list(parameter.shape)[-2:])
            parameter.copy_(torch.empty_like(parameter).uniform_(-scale, scale) + offset)
    return model


def save(model, config, folder):
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
        return
    safetensors.torch.save_file(dict(model.named_parameters()), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


class Server:
    def __init__(self, heddle, folder, arguments):
        self.port = reserve_port()
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            [heddle, "serve", folder, "--port", str(self.port), "--threads", "1", "--kv-type", "f32", *arguments],
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


def scored(model, prompt, tokens):
    """Log-probabilities at each of the tokens."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1:].log_softmax(-1)


def compare(model, server, lengths):
    """The largest difference of a log-probability, and of a token's to the best one's, beyond what rounding explains."""
    worst = short = 0.0
    exact = copy.deepcopy(model).double()
    for length in lengths:
        prompt = [(17 * i * i + 29 * i + 11 * length) % VOCAB for i in range(length)]
        tokens, logprobs = server.greedy(prompt)
        rows, exact_rows = (scored(each, prompt, tokens) for each in (model, exact))
        for row, exact_row, token, logprob in zip(rows, exact_rows, tokens, logprobs):
            spread = 2 * float((row - exact_row).abs().max())
            worst = max(worst, abs(float(row[token]) - logprob) - spread)
            short = max(short, float(row.max() - row[token]) - spread)
    return worst, short


def check(options, name, case, draw, seed):
    try:
        config, model = draw_model(draw, case, name in KEPT, lambda config: build(config, seed))
    except Exception as why:
        print(f"{name}: not built: {type(why).__name__} {str(why)[:120]}", flush=True)
        return False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        save(model, config, folder)
        shutil.copy(TOKENIZER, folder / "tokenizer.json")
        context = CONTEXTS.get(name, dict(arguments=[], lengths=LENGTHS))
        server = Server(options.heddle, folder, context["arguments"])
        try:
            if not server.wait():
                print(f"{name}: refused: {server.why()}", flush=True)
                return False
            worst, short = compare(model, server, context["lengths"])
        except Exception as why:
            print(f"{name}: no answer: {type(why).__name__} {str(why)[:120]}", flush=True)
            return False
        finally:
            server.stop()
    good = worst <= BOUND and short <= BOUND
    if not good or options.verbose:
        sizes = {k: config.get(k) for k in ("hidden_size", "num_attention_heads", "num_key_value_heads",
                                            "head_dim", "sliding_window", "tie_word_embeddings")}
        print(f"{name}: {worst:.2e}, {short:.2e} {'' if good else 'WRONG '}{sizes}", flush=True)
    return good


def stored_as_made(case):
    """Whether the case's folder has what the class saves, and texts of the class alone."""
    config = case["config"]
    return not (any(key in case for key in SKIPPED) or "text_config" in config or "quantization_config" in config
                or "block_configs" in config or "ladder_residual" in config)  # these two classes are not in transformers


def write():
    """One model of each kind, as small as there are, for the test that runs in CI."""
    made = []
    lengths.GREEDY_TOKENS = 8
    for name, case in models.CASES.items():
        if not stored_as_made(case) or name in KEPT:
            continue
        config, (model, tensors, bits) = draw_model(
            random.Random(f"{name} 1"), case, False, lambda config: models.build_model({**case, "config": config}))
        size = sum(math.prod(shape) for _, shape, *_ in tensors)
        made.append((size, dict(name=name, config=config, bits=bits, tensors=tensors), model))
    kinds = {}
    for size, entry, model in sorted(made, key=lambda each: each[0]):
        kinds.setdefault(entry["config"]["model_type"], (entry, model))
    always = [kinds.pop(kind) for kind in ALWAYS]
    lines = []
    for entry, model in list(kinds.values())[:WRITTEN] + always:
        entry["texts"] = [[n, *lengths.greedy(model, lengths.prompt_of(n, VOCAB))] for n in (1, 17)]
        lengths.add_spreads(model.double(), VOCAB, entry["texts"])
        lines.append(json.dumps(entry, separators=(",", ":")))
    path = models.HERE / "random_models.json"
    path.write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{path.name}: {path.stat().st_size} bytes, {len(lines)} models")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heddle")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time() // 86400))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if options.write:
        return write()
    if options.heddle is None:
        parser.error("--heddle or --write is needed")
    wrong = count = 0
    for name in options.families or models.CASES:
        case = models.CASES[name]
        if not stored_as_made(case):
            continue
        for i in range(options.rounds):
            seed = options.seed * 1000 + i
            count += 1
            wrong += not check(options, name, case, random.Random(f"{name} {seed}"), seed)
    print(f"{count} models of seed {options.seed}, {wrong} wrong or refused")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
