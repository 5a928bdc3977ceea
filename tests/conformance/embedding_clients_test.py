"""Embeddings, rankings and classes as clients ask for them and read them: openai, cohere, huggingface_hub and LangChain's
packages against `heddle serve`. Their requests, as these clients send them, are replayed with the standard library alone;
the clients themselves run where they are installed.
"""

import base64
import importlib.util
import json
import math
import pathlib
import struct
import tempfile
import unittest

from heddle_server import Server
from pooled_models_test import write_encoder

TEXTS = ["abc def", "a b c d"]
ENCODER = CLASSES = RANKER = None


def has(package):
    return importlib.util.find_spec(package) is not None


def post(server, path, status=200, **body):
    found, _, text = server.request("POST", path, body)
    assert found == status, (found, text)
    return json.loads(text)


def vectors():
    data = post(ENCODER, "/v1/embeddings", input=TEXTS)["data"]
    return [entry["embedding"] for entry in data]


class Replays(unittest.TestCase):
    def test_openai_asks_for_base64(self):
        answer = post(ENCODER, "/v1/embeddings", model=ENCODER.name, input=TEXTS, encoding_format="base64")
        for entry, expected in zip(answer["data"], vectors()):
            values = struct.unpack(f"<{len(expected)}f", base64.b64decode(entry["embedding"]))
            for a, b in zip(values, expected):
                self.assertAlmostEqual(a, b, places=6)

    def test_cohere_embeds_by_both_versions(self):
        body = {"texts": TEXTS, "model": ENCODER.name, "input_type": "search_document"}
        first = post(ENCODER, "/v1/embed", **body)
        self.assertEqual((first["response_type"], first["texts"]), ("embeddings_floats", TEXTS))
        self.assertEqual(first["embeddings"], vectors())
        for path in ("/v1/embed", "/v2/embed"):
            named = post(ENCODER, path, **body, embedding_types=["float", "base64"], truncate=None)
            self.assertEqual(named["embeddings"]["float"], vectors())
            self.assertEqual(len(named["embeddings"]["base64"]), 2)
            self.assertGreater(named["meta"]["billed_units"]["input_tokens"], 4)
        unnamed = post(ENCODER, "/v2/embed", **body)
        self.assertEqual(list(unnamed["embeddings"]), ["float"])
        error = post(ENCODER, "/v2/embed", 400, **body, embedding_types=["ubinary"])["error"]
        self.assertEqual(error["param"], "embedding_types")
        error = post(ENCODER, "/v2/embed", 400, **(body | {"texts": ["abc " * 500], "truncate": "NONE"}))
        self.assertEqual(error["error"]["param"], "texts")
        post(ENCODER, "/v2/embed", **(body | {"texts": ["abc " * 500]}))

    def test_cohere_ranks(self):
        documents = ["def", {"text": "abc abc"}, "a b c d"]
        first = post(RANKER, "/v1/rerank", model=RANKER.name, query="abc def", documents=documents, top_n=1,
                     return_documents=True)["results"]
        self.assertEqual(len(first), 1)
        second = post(RANKER, "/v2/rerank", model=RANKER.name, query="abc def", documents=["def", "abc abc", "a b c d"],
                      top_n=3, max_tokens_per_doc=None)["results"]
        self.assertEqual(second[0]["relevance_score"], first[0]["relevance_score"])

    def test_text_embeddings_inference(self):
        self.assertEqual(post(ENCODER, "/embed", inputs=TEXTS), vectors())
        self.assertEqual(post(ENCODER, "/embed", inputs=TEXTS[0], truncate=True), vectors()[:1])
        raw = post(ENCODER, "/embed", inputs=TEXTS[0], normalize=False)[0]
        length = math.hypot(*raw)
        for a, b in zip(raw, vectors()[0]):
            self.assertAlmostEqual(a / length, b, places=5)
        ranking = post(RANKER, "/rerank", query="abc def", texts=["def", "abc abc"], return_text=True)
        self.assertEqual({entry["text"] for entry in ranking}, {"def", "abc abc"})
        self.assertGreaterEqual(ranking[0]["score"], ranking[1]["score"])
        scores = post(RANKER, "/v1/score", text_1="abc def", text_2=["def", "abc abc"])["data"]
        self.assertEqual(ranking[0]["score"], max(entry["score"] for entry in scores))
        raw = post(RANKER, "/rerank", query="abc def", texts=["def", "abc abc"], raw_scores=True)
        self.assertNotIn("text", raw[0])
        self.assertAlmostEqual(1 / (1 + math.exp(-raw[0]["score"])), ranking[0]["score"], places=5)
        alike = post(ENCODER, "/similarity", inputs={"source_sentence": "abc def", "sentences": TEXTS})
        self.assertAlmostEqual(alike[0], 1, places=5)
        predictions = post(CLASSES, "/predict", inputs="abc")
        self.assertAlmostEqual(sum(entry["score"] for entry in predictions), 1, places=5)
        self.assertEqual(post(CLASSES, "/predict", inputs=[["abc"], ["abc"]]), [predictions] * 2)
        post(CLASSES, "/predict", 400, inputs=["abc", "def"])
        error = post(ENCODER, "/embed", 400, inputs="abc " * 500)["error"]
        self.assertEqual((error["param"], error["code"]), ("inputs", "context_length_exceeded"))
        post(ENCODER, "/embed", 400, inputs="abc", truncation_direction="Left")
        info = json.loads(ENCODER.request("GET", "/info", None)[2])
        self.assertEqual(info["max_input_length"], 64)
        self.assertIn("embedding", info["model_type"])

    def test_huggingface_hub_posts_to_the_address_alone(self):
        self.assertEqual(post(ENCODER, "/", inputs=TEXTS[0]), vectors()[:1])
        self.assertEqual(post(ENCODER, "/", inputs=TEXTS[0], normalize=True, truncate=True,
                              truncation_direction="right"), vectors()[:1])
        alike = post(ENCODER, "/", inputs={"source_sentence": "abc def", "sentences": TEXTS}, parameters={})
        self.assertAlmostEqual(alike[0], 1, places=5)
        best = post(CLASSES, "/", inputs="abc", parameters={"function_to_apply": "softmax", "top_k": 2})
        self.assertEqual([len(classes) for classes in best], [2])


@unittest.skipUnless(has("openai"), "needs the package openai")
class OpenAi(unittest.TestCase):
    def test_embeddings(self):
        import openai

        client = openai.OpenAI(base_url=ENCODER.base_url + "/v1", api_key="none", max_retries=0)
        answer = client.embeddings.create(model=ENCODER.name, input=TEXTS)
        self.assertAlmostEqual(answer.data[1].embedding[0], vectors()[1][0], places=6)


@unittest.skipUnless(has("cohere"), "needs the package cohere")
class Cohere(unittest.TestCase):
    def test_both_clients(self):
        import cohere

        first = cohere.Client("none", base_url=ENCODER.base_url)
        second = cohere.ClientV2("none", base_url=ENCODER.base_url)
        embedded = first.embed(texts=TEXTS, model=ENCODER.name, input_type="search_document")
        self.assertEqual(embedded.embeddings, vectors())
        embedded = second.embed(texts=TEXTS, model=ENCODER.name, input_type="search_query",
                                embedding_types=["float"])
        self.assertEqual(embedded.embeddings.float_, vectors())
        with self.assertRaises(cohere.BadRequestError):
            second.embed(texts=TEXTS, model=ENCODER.name, input_type="search_query", embedding_types=["int8"])
        for client in (cohere.Client("none", base_url=RANKER.base_url),
                       cohere.ClientV2("none", base_url=RANKER.base_url)):
            ranking = client.rerank(query="abc def", documents=TEXTS, model=RANKER.name, top_n=2)
            self.assertGreaterEqual(ranking.results[0].relevance_score, ranking.results[1].relevance_score)


@unittest.skipUnless(has("huggingface_hub"), "needs the package huggingface_hub")
class HuggingFace(unittest.TestCase):
    def test_inference_client(self):
        from huggingface_hub import InferenceClient

        client = InferenceClient(model=ENCODER.base_url)
        alike = client.sentence_similarity("abc def", other_sentences=TEXTS)
        self.assertAlmostEqual(alike[0], 1, places=5)
        if has("numpy"):
            self.assertEqual(client.feature_extraction(TEXTS[0]).shape, (1, len(vectors()[0])))
        classes = InferenceClient(model=CLASSES.base_url).text_classification("abc", top_k=2)
        self.assertEqual(len(classes), 2)
        self.assertGreaterEqual(classes[0].score, classes[1].score)


class LangChain(unittest.TestCase):
    @unittest.skipUnless(has("langchain_openai"), "needs the package langchain-openai")
    def test_openai(self):
        from langchain_openai import OpenAIEmbeddings

        client = OpenAIEmbeddings(base_url=ENCODER.base_url + "/v1", api_key="none", model=ENCODER.name,
                                  check_embedding_ctx_length=False)
        self.assertAlmostEqual(client.embed_documents(TEXTS)[1][0], vectors()[1][0], places=6)
        self.assertEqual(len(client.embed_query("abc")), len(vectors()[0]))

    @unittest.skipUnless(has("langchain_cohere"), "needs the package langchain-cohere")
    def test_cohere(self):
        from langchain_cohere import CohereEmbeddings, CohereRerank

        client = CohereEmbeddings(cohere_api_key="none", base_url=ENCODER.base_url, model=ENCODER.name)
        self.assertEqual(client.embed_documents(TEXTS), vectors())
        ranker = CohereRerank(cohere_api_key="none", base_url=RANKER.base_url, model=RANKER.name)
        self.assertEqual(len(ranker.rerank(TEXTS, "abc def")), 2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folders = []
        for labels in (0, 1, 3):
            folders.append(pathlib.Path(temporary) / str(labels))
            folders[-1].mkdir()
            write_encoder(folders[-1], labels=labels)
        options = ("--served-model-name", "small")
        with Server(*options, model=folders[0]) as ENCODER, Server(*options, model=folders[1]) as RANKER, \
                Server(*options, model=folders[2]) as CLASSES:
            for server in (ENCODER, RANKER, CLASSES):
                server.name = "small"
            result = unittest.main(exit=False, verbosity=1).result
    raise SystemExit(not result.wasSuccessful())
