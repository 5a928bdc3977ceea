#!/usr/bin/env python3
"""The requests of published orchestrators of parallel thinking, as they send them: ThreadWeaver's evaluation (stop
strings that are special tokens, prompts of token ids, max_tokens up to the context) and APR's (matched_stop,
max_tokens beyond it). The demo model stands in for theirs, with marks that it knows."""

import concurrent.futures
import json
import unittest

from heddle_server import Server

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


if __name__ == "__main__":
    unittest.main()
