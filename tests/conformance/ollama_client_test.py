#!/usr/bin/env python3
"""Ollama's API through its own client, through raw HTTP, and through litellm.

    ollama_client_test.py --start PROGRAM

PROGRAM is the server with the scripted engine (tests/server/fake_server.cc). A client that is not installed is skipped by
name; raw HTTP needs none.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look-up over the network

try:
    import ollama
except ImportError:
    ollama = None
    print("SKIPPED: Ollama's own client needs the Python package ollama")
try:
    import litellm
except ImportError:
    litellm = None
    print("SKIPPED: LiteLLM needs the Python package litellm")

BASE = None
MODEL = "test-model"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Kyōto"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city.", "parameters": SCHEMA}}]


def user(text):
    return [{"role": "user", "content": "(say)" + text}]


def post(path, body, method="POST"):
    """(status, content type, text)"""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


class Lines(unittest.TestCase):
    def test_a_stream_is_json_line_by_line(self):
        status, kind, text = post("/api/chat", {"model": MODEL, "messages": user("grüße 🎉")})
        self.assertEqual((status, kind), (200, "application/x-ndjson"))
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual("".join(line["message"]["content"] for line in lines), "grüße 🎉")
        self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
        self.assertEqual(lines[-1]["done_reason"], "stop")
        self.assertGreater(lines[-1]["eval_duration"], 0)
        self.assertEqual(lines[-1]["eval_count"], len("grüße 🎉".encode()) + 1)

    def test_errors_have_one_member(self):
        for body, status in (({"model": "other", "messages": user("x")}, 404), ({"messages": 5}, 400),
                             ({"messages": user("(full)")}, 429)):
            answered, _, text = post("/api/chat", body)
            self.assertEqual(answered, status)
            self.assertEqual(list(json.loads(text)), ["error"])
        status, _, text = post("/api/pull", {"model": "x"})
        self.assertEqual((status, list(json.loads(text))), (404, ["error"]))

    def test_an_error_in_the_middle_is_the_last_line(self):
        _, _, text = post("/api/generate", {"prompt": "(breaks)", "raw": True})
        self.assertEqual(json.loads(text.splitlines()[-1]), {"error": "the engine broke"})

    def test_head_and_get_of_the_root_say_that_it_runs(self):
        self.assertEqual(post("/", None, "HEAD")[0], 200)
        self.assertEqual(post("/api/version", None, "GET")[0], 200)


@unittest.skipUnless(ollama, "needs the Python package ollama")
class Client(unittest.TestCase):
    def setUp(self):
        self.client = ollama.Client(host=BASE, timeout=60)

    def test_chat(self):
        answer = self.client.chat(MODEL, user("hello"))
        self.assertEqual((answer.message.role, answer.message.content, answer.done_reason),
                         ("assistant", "hello", "stop"))
        self.assertEqual(answer.eval_count, 6)
        self.assertGreater(answer.total_duration, 0)
        pieces = list(self.client.chat(MODEL, user("hello"), stream=True))
        self.assertEqual("".join(piece.message.content for piece in pieces), "hello")
        self.assertTrue(pieces[-1].done)

    def test_thinking(self):
        answer = self.client.chat(MODEL, user("<think>\nhm\n</think>\n\nIt rains."), think=True)
        # The template has opened the reasoning already, so the mark is part of it.
        self.assertIn("hm", answer.message.thinking)
        self.assertEqual(answer.message.content, "It rains.")

    def test_tools_and_their_results(self):
        for stream in (False, True):
            answer = self.client.chat(MODEL, user(CALL), tools=TOOLS, stream=stream)
            messages = [piece.message for piece in answer] if stream else [answer.message]
            calls = [call for message in messages for call in message.tool_calls or []]
            self.assertEqual([(c.function.name, c.function.arguments) for c in calls], [("weather", {"city": "Kyōto"})])
        history = user(CALL) + [{"role": "assistant", "content": "", "tool_calls": calls},
                                {"role": "tool", "tool_name": "weather", "content": "(say)It rains."}]
        self.assertEqual(self.client.chat(MODEL, history, tools=TOOLS).message.content, "It rains.")

    def test_options(self):
        answer = self.client.chat(MODEL, user("hello world"), options={"num_predict": 3, "temperature": 0, "seed": 1})
        self.assertEqual((answer.message.content, answer.done_reason), ("hel", "length"))
        answer = self.client.generate(MODEL, "(say)hello world", options={"stop": [" w"]})
        self.assertEqual(answer.response, "hello")
        for options in ({"top_p": 2}, {"mirostat": 1}):
            with self.assertRaises(ollama.ResponseError) as caught:
                self.client.generate(MODEL, "x", options=options)
            self.assertEqual(caught.exception.status_code, 400)
            self.assertIn("options." + next(iter(options)), caught.exception.error)

    def test_generate(self):
        self.assertEqual(self.client.generate(MODEL, "(say)hello").response, "hello")
        pieces = list(self.client.generate(MODEL, "(say)hello", stream=True))
        self.assertEqual("".join(piece.response for piece in pieces), "hello")
        loaded = self.client.generate(MODEL, "", keep_alive=0)
        self.assertEqual((loaded.response, loaded.done_reason), ("", "load"))

    def test_images_are_refused_by_name(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat(MODEL, [{"role": "user", "content": "x", "images": [b"png"]}])
        self.assertIn("messages[0].images", caught.exception.error)

    def test_embeddings(self):
        several = self.client.embed(MODEL, ["a", "b"])
        self.assertEqual(len(several.embeddings), 2)
        self.assertAlmostEqual(sum(x * x for x in several.embeddings[0]), 1, places=5)
        one = self.client.embeddings(MODEL, "a")
        self.assertEqual(len(one.embedding), len(several.embeddings[0]))

    def test_models(self):
        self.assertEqual([model.model for model in self.client.list().models], [MODEL, "gpt-test"])
        self.assertEqual(self.client.ps().models[0].model, MODEL)
        shown = self.client.show(MODEL)
        self.assertIn("tools", shown.capabilities)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.show("other")
        self.assertEqual(caught.exception.status_code, 404)
        self.assertIn(MODEL, caught.exception.error)
        self.assertEqual(self.client.chat(MODEL + ":latest", user("hello")).message.content, "hello")


@unittest.skipUnless(litellm, "needs the Python package litellm")
class LiteLlm(unittest.TestCase):
    def complete(self, provider, text, **fields):
        return litellm.completion(f"{provider}/{MODEL}", messages=user(text), api_base=BASE, timeout=60, **fields)

    def test_both_of_its_ways(self):
        for provider in ("ollama", "ollama_chat"):
            with self.subTest(provider=provider):
                self.assertEqual(self.complete(provider, "hello").choices[0].message.content.strip(), "hello")
                pieces = self.complete(provider, "hello", stream=True)
                text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
                self.assertEqual(text.strip(), "hello")

    @unittest.skipUnless(importlib.util.find_spec("mcp"), "litellm needs the Python package mcp for tools")
    def test_tools(self):
        message = self.complete("ollama_chat", CALL, tools=TOOLS).choices[0].message
        self.assertEqual(json.loads(message.tool_calls[0].function.arguments), {"city": "Kyōto"})

    def test_embedding(self):
        answer = litellm.embedding(f"ollama/{MODEL}", input=["a", "b"], api_base=BASE)
        self.assertEqual(len(answer.data), 2)


def main():
    global BASE
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", required=True)
    args, rest = parser.parse_known_args()
    server = subprocess.Popen([args.start, "--quiet"], stdout=subprocess.PIPE, text=True)
    try:
        port = re.search(r"listening on (\d+)", server.stdout.readline()).group(1)
        BASE = f"http://127.0.0.1:{port}"
        result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    finally:
        server.terminate()
        stopped = server.wait(20)
    sys.exit(0 if result.wasSuccessful() and stopped == 0 else 1)


if __name__ == "__main__":
    main()
