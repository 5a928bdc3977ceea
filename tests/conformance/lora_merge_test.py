"""An adapter that is merged into the weights at start: it is the model, answers as transformers and PEFT computed, and takes
other adapters on top; what cannot be merged ends the start with the reason."""

import json
import subprocess
import unittest

from heddle_server import BINARY, DEMO_MODEL, SOURCE, Server

ADAPTERS = SOURCE / "share" / "demo-model" / "adapters"
GOLDENS = json.loads((SOURCE / "tests" / "golden" / "demo_adapters.json").read_text())
CLEAR_MARGIN = 0.6  # as in adapters_serve_test.py


class LoraMergeTest(unittest.TestCase):
    def test_the_merged_model_answers_as_peft_does(self):
        self.check_merged()

    def test_a_merged_model_that_ranks_share_answers_as_peft_does(self):
        self.check_merged("--tp", "2")

    def check_merged(self, *more):
        flags = ["--threads", "2", "--lora-merge", f"pirate={ADAPTERS / 'pirate'}", *more]
        with Server(*flags, "--lora", f"upper={ADAPTERS / 'upper'}") as server:
            listed = json.loads(server.request("GET", "/v1/models")[2])["data"]
            self.assertEqual({model["id"]: model.get("parent") for model in listed}, {"pirate": None, "upper": "pirate"})
            clear = [case for case in GOLDENS["pirate"]
                     if case["smallest_margin"] > CLEAR_MARGIN and "tools" not in case]
            self.assertGreater(len(clear), 5)
            for case in clear:
                body = {"model": "pirate", "messages": case["messages"], "temperature": 0,
                        "max_tokens": len(case["greedy_ids"])}
                status, _, text = server.request("POST", "/v1/chat/completions", body)
                self.assertEqual(status, 200, text)
                self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], case["text"])
            answers = {}
            for name in ("pirate", "upper"):  # the second on top of the first
                body = {"model": name, "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 12}
                status, _, text = server.request("POST", "/v1/chat/completions", body)
                self.assertEqual(status, 200, text)
                answers[name] = json.loads(text)["choices"][0]["message"]["content"]
            self.assertNotEqual(answers["upper"], answers["pirate"])

    def test_what_cannot_be_merged_ends_the_start(self):
        for value, reason in ((str(ADAPTERS / "pirate"), "NAME=PATH"), ("x=/nowhere", "/nowhere"),
                              (f"x={DEMO_MODEL}", "adapter_config.json")):
            done = subprocess.run([str(BINARY), "serve", str(DEMO_MODEL), "--port", "0", "--lora-merge", value],
                                  capture_output=True, text=True, timeout=120)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(reason, done.stderr)


if __name__ == "__main__":
    unittest.main()
