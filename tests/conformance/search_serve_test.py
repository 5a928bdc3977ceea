#!/usr/bin/env python3
"""Searches over samples of a running server: a vote that ends when it is settled is as right as a vote of all samples,
at half of their tokens. HEDDLE_SEARCH_QUESTIONS=200 gives the figures of docs/benchmarks/branches.md."""

import json
import os
import sys
import unittest
from random import Random

from heddle_server import SOURCE, Server, wait_until

sys.path.insert(0, str(SOURCE / "tests" / "demo_model"))
import questions  # noqa: E402  the demo model's own grammar of questions

QUESTIONS = int(os.environ.get("HEDDLE_SEARCH_QUESTIONS", "30"))
SLOT = r"= (\d+)\."
FULL = {"samples": 16, "wave": 16, "confidence": 1, "answer": SLOT}


class Searches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--speculate", "off")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def ask(self, question, status=200, **fields):
        got, _, text = self.server.request("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": question}], "max_tokens": 40, "seed": 1, **fields})
        self.assertEqual(got, status, text)
        return json.loads(text)

    def vote(self, search, temperature):
        """(answers that are right, tokens) over the questions."""
        rng, right, tokens = Random(5), 0, 0
        for number in range(QUESTIONS):
            qa = (questions.arithmetic if number % 2 == 0 else questions.word_problem)(rng)
            answer = self.ask(qa.question, temperature=temperature, search=search)
            text = answer["choices"][0]["message"]["content"]
            right += f"= {qa.short}." in text
            tokens += answer["usage"]["completion_tokens"]
        return right, tokens

    def test_an_early_end_is_as_right_as_all_votes_at_half_the_tokens(self):
        for temperature in (1.0, 1.6):
            all_right, all_tokens = self.vote({**FULL, "samples": 16}, temperature)
            right, tokens = self.vote({"samples": 16, "answer": SLOT}, temperature)
            print(f"temperature {temperature}: {all_right} of {QUESTIONS} right with {all_tokens} tokens, "
                  f"{right} with {tokens} ({tokens / all_tokens:.2f})")
            self.assertGreaterEqual(right, all_right - QUESTIONS / 60)
            self.assertLessEqual(tokens, all_tokens / 2)

    def test_what_a_search_did_is_told(self):
        answer = self.ask("What is 3 + 4?", temperature=0.2, search={"answer": SLOT})
        details = answer["usage"]["completion_tokens_details"]
        self.assertEqual(answer["choices"][0]["message"]["content"], "3 + 4 = 7.")
        self.assertEqual((details["samples"], details["finished_samples"], details["votes"]), (4, 4, 4))
        self.assertGreater(details["saved_tokens"], 0)
        best = self.ask("Tell me a story.", temperature=1.0, search={
            "kind": "best_of_n", "samples": 8, "prune": {"tokens": 8}})["usage"]["completion_tokens_details"]
        self.assertEqual(best["samples"], 8)
        self.assertGreaterEqual(best["pruned_samples"], 4)
        same = self.ask("Tell me a story.", temperature=0, search={
            "samples": 4, "confidence": 1, "prune": {"tokens": 8}})["usage"]["completion_tokens_details"]
        self.assertEqual((same["finished_samples"], same["pruned_samples"]), (1, 3))
        for name in ("heddle_kept_contexts", "heddle_running_sequences"):
            self.assertTrue(wait_until(lambda n=name: self.server.metric(n) == 0), name)

    def test_a_stream_has_the_same_answer_at_its_end(self):
        body = {"messages": [{"role": "user", "content": "What is 3 + 4?"}], "max_tokens": 40, "seed": 1}
        for fields in ({"search": {"answer": SLOT}, "logprobs": True}, {"use_beam_search": True, "beam_width": 3, "n": 2}):
            whole = self.ask("What is 3 + 4?", **fields)
            texts, ended, usage, logprobs = {}, [], None, []
            for event in self.server.stream("/v1/chat/completions", {
                    **body, **fields, "stream": True, "stream_options": {"include_usage": True}}):
                if event == "[DONE]":
                    break
                usage = event["usage"] or usage
                for choice in event["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
                    logprobs += (choice["logprobs"] or {}).get("content", [])
                    if choice["finish_reason"] is not None:
                        ended.append((choice["index"], choice["finish_reason"]))
            self.assertEqual(texts, {i: one["message"]["content"] for i, one in enumerate(whole["choices"])})
            self.assertEqual(ended, [(i, one["finish_reason"]) for i, one in enumerate(whole["choices"])])
            self.assertEqual(usage["completion_tokens_details"], whole["usage"]["completion_tokens_details"])
            self.assertEqual(logprobs, (whole["choices"][0]["logprobs"] or {}).get("content", []))

    def test_a_value_of_constrained_answers_votes(self):
        schema = {"type": "object", "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 3}},
                  "required": ["number"], "additionalProperties": False}
        answer = self.ask("What is 3 + 4?", temperature=1.5, response_format={
            "type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
            search={"answer_at": "/number", "samples": 24, "confidence": 1})
        self.assertIn(json.loads(answer["choices"][0]["message"]["content"])["number"], range(4))
        # Among 24 samples with at most four different values, spaced as they like, six agree.
        self.assertGreaterEqual(answer["usage"]["completion_tokens_details"]["votes"], 6)
        for search, param in (({"answer_at": "number"}, "search.answer_at"), ({"answer_at": "/~2"}, "search.answer_at"),
                              ({"answer_at": "/a", "answer": "b"}, "search.answer_at")):
            self.assertEqual(self.ask("x", status=400, search=search)["error"]["param"], param)

    def test_what_does_not_go_with_a_search_is_refused(self):
        for fields, param in (({"n": 2}, "n"), ({"keep": True}, "keep"),
                              ({"parallel": {}}, "parallel"), ({"use_beam_search": True}, "use_beam_search")):
            error = self.ask("x", status=400, search={}, **fields)["error"]
            self.assertEqual(error["param"], param)
        self.assertEqual(self.ask("x", status=400, search={"answer": "("})["error"]["param"], "search.answer")
        self.assertEqual(self.ask("x", status=400, search={"kind": "x"})["error"]["param"], "search.kind")


if __name__ == "__main__":
    unittest.main()
