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
import subprocess
import time
import unittest

from heddle_server import BINARY, TIMEOUT_SCALE, Server, wait_until

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

    def test_the_trace_draws_the_tree(self):
        limits = {"format": "custom", "max_depth": 1, "max_branches": 4, "max_total_tokens": 1000}
        status, headers, text = self.server.request("POST", "/v1/completions", {
            "prompt": PROMPT, "max_tokens": 90, "temperature": 0, "ignore_eos": True, "parallel": {**limits, "custom": WORDS}})
        self.assertEqual(status, 200, text)
        status, _, text = self.server.request("GET", f"/debug/requests/{headers['X-Request-Id']}")
        self.assertEqual(status, 200, text)
        runs = json.loads(text)["runs"]
        self.assertEqual(runs[0]["branch"], "0")
        self.assertIn("0.1", [run["branch"] for run in runs])
        self.assertTrue(all(run["state"] != "running" for run in runs), runs)
        drawn = subprocess.run([str(BINARY), "trace", headers["X-Request-Id"], "--url", self.server.base_url],
                               capture_output=True, text=True, check=True).stdout
        self.assertRegex(drawn, r"\n +\d.*  0 +#+\n.*  \|-- 0\.0 ")

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


class Hostile(unittest.TestCase):
    """Values that nobody should send, in every member of `parallel` and `search`: each is refused with its name or
    answered, and the server goes on."""
    VALUES = [None, True, -1, 0, 1, 1.5, 2**31, 2**63, -2**63, 1e308, "", "x", "(" * 1000, "a" * 5000, [], [[]], {}, {"a": {}},
              "\u0000", "(a*)*b", "[", "\ud800", ["x"] * 100]

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--speculate", "off", "--kv-memory", "16MiB")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def send(self, **fields):
        status, _, text = self.server.request("POST", "/v1/completions", {
            "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields})
        self.assertIn(status, (200, 400), (fields, text))
        return status, json.loads(text)

    def test_any_value_of_any_member(self):
        deep = 1
        for _ in range(100):
            deep = {"custom": deep}
        custom = {**WORDS, "items_from": "", "before": "", "branch_begin": "", "cut_end": "."}
        parallel = {"format": "custom", "max_branches": 2, "max_depth": 1, "max_branch_tokens": 9, "max_total_tokens": 50,
                    "on_slow": "wait", "stream_order": "tagged", "custom": custom}
        search = {"kind": "self_consistency", "samples": 2, "wave": 2, "answer": "x", "confidence": 0.9,
                  "prune": {"tokens": 4, "similarity": 0.9}}
        self.assertEqual(self.send(parallel=parallel)[0], 200)
        self.assertEqual(self.send(search=search)[0], 200)
        refused = 0
        for value in [*self.VALUES, deep]:
            for name, whole in (("parallel", parallel), ("search", search)):
                self.send(**{name: value})
                for member in [*whole, "unknown"]:
                    status, answer = self.send(**{name: {**whole, member: value}})
                    if status == 400:
                        refused += 1
                        self.assertTrue((answer["error"]["param"] or name).startswith(name), (member, value, answer))
            for member in [*custom, "unknown"]:
                self.send(parallel={**parallel, "custom": {**custom, member: value}})
            for member in ("tokens", "similarity", "unknown"):
                self.send(search={**search, "prune": {**search["prune"], member: value}})
            self.send(parallel={**parallel, "on_slow": {"cut_after_s": value}})
            for member in ("use_beam_search", "beam_width", "length_penalty", "n", "best_of"):
                self.send(**{"use_beam_search": True, "beam_width": 2, member: value})
        self.assertGreater(refused, 150)
        for format in ("multiverse", "threadweaver", "apr", "auto", "parathinker"):
            self.send(parallel={"format": format})

    def test_marks_that_are_everywhere_end_at_the_limits(self):
        """Marks of one letter, in any place: forks at nearly each token."""
        rng = random.Random(3)
        for _ in range(40):
            marks = {name: rng.choice(["e", "a", "t", " ", "o"]) for name in ("fork_at", "branch_end", "header")}
            status, answer = self.send(max_tokens=120, ignore_eos=True, parallel={
                "format": "custom", "max_branches": 64, "max_depth": 8, "max_total_tokens": 400, "custom": {
                    **marks, "items": rng.choice(["[a-z]", "", ".*", "(.)(.)", "$"]), "join": rng.choice(["text", "concurrent"]),
                    "tail": "s", "branch_begin": rng.choice(["", "i"])}})
            self.assertLessEqual(answer.get("usage", {}).get("completion_tokens", 0), 400)
        for name in ("heddle_kv_pages_used", "heddle_running_sequences", "heddle_waiting_requests", "heddle_kept_contexts"):
            self.assertTrue(wait_until(lambda n=name: self.server.metric(n) == 0), name)

    def leave(self, seed):
        rng = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60 * TIMEOUT_SCALE)
        fields = rng.choice([{"search": {"samples": 16, "prune": {"tokens": 4}}}, {"use_beam_search": True, "beam_width": 8},
                             {"search": {"samples": 16, "confidence": 1}, "stream": True}])
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": PROMPT, "max_tokens": 200, "temperature": 1.0, "ignore_eos": True, **fields}),
            {"Content-Type": "application/json"})
        time.sleep(rng.random() / 10)
        connection.close()

    def test_clients_that_leave_searches_leave_nothing_behind(self):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(self.leave, range(30)))
        for name in ("heddle_kv_pages_used", "heddle_running_sequences", "heddle_waiting_requests", "heddle_kept_contexts"):
            self.assertTrue(wait_until(lambda n=name: self.server.metric(n) == 0), name)


if __name__ == "__main__":
    unittest.main()
