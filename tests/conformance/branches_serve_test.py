#!/usr/bin/env python3
"""Branches of a running server: a fork at every token equals a request that comes with the same tokens, whatever
runs beside it and however little memory there is."""

import concurrent.futures
import http.client
import json
import os
import random
import unittest

from heddle_server import TIMEOUT_SCALE, Server, wait_until

PROMPT = "Once upon a time there was a small robot who"


class Client:
    def __init__(self, server):
        self.port = server.port

    def ask(self, method, path, body=None, status=200):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * TIMEOUT_SCALE)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == status, (path, body, response.status, answer)
            return answer
        finally:
            connection.close()

    def root(self, **fields):
        return self.ask("POST", "/v1/branches", {"prompt": PROMPT, **fields})["root"]

    def fork(self, branch, **fields):
        made = self.ask("POST", "/v1/branches", {"from": branch, **fields})
        return [one["id"] for one in made["data"]]

    def go_on(self, branch, **fields):
        return self.ask("POST", f"/v1/branches/{branch}/continue", fields)

    def branch(self, branch):
        return self.ask("GET", f"/v1/branches/{branch}")

    def fresh(self, tokens, **fields):
        """The tokens behind these, from a request that shares nothing with others."""
        salt = f"alone {hash((tuple(tokens), str(fields)))}"
        answer = self.ask("POST", "/v1/completions",
                          {"prompt": tokens, "return_token_ids": True, "cache_salt": salt, **fields})
        return answer["choices"][0]["token_ids"]


class Branches(unittest.TestCase):
    flags = ["--kv-memory", "64MiB"]

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--speculate", "off", *cls.flags)
        cls.client = Client(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def check_fork(self, root, tokens, at, sampling):
        child = self.client.fork(root, at=at)[0]
        self.client.go_on(child, max_tokens=6, ignore_eos=True, **sampling)
        got = self.client.branch(child)["token_ids"]
        self.assertEqual(got[:at], tokens[:at])
        self.assertEqual(got[at:], self.client.fresh(tokens[:at], max_tokens=6, ignore_eos=True, **sampling),
                         f"forked at {at}")
        self.client.ask("DELETE", f"/v1/branches/{child}")

    def test_a_fork_at_every_token_equals_a_fresh_request(self):
        root = self.client.root()
        sampling = {"temperature": 0.9, "seed": 11}
        self.client.go_on(root, max_tokens=30, ignore_eos=True, **sampling)
        tokens = self.client.branch(root)["token_ids"]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(self.check_fork, root, tokens, at, sampling)
                         for at in range(1, len(tokens) + 1)]:
                done.result()

    def test_branches_of_branches_join_as_text_to_a_depth_of_three(self):
        branch = self.client.root(budget={"branches": 64})
        for depth in range(3):
            children = self.client.fork(branch, n=3, sampling={"temperature": 1.5, "seed": 70 + depth})
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda child: self.client.go_on(child, max_tokens=7, ignore_eos=True), children))
            parts = [self.client.branch(child) for child in children]
            self.assertEqual(len({tuple(part["token_ids"]) for part in parts}), 3)
            joined = self.client.ask("POST", f"/v1/branches/{branch}/join", {"children": children, "tail": "\n"})
            branch = joined["data"][0]["id"]
            want = parts[0]["token_ids"] + parts[1]["token_ids"][parts[1]["forked_at"]:]
            want += parts[2]["token_ids"][parts[2]["forked_at"]:]
            tokens = self.client.branch(branch)["token_ids"]
            self.assertEqual(tokens[:len(want)], want)
            self.client.go_on(branch, max_tokens=5, temperature=0, ignore_eos=True)
            self.assertEqual(self.client.branch(branch)["token_ids"][len(tokens):],
                             self.client.fresh(tokens, max_tokens=5, temperature=0, ignore_eos=True))

    def test_branches_side_by_side_go_on_and_are_computed_again(self):
        branch = self.client.root(budget={"branches": 64})
        for depth in range(3):
            children = self.client.fork(branch, n=3, append=f" {depth}", concurrent=True,
                                        sampling={"temperature": 1.0, "seed": depth})
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda child: self.client.go_on(child, max_tokens=7, ignore_eos=True), children))
            orders = [self.client.ask("POST", f"/v1/branches/{branch}/join", {
                "children": children, "kind": "concurrent", "tail": " So"})["data"][0] for _ in range(2)]
            self.assertEqual(orders[0]["parts"], 1 + 4 * (depth + 1))
            branch, other = [order["id"] for order in orders]
            first = self.client.go_on(branch, max_tokens=5, temperature=0, ignore_eos=True)
            # Many prompts of others take all pages.
            for salt in range(3):
                self.client.ask("POST", "/v1/completions", {"prompt": f"{salt} " + PROMPT * 12, "max_tokens": 1})
            again = self.client.go_on(other, max_tokens=5, temperature=0, ignore_eos=True)
            self.assertEqual(first["choices"][0]["text"], again["choices"][0]["text"])
            scores = self.client.ask("POST", f"/v1/branches/{branch}/score", {"continuations": [" went", " home"]})
            self.assertEqual(len(scores["data"]), 2)

    def work(self, root, **fields):
        answer = self.client.go_on(root, workers=["\nA:", "\nB: I", "\nC:"], ignore_eos=True,
                                   skip_special_tokens=False, **fields)
        self.assertEqual([choice["index"] for choice in answer["choices"]], [0, 1, 2])
        return [choice["text"] for choice in answer["choices"]]

    def test_workers_go_on_together_and_stay_as_branches(self):
        root = self.client.root()
        sampling = {"max_tokens": 9, "temperature": 0.9, "seed": 5}
        texts = self.work(root, **sampling)
        children = self.client.branch(root)["children"]
        self.assertEqual(len(children), 3)
        self.assertGreaterEqual(self.server.metric("heddle_branches_workers_total"), 3)
        for child, begin, text in zip(children, ["\nA:", "\nB: I", "\nC:"], texts):
            got = self.client.branch(child)
            self.assertEqual((got["finish_reason"], got["drawn_tokens"]), ("length", 9))
            self.assertTrue(got["text"].endswith(begin + text), got["text"])
        # Whoever else takes pages meanwhile changes nothing.
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            others = [pool.submit(self.client.ask, "POST", "/v1/completions", {
                "prompt": f"{salt} " + PROMPT * 8, "max_tokens": 20, "ignore_eos": True}) for salt in range(3)]
            again = pool.submit(self.work, root, **sampling)
            for other in others:
                other.result()
            self.assertEqual(again.result(), texts)
        # Behind them a worker is a text like any other.
        tokens = self.client.branch(children[0])["token_ids"]
        self.client.go_on(children[0], max_tokens=5, temperature=0, ignore_eos=True)
        self.assertEqual(self.client.branch(children[0])["token_ids"][len(tokens):],
                         self.client.fresh(tokens, max_tokens=5, temperature=0, ignore_eos=True))

    def test_a_stream_of_workers_names_the_choice_of_each_text(self):
        root = self.client.root()
        sampling = {"max_tokens": 9, "temperature": 0.9, "seed": 5}
        texts = self.work(root, **sampling)
        streamed = ["", "", ""]
        for event in self.server.stream(f"/v1/branches/{root}/continue", {
                "workers": ["\nA:", "\nB: I", "\nC:"], "ignore_eos": True, "skip_special_tokens": False,
                **sampling}):
            for choice in () if event == "[DONE]" else event["choices"]:
                streamed[choice["index"]] += choice["text"]
        self.assertEqual(streamed, texts)

    def test_workers_see_each_other(self):
        root = self.client.root()
        alone = [self.client.go_on(root, workers=[begin, begin], max_tokens=12, temperature=0, ignore_eos=True)
                 for begin in ("\nA:", "\nOne day,")]
        both = self.client.go_on(root, workers=["\nA:", "\nOne day,"], max_tokens=12, temperature=0, ignore_eos=True)
        same = [both["choices"][i]["text"] == alone[i]["choices"][i]["text"] for i in range(2)]
        self.assertNotEqual(same, [True, True])

    def test_workers_that_cannot_be_are_refused(self):
        root = self.client.root(budget={"branches": 3})
        for fields, param in (({"workers": ["a"]}, "workers"), ({"workers": ["a", ""]}, "workers[1]"),
                              ({"workers": ["a", 3]}, "workers[1]"),
                              ({"workers": ["a", "b"], "append": "c"}, "append"),
                              ({"workers": ["a", "b"], "n": 2}, "n")):
            error = self.client.ask("POST", f"/v1/branches/{root}/continue", fields, status=400)["error"]
            self.assertEqual(error["param"], param)
        error = self.client.ask("POST", f"/v1/branches/{root}/continue", {"workers": ["a", "b", "c"]}, status=400)
        self.assertEqual(error["error"]["code"], "branch_budget_exceeded")
        # The engine refuses this one, when the branches are made already.
        self.client.ask("POST", f"/v1/branches/{root}/continue",
                        {"workers": ["a", "b"], "logit_bias": {"99999999": 1}}, status=400)
        self.assertEqual(self.client.branch(root)["children"], [])

    def test_workers_share_one_context(self):
        longest = self.client.ask("GET", "/v1/models")["data"][0]["max_model_len"]
        root = self.client.root()
        self.client.go_on(root, workers=["a", "b", "c"], max_tokens=-1, ignore_eos=True)
        start = self.client.branch(root)
        ends = [self.client.branch(child)["num_tokens"] for child in start["children"]]
        used = start["num_tokens"] + sum(end - start["num_tokens"] for end in ends)
        self.assertTrue(longest - 3 < used <= longest, (used, longest))

    def test_scores_are_those_of_a_whole_prompt(self):
        root = self.client.root()
        tokens = self.client.branch(root)["token_ids"]
        self.client.go_on(root, max_tokens=0)
        for _ in range(2):
            scores = self.client.ask("POST", f"/v1/branches/{root}/score", {"continuations": [" went home", " qzx jjvq went"]})
            for one in scores["data"]:
                whole = self.client.ask("POST", "/v1/completions", {
                    "prompt": tokens + one["token_ids"], "max_tokens": 1, "prompt_logprobs": 0})
                logprobs = whole["choices"][0]["prompt_logprobs"][-len(one["token_ids"]):]
                for entry, token, logprob in zip(logprobs, one["token_ids"], one["token_logprobs"]):
                    self.assertAlmostEqual(entry[str(token)]["logprob"], logprob, places=5)
        self.assertEqual(scores["best"], 0)

    def test_a_branch_takes_over_all_but_the_last_token(self):
        root = self.client.root()
        self.client.go_on(root, max_tokens=20, ignore_eos=True)
        answer = self.client.go_on(root, max_tokens=1, ignore_eos=True)
        usage = answer["usage"]
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], (usage["prompt_tokens"] - 1) // 16 * 16)

    def test_a_beam_search_finds_different_answers_the_likeliest_first(self):
        root = self.client.root()
        prompt = self.client.branch(root)["token_ids"]

        def answers(**fields):
            answer = self.client.ask("POST", "/v1/completions", {
                "prompt": prompt, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True, **fields})
            return [choice["token_ids"] for choice in answer["choices"]]

        def sums(texts):
            scores = self.client.ask("POST", f"/v1/branches/{root}/score", {"continuations": texts})
            return [one["sum_logprob"] for one in scores["data"]]

        kept = self.server.metric("heddle_kept_contexts")
        greedy = answers(temperature=0)
        self.assertEqual(answers(use_beam_search=True, beam_width=1), greedy)
        beams = answers(use_beam_search=True, n=3, beam_width=6)
        self.assertEqual(len({tuple(beam) for beam in beams}), 3)
        found = sums(beams)
        self.assertEqual(found, sorted(found, reverse=True))
        self.assertGreaterEqual(found[0], sums(greedy)[0])
        self.assertEqual(answers(use_beam_search=True, n=1, best_of=6), beams[:1])
        self.assertTrue(wait_until(lambda: self.server.metric("heddle_kept_contexts") == kept))

    def wander(self, seed, steps):
        """Random orders, also senseless ones, that only ever touch branches of this wanderer."""
        rng = random.Random(seed)
        roots, known = [], ["br_none"]
        for _ in range(steps):
            branch = rng.choice(known[-12:])
            order = rng.randrange(13)
            if order == 0 or not roots:
                made = self.try_to("POST", "/v1/branches", {"prompt": PROMPT[:rng.randint(1, 40)], "n": rng.randint(1, 3),
                                                           "budget": {"tokens": rng.choice([20, 2000])}})
            elif order < 4:
                made = self.try_to("POST", "/v1/branches", {
                    "from": branch, "n": rng.randint(1, 3), "at": rng.choice([None, 1, 5, 20]),
                    "append": rng.choice([None, " and"]), "concurrent": rng.choice([None, True]),
                    "ttl": rng.choice([None, 1])})
            elif order in (4, 12):
                children = []
                for branch in rng.sample(known[-16:], min(len(known), 8)):
                    children = (self.try_to("GET", f"/v1/branches/{branch}") or {}).get("children") or []
                    if children:
                        break
                children = children[-3:] or [branch]
                made = self.try_to("POST", f"/v1/branches/{branch}/join", {
                    "children": rng.sample(children, rng.randint(1, len(children))),
                    "kind": rng.choice(["pick", "text", "concurrent", "concurrent"]), "tail": "\n"})
            elif order == 5:
                made = self.try_to("DELETE", f"/v1/branches/{branch}") and None
            elif order == 6:
                made = self.try_to("POST", f"/v1/branches/{branch}/score", {"continuations": [" a", " dog"]}) and None
            elif order < 9:
                self.leave(branch, rng.randint(0, 4))
                made = None
            else:
                made = self.try_to("POST", f"/v1/branches/{branch}/continue", {"max_tokens": rng.randint(0, 12)}) and None
            if made:
                known += [one["id"] for one in made["data"]]
                if made["root"] not in roots:
                    roots.append(made["root"])
                    known.append(made["root"])
        for root in roots:
            self.try_to("DELETE", f"/v1/branches/{root}")

    def try_to(self, method, path, body=None):
        status, _, text = self.server.request(method, path, body)
        self.assertIn(status, (200, 400, 404, 409, 410, 429), (path, body, text))
        return json.loads(text) if status == 200 else None

    def leave(self, branch, events):
        """Begins a stream and leaves behind some events of it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.client.port, timeout=60 * TIMEOUT_SCALE)
        connection.request("POST", f"/v1/branches/{branch}/continue", json.dumps({
            "stream": True, "max_tokens": 60, "ignore_eos": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for _ in range(2 * events if response.status == 200 else 0):
            response.readline()
        connection.close()

    def test_random_orders_of_several_clients_leave_nothing_behind(self):
        steps = int(os.environ.get("HEDDLE_BRANCH_STEPS", "400"))  # 10,000 by hand
        with Server("--speculate", "off", *self.flags) as server:
            mine, self.server, self.client = (self.server, self.client), server, Client(server)
            try:
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    for done in [pool.submit(self.wander, seed, steps // 4) for seed in range(4)]:
                        done.result()
                for name in ("heddle_branches", "heddle_branch_tokens", "heddle_branches_running", "heddle_kept_contexts",
                             "heddle_kv_pages_used", "heddle_running_sequences"):
                    self.assertTrue(wait_until(lambda n=name: server.metric(n) == 0), name)
                self.assertGreater(server.metric("heddle_branches_forked_total"), steps / 10)
                self.assertGreater(server.metric("heddle_branches_joined_total"), steps / 100)
            finally:
                self.server, self.client = mine

    def test_a_kept_answer_is_forked_while_it_streams(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.client.port, timeout=60 * TIMEOUT_SCALE)
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": PROMPT, "keep": True, "stream": True, "max_tokens": 200, "ignore_eos": True,
            "temperature": 0}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.readline()[len("data: "):])
        child = self.client.fork(answer["id"])[0]
        self.client.go_on(child, max_tokens=5, temperature=0, ignore_eos=True)
        response.read()
        connection.close()
        got = self.client.branch(child)["token_ids"]
        self.assertEqual(self.client.branch(answer["id"])["token_ids"][:len(got)], got)
        self.assertEqual(self.client.branch(answer["id"])["finish_reason"], "length")


class BranchesOfFewPages(Branches):
    """So little memory that branches lose what they have, and are computed again."""
    flags = ["--kv-memory", "1MiB", "--max-context", "256"]

    test_a_branch_takes_over_all_but_the_last_token = None


class BranchesWithoutCache(Branches):
    flags = ["--kv-memory", "64MiB", "--prefix-cache", "off"]


if __name__ == "__main__":
    unittest.main()
