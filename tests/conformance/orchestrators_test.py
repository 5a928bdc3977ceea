#!/usr/bin/env python3
"""The requests of published orchestrators of parallel thinking, as they send them: ThreadWeaver's evaluation (stop
strings that are special tokens, prompts of token ids, max_tokens up to the context) and APR's (matched_stop,
max_tokens beyond it). Both wait for SGLang's /health_generate. The demo model stands in for theirs, with marks that it
knows, and with an adapter that was trained to write ThreadWeaver's (tests/demo_model/parallel.py), which are tokens of
their own. HEDDLE_PARALLEL_QUESTIONS=200 gives the figures of tests/demo_model/README.md. Standard library only."""

import concurrent.futures
import http.client
import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

from heddle_server import SOURCE, TIMEOUT_SCALE, Server

DEMO = SOURCE / "tests" / "demo_model"
sys.path.insert(0, str(DEMO))
import marks  # noqa: E402
import traces  # noqa: E402

# Special tokens of the demo model, in the places of ThreadWeaver's.
START, END = "<|im_start|>", "<|im_end|>"


class Orchestrators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--speculate", "off")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def complete(self, prompt, **fields):
        status, headers, text = self.server.request("POST", "/v1/completions", {"prompt": prompt, **fields})
        self.assertEqual(status, 200, text)
        return json.loads(text)["choices"][0], headers

    def tokens(self, text):
        status, _, body = self.server.request("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
        self.assertEqual(status, 200, body)
        return json.loads(body)["tokens"]

    def until(self, prompt, stop, max_new_tokens):
        """generate_until_any of ThreadWeaver's simple_eval: (text with what ended it, what that was)."""
        choice, _ = self.complete(self.tokens(prompt), max_tokens=max_new_tokens, temperature=0, top_p=0.95, stop=stop,
                                  add_special_tokens=False, skip_special_tokens=False, ignore_eos=END in stop)
        if choice["finish_reason"] == "length":
            return choice["text"], None
        hit = choice["matched_stop"]
        return choice["text"] + (hit if isinstance(hit, str) else ""), hit

    def test_threads_are_run_until_their_mark_and_put_together(self):
        base = f"{START}user\nWhat is 3 + 4?{END}\n{START}assistant\n"
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(lambda i: self.until(base + f"{i} + 1", [END], 30), range(1, 5)))
        merged = base
        for i, (text, hit) in enumerate(parts, 1):
            self.assertEqual(hit, END)
            self.assertTrue(text.endswith(END), text)
            merged += f"{i} + 1{text}"
        text, hit = self.until(merged + f"\n{START}user\nHello{END}\n{START}assistant\n", ["never"], 60)
        self.assertIsInstance(hit, int)  # the model's own end: its id is not added to the text
        self.assertTrue(text)
        text, hit = self.until(base, [END], 2)
        self.assertIsNone(hit)

    def test_ids_of_stop_tokens_are_matched(self):
        end = self.tokens(END)
        self.assertEqual(len(end), 1)
        choice, _ = self.complete(self.tokens(f"{START}user\nHello{END}\n{START}assistant\n"), max_tokens=40, temperature=0,
                                  stop_token_ids=end, skip_special_tokens=False)
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(choice["matched_stop"], end[0])

    def test_a_limit_beyond_the_context_is_cut_and_a_stop_string_told(self):
        """APR asks for 4,096 tokens whatever the prompt is, and goes on where a string has ended the text."""
        prefix = f"{START}user\nCount from 1 to 9.{END}\n{START}assistant\n"
        choice, headers = self.complete(prefix, max_tokens=4096, temperature=0, stop=["5"])
        self.assertEqual(choice["matched_stop"], "5")
        self.assertEqual(choice["text"], "1, 2, 3, 4, ")
        self.assertIn("max_tokens cut", headers.get("X-Heddle-Warning", ""))
        choice, _ = self.complete(prefix + choice["text"] + "5", max_tokens=4096, temperature=0, stop=["5"])
        self.assertEqual(choice["text"], ", 6, 7, 8, 9.")
        self.assertIsInstance(choice["matched_stop"], int)


class Client:
    """Requests with the headers and the members of OpenAI's library as the orchestrators use it."""

    def __init__(self, server, key):
        self.server, self.key = server, key

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("localhost", self.server.port, timeout=60 * TIMEOUT_SCALE)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {
                "Authorization": f"Bearer {self.key}", "Content-Type": "application/json; charset=utf-8",
                "Accept": "*/*", "Accept-Encoding": "identity"})
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == 200, (path, response.status, text)
            return json.loads(text)
        finally:
            connection.close()


class ThreadWeaver(unittest.TestCase):
    """Questions for several sums, answered by a loop of requests as simple_eval's, with threads side by side."""
    CONTEXT = 2048

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.temporary.name)
        marks.write_folder(folder)
        cls.model = "threadweaver"
        cls.server = Server("--speculate", "off", "--max-context", str(cls.CONTEXT), "--lora",
                            f"{cls.model}={DEMO / 'adapters' / 'threadweaver'}", model=folder)
        cls.client = Client(cls.server, "EMPTY")
        count = int(os.environ.get("HEDDLE_PARALLEL_QUESTIONS", "30"))
        cls.asked = list(itertools.islice(traces.held_out(50_000), count))

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.temporary.cleanup()

    def encode(self, text):
        return self.client.request("POST", "/tokenize", {"model": self.model, "prompt": text, "add_special_tokens": False})["tokens"]

    def complete(self, prompt, stop):
        """The text with the mark that ended it, and whether there was one."""
        ids = self.encode(prompt)
        answer = self.client.request("POST", "/v1/completions", {
            "model": self.model, "prompt": ids, "max_tokens": self.CONTEXT - len(ids) - 1, "stop": [stop],
            "temperature": 0.0, "top_p": 0.95, "add_special_tokens": False, "skip_special_tokens": False})
        choice = answer["choices"][0]
        self.assertIn(choice["finish_reason"], ("stop", "length"))
        self.assertEqual(answer["usage"]["prompt_tokens"], len(ids))
        hit = choice.get("matched_stop")
        self.assertTrue(hit is None or hit == stop or isinstance(hit, int), hit)
        return choice["text"] + (stop if hit == stop else ""), hit == stop

    def answer(self, prompt):
        while True:
            text, forks = self.complete(prompt, "</Outlines>")
            prompt += text
            items = re.findall(r"<Outline>\s*([0-9.]+)\s*:", text[text.rfind("<Outlines>"):])
            if not forks or not items:
                return prompt
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                threads = list(pool.map(lambda item: self.complete(f"{prompt}\n<Thread>\n{item}:", "</Thread>"), items))
            if not all(ended for _, ended in threads):
                return prompt
            prompt += "\n" + "".join(f"<Thread>\n{item}:{text}" for item, (text, _) in zip(items, threads)) + "\n"

    def prompt(self, trace):
        return f"{START}user\n{trace.question}{END}\n{START}assistant\n"

    def test_the_server_is_waited_for_and_has_the_model(self):
        self.assertEqual(self.client.request("GET", "/health_generate"), {"status": "ready"})
        self.assertIn(self.model, [model["id"] for model in self.client.request("GET", "/v1/models")["data"]])

    def test_each_mark_is_one_token_and_is_told_as_text(self):
        for mark in marks.MARKS:
            self.assertEqual(len(self.encode(mark)), 1, mark)
        trace = self.asked[0]
        text, hit = self.complete(self.prompt(trace), "</Outlines>")
        self.assertTrue(hit)
        self.assertEqual(text, trace.plan)

    def test_questions_are_answered_by_threads(self):
        right, joined = 0, 0
        for trace in self.asked:
            text = self.answer(self.prompt(trace))
            joined += len(re.findall("<Thread>", text)) >= 2 and "</Parallel>" in text
            right += text == self.prompt(trace) + trace.plan + trace.joined + trace.ending
        print(f"{right} of {len(self.asked)} right, {joined} joined", file=sys.stderr)
        self.assertGreaterEqual(joined, 0.9 * len(self.asked))
        self.assertGreaterEqual(right, 0.55 * len(self.asked))  # 67 of 100 when it was trained

    def test_the_server_branches_by_itself_to_the_same_text(self):
        same = 0
        for trace in self.asked[:10]:
            answer = self.client.request("POST", "/v1/chat/completions", {
                "model": self.model, "messages": [{"role": "user", "content": trace.question}], "temperature": 0,
                "max_tokens": 400, "skip_special_tokens": False, "parallel": {"format": "auto"}})
            self.assertGreaterEqual(answer["usage"]["completion_tokens_details"]["branches"], 2)
            same += self.prompt(trace) + answer["choices"][0]["message"]["content"] == self.answer(self.prompt(trace))
        self.assertGreaterEqual(same, 9)  # a number at the border of two tokens may be cut otherwise


class AdaptiveParallelReasoning(unittest.TestCase):
    """Requests as litellm sends them for APR, to a model that is called "model"."""

    def test_a_search_goes_on_where_its_mark_has_ended_it(self):
        with Server("--speculate", "off", "--served-model-name", "model") as server:
            client = Client(server, "api_key")
            self.assertEqual(client.request("GET", "/health_generate"), {"status": "ready"})

            def complete(prompt, stop):
                answer = client.request("POST", "/v1/completions", {
                    "model": "model", "prompt": prompt, "max_tokens": 4096, "stop": stop, "temperature": 0.0})
                return answer["choices"][0]

            prefix = f"{START}user\nCount from 1 to 9.{END}\n{START}assistant\n"
            first = complete(prefix, ["5"])
            self.assertEqual((first["matched_stop"], first["text"]), ("5", "1, 2, 3, 4, "))
            rest = complete(prefix + first["text"] + "5", ["5"])
            self.assertEqual(rest["text"], ", 6, 7, 8, 9.")
            self.assertNotEqual(rest["matched_stop"], "5")
            self.assertEqual(complete(prefix, [])["text"], "1, 2, 3, 4, 5, 6, 7, 8, 9.")


if __name__ == "__main__":
    unittest.main()
