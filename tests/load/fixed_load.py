"""A fixed load of mixed requests, and what it was answered, in a form that two builds can be compared by.

    fixed_load.py [--binary build/heddle] [--model FOLDER] [--requests 200] [--port 0] [-- FLAGS] > answers.jsonl

Lengths, several answers, penalties, log-probabilities, grammars with forced tokens, shared prefixes, stop strings,
greedy and seeded, on a server with so little KV memory that it preempts. On the CPU an answer does not depend on what
else runs, so a change that is meant to change nothing gives the same file, byte for byte. What the load had the server
do goes to standard error; with less than it is meant to do, the exit status is 1. It takes some ten seconds.
"""

import argparse
import concurrent.futures
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

import heddle_server  # noqa: E402  (the folder of the conformance tests)

CLIENTS = 48
MEMORY = ["--kv-memory", "768KiB", "--page-tokens", "16", "--max-batch-seqs", "32", "--max-batch-tokens", "128"]

STORIES = [
    "Once upon a time there was a little dog named Max.",
    "One day, Lily went to the park with her mom and saw a big red ball.",
    "The sun was warm. Tom and Sara wanted to play in the garden all day.",
    "A small bird sat in a tree and sang a song to the moon every night.",
]
QUESTIONS = ["Hello!", "What is the capital of France?", "Tell me a story.", "What is 3 plus 4?", "Who are you?"]
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "age", "kind"],
          "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99},
                         "kind": {"enum": ["dog", "cat", "crocodile"]}}}
GRAMMARS = [
    {"guided_json": SCHEMA},
    {"guided_regex": r"The answer is (yes|no|perhaps)\. (It was [0-9]{1,3} days ago\.)?"},
    {"guided_choice": ["the first of three", "the second of three", "nothing at all"]},
    {"guided_grammar": 'root ::= "begin: " item ("; " item)* ". The end of the list."\nitem ::= "a" | "bb" | [0-9]+'},
]
TOOL = {"type": "function",
        "function": {"name": "get_weather", "description": "The weather of a city.",
                     "parameters": {"type": "object", "required": ["city"], "additionalProperties": False,
                                    "properties": {"city": {"type": "string", "maxLength": 16}}}}}


def prompt_of(dice, number):
    """A text; every second one begins as others do, for a few hundred bytes."""
    words = " ".join(STORIES).split()
    own = " ".join(dice.choices(words, k=dice.randint(1, 40)))
    if number % 2:
        return own
    return " ".join([STORIES[number // 2 % 4]] * 4) + " " + own


def sampling_of(dice, number):
    """Fields that say how tokens are drawn: greedy, or with a seed and one filter or penalty after the other."""
    if number % 3 == 0:
        return {"temperature": 0}
    fields = {"temperature": dice.choice([0.5, 1.0, 1.5]), "seed": number}
    fields.update(dice.choice([{}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.7}]))
    fields.update(dice.choice([{}, {"presence_penalty": 0.8}, {"frequency_penalty": 0.5},
                               {"repetition_penalty": 1.3}]))
    fields.update(dice.choice([{}, {}, {"logit_bias": {"20": 3, "30": -100}}, {"bad_words": ["the", " dog"]},
                               {"min_tokens": 12}]))
    return fields


def request_of(number, has_chat):
    """(path, body) of a request; depends on its number alone."""
    dice = random.Random(2200 + number)
    body = {"max_tokens": dice.choice([1, 20, 60, 120, 200]), **sampling_of(dice, number)}
    kind = number % 10
    if has_chat and kind == 9:
        body.update(messages=[{"role": "user", "content": dice.choice(QUESTIONS)}], logprobs=True, top_logprobs=2)
        if number % 20 == 19:
            body.update(tools=[TOOL], tool_choice="required", max_tokens=80)
        return "/v1/chat/completions", body
    body["prompt"] = prompt_of(dice, number)
    if kind in (0, 3, 6):
        body["logprobs"] = dice.randint(0, 3)
    if kind in (2, 7):
        body["n"] = dice.randint(2, 4)
    if kind in (4, 8):
        body.update(GRAMMARS[number // 2 % len(GRAMMARS)], max_tokens=100)
    if kind == 5:
        body["stop"] = dice.choice([["."], ["and", "zzz"], [" was"]])
    if kind == 1:
        body.update(ignore_eos=True)
    if number % 25 == 3:
        body.update(prompt_logprobs=1)
    if number % 25 == 14:
        body.update(max_tokens=0, echo=True, logprobs=1)
        body.pop("min_tokens", None)
    return "/v1/completions", body


def canonical(number, status, text):
    """One line of JSON without what differs from run to run: ids, times, names, how much was found in the cache."""
    answer = json.loads(text)
    for name in ("id", "created", "model", "system_fingerprint", "timings"):
        answer.pop(name, None)
    usage = answer.get("usage") or {}
    answer["usage"] = {k: v for k, v in usage.items() if k in ("prompt_tokens", "completion_tokens")}
    for choice in answer.get("choices", []):
        for call in (choice.get("message") or {}).get("tool_calls") or []:
            call.pop("id", None)
    answer.get("error", {}).pop("request_id", None) if isinstance(answer.get("error"), dict) else None
    return json.dumps({"number": number, "status": status, **answer}, sort_keys=True)


def run(server, options):
    def ask(number):
        path, body = request_of(number, not options.no_chat)
        status, _, text = server.request("POST", path, body)
        return canonical(number, status, text)

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        return list(clients.map(ask, range(options.requests)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", type=pathlib.Path, default=heddle_server.BINARY)
    parser.add_argument("--model", type=pathlib.Path, default=heddle_server.DEMO_MODEL)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--no-chat", action="store_true", help="the model has no chat template")
    parser.add_argument("flags", nargs="*", help="of heddle serve, in place of: " + " ".join(MEMORY))
    options = parser.parse_args()
    heddle_server.BINARY = options.binary
    flags = options.flags or MEMORY
    with heddle_server.Server(*flags, "--log-level", "warning",
                              model=options.model) as server:
        lines = run(server, options)
        counts = {name: int(server.metric(f"heddle_{name}_total"))
                  for name in ("preemptions", "forced_tokens", "cached_prompt_tokens", "sampled_tokens")}
    print("\n".join(lines))
    failed = sum('"status": 200' not in line for line in lines)
    print(f"{options.model.name}: {counts}, {failed} refused", file=sys.stderr)
    tested = counts["preemptions"] > 0 and counts["forced_tokens"] > 0 and counts["cached_prompt_tokens"] > 0
    sys.exit(0 if tested and failed <= options.requests // 20 else 1)


if __name__ == "__main__":
    main()
