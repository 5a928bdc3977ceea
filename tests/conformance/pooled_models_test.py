"""Models that write no text, over HTTP: folders made of the demo model. Standard library only."""

import json
import math
import pathlib
import struct
import tempfile
import unittest

from heddle_server import DEMO_MODEL, SOURCE, Server

CASES = json.loads((SOURCE / "tests" / "golden" / "embeddings.json").read_text())
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensor_names(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        return [name for name in json.loads(file.read(size)) if name != "__metadata__"]


def write_folder(folder, files, labels=0):
    """The demo model with other files beside it, and with a head of classes."""
    for source in DEMO_MODEL.iterdir():
        if source.name not in files and source.name not in ("config.json", "model.safetensors"):
            (folder / source.name).symlink_to(source)
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    kind = config["architectures"][0].removesuffix("ForCausalLM")
    config["architectures"] = [kind + ("ForSequenceClassification" if labels else "Model")]
    config["id2label"] = {str(i): f"class {i}" for i in range(labels)}
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    if not labels:
        (folder / "model.safetensors").symlink_to(DEMO_MODEL / "model.safetensors")
        return
    hidden = config["hidden_size"]
    (folder / "base.safetensors").symlink_to(DEMO_MODEL / "model.safetensors")
    rows = [math.sin(1 + i * (7 + i // hidden)) / 4 for i in range(labels * hidden)]
    write_safetensors(folder / "head.safetensors", {"score.weight": ([labels, hidden], rows)})
    names = {name: "base.safetensors" for name in tensor_names(DEMO_MODEL / "model.safetensors")}
    names["score.weight"] = "head.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def write_encoder(folder, labels=0):
    """A small BERT with weights of sines and the tokenizer of tests/golden."""
    tokenizer = json.loads((SOURCE / "tests/golden/tokenizers/wordpiece.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    vocab, hidden, inter, positions = len(tokenizer["model"]["vocab"]), 32, 48, 64
    kind = "BertForSequenceClassification" if labels else "BertModel"
    (folder / "config.json").write_text(json.dumps({
        "architectures": [kind], "model_type": "bert", "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": inter, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": positions, "type_vocab_size": 2,
        "id2label": {str(i): f"class {i}" for i in range(labels)}}))
    tensors = {}

    def add(name, *shape, offset=0.0):
        count, start = math.prod(shape), len(tensors) * 0.37
        tensors[name] = (list(shape), [offset + math.sin(start + i * 1.7 + i * i * 0.01) / 3
                                       for i in range(count)])

    def linear(name, outputs, inputs):
        add(name + ".weight", outputs, inputs)
        add(name + ".bias", outputs)

    def norm(name):
        add(name + ".weight", hidden, offset=1.0)
        add(name + ".bias", hidden)

    prefix = "bert." if labels else ""
    add(prefix + "embeddings.word_embeddings.weight", vocab, hidden)
    add(prefix + "embeddings.position_embeddings.weight", positions, hidden)
    add(prefix + "embeddings.token_type_embeddings.weight", 2, hidden)
    norm(prefix + "embeddings.LayerNorm")
    for i in range(2):
        layer = f"{prefix}encoder.layer.{i}."
        for part in ("query", "key", "value"):
            linear(layer + "attention.self." + part, hidden, hidden)
        linear(layer + "attention.output.dense", hidden, hidden)
        norm(layer + "attention.output.LayerNorm")
        linear(layer + "intermediate.dense", inter, hidden)
        linear(layer + "output.dense", hidden, inter)
        norm(layer + "output.LayerNorm")
    if labels:
        linear("bert.pooler.dense", hidden, hidden)
        linear("classifier", labels, hidden)
    write_safetensors(folder / "model.safetensors", tensors)


class PooledModelsTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def post(self, server, path, status=200, **body):
        found, _, text = server.request("POST", path, body)
        self.assertEqual(found, status, text)
        return json.loads(text)

    def check_refusals(self, server, routes):
        for path, body in routes.items():
            error = self.post(server, path, status=400, **body)["error"]
            if path == "/v1/messages":  # Anthropic's errors name no field
                self.assertIn("writes no text", error["message"])
            else:
                self.assertEqual(error["param"], "model", path)

    def test_embeddings_as_the_folder_says(self):
        pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
        write_folder(self.folder, {
            "modules.json": MODULES, "1_Pooling/config.json": pooling,
            "config_sentence_transformers.json": {
                "prompts": {"query": "What is ", "document": ""}, "default_prompt_name": None}})
        with Server(model=self.folder) as server:
            answer = self.post(server, "/v1/embeddings", input=[case["text"] for case in CASES])
            for case, entry in zip(CASES, answer["data"]):
                self.assertAlmostEqual(math.hypot(*entry["embedding"]), 1, places=5)
                self.assertGreater(cosine(entry["embedding"], case["mean"]), 0.999)
            prompted = self.post(server, "/v1/embeddings", input="7 + 5?", prompt_name="query")
            whole = self.post(server, "/v1/embeddings", input=["What is 7 + 5?"])
            self.assertEqual(prompted["data"], whole["data"])
            error = self.post(server, "/v1/embeddings", status=400, input="x", prompt_name="poem")
            self.assertIn("query", error["error"]["message"])
            self.check_refusals(server, {
                "/v1/completions": {"prompt": "x"}, "/v1/classify": {"input": "x"},
                "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
                "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}})
            ranking = self.post(server, "/v1/rerank", query="7 + 5?", documents=["a cat", "12"])
            self.assertEqual(len(ranking["results"]), 2)

    def test_cross_encoder(self):
        write_folder(self.folder, {}, labels=1)
        with Server(model=self.folder) as server:
            a, b, c = "Is it warm? ", "It is mild.", "A cat sleeps."
            scores = self.post(server, "/v1/score", text_1=a, text_2=[b, c])["data"]
            whole = self.post(server, "/v1/classify", input=[a + b, a + c])["data"]
            self.assertEqual([s["score"] for s in scores], [w["probs"][0] for w in whole])
            raw = self.post(server, "/score", text_1=a, text_2=b, use_activation=False)["data"]
            logit = math.log(scores[0]["score"] / (1 - scores[0]["score"]))
            self.assertAlmostEqual(raw[0]["score"], logit, places=3)
            ranking = self.post(server, "/v1/rerank", query=a, documents=[b, {"text": c}])["results"]
            best = max(scores, key=lambda s: s["score"])
            self.assertEqual(ranking[0]["index"], best["index"])
            self.assertEqual(ranking[0]["relevance_score"], best["score"])
            self.post(server, "/v1/score", status=400, text_1=[a, b, c], text_2=[a, b])
            self.post(server, "/v1/score", status=400, text_1=[], text_2=[a, b])
            self.post(server, "/v1/score", status=400, text_1=a, text_2=["word " * 5000])
            cut = self.post(server, "/v1/score", text_1=a, text_2=["word " * 5000],
                            truncate_prompt_tokens=16)
            self.assertEqual(cut["usage"]["prompt_tokens"], 16)
            self.check_refusals(server, {"/v1/completions": {"prompt": "x"},
                                         "/v1/embeddings": {"input": "x"}})

    def test_encoder(self):
        write_encoder(self.folder)
        texts = [" ".join(["abc def"] * n) for n in (1, 2, 5, 9)]
        with Server("--max-batch-tokens", "16", "--max-batch-seqs", "8", model=self.folder) as server:
            batch = self.post(server, "/v1/embeddings", input=texts)["data"]
            for text, entry in zip(texts, batch):
                alone = self.post(server, "/v1/embeddings", input=text)["data"][0]["embedding"]
                self.assertEqual(alone, entry["embedding"])
                self.assertAlmostEqual(math.hypot(*alone), 1, places=5)
            long = "abc " * 500
            error = self.post(server, "/v1/embeddings", status=400, input=long)["error"]
            self.assertEqual(error["code"], "context_length_exceeded")
            cut = self.post(server, "/v1/embeddings", input=long, truncate_prompt_tokens=-1)
            self.assertEqual(cut["usage"]["prompt_tokens"], 64)
            tokens = self.post(server, "/tokenize", prompt="abc def")["tokens"]
            self.assertEqual((tokens[0], tokens[-1]), (2, 3))
            self.check_refusals(server, {"/v1/completions": {"prompt": "x"},
                                         "/v1/classify": {"input": "x"}})
            self.assertEqual(server.metric("heddle_orphaned_requests"), 0)

    def test_encoder_of_pairs(self):
        write_encoder(self.folder, labels=1)
        with Server(model=self.folder) as server:
            body = {"query": "abc def", "documents": ["def", "abc abc", "a b c d"]}
            ranking = self.post(server, "/v1/rerank", **body)["results"]
            scores = self.post(server, "/v1/score", text_1=body["query"],
                               text_2=body["documents"])["data"]
            for result in ranking:
                self.assertEqual(result["relevance_score"], scores[result["index"]]["score"])
            self.assertEqual(sorted(scores, key=lambda s: -s["score"])[0]["index"],
                             ranking[0]["index"])
            # The order of two texts matters: their types differ.
            turned = self.post(server, "/v1/score", text_1="def", text_2="abc def")["data"]
            self.assertNotEqual(turned[0]["score"], scores[0]["score"])
            cut = self.post(server, "/v1/score", text_1="abc " * 80, text_2="def " * 80,
                            truncate_prompt_tokens=20)
            self.assertEqual(cut["usage"]["prompt_tokens"], 20)
            self.post(server, "/v1/score", status=400, text_1="abc " * 80, text_2="def")

    def test_classes(self):
        write_folder(self.folder, {}, labels=3)
        with Server(model=self.folder) as server:
            data = self.post(server, "/v1/classify", input=["Once upon a time", "No."])["data"]
            for entry in data:
                self.assertEqual(entry["num_classes"], 3)
                self.assertAlmostEqual(sum(entry["probs"]), 1, places=5)
                best = entry["probs"].index(max(entry["probs"]))
                self.assertEqual(entry["label"], f"class {best}")
            self.check_refusals(server, {"/v1/score": {"text_1": "x", "text_2": "y"},
                                         "/v1/rerank": {"query": "x", "documents": ["y"]}})


if __name__ == "__main__":
    unittest.main(verbosity=2)
