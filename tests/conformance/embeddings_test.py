"""Embeddings of the demo model against those of transformers (tests/golden/embeddings.json), and what
follows from them. Standard library only."""

import base64
import json
import math
import struct
import unittest

from heddle_server import SOURCE, Server

CASES = json.loads((SOURCE / "tests" / "golden" / "embeddings.json").read_text())


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b))


class EmbeddingsTest(unittest.TestCase):
    def embed(self, server, status=200, **body):
        found, _, text = server.request("POST", "/v1/embeddings", body)
        self.assertEqual(found, status, text)
        return json.loads(text)

    def check_pooling(self, pooling, *flags):
        with Server("--pooling", pooling, *flags) as server:
            answer = self.embed(server, input=[case["text"] for case in CASES])
            for case, entry in zip(CASES, answer["data"]):
                ours, theirs = entry["embedding"], case[pooling]
                self.assertEqual(len(ours), len(theirs))
                self.assertAlmostEqual(math.hypot(*ours), 1, places=5)
                # Weights and activations of the demo model are BF16 here and F32 there.
                self.assertGreater(cosine(ours, theirs), 0.999, case["text"])
            tokens = self.embed(server, input=[case["ids"] for case in CASES])
            self.assertEqual(tokens["data"], answer["data"])
            self.assertEqual(answer["usage"]["prompt_tokens"], sum(len(c["ids"]) for c in CASES))

    def test_last(self):
        self.check_pooling("last")

    def test_mean_and_first_of_prompts_in_chunks(self):
        self.check_pooling("mean", "--max-batch-tokens", "16", "--max-batch-seqs", "8")
        self.check_pooling("first", "--max-batch-tokens", "16", "--max-batch-seqs", "8")

    def test_forms(self):
        with Server() as server:
            whole = self.embed(server, input="Once upon a time")["data"][0]["embedding"]
            again = self.embed(server, input="Once upon a time")["data"][0]["embedding"]
            self.assertEqual(whole, again)  # with the prefix cache, to the last bit
            packed = self.embed(server, input="Once upon a time", encoding_format="base64")
            data = base64.b64decode(packed["data"][0]["embedding"])
            floats = struct.unpack(f"<{len(data) // 4}f", data)
            for a, b in zip(floats, whole):
                self.assertAlmostEqual(a, b, places=6)
            cut = self.embed(server, input="Once upon a time", dimensions=8)["data"][0]["embedding"]
            self.assertEqual(len(cut), 8)
            self.assertAlmostEqual(math.hypot(*cut), 1, places=5)
            self.assertGreater(cosine(cut, whole) / math.hypot(*whole[:8]), 0.9999)
            for bad in ({"dimensions": 100000}, {"encoding_format": "xml"}, {"input": ""}, {"input": []}):
                error = self.embed(server, status=400, **{"input": "x", **bad})["error"]
                self.assertEqual(error["param"], next(iter(bad)))

    def test_score_and_rerank(self):
        with Server() as server:
            a, b = (case["text"] for case in CASES[:2])
            status, _, text = server.request("POST", "/v1/score", {"text_1": a, "text_2": [a, b]})
            self.assertEqual(status, 200, text)
            scores = [entry["score"] for entry in json.loads(text)["data"]]
            self.assertAlmostEqual(scores[0], 1, places=4)
            self.assertAlmostEqual(scores[1], cosine(CASES[0]["last"], CASES[1]["last"]), places=2)
            body = {"query": a, "documents": [b, {"text": a}], "top_n": 1}
            status, _, text = server.request("POST", "/v1/rerank", body)
            self.assertEqual(status, 200, text)
            results = json.loads(text)["results"]
            self.assertEqual([r["index"] for r in results], [1])
            self.assertEqual(results[0]["document"]["text"], a)
            self.assertEqual(server.metric("heddle_orphaned_requests"), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
