"""Adapters behind the daemon: they are models of their own, answer as transformers and PEFT computed, and give the same
answers all at once as alone; folders of --lora-dir are read, and read again, when they are asked for."""

import concurrent.futures
import json
import pathlib
import random
import shutil
import struct
import tempfile
import unittest

from heddle_server import SOURCE, Server, wait_until

ADAPTERS = SOURCE / "share" / "demo-model" / "adapters"
GOLDENS = json.loads((SOURCE / "tests" / "golden" / "demo_adapters.json").read_text())
BASE = "heddle-demo"
# Products in BF16 move a logit by some tenths: texts whose best token wins by less may differ.
CLEAR_MARGIN = 0.6
QUESTIONS = ["Hello!", "What is 7 + 5?", "What colour is the sky?", "Count to five.", "Who are you?"]


def ask(server, model, question, **fields):
    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24}
    status, _, text = server.request("POST", "/v1/chat/completions", {**body, **fields})
    return status, json.loads(text)


def answer(server, model, question, **fields):
    status, body = ask(server, model, question, **fields)
    assert status == 200, body
    return [choice["message"]["content"] for choice in body["choices"]]


def edit_factors(path, suffix, edit):
    """Replaces the bytes of the tensors whose names end with `suffix` by edit(bytes)."""
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + length])
    for name, tensor in header.items():
        if name.endswith(suffix):
            begin, end = (8 + length + offset for offset in tensor["data_offsets"])
            content[begin:end] = edit(bytes(content[begin:end]))
    replaced = path.with_suffix(".new")
    replaced.write_bytes(content)
    replaced.rename(path)


class AdaptersTest(unittest.TestCase):
    def serve(self, *flags):
        named = ",".join(f"{name}={ADAPTERS / name}" for name in ("pirate", "upper"))
        return Server("--threads", "2", "--served-model-name", BASE, "--lora", named, *flags)

    def test_adapters_are_models_and_answer_as_peft_does(self):
        with self.serve() as server:
            listed = json.loads(server.request("GET", "/v1/models")[2])["data"]
            self.assertEqual({model["id"] for model in listed}, {BASE, "pirate", "upper"})
            self.assertEqual({model.get("parent") for model in listed}, {None, BASE})
            for name in ("pirate", "upper"):
                clear = [case for case in GOLDENS[name]
                         if case["smallest_margin"] > CLEAR_MARGIN and "tools" not in case]
                self.assertGreater(len(clear), 5)
                for case in clear:
                    body = {"model": name, "messages": case["messages"], "temperature": 0,
                            "max_tokens": len(case["greedy_ids"])}
                    status, _, text = server.request("POST", "/v1/chat/completions", body)
                    self.assertEqual(status, 200, text)
                    self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], case["text"])

    def test_all_at_once_equals_alone(self):
        with self.serve("--kv-memory", "4MiB") as server:
            pairs = [(model, question) for model in (BASE, "pirate", "upper") for question in QUESTIONS]
            alone = {pair: answer(server, *pair) for pair in pairs}
            self.assertNotEqual(alone["pirate", "Hello!"], alone[BASE, "Hello!"])
            jobs = random.Random(1).choices(pairs, k=120)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                together = list(pool.map(lambda job: answer(server, *job), jobs))
            self.assertEqual(together, [alone[job] for job in jobs])

    def test_ways_to_choose(self):
        with self.serve() as server:
            question = QUESTIONS[0]
            pirate = answer(server, "pirate", question)
            self.assertEqual(answer(server, f"{BASE}:pirate", question), pirate)
            chosen = {"lora": [{"id": "pirate", "scale": 1.0}]}
            self.assertEqual(answer(server, BASE, question, **chosen), pirate)
            nothing = {"lora": [{"id": "pirate", "scale": 0.0}]}
            self.assertEqual(answer(server, BASE, question, **nothing), answer(server, BASE, question))
            self.assertEqual(answer(server, "pirate", question, n=3), 3 * pirate)
            status, body = ask(server, "privateer", question)
            self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))
            both = {"lora": [{"id": "pirate", "scale": 1.0}, {"id": "upper", "scale": 1.0}]}
            self.assertEqual(ask(server, BASE, question, **both)[0], 400)

    def test_folders_are_read_when_they_are_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            shutil.copytree(ADAPTERS / "pirate", root / "silent")
            edit_factors(root / "silent" / "adapter_model.safetensors", ".lora_B.weight", lambda data: bytes(len(data)))
            shutil.copytree(ADAPTERS / "upper", root / "broken")
            edit_factors(root / "broken" / "adapter_model.safetensors", ".lora_A.weight",
                         lambda data: b"\xc0\x7f" * (len(data) // 2))
            with self.serve("--lora-dir", folder) as server:
                question = QUESTIONS[0]
                base = answer(server, BASE, question)
                self.assertEqual(answer(server, "silent", question), base)
                status, body = ask(server, "broken", question)
                self.assertEqual(status, 400)
                self.assertIn("NaN", body["error"]["message"])
                for name in ("../silent", "silent/..", ".", ""):
                    self.assertIn(ask(server, name, question)[0], (400, 404), name)
                # Other files under a name are another version, without what was computed with the first.
                shutil.copytree(ADAPTERS / "pirate", root / "new")
                for file in ("adapter_config.json", "adapter_model.safetensors"):
                    (root / "new" / file).rename(root / "silent" / file)
                pirate = answer(server, "pirate", question)
                self.assertTrue(wait_until(lambda: answer(server, "silent", question) == pirate))
                shutil.rmtree(root / "silent")
                self.assertTrue(wait_until(lambda: ask(server, "silent", question)[0] != 200))
                self.assertEqual(answer(server, BASE, question), base)


if __name__ == "__main__":
    unittest.main()
