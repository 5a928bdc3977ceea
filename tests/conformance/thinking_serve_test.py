#!/usr/bin/env python3
"""A model that was trained to think in branches, served: an adapter of the demo model that forks and joins as Multiverse's
models do (tests/demo_model/parallel.py). HEDDLE_PARALLEL_QUESTIONS=200 gives the figures of tests/demo_model/README.md.
Standard library only."""

import itertools
import json
import os
import subprocess
import sys
import unittest

from heddle_server import BINARY, SOURCE, Server

DEMO = SOURCE / "tests" / "demo_model"
sys.path.insert(0, str(DEMO))
import traces  # noqa: E402

PARALLEL = {"format": "multiverse"}


class ThinksInBranches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--speculate", "off", "--lora", f"multiverse={DEMO / 'adapters' / 'multiverse'}")
        count = int(os.environ.get("HEDDLE_PARALLEL_QUESTIONS", "30"))
        cls.asked = list(itertools.islice(traces.held_out(40_000), count))

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    @staticmethod
    def body(trace, **fields):
        return {"model": "multiverse", "messages": [{"role": "user", "content": trace.question}], "temperature": 0,
                "max_tokens": 400, **fields}

    def ask(self, trace, **fields):
        status, headers, text = self.server.request("POST", "/v1/chat/completions", self.body(trace, **fields))
        self.assertEqual(status, 200, text)
        return json.loads(text), headers

    def first_right(self, outlines):
        for trace in self.asked:
            if len(trace.outlines) == outlines:
                answer, headers = self.ask(trace, parallel=PARALLEL)
                if answer["choices"][0]["message"]["content"] == trace.answer:
                    return trace, headers
        self.fail("no answer is right")

    def test_questions_it_has_not_seen_are_answered_in_branches(self):
        right, alone, tokens, critical = 0, 0, 0, 0
        for trace in self.asked:
            answer, _ = self.ask(trace, parallel=PARALLEL)
            right += answer["choices"][0]["message"]["content"] == trace.answer
            details = answer["usage"]["completion_tokens_details"]
            self.assertLessEqual(details["branches"], 8)
            tokens += answer["usage"]["completion_tokens"]
            critical += details["critical_path_tokens"]
            alone += self.ask(trace)[0]["choices"][0]["message"]["content"] == trace.answer
        count = len(self.asked)
        print(f"{right} of {count} right, {alone} in one piece; {tokens / count:.1f} tokens, {critical / count:.1f} along "
              "the longest way", file=sys.stderr)
        self.assertGreaterEqual(right, 0.85 * count)
        self.assertLess(critical, 0.85 * tokens)

    def test_each_sum_is_a_branch_and_the_stream_names_it(self):
        trace, _ = self.first_right(3)
        texts = {}
        for event in self.server.stream("/v1/chat/completions", self.body(trace, parallel=PARALLEL)):
            if event != "[DONE]" and event["choices"]:
                choice = event["choices"][0]
                branch = choice.get("branch", "0")
                texts[branch] = texts.get(branch, "") + choice["delta"].get("content", "")
        paths = {f"0.{i}": f"<Path>\n{i + 1}:{path}\n" for i, path in enumerate(trace.paths)}
        self.assertEqual(texts, {"0": f"{trace.goal}\n<Conclusion>\n{trace.conclusion}", **paths})

    def test_the_trace_draws_the_tree(self):
        _, headers = self.first_right(4)
        drawn = subprocess.run([str(BINARY), "trace", headers["X-Request-Id"], "--url", self.server.base_url],
                               capture_output=True, text=True, check=True).stdout
        for branch in ("|-- 0.0", "|-- 0.2", "0.3"):
            self.assertIn(branch, drawn)


if __name__ == "__main__":
    unittest.main()
