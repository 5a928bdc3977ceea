"""Constrained answers through the whole server: `heddle serve` with the demo model, its tokenizer and
random sampling, whose answers are checked by what knows nothing of our grammars: Python's json and
re, and the package jsonschema where it is installed.

HEDDLE_CORPUS=full runs all schemas of tests/grammar/corpus with 20 answers each (minutes); by default
every eighth, with 4.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

from heddle_server import BINARY, DEMO_MODEL, SOURCE, Server

try:
    import jsonschema
except ImportError:
    jsonschema = None

SERVER = None
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Tell me about a cat."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["weather-report", "weather-forecast", "something else"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "describe_person", "strict": True, "parameters": PERSON}},
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}},
]
KIND_ONLY = {"type": "object", "properties": {"kind": PERSON["properties"]["kind"]}, "required": ["kind"]}


def post(path, body, status=200):
    found, _, text = SERVER.request("POST", path, body)
    assert found == status, (found, text)
    return json.loads(text)


def chat(**fields):
    return post(CHAT, {"messages": MESSAGES, "temperature": 1, "max_tokens": 400, **fields})


def check_person(value):
    assert list(value) == ["name", "age", "kind", "tags"], value
    assert len(value["name"]) <= 12 and 0 <= value["age"] <= 150 and len(value["tags"]) <= 2
    assert value["kind"] in PERSON["properties"]["kind"]["enum"]


def as_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


class Forms(unittest.TestCase):
    def test_json_schema_with_several_choices(self):
        for seed in range(5):
            for choice in chat(response_format=as_format(PERSON), n=4, seed=seed)["choices"]:
                self.assertEqual(choice["finish_reason"], "stop")
                check_person(json.loads(choice["message"]["content"]))

    def test_json_object(self):
        for seed in range(20):
            choice = chat(response_format={"type": "json_object"}, seed=seed)["choices"][0]
            if choice["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(choice["message"]["content"]), dict)

    def test_expressions_choices_and_grammars(self):
        cases = [
            ({"guided_regex": "[a-f]{3,8}-[0-9]{2}"}, r"[a-f]{3,8}-[0-9]{2}"),
            ({"guided_choice": ["yes", "no", "perhaps"]}, "yes|no|perhaps"),
            ({"grammar": 'root ::= ("ab" | "c")+ "."', "max_tokens": 200}, r"(ab|c)+\."),
            ({"structured_outputs": {"regex": "x{2,9}"}}, "x{2,9}"),
        ]
        for fields, pattern in cases:
            for seed in range(10):
                body = {"prompt": "I say", "temperature": 1, "max_tokens": 60, "seed": seed, **fields}
                choice = post("/v1/completions", body)["choices"][0]
                if choice["finish_reason"] == "length":
                    continue
                self.assertRegex(choice["text"], f"^({pattern})$")

    def test_a_limit_cuts_and_a_stop_string_stops(self):
        cut = chat(response_format=as_format(PERSON), max_tokens=4)["choices"][0]
        self.assertEqual(cut["finish_reason"], "length")
        # With its quotes, since a name is random text and may hold the letters.
        stopped = chat(response_format=as_format(PERSON), stop=['"age"'])["choices"][0]
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertRegex(stopped["message"]["content"].rstrip(), r'^\{\s*"name".*,$')

    def test_a_minimum_does_not_keep_an_answer_from_its_end(self):
        for seed in range(5):
            answer = chat(response_format=as_format(KIND_ONLY), min_tokens=100, seed=seed)
            self.assertIn("kind", json.loads(answer["choices"][0]["message"]["content"]))

    def test_streamed_and_whole_are_the_same(self):
        for seed in range(8):
            body = {"messages": MESSAGES, "temperature": 1, "seed": seed, "max_tokens": 300,
                    "response_format": as_format(PERSON), "stream_options": {"include_usage": True}}
            events = [e for e in SERVER.stream(CHAT, body) if e != "[DONE]"]
            text = "".join(c["delta"].get("content", "") for e in events for c in e["choices"])
            del body["stream_options"]
            whole = post(CHAT, body)
            self.assertEqual(text, whole["choices"][0]["message"]["content"])
            for count in ("prompt_tokens", "completion_tokens"):
                self.assertEqual(events[-1]["usage"][count], whole["usage"][count])

    def test_responses_and_messages(self):
        answer = post("/v1/responses", {"input": "x", "temperature": 1, "max_output_tokens": 400,
                                        "text": {"format": {"type": "json_schema", "name": "p",
                                                            "strict": True, "schema": PERSON}}})
        check_person(json.loads(answer["output"][0]["content"][0]["text"]))
        tool = {"name": "describe_person", "input_schema": PERSON}
        answer = post("/v1/messages", {"messages": MESSAGES, "max_tokens": 400, "temperature": 1,
                                       "tools": [tool],
                                       "tool_choice": {"type": "tool", "name": "describe_person"}})
        self.assertEqual(answer["stop_reason"], "tool_use")
        self.assertEqual([block["type"] for block in answer["content"]], ["tool_use"])
        check_person(answer["content"][0]["input"])

    def test_the_command_line(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(PERSON, file)
            file.flush()
            out = self.generate("--json-schema", file.name)
        check_person(json.loads(out))
        self.assertRegex(self.generate("--regex", "[a-f]{3,8}"), "^[a-f]{3,8}$")

    def generate(self, *flags):
        command = [str(BINARY), "generate", str(DEMO_MODEL), "--prompt", "I say", "--max-tokens", "300",
                   "--temperature", "1", "--seed", "3", *flags]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class ForcedTokens(unittest.TestCase):
    """What a grammar forces is not drawn where nobody asks for log-probabilities; nothing else changes."""

    def test_the_answer_is_that_of_drawing_every_token(self):
        for fields in ({"response_format": as_format(PERSON)}, {"guided_json": KIND_ONLY},
                       {"guided_choice": ["weather-report", "weather-forecast"]},
                       {"guided_regex": "the quick brown (fox|dog)\\."}):
            for seed in range(6):
                fast = chat(seed=seed, frequency_penalty=0.5, **fields)
                slow = chat(seed=seed, frequency_penalty=0.5, logprobs=True, **fields)
                for field in ("content",):
                    self.assertEqual(fast["choices"][0]["message"][field],
                                     slow["choices"][0]["message"][field])
                self.assertEqual(fast["usage"]["completion_tokens"],
                                 slow["usage"]["completion_tokens"])

    def test_beside_others_as_alone(self):
        bodies = [{"response_format": as_format(PERSON), "seed": seed, "n": 2} for seed in range(8)]
        alone = [chat(**body)["choices"] for body in bodies]
        with ThreadPoolExecutor(16) as pool:
            together = list(pool.map(lambda body: chat(**body)["choices"], bodies * 2))
        self.assertEqual(together, alone * 2)

    def test_they_are_counted(self):
        before = SERVER.metric("heddle_forced_tokens_total")
        chat(response_format=as_format(PERSON))
        self.assertGreater(SERVER.metric("heddle_forced_tokens_total"), before)


class Calls(unittest.TestCase):
    def call(self, **fields):
        return chat(tools=TOOLS, **fields)["choices"][0]

    def check(self, call):
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "describe_person":
            check_person(arguments)
        else:
            self.assertEqual(call["function"]["name"], "get_time")

    def test_required(self):
        for seed in range(10):
            choice = self.call(tool_choice="required", seed=seed, parallel_tool_calls=False)
            self.assertEqual(choice["finish_reason"], "tool_calls")
            self.assertEqual(len(choice["message"]["tool_calls"]), 1)
            self.assertIsNone(choice["message"]["content"])
            self.check(choice["message"]["tool_calls"][0])

    def test_several(self):
        choice = self.call(tool_choice="required", seed=1, max_tokens=1500)
        for call in choice["message"]["tool_calls"][: -1 if choice["finish_reason"] == "length" else None]:
            self.check(call)

    def test_named(self):
        named = {"type": "function", "function": {"name": "describe_person"}}
        for seed in range(10):
            choice = self.call(tool_choice=named, seed=seed)
            self.assertEqual(choice["finish_reason"], "stop")
            calls = choice["message"]["tool_calls"]
            self.assertEqual([call["function"]["name"] for call in calls], ["describe_person"])
            self.check(calls[0])

    def test_strict_tools_of_the_models_choice(self):
        for seed in range(10):
            choice = self.call(seed=seed, max_tokens=200)
            calls = choice["message"].get("tool_calls", [])
            for call in calls[: -1 if choice["finish_reason"] == "length" else None]:
                if call["function"]["name"] == "describe_person":
                    check_person(json.loads(call["function"]["arguments"]))

    def test_arguments_are_streamed_as_they_come(self):
        body = {"messages": MESSAGES, "tools": TOOLS, "temperature": 1, "seed": 4, "max_tokens": 400,
                "tool_choice": {"type": "function", "function": {"name": "describe_person"}}}
        deltas = [choice["delta"] for event in SERVER.stream(CHAT, body) if event != "[DONE]"
                  for choice in event["choices"]]
        parts = [call for delta in deltas for call in delta.get("tool_calls", [])]
        self.assertEqual(parts[0]["function"], {"name": "describe_person", "arguments": ""})
        self.assertGreater(len(parts), 4)
        for part in parts[1:]:
            self.assertEqual(set(part), {"index", "function"})
            self.assertEqual(set(part["function"]), {"arguments"})
        text = "".join(part["function"]["arguments"] for part in parts)
        check_person(json.loads(text))
        whole = post(CHAT, body)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        self.assertEqual(text, whole)

    def test_arguments_in_the_events_of_the_other_apis(self):
        tool = {"type": "function", "name": "describe_person", "parameters": PERSON}
        body = {"input": "x", "tools": [tool], "tool_choice": "required", "temperature": 1,
                "parallel_tool_calls": False}
        events = list(SERVER.stream("/v1/responses", body))
        kinds = [event["type"] for event in events]
        self.assertGreater(kinds.count("response.function_call_arguments.delta"), 3)
        self.assertEqual(kinds.count("response.function_call_arguments.done"), 1)
        deltas = "".join(e["delta"] for e in events if e["type"].endswith("arguments.delta"))
        check_person(json.loads(deltas))
        done = next(e for e in events if e["type"].endswith("arguments.done"))
        self.assertEqual(done["arguments"], deltas)
        body = {"messages": MESSAGES, "max_tokens": 400, "temperature": 1,
                "tools": [{"name": "describe_person", "input_schema": PERSON}],
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        events = list(SERVER.stream("/v1/messages", body))
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        self.assertGreater(len(deltas), 3)
        check_person(json.loads("".join(delta["partial_json"] for delta in deltas)))
        self.assertEqual([e["type"] for e in events].count("content_block_stop"), 1)


class Errors(unittest.TestCase):
    def refused(self, path, **fields):
        return post(path, {"messages": MESSAGES, **fields}, status=400)["error"]

    def test_an_unsupported_keyword_is_named_with_its_place(self):
        schema = {"type": "object", "properties": {"tags": {"type": "array", "extends": {}}}}
        for fields, param in (({"response_format": as_format(schema)}, "response_format.json_schema.schema"),
                              ({"guided_json": schema}, "guided_json")):
            error = self.refused(CHAT, **fields)
            self.assertEqual(error["param"], param)
            self.assertIn('"extends"', error["message"])
            self.assertIn("#/properties/tags", error["message"])
        tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}
        error = self.refused(CHAT, tools=[tool])
        self.assertEqual(error["param"], "tools")
        self.assertIn("#/properties/tags", error["message"])
        error = post("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema",
                     "name": "n", "schema": schema}}}, status=400)["error"]
        self.assertEqual(error["param"], "text.format.schema")

    def test_hostile_grammars_are_refused_or_compiled_in_bounded_time(self):
        nested = {}
        for _ in range(60):
            nested = {"anyOf": [nested, {"type": "array", "items": nested}]} if _ < 5 else {"items": nested}
        for fields in ({"guided_regex": "(((a{1,100}){1,100}){1,100}){1,100}"},
                       {"guided_regex": "(a|b)*a(a|b){20}"},
                       {"guided_regex": "(" * 500 + ")" * 500},
                       {"grammar": 'root ::= root root | "a" | ""'},
                       {"grammar": 'root ::= "a" root'},
                       {"guided_json": {"type": "array", "minItems": 10**9}},
                       {"guided_json": {"allOf": [{"anyOf": [{"minLength": i}, {"pattern": f"^a{{{i}}}"}]}
                                                  for i in range(30)]}},
                       {"guided_choice": ["x" * 300_000]},
                       {"guided_json": nested}):
            status, _, text = SERVER.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 2, **fields},
                                             timeout=20)
            self.assertIn(status, (200, 400), text)
        self.assertEqual(chat(guided_choice=["ok"])["choices"][0]["message"]["content"], "ok")


class Corpus(unittest.TestCase):
    @unittest.skipIf(jsonschema is None, "needs the Python package jsonschema")
    def test_every_answer_is_valid_by_its_schema(self):
        full = os.environ.get("HEDDLE_CORPUS") == "full"
        lines = (SOURCE / "tests/grammar/corpus/schemas.jsonl").read_text().splitlines()
        schemas = [json.loads(line) for line in lines][:: 1 if full else 8]
        jobs = [(schema, seed) for schema in schemas for seed in range(20 if full else 4)]

        def one(job):
            schema, seed = job
            body = {"prompt": "I say", "temperature": 1.3, "max_tokens": 600, "seed": seed,
                    "guided_json": json.dumps(schema)}
            choice = post("/v1/completions", body)["choices"][0]
            if choice["finish_reason"] == "length":
                return "cut"
            value = json.loads(choice["text"])
            draft = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
            error = jsonschema.exceptions.best_match(draft(schema).iter_errors(value))
            return "valid" if error is None else f"{error.message[:200]}: {schema} {choice['text'][:500]}"

        with ThreadPoolExecutor(32) as pool:
            results = list(pool.map(one, jobs))
        wrong = [result for result in results if result not in ("valid", "cut")]
        cut = results.count("cut")
        print(f"{len(schemas)} schemas, {len(results)} answers, {cut} cut by max_tokens, {len(wrong)} invalid")
        self.assertEqual(wrong, [])
        self.assertLess(cut, len(results) / 2)


if __name__ == "__main__":
    with Server("--kv-memory", "256MiB") as SERVER:
        result = unittest.main(exit=False, verbosity=1).result
    sys.exit(not result.wasSuccessful())
