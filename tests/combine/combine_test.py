"""Features in any combination: random requests on the demo model, all at once on a server that is short of memory (chunks,
preemption, swaps, shared prefixes, evicted adapters, a quantised KV cache) and drafts with all drafters, half of them streamed, embeddings beside
them. Each answer equals that of the same request alone on a server with nothing of this, to the bit of every log-probability.

    combine_test.py [--requests N] [--seed S] [--tp RANKS] [--pp STAGES] [--hybrid]

--hybrid: on a model with short convolutions, without adapters and drafters with weights.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from adapter_kinds import write_adapters  # noqa: E402
from features import FEATURES, draw, without_adapters  # noqa: E402
from heddle_server import DEMO_MODEL, Server  # noqa: E402
from hybrid_model import write_hybrid_model  # noqa: E402

ROUTE = "/v1/chat/completions"
TRAINED = {name: DEMO_MODEL / "adapters" / name for name in ("pirate", "upper")}
COMMON = ["--served-model-name", "heddle-demo", "--threads", "2"]
# 128 pages of 16 tokens, of which an adapter takes some ten.
TRAINED_HERE = pathlib.Path(__file__).resolve().parents[1] / "demo_model"
SCARCE = ["--kv-memory", "3MiB", "--host-kv-memory", "2MiB", "--max-batch-tokens", "48", "--policy", "priority"]
DRAFTERS = [f"ngram,suffix,draft:{TRAINED_HERE / 'draft'}", f"suffix,medusa:{DEMO_MODEL / 'medusa'}",
            f"ngram,dflash:{TRAINED_HERE / 'dflash'}"]
# A part of the requests each: the model's own type, and one that is quantised.
KV_TYPES = ["auto", "int8"]
TEXTS = ["Hello!", "Once upon a time there was a fox.", "What is 7 + 5? " * 12, "The sky is blue."]
# Metrics of events that happen beside the requests' own features.
COUNTS = ["preemptions_total", "pages_swapped_out_total", "pages_swapped_in_total", "prefix_cache_tokens_total",
          "spec_decode_accepted_tokens_total"]
ROOMY = ["--kv-memory", "64MiB", "--prefix-cache", "off", "--policy", "priority", "--speculate", "off"]


def whole(server, request):
    """[(text, reason, log-probabilities)] of each choice, or the error."""
    status, _, text = server.request("POST", ROUTE, request)
    body = json.loads(text)
    if status != 200:
        return status, body["error"]["message"]
    return [(choice["message"]["content"] or "", choice["finish_reason"], (choice["logprobs"] or {}).get("content") or [])
            for choice in sorted(body["choices"], key=lambda choice: choice["index"])]


def streamed(server, request):
    """The same, put together from a stream's events."""
    choices = {}
    for event in server.stream(ROUTE, request):
        for choice in event["choices"] if event != "[DONE]" else []:
            text, reason, probabilities = choices.get(choice["index"], ("", None, []))
            probabilities = probabilities + ((choice.get("logprobs") or {}).get("content") or [])
            choices[choice["index"]] = (text + (choice["delta"].get("content") or ""),
                                        choice["finish_reason"] or reason, probabilities)
    return [choices[index] for index in sorted(choices)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--hybrid", action="store_true")
    arguments = parser.parse_args()
    source = random.Random(arguments.seed)
    features = without_adapters() if arguments.hybrid else FEATURES
    drawn = [draw(source, features) for _ in range(arguments.requests)]
    ranks = [*COMMON, "--tp", str(arguments.tp), "--pp", str(arguments.pp)]
    if arguments.hybrid:
        with tempfile.TemporaryDirectory() as folder:
            model = write_hybrid_model(pathlib.Path(folder) / "model", DEMO_MODEL)
            return compare(drawn, features, ranks, ["ngram,suffix"], arguments.seed, model)
    with tempfile.TemporaryDirectory() as folder:
        adapters = {**TRAINED, **write_adapters(folder, DEMO_MODEL)}
        flags = ["--lora", ",".join(f"{name}={path}" for name, path in adapters.items()), *ranks]
        return compare(drawn, FEATURES, flags, DRAFTERS, arguments.seed)


def embedded(server, text):
    status, _, answer = server.request("POST", "/v1/embeddings", {"input": text})
    assert status == 200, answer
    return json.loads(answer)["data"]


def compare(drawn, features, flags, all_drafters, seed, model=DEMO_MODEL, attempts=5):
    alone, together, counts = [], [], collections.Counter()
    size = -(-len(drawn) // len(all_drafters))
    for i, drafters in enumerate(all_drafters):
        part = drawn[i * size:(i + 1) * size]
        own = [*flags, "--kv-type", KV_TYPES[i % len(KV_TYPES)]]
        with Server(*own, *ROOMY, model=model) as server:
            alone += [whole(server, request) for _, request in part]
            embeddings = [embedded(server, text) for text in TEXTS]
        with Server(*own, *SCARCE, "--speculate", drafters, model=model) as server, concurrent.futures.ThreadPoolExecutor(24) as pool:
            answers = [pool.submit((whole, streamed)[n % 2], server, request) for n, (_, request) in enumerate(part)]
            beside = [pool.submit(embedded, server, text) for text in TEXTS]
            together += [answer.result() for answer in answers]
            assert [one.result() for one in beside] == embeddings, "embeddings beside the others differ from those alone"
            counts.update({name: server.metric(f"heddle_{name}") for name in COUNTS})
    refused = [(names, answer) for (names, _), answer in zip(drawn, alone) if isinstance(answer, tuple)]
    assert not refused, f"combinations that are refused: {refused[:3]}"
    for (names, request), expected, found in zip(drawn, alone, together):
        assert found == expected, f"{names}\n{json.dumps(request)}\nalone    {expected}\ntogether {found}"
    used = {name for names, _ in drawn for name in names}
    assert used == {feature.name for feature in features}, f"never drawn: {used}"
    # How often sequences lose their places, and find prefixes, depends on how requests meet.
    # On a busy machine speculation may find that it does not pay before a guess is right.
    if counts["spec_decode_accepted_tokens_total"] == 0 and attempts > 1:
        return compare(drawn, features, flags, all_drafters, seed, model, attempts - 1)
    assert counts["spec_decode_accepted_tokens_total"] > 0, "no guess was right in all attempts"
    print(f"{len(drawn)} requests equal themselves alone, seed {seed}: " +
          ", ".join(f"{name} {counts[name]:.0f}" for name in COUNTS))


if __name__ == "__main__":
    main()
