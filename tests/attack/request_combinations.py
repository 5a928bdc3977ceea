"""Sends requests that combine many fields, each with a value that is right by itself, to two daemons with different options:
whole and as a stream to the first, whole to the second.

The three answers must be the same (text, calls, tokens, log-probabilities, ends, usage), as seeds promise; no status may be a server
error but 503, and the daemons must live. Every request follows from (seed, index) alone. 300 requests by default; more by hand:
  tests/attack/request_combinations.py --requests 20000
  tests/attack/request_combinations.py --first 4711 --requests 1 --verbose
Everything goes to servers of this program's own on 127.0.0.1.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "load"))

from common import Daemon  # noqa: E402
from heddle_server import TIMEOUT_SCALE  # noqa: E402

PATIENCE = 120 * TIMEOUT_SCALE
FIRST = ("--kv-memory", "32MiB")
SECOND = ("--kv-memory", "2MiB", "--page-tokens", "8", "--speculate", "off", "--prefix-cache", "off", "--max-batch-tokens", "48")

WORDS = 'the Once upon a time capital of France is What 7 + 5? { } [ ] " : , \u00e9 \u65e5\u672c \U0001f642 \n \t Question Answer'.split(" ")
STOPS = ["a", "the", " is", "\n", "\u00e9", "e t", '"', '."', "capital of", "\ufffd", "z" * 300]
SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"enum": ["\u00e9", "b", None]}, "z": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS, "strict": strict}} for name, strict in (("f", True), ("look_up", False))]
FORMS = [
    {"guided_regex": "[a-z ]{3,20}"},
    {"guided_regex": "(the|of|\u65e5\u672c)( is)*!"},
    {"guided_choice": ["yes", "no", "maybe \u00e9"]},
    {"guided_json": SCHEMA},
    {"guided_grammar": 'root ::= "a" root "b" | "the"'},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
]
# Probability, and the values of which one is taken.
SAMPLING = {
    "temperature": (0.8, [0, 0.5, 1, 2]),
    "top_p": (0.2, [1e-9, 0.1, 0.9]),
    "top_k": (0.2, [1, 5, 1000000]),
    "min_p": (0.15, [0.1, 1]),
    "typical_p": (0.1, [0.3]),
    "xtc_probability": (0.1, [1]),
    "frequency_penalty": (0.15, [-2, 0.5, 2]),
    "presence_penalty": (0.15, [-2, 2]),
    "repetition_penalty": (0.15, [0.5, 1.3]),
    "dry_multiplier": (0.1, [0.8]),
    "logit_bias": (0.2, [{"5": -100}, {"100": 100}, {"300": 5, "301": -5}]),
    "bad_words": (0.2, [["the"], ["a"], [" capital of", "e"], ['"'], ["\u00e9", "{"]]),
    "min_tokens": (0.2, [1, 5]),
    "ignore_eos": (0.15, [True]),
    "stop_token_ids": (0.15, [[5, 100], [261]]),
    "include_stop_str_in_output": (0.2, [True]),
    "skip_special_tokens": (0.2, [False]),
    "return_token_ids": (0.2, [True]),
    "n": (0.25, [2, 3]),
    "truncate_prompt_tokens": (0.1, [1, 4]),
    "speculative": (0.1, [{"max_tokens": 0}, {"max_tokens": 3}]),
    "prediction": (0.1, [{"type": "content", "content": "the capital of France is Paris"}]),
    "parallel_tool_calls": (0.1, [False]),
}


def words(r, most):
    return " ".join(r.choice(WORDS) for _ in range(r.randrange(1, most)))


def chat(r, body):
    body["messages"] = [{"role": "user", "content": words(r, 9)}]
    if r.random() < 0.3:
        body["messages"] = [{"role": "system", "content": words(r, 5)}, {"role": "user", "content": words(r, 5)},
                            {"role": "assistant", "content": words(r, 5)}, *body["messages"]]
    body["max_tokens"] = r.choice([1, 2, 7, 30, 60])
    if r.random() < 0.3:
        body.update(logprobs=True, top_logprobs=r.choice([0, 1, 5]))
    if r.random() < 0.35:
        body["tools"] = TOOLS
        body["tool_choice"] = r.choice(["auto", "none", "required", {"type": "function", "function": {"name": "f"}}])
    return "/v1/chat/completions"


def completion(r, body):
    body["prompt"] = r.choice([words(r, 9), words(r, 60), [1, 5, 9], ["a b", "c d"], [[5, 6], [7, 8, 9]]])
    body["max_tokens"] = r.choice([0, 1, 2, 7, 30, 60])
    if r.random() < 0.3:
        body["logprobs"] = r.choice([0, 1, 5])
    if r.random() < 0.3:
        body["echo"] = True
    return "/v1/completions"


def response(r, body):
    body["input"] = words(r, 9)
    body["max_output_tokens"] = r.choice([1, 2, 7, 30, 60])
    body["store"] = False
    del body["seed"]
    if r.random() < 0.35:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in TOOLS]
        body["tool_choice"] = r.choice(["auto", "none", "required", {"type": "function", "name": "f"}])
    if r.random() < 0.3:
        body.update(include=["message.output_text.logprobs"], top_logprobs=r.choice([0, 5]))
    if r.random() < 0.3:
        body["text"] = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    body["temperature"] = 0
    return "/v1/responses"


def message(r, body):
    body["messages"] = [{"role": "user", "content": words(r, 9)}]
    body["max_tokens"] = r.choice([1, 2, 7, 30, 60])
    body["temperature"] = 0
    del body["seed"]
    if r.random() < 0.35:
        body["tools"] = [{"name": tool["function"]["name"], "input_schema": PARAMETERS} for tool in TOOLS]
        body["tool_choice"] = r.choice([{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "f"}])
    if r.random() < 0.3:
        body["stop_sequences"] = r.sample(STOPS, r.randrange(1, 4))
    return "/v1/messages"


def llama(r, body):
    body["prompt"] = words(r, 9)
    body["n_predict"] = r.choice([0, 1, 2, 7, 30, 60])
    if r.random() < 0.3:
        body["n_probs"] = r.choice([1, 5])
    if r.random() < 0.3:
        body["stop"] = r.sample(STOPS, r.randrange(1, 4))
    return "/completion"


def make(seed, index):
    """The path and body of a request."""
    r = random.Random(f"{seed}/{index}")
    body = {"seed": r.randrange(1000)}
    path = r.choice([chat, chat, chat, completion, completion, completion, response, message, llama])(r, body)
    if path not in ("/v1/chat/completions", "/v1/completions"):
        for name in ("top_p", "top_k", "temperature"):
            if r.random() < 0.2 and name not in body:
                body[name] = r.choice(SAMPLING[name][1])
        return path, body
    for name, (probability, values) in SAMPLING.items():
        if r.random() < probability:
            body[name] = r.choice(values)
    if r.random() < 0.3:
        body["stop"] = r.sample(STOPS, r.randrange(1, 4))
    if r.random() < 0.35:
        body.update(r.choice(FORMS))
    return path, body


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, text


def empty():
    return {"text": "", "calls": {}, "end": None, "stop": None, "ids": [], "logprobs": []}


def take(choice, part, into):
    """Adds a choice of a whole answer, or of one event, to what is known of it."""
    into["text"] += choice.get("text") or part.get("content") or ""
    for place, call in enumerate(part.get("tool_calls") or []):
        known = into["calls"].setdefault(call.get("index", place), {"name": "", "arguments": ""})
        for key in known:
            known[key] += call["function"].get(key) or ""
    if choice.get("finish_reason"):
        into["end"], into["stop"] = choice["finish_reason"], choice.get("stop_reason")
    into["ids"] += choice.get("token_ids") or []
    logprobs = choice.get("logprobs") or {}
    into["logprobs"] += logprobs.get("content") or list(zip(*(logprobs[k] for k in sorted(logprobs) if logprobs[k] and k != "content")))


def usage_of(usage):
    return usage and {k: v for k, v in usage.items() if k != "prompt_tokens_details"}  # which say what was cached


def whole(text):
    document = json.loads(text)
    choices = collections.defaultdict(empty)
    for choice in document["choices"]:
        take(choice, choice.get("message") or {}, choices[choice["index"]])
    return dict(choices), usage_of(document["usage"])


# Fields of an API that differ from call to call.
VARYING = {"id", "created_at", "call_id", "timings", "item_id", "stream", "tokens_cached"}


def stripped(value):
    """The document without what differs from call to call."""
    if isinstance(value, list):
        return [stripped(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {k: stripped(v) for k, v in value.items() if k not in VARYING and "usage" not in k}


def events_of(text):
    return [json.loads(line.removeprefix("data: ")) for line in text.decode().split("\n") if line.startswith("data: ")]


def streamed_response(text):
    """The last event's response, whose texts and arguments the deltas have to make."""
    events = events_of(text)
    last = stripped(events[-1]["response"])
    for place, item in enumerate(last["output"]):
        own = [e for e in events if e.get("output_index") == place and e["type"].endswith(".delta")]
        whole_text = item["arguments"] if item["type"] == "function_call" else "".join(part.get("text", "") for part in item["content"])
        if "".join(e["delta"] for e in own) != whole_text:
            raise ValueError(f"the deltas {[e['delta'] for e in own]} do not make {whole_text!r}")
    return last


def streamed_message(text):
    """What the events of /v1/messages add up to."""
    document, arguments = {}, collections.defaultdict(str)
    for event in events_of(text):
        if event["type"] == "message_start":
            document = event["message"]
        elif event["type"] == "content_block_start":
            document["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                document["content"][event["index"]]["text"] += delta["text"]
            else:
                arguments[event["index"]] += delta["partial_json"]
        elif event["type"] == "message_delta":
            document.update(event["delta"])
    # A call that max_tokens cut before its arguments were JSON is none in a whole answer.
    cut = [index for index, arguments_text in arguments.items() if not is_json(arguments_text)]
    for index in arguments:
        if index not in cut:
            document["content"][index]["input"] = json.loads(arguments[index])
    document["content"] = [block for index, block in enumerate(document["content"]) if index not in cut]
    return stripped(document)


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def streamed_llama(text):
    events = events_of(text)
    last = dict(events[-1])
    last["content"] = "".join(event["content"] for event in events)
    shown = [item for event in events for item in event.get("completion_probabilities", [])]
    if shown:
        last["completion_probabilities"] = shown
    return stripped_llama(last)


def stripped_llama(document):
    document = stripped(document)
    document["generation_settings"] = stripped(document.get("generation_settings", {}))
    return document


OTHER_APIS = {
    "/v1/responses": (stripped, streamed_response),
    "/v1/messages": (stripped, streamed_message),
    "/completion": (stripped_llama, streamed_llama),
}


def streamed(text):
    events = text.decode().split("\n\n")
    if events[-2:] != ["data: [DONE]", ""]:
        raise ValueError(f"the stream ends with {events[-2:]}")
    choices, usage = collections.defaultdict(empty), None
    for event in events[:-2]:
        document = json.loads(event.removeprefix("data: "))
        if "error" in document:
            return {"error": document["error"]}, None
        usage = document.get("usage") or usage
        for choice in document["choices"]:
            if choices[choice["index"]]["end"]:
                raise ValueError("an event behind the last of its choice")
            take(choice, choice.get("delta") or {}, choices[choice["index"]])
    return dict(choices), usage_of(usage)


def compare(ports, seed, index):
    """What is wrong with the answers to a request, or None; and its status."""
    path, body = make(seed, index)
    answers = [(port, post(port, path, body)) for port in ports]
    status, text = answers[0][1]
    stream_status, stream_text = post(ports[0], path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    statuses = [status, answers[1][1][0], stream_status]
    if any(s >= 500 and s != 503 for s in statuses):
        return f"statuses {statuses}: {text[:300]} {answers[1][1][1][:300]}", status
    if path in OTHER_APIS:
        whole_of, streamed_of = OTHER_APIS[path]
        if len(set(statuses)) != 1:
            return f"statuses {statuses}: {text[:300]} {answers[1][1][1][:300]} {stream_text[:300]}", status
        if status != 200:
            return None, status
        first = whole_of(json.loads(text))
        for name, other in (("with other options", whole_of(json.loads(answers[1][1][1]))), ("as a stream", streamed_of(stream_text))):
            if other != first:
                return f"{name}\n    {other}\n  and not\n    {first}", status
        return None, status
    if status != 200:
        if statuses[1] != status or answers[1][1][1] != text:
            return f"{text[:300]} and {answers[1][1][1][:300]}", status
        # An error that comes behind the first token is an event of the stream.
        same = json.loads(text)["error"] == (streamed(stream_text)[0].get("error") if stream_status == 200 else json.loads(stream_text)["error"])
        return None if same else f"{text[:300]} and as a stream {stream_text[-300:]}", status
    if statuses != [200, 200, 200]:
        return f"statuses {statuses}: {answers[1][1][1][:300]} {stream_text[:300]}", status
    first = whole(text)
    for name, other in (("with other options", whole(answers[1][1][1])), ("as a stream", streamed(stream_text))):
        if other != first:
            return f"{name}\n    {other}\n  and not\n    {first}", status
    return None, status


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first request")
    parser.add_argument("--flags", default=" ".join(FIRST), help="options of the first server")
    parser.add_argument("--against", default=" ".join(SECOND), help="options of the second server")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--verbose", action="store_true", help="print each request")
    arguments = parser.parse_args()
    failures, statuses = [], collections.Counter()

    def ask(index):
        if len(failures) >= 10:
            return
        if arguments.verbose:
            print(index, *map(json.dumps, make(arguments.seed, index)))
        try:
            fault, status = compare([d.port for d in daemons], arguments.seed, index)
            statuses[status] += 1
        except (http.client.HTTPException, OSError, ValueError, KeyError) as error:
            fault = f"{type(error).__name__} {error}"
        if fault:
            failures.append(f"request {index}, {json.dumps(make(arguments.seed, index))}:\n  {fault}")

    options = {"model": arguments.model} if arguments.model != "demo" else {}
    with Daemon(*arguments.flags.split(), "--log-level", "error", **options) as one, \
            Daemon(*arguments.against.split(), "--log-level", "error", **options) as two:
        daemons = [one, two]
        with concurrent.futures.ThreadPoolExecutor(arguments.connections) as pool:
            list(pool.map(ask, range(arguments.first, arguments.first + arguments.requests)))
        for daemon in daemons:
            if daemon.process.poll() is not None:
                failures.append(f"a server ended with {daemon.process.returncode}:\n" + "\n".join(daemon.log[-5:]))
            elif daemon.metric("heddle_request_exceptions_total") > 0:
                failures.append("requests ended in exceptions")
            elif daemon.stop() != 0:
                failures.append("a server did not end in order")
    if statuses[200] < 0.7 * arguments.requests and not failures:
        failures.append("most requests were refused")
    print(f"statuses {dict(sorted(statuses.items()))}, seed {arguments.seed}")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
