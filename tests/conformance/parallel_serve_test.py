#!/usr/bin/env python3
"""A model that thinks in branches, served: its forks and joins end to end. The same answer comes from a client that forks
and joins by itself over /v1/branches, with little memory as with much; and nothing outlives its request.
The model is the demo model, with a format of the test's own."""

import concurrent.futures
import http.client
import json
import os
import random
import re
import unittest

from heddle_server import TIMEOUT_SCALE, Server, wait_until

# Each sentence asks for a branch for each of its words that begin with a t.
WORDS = {"fork_at": ".", "items": r"\bt[a-z]+", "header": " The {id}", "branch_end": ".", "after": "\n",
         "join": "concurrent", "tail": "\nSo"}
PROMPT = "Once upon a time there was a small robot who"


class Parallel(unittest.TestCase):
    flags = ["--kv-memory", "64MiB"]

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--speculate", "off", *cls.flags)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def post(self, path, body, status=200):
        got, _, text = self.server.request("POST", path, body)
        self.assertEqual(got, status, text)
        return json.loads(text)

    def words(self, join, **fields):
        return self.post("/v1/completions", {
            "prompt": PROMPT, "max_tokens": 90, "temperature": 0, "return_token_ids": True, "ignore_eos": True,
            "parallel": {"format": "custom", "max_depth": 1, "max_branches": 4, "max_branch_tokens": 16,
                         "max_total_tokens": 1000, "custom": {**WORDS, "join": join}}, **fields})

    def branch(self, branch):
        status, _, text = self.server.request("GET", f"/v1/branches/{branch}")
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def tokens(self, text):
        return self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def by_hand(self, join, count):
        """The first tokens of the same answer by a client: the longest way is at most `count` tokens."""
        branch = self.post("/v1/branches", {"prompt": PROMPT})["root"]
        length, begun = 0, len(self.branch(branch)["token_ids"])
        prompt = since = begun  # of these, `since` is where the text begins in which items are looked for
        closing = sum(len(self.tokens(text)) for text in (".", "\n", "\nSo"))
        while True:
            self.post(f"/v1/branches/{branch}/continue", {
                "max_tokens": count - length, "temperature": 0, "ignore_eos": True, "stop": ["."]})
            tokens = self.branch(branch)["token_ids"]
            length += len(tokens) - begun
            if length >= count:
                return tokens[prompt:]
            text = self.post("/detokenize", {"tokens": tokens[since:]})["prompt"]
            items = re.findall(WORDS["items"], text)
            longest = max([len(self.tokens(f" The {item}")) for item in items] or [0])
            if not 1 <= len(items) <= 4 or length + longest + 1 + closing > count or longest >= 16:
                begun = len(tokens)
                continue
            children = []
            for item in items:
                header = self.tokens(f" The {item}")
                child = self.post("/v1/branches", {"from": branch, "append": header, "concurrent": join == "concurrent"})
                child = child["data"][0]["id"]
                room = min(16, count - length - closing) - len(header)
                self.post(f"/v1/branches/{child}/continue", {
                    "max_tokens": room, "temperature": 0, "ignore_eos": True, "stop": ["."]})
                own = self.branch(child)["token_ids"][len(tokens):]
                end = [] if own[-1] == self.tokens(".")[0] else self.tokens(".")
                self.post(f"/v1/branches/{child}/continue", {"append": end + self.tokens("\n"), "max_tokens": 0})
                children.append(child)
            own = max(len(self.branch(child)["token_ids"]) for child in children) - len(tokens)
            joined = self.post(f"/v1/branches/{branch}/join", {
                "children": children, "kind": join, "tail": self.tokens("\nSo")})
            branch = joined["data"][0]["id"]
            begun = since = len(self.branch(branch)["token_ids"])
            length += own + len(self.tokens("\nSo"))
            if length >= count:
                return self.branch(branch)["token_ids"][prompt:]

    def test_the_answer_is_that_of_a_client_that_forks_and_joins(self):
        for join in ("text", "concurrent"):
            answer = self.words(join)
            details = answer["usage"]["completion_tokens_details"]
            self.assertGreaterEqual(details["branches"], 2)
            self.assertLess(details["critical_path_tokens"], answer["usage"]["completion_tokens"])
            got = answer["choices"][0]["token_ids"]
            self.assertEqual(len(got), answer["usage"]["completion_tokens"])
            self.assertEqual(got, self.by_hand(join, 90), join)

    def test_streams_bring_the_same_text(self):
        whole = self.words("concurrent")["choices"][0]["text"]
        body = {"prompt": PROMPT, "max_tokens": 90, "temperature": 0, "ignore_eos": True}
        for order in ("tagged", "sequential"):
            parallel = {"format": "custom", "max_depth": 1, "max_branches": 4, "max_branch_tokens": 16, "max_total_tokens": 1000,
                        "stream_order": order, "custom": {**WORDS, "join": "concurrent"}}
            texts = {}
            for event in self.server.stream("/v1/completions", {**body, "parallel": parallel}):
                if event == "[DONE]":
                    break
                choice = event["choices"][0]
                branch = choice.get("branch", "")
                texts[branch] = texts.get(branch, "") + choice["text"]
            if order == "sequential":
                self.assertEqual(texts, {"": whole})
            else:
                self.assertGreater(len(texts), 3)
                self.assertEqual(sorted("".join(texts.values())), sorted(whole))
                for branch, text in texts.items():
                    self.assertTrue(branch in ("", "0") or text in whole, (branch, text))

    def leave(self, seed):
        """Begins a stream and leaves in the middle of it."""
        rng = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60 * TIMEOUT_SCALE)
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": PROMPT[:rng.randint(20, 44)], "max_tokens": 200, "temperature": 1.0, "seed": seed, "stream": True,
            "ignore_eos": True, "parallel": {
                "format": "custom", "max_total_tokens": 800, "max_depth": 3,
                "custom": {**WORDS, "join": rng.choice(["text", "concurrent"])}}}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for _ in range(rng.randint(0, 120)):
            response.readline()
        connection.close()

    def test_clients_that_leave_at_any_moment_leave_nothing_behind(self):
        count = int(os.environ.get("HEDDLE_PARALLEL_CLIENTS", "40"))
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(self.leave, range(count)))
        for name in ("heddle_kv_pages_used", "heddle_running_sequences", "heddle_waiting_requests"):
            self.assertTrue(wait_until(lambda n=name: self.server.metric(n) == 0), name)
        self.assertEqual(self.server.metric("heddle_kept_contexts"), self.server.metric("heddle_branches"))


class ParallelInFewPages(Parallel):
    """So little memory that branches are preempted, lose what they have, and are computed again."""
    flags = ["--kv-memory", "1MiB", "--max-context", "512"]


if __name__ == "__main__":
    unittest.main()
