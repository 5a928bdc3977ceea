"""Adapters behind the daemon: they are models of their own, answer as transformers and PEFT computed, and give the same
answers all at once as alone; folders of --lora-dir are read, and read again, when they are asked for."""

import concurrent.futures
import json
import pathlib
import random
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from heddle_server import BINARY, DEMO_MODEL, SOURCE, Server, wait_until

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

    def test_several_adapters_answer_together(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            # An adapter whose B is zero changes nothing, at any scale.
            shutil.copytree(ADAPTERS / "pirate", root / "silent")
            edit_factors(root / "silent" / "adapter_model.safetensors", ".lora_B.weight", lambda data: bytes(len(data)))
            with self.serve("--lora-dir", folder) as server:
                clear = [case for case in GOLDENS["pirate"]
                         if case["smallest_margin"] > CLEAR_MARGIN and "tools" not in case][:4]
                for case in clear:
                    body = {"model": BASE, "messages": case["messages"], "temperature": 0,
                            "max_tokens": len(case["greedy_ids"]),
                            "lora": [{"id": "pirate", "scale": 1}, {"id": "silent", "scale": 3}]}
                    status, _, text = server.request("POST", "/v1/chat/completions", body)
                    self.assertEqual(status, 200, text)
                    self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], case["text"])
                both = [{"id": "pirate", "scale": 0.5}, {"id": "upper", "scale": 1}]
                together = answer(server, BASE, QUESTIONS[0], lora=both)
                self.assertEqual(answer(server, BASE, QUESTIONS[0], lora=both[::-1]), together)
                self.assertEqual(answer(server, "upper", QUESTIONS[0], lora=both), together)
                self.assertNotEqual(together, answer(server, "pirate", QUESTIONS[0]))
                done = subprocess.run([str(BINARY), "generate", str(DEMO_MODEL), "--chat", "--prompt", QUESTIONS[0],
                                       "--max-tokens", "24", "--temperature", "0", "--lora",
                                       f"a={ADAPTERS / 'pirate'}@0.5,b={ADAPTERS / 'upper'}"],
                                      capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.rstrip("\n"), together[0])
                self.assertEqual(ask(server, "pirate", QUESTIONS[0], lora=[{"id": "upper"}])[0], 400)
                self.assertEqual(ask(server, BASE, QUESTIONS[0], lora=[{"id": "upper"}, {"id": "nobody"}])[0], 404)
            with self.serve("--max-lora-rank", "7") as server:
                status, body = ask(server, BASE, QUESTIONS[0], lora=[{"id": "pirate"}, {"id": "upper"}])
                self.assertEqual((status, body["error"]["code"]), (400, "adapter_failed"), body)
                self.assertEqual(ask(server, "pirate", QUESTIONS[0])[0], 200)

    def test_operators_load_replace_and_unload(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            shutil.copytree(ADAPTERS / "pirate", root / "first")
            shutil.copytree(ADAPTERS / "upper", root / "second")
            (root / "out").symlink_to(ADAPTERS / "pirate")
            (root / "huge").mkdir()
            (root / "huge" / "adapter_config.json").write_text((ADAPTERS / "pirate" / "adapter_config.json").read_text())
            with open(root / "huge" / "adapter_model.safetensors", "wb") as file:
                file.truncate(10 << 30)
            with self.serve("--lora-dir", folder, "--allow-lora-updates", "--max-context", "512") as server:
                def post(path, **body):
                    status, _, text = server.request("POST", path, body)
                    return status, text

                question = QUESTIONS[0]
                pirate, upper = (answer(server, name, question) for name in ("pirate", "upper"))
                self.assertEqual(post("/v1/load_lora_adapter", lora_name="new", lora_path="first"),
                                 (200, "Success: LoRA adapter 'new' added successfully."))
                self.assertEqual(answer(server, "new", question), pirate)
                self.assertEqual(post("/v1/load_lora_adapter", lora_name="new", lora_path="second")[0], 400)
                for path, expected in (("out", 403), (str(ADAPTERS / "pirate"), 403), ("../", 403), ("nothing", 404),
                                       ("huge", 400)):
                    status, text = post("/v1/load_lora_adapter", lora_name="n", lora_path=path)
                    self.assertEqual(status, expected, text)
                    self.assertEqual(ask(server, "n", question)[0], 404)
                # A stream that runs keeps the version that it began with; new requests get the new one.
                body = {"model": "new", "prompt": "Tell me", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
                alone = server.complete(**body)["choices"][0]["text"]
                stream = server.stream("/v1/completions", body)
                text = next(stream)["choices"][0]["text"]
                self.assertEqual(post("/v1/load_lora_adapter", lora_name="new", lora_path="second",
                                      load_inplace=True)[0], 200)
                self.assertEqual(answer(server, "new", question), upper)
                self.assertEqual(post("/v1/unload_lora_adapter", lora_name="new")[0], 200)
                self.assertEqual(ask(server, "new", question)[0], 404)
                text += "".join(event["choices"][0]["text"] for event in stream if event != "[DONE]")
                self.assertEqual(text, alone)
                # SGLang's routes; an adapter that is pinned and loaded serves on without its files.
                status, text = post("/load_lora_adapter", lora_name="kept", lora_path="first", pinned=True)
                self.assertEqual(status, 200, text)
                self.assertIn("kept", json.loads(text)["loaded_adapters"])
                shutil.rmtree(root / "first")
                self.assertEqual(answer(server, "kept", question), pirate)
                models = [model["id"] for model in json.loads(server.request("GET", "/v1/models")[2])["data"]]
                self.assertIn("kept", models)
                self.assertNotIn("first", models)
                # A name of the folder that was unloaded stays unknown until it is loaded again.
                self.assertEqual(answer(server, "second", question), upper)
                self.assertEqual(post("/unload_lora_adapter", lora_name="second")[0], 200)
                self.assertEqual(ask(server, "second", question)[0], 404)
                self.assertEqual(post("/load_lora_adapter", lora_name="second", lora_path="second")[0], 200)
                self.assertEqual(answer(server, "second", question), upper)
                # llama.cpp's scales, which the base answers with.
                base = answer(server, BASE, question, lora=[])
                listed = json.loads(server.request("GET", "/lora-adapters")[2])
                number = next(entry["id"] for entry in listed if entry["path"].endswith("upper"))
                status, _, text = server.request("POST", "/lora-adapters", [{"id": number, "scale": 1.0}])
                self.assertEqual((status, json.loads(text)), (200, {"success": True}))
                self.assertEqual(answer(server, BASE, question), upper)
                self.assertEqual(answer(server, BASE, question, lora=[]), base)
                self.assertEqual(server.request("POST", "/lora-adapters", [])[0], 200)
                self.assertEqual(answer(server, BASE, question), base)

    def test_routers_see_adapters_in_the_pool(self):
        with self.serve("--metric-names", "vllm") as server:
            answer(server, "pirate", QUESTIONS[0])

            def labels():
                text = server.request("GET", "/metrics")[2]
                return re.search(r"^vllm:lora_requests_info\{([^}]*)\} (\S+)$", text, re.M).groups()

            self.assertTrue(wait_until(lambda: 'running_lora_adapters="pirate"' in labels()[0]), labels())
            before = float(labels()[1])
            answer(server, "upper", QUESTIONS[0])
            self.assertTrue(wait_until(lambda: 'running_lora_adapters="pirate,upper"' in labels()[0]), labels())
            self.assertGreater(float(labels()[1]), before)

    def test_the_openai_client_chooses_by_model(self):
        try:
            import openai
        except ImportError as error:
            self.skipTest(str(error))
        with self.serve() as server:
            client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
            parents = {model.id: getattr(model, "parent", None) for model in client.models.list()}
            self.assertEqual(parents, {BASE: None, "pirate": BASE, "upper": BASE})
            for name in parents:
                got = client.chat.completions.create(
                    model=name, messages=[{"role": "user", "content": QUESTIONS[0]}], temperature=0, max_tokens=24)
                self.assertEqual(got.model, name)
                self.assertEqual([got.choices[0].message.content], answer(server, name, QUESTIONS[0]))
            with self.assertRaises(openai.NotFoundError):
                client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "x"}])
            chosen = client.chat.completions.create(
                model=BASE, messages=[{"role": "user", "content": QUESTIONS[0]}], temperature=0, max_tokens=24,
                extra_body={"lora": [{"id": "upper", "scale": 1.0}]})
            self.assertEqual([chosen.choices[0].message.content], answer(server, "upper", QUESTIONS[0]))

    def test_commands_take_adapters(self):
        def run(*arguments):
            done = subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        with self.serve() as server:
            question = QUESTIONS[0]
            for flags, model in (((), BASE), (("--lora", f"u={ADAPTERS / 'upper'}"), "upper"),
                                 (("--lora", f"u={ADAPTERS / 'upper'}@0"), BASE)):
                text = run("generate", DEMO_MODEL, "--chat", "--prompt", question, "--max-tokens", 24, "--temperature",
                           0, *flags)
                self.assertEqual(text.rstrip("\n"), answer(server, model, question)[0])
        alone = json.loads(run("inspect", ADAPTERS / "pirate", "--json"))
        self.assertEqual((alone["min_rank"], alone["max_rank"], alone["max_scale"], alone["format"]), (4, 4, 2, "PEFT"))
        self.assertEqual(alone["num_modules"], 36)
        on_base = json.loads(run("inspect", ADAPTERS / "pirate", "--base", DEMO_MODEL, "--json"))
        self.assertGreater(on_base["base"]["bytes"], alone["file_bytes"] / 2)
        self.assertIn("takes", run("inspect", ADAPTERS / "pirate", "--base", DEMO_MODEL))
        plan = json.loads(run("plan", DEMO_MODEL, "--kv-memory", "64MiB", "--adapters", 100, "--adapter-rank", 8,
                              "--json", "--prompt-tokens", 100, "--output-tokens", 20))
        # Rank 8 on all linears: (768 + 512 + 1728) * 6 layers * 8 * 2 bytes.
        self.assertEqual(plan["adapters"]["bytes_each"], 288768)
        left = (64 << 20) // (16 * 1536) - 100 * plan["adapters"]["pages_each"]
        self.assertEqual(plan["adapters"]["tokens_left"], 16 * left)


class AdaptersOnRanksTest(unittest.TestCase):
    """The same where two ranks share the model."""

    def serve(self, *flags):
        return AdaptersTest.serve(self, "--tp", "2", *flags)

    test_adapters_are_models_and_answer_as_peft_does = AdaptersTest.test_adapters_are_models_and_answer_as_peft_does
    test_all_at_once_equals_alone = AdaptersTest.test_all_at_once_equals_alone
    test_folders_are_read_when_they_are_asked_for = AdaptersTest.test_folders_are_read_when_they_are_asked_for
    test_operators_load_replace_and_unload = AdaptersTest.test_operators_load_replace_and_unload

    def test_inspect_counts_what_all_ranks_hold(self):
        def taken(*flags):
            done = subprocess.run([str(BINARY), "inspect", str(ADAPTERS / "pirate"), "--base", str(DEMO_MODEL), "--json",
                                   *flags], capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["base"]

        self.assertGreater(taken("--tp", "2")["bytes"], taken()["bytes"])
        self.assertLess(taken("--tp", "2")["bytes"], 2 * taken()["bytes"])


if __name__ == "__main__":
    unittest.main()
