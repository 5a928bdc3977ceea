#!/usr/bin/env python3
"""Best of n by a reward model that a second server has: its scores decide, and where it gives none, in time, the answer is
the likeliest sample with a warning. Standard library only."""

import contextlib
import http.server
import json
import pathlib
import tempfile
import threading
import time
import unittest

from heddle_server import Server, wait_until
from pooled_models_test import write_folder

QUESTION = "Tell me a story."


class RewardStub:
    """An HTTP server in this process whose answer to a POST is what `reply(body)` gives: (status, text)."""

    def __init__(self, reply):
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                stub.path, stub.authorization = self.path, self.headers.get("Authorization")
                stub.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, text = stub.reply(stub.asked)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # whoever asked has not waited
                    self.wfile.write(text.encode())

            def log_message(self, *unused):
                pass

        self.reply, self.asked, self.path, self.authorization = reply, None, None, None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def scores(values):
    return 200, json.dumps({"data": [{"index": i, "object": "score", "score": value} for i, value in enumerate(values)]})


class RewardModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        write_folder(pathlib.Path(cls.temporary.name), {}, labels=1)
        cls.model = Server(model=cls.temporary.name)
        cls.stub = RewardStub(None)
        cls.by_model = Server("--speculate", "off", "--reward-url", cls.model.base_url)
        cls.by_stub = Server("--speculate", "off", "--reward-url", cls.stub.url + "/prefix/", "--reward-key", "k",
                             "--reward-timeout", "1")

    @classmethod
    def tearDownClass(cls):
        for server in (cls.by_model, cls.by_stub, cls.model):
            server.__exit__()
        cls.stub.close()
        cls.temporary.cleanup()

    def ask(self, server, status=200, path="/v1/chat/completions", **fields):
        body = {"max_tokens": 40, "seed": 1, "temperature": 1.2,
                "search": {"kind": "best_of_n", "samples": 6, "rank_by": "reward"}, **fields}
        if path.endswith("chat/completions"):
            body.setdefault("messages", [{"role": "user", "content": QUESTION}])
        got, headers, text = server.request("POST", path, body)
        self.assertEqual(got, status, text)
        return json.loads(text), headers

    def samples(self, server, count):
        """The texts that a search draws, by the seeds of its samples."""
        answer, _ = self.ask(server, search=None, n=count)
        return [choice["message"]["content"] for choice in answer["choices"]]

    def test_the_sample_that_the_model_scores_best_is_the_answer(self):
        texts = self.samples(self.by_model, 6)
        status, _, text = self.model.request("POST", "/v1/score", {
            "text_1": QUESTION, "text_2": texts, "use_activation": False})
        self.assertEqual(status, 200, text)
        rewards = [one["score"] for one in json.loads(text)["data"]]
        answer, headers = self.ask(self.by_model)
        self.assertNotIn("X-Heddle-Warning", headers)
        self.assertEqual(answer["choices"][0]["message"]["content"], texts[rewards.index(max(rewards))])
        details = answer["usage"]["completion_tokens_details"]
        self.assertAlmostEqual(details["reward"], max(rewards), places=5)
        self.assertEqual((details["samples"], details["finished_samples"]), (6, 6))

    def test_the_reward_model_is_asked_once_with_the_question_and_all_that_ended(self):
        texts = self.samples(self.by_stub, 6)
        for best in (0, 3, 5):
            self.stub.reply = lambda body, best=best: scores([float(i == best) for i in range(len(body["text_2"]))])
            answer, _ = self.ask(self.by_stub)
            self.assertEqual(answer["choices"][0]["message"]["content"], texts[best])
            self.assertEqual(answer["usage"]["completion_tokens_details"]["reward"], 1)
            self.assertEqual((self.stub.asked["text_1"], self.stub.asked["text_2"]), (QUESTION, texts))
        self.assertEqual((self.stub.path, self.stub.authorization), ("/prefix/v1/score", "Bearer k"))
        parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
        self.ask(self.by_stub, messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": parts}])
        self.assertEqual(self.stub.asked["text_1"], "Say hello.")
        self.ask(self.by_stub, path="/v1/completions", prompt="Once upon a time")
        self.assertEqual(self.stub.asked["text_1"], "Once upon a time")
        pruned, _ = self.ask(self.by_stub, search={
            "kind": "best_of_n", "samples": 8, "rank_by": "reward", "prune": {"tokens": 8}})
        details = pruned["usage"]["completion_tokens_details"]
        self.assertEqual(len(self.stub.asked["text_2"]), details["finished_samples"])
        self.assertGreater(details["saved_tokens"], 0)

    def test_a_stream_has_the_best_sample_at_its_end(self):
        self.stub.reply = lambda body: scores(range(len(body["text_2"])))
        text = ""
        for event in self.by_stub.stream("/v1/chat/completions", {
                "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 40, "seed": 1, "temperature": 1.2,
                "search": {"kind": "best_of_n", "samples": 6, "rank_by": "reward"}}):
            if event != "[DONE]":
                text += event["choices"][0]["delta"].get("content", "")
        self.assertEqual(text, self.samples(self.by_stub, 6)[5])

    def test_without_scores_the_answer_is_the_likeliest_and_a_warning_says_so(self):
        likeliest, _ = self.ask(self.by_stub, search={"kind": "best_of_n", "samples": 6})
        replies = {"an error": lambda body: (500, "no"), "no JSON": lambda body: (200, "<html>"),
                   "too few": lambda body: scores([1.0]),
                   "a huge one": lambda body: (200, " " * (2 << 20)),
                   "none in time": lambda body: (time.sleep(3), scores([0.0] * 6))[1]}
        for name, reply in replies.items():
            self.stub.reply = reply
            began = time.monotonic()
            answer, headers = self.ask(self.by_stub)
            self.assertLess(time.monotonic() - began, 2.5, name)
            self.assertIn("reward model gave no scores", headers["X-Heddle-Warning"], name)
            self.assertEqual(answer["choices"], likeliest["choices"], name)
            self.assertNotIn("reward", answer["usage"]["completion_tokens_details"], name)
        for name in ("heddle_kept_contexts", "heddle_running_sequences"):
            self.assertTrue(wait_until(lambda n=name: self.by_stub.metric(n) == 0), name)

    def test_a_client_that_leaves_while_scores_are_waited_for_leaves_nothing(self):
        self.stub.reply = lambda body: (time.sleep(0.5), scores([0.0] * 6))[1]
        self.stub.asked = None
        with self.assertRaises(TimeoutError):
            self.by_stub.request("POST", "/v1/chat/completions", {
                "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4,
                "search": {"kind": "best_of_n", "samples": 6, "rank_by": "reward"}}, timeout=0.3)
        self.assertTrue(wait_until(lambda: self.by_stub.metric("heddle_kept_contexts") == 0))
        self.stub.reply = lambda body: scores([0.0] * len(body["text_2"]))
        self.ask(self.by_stub)

    def test_what_makes_no_sense_is_refused(self):
        cases = ({"kind": "best_of_n", "rank_by": "x"}, {"kind": "self_consistency", "rank_by": "reward"})
        for search in cases:
            error, _ = self.ask(self.by_stub, status=400, search=search)
            self.assertEqual(error["error"]["param"], "search.rank_by")
        error, _ = self.ask(self.model, status=400)
        self.assertEqual(error["error"]["param"], "model")
        with Server("--speculate", "off") as server:
            error, _ = self.ask(server, status=400)
            self.assertEqual(error["error"]["param"], "search.rank_by")
            self.assertIn("--reward-url", error["error"]["message"])
        with self.assertRaisesRegex(RuntimeError, "--reward-url is \"https://x\": it needs TLS"):
            Server("--reward-url", "https://x")


if __name__ == "__main__":
    unittest.main()
