"""The demo family behind the daemon: its draft model and its mixture of experts answer over HTTP as
transformers computed (expected.json), alone and all at once."""

import concurrent.futures
import json
import unittest

from heddle_server import SOURCE, Server

FAMILY = SOURCE / "tests" / "demo_model"
# Products in BF16 move a logit by some tenths: texts whose best token wins by less may differ.
CLEAR_MARGIN = 0.6


def clear_cases(name):
    cases = json.loads((FAMILY / name / "expected.json").read_text())
    return [case for case in cases if case["smallest_margin"] > CLEAR_MARGIN]


def completion_of(server, case):
    answer = server.complete(case["prompt_ids"], max_tokens=len(case["greedy_ids"]), temperature=0)
    return answer["choices"][0]["text"]


def chat_answer(server, case):
    body = {"messages": case["messages"], "max_tokens": len(case["greedy_ids"]), "temperature": 0}
    status, _, text = server.request("POST", "/v1/chat/completions", body)
    assert status == 200, text
    return json.loads(text)["choices"][0]["message"]["content"]


class FamilyTest(unittest.TestCase):
    def check(self, name):
        cases = clear_cases(name)
        self.assertGreater(len(cases), 8)
        expected = [case["text"] for case in cases]
        chats = [case for case in cases if "messages" in case and "tools" not in case]
        with Server("--threads", "2", model=FAMILY / name) as server:
            self.assertEqual([completion_of(server, case) for case in cases], expected)
            with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
                together = list(pool.map(lambda case: completion_of(server, case), cases))
            self.assertEqual(together, expected)
            for case in chats:
                self.assertEqual(chat_answer(server, case), case["text"])

    def test_the_draft_model(self):
        self.check("draft")

    def test_the_mixture_of_experts(self):
        self.check("moe")


if __name__ == "__main__":
    unittest.main()
