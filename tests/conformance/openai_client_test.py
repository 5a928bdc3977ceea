#!/usr/bin/env python3
"""Drives the official `openai` client against a running server: its types must parse every answer,
its exceptions must be the right ones, streamed and whole answers must agree.

    openai_client_test.py --base-url http://127.0.0.1:8000/v1 --model NAME
    openai_client_test.py --start PROGRAM --model NAME --fake

With --start it runs PROGRAM, which prints "listening on PORT", and stops it afterwards. --fake adds
the cases that need the fake engine's misfortunes. Exits 77 where the package is missing.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
import unittest
import urllib.request

try:
    import openai
except ImportError:
    print("SKIPPED: needs the Python package openai")
    sys.exit(77)

ARGS = None
CLIENT = None
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"temperature": 0, "max_tokens": 40}


def chat(**changes):
    request = {"model": ARGS.model, "messages": MESSAGES, **GREEDY, **changes}
    return CLIENT.chat.completions.create(**request)


def complete(**changes):
    request = {"model": ARGS.model, "prompt": "Once upon", **GREEDY, **changes}
    return CLIENT.completions.create(**request)


def metric(name):
    url = ARGS.base_url.removesuffix("/v1") + "/metrics"
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return float(re.search(rf"^{name} (\S+)$", text, re.M).group(1))


class Models(unittest.TestCase):
    def test_list_and_retrieve(self):
        names = [model.id for model in CLIENT.models.list()]
        self.assertIn(ARGS.model, names)
        self.assertEqual(CLIENT.models.retrieve(ARGS.model).object, "model")

    def test_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            CLIENT.models.retrieve("no-such-model")
        self.assertEqual(caught.exception.code, "model_not_found")


class Chat(unittest.TestCase):
    def test_whole(self):
        answer = chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, ARGS.model)
        choice = answer.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertTrue(choice.message.content)
        self.assertIsNone(choice.message.tool_calls)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertLessEqual(usage.completion_tokens, 40)

    def test_streamed_equals_whole(self):
        whole = chat()
        chunks = list(chat(stream=True))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[0].choices[0].delta.content, "")
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        self.assertEqual(text, whole.choices[0].message.content)
        reasons = [c.choices[0].finish_reason for c in chunks]
        self.assertEqual(reasons[:-1], [None] * (len(reasons) - 1))
        self.assertEqual(reasons[-1], whole.choices[0].finish_reason)
        self.assertEqual(len({c.id for c in chunks}), 1)
        self.assertTrue(all(c.usage is None for c in chunks))

    def test_usage_chunk(self):
        whole = chat()
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))

    def test_n(self):
        one = chat()
        two = chat(n=2)
        self.assertEqual([c.index for c in two.choices], [0, 1])
        for choice in two.choices:
            self.assertEqual(choice.message.content, one.choices[0].message.content)
        self.assertEqual(two.usage.prompt_tokens, one.usage.prompt_tokens)
        texts = ["", ""]
        for chunk in chat(n=2, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [c.message.content for c in two.choices])

    def test_branches_of_one_seed_differ_and_repeat(self):
        if ARGS.fake:
            self.skipTest("the fake engine draws nothing")
        texts = [[c.message.content for c in chat(n=4, seed=5, temperature=1).choices] for _ in range(2)]
        self.assertEqual(texts[0], texts[1])
        self.assertGreater(len(set(texts[0])), 1)
        self.assertEqual(chat(seed=5, temperature=1).choices[0].message.content, texts[0][0])

    def test_logprobs(self):
        answer = chat(logprobs=True, top_logprobs=3)
        entries = answer.choices[0].logprobs.content
        data = b"".join(bytes(e.bytes) for e in entries)
        # Special tokens at the end are no text and no entries.
        self.assertEqual(data.decode("utf-8", "replace"), answer.choices[0].message.content)
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 3)
            best = entry.top_logprobs[0]
            self.assertEqual(best.token, entry.token)  # greedy
            self.assertAlmostEqual(best.logprob, entry.logprob, places=4)
            self.assertLessEqual(entry.logprob, 0)
        streamed = []
        for chunk in chat(logprobs=True, top_logprobs=3, stream=True):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        self.assertEqual([e.token for e in streamed], [e.token for e in entries])

    def test_stop(self):
        text = chat().choices[0].message.content
        words = text.split()
        self.assertGreater(len(words), 2, "the model says too little for this test")
        stop = " " + words[2]
        for stream in (False, True):
            answer = chat(stop=stop, stream=stream)
            if stream:
                chunks = list(answer)
                cut = "".join(c.choices[0].delta.content or "" for c in chunks)
                reason = chunks[-1].choices[0].finish_reason
            else:
                cut = answer.choices[0].message.content
                reason = answer.choices[0].finish_reason
            self.assertEqual(cut, text[: text.index(stop)])
            self.assertEqual(reason, "stop")

    def test_max_tokens(self):
        answer = chat(max_tokens=None, max_completion_tokens=3)
        self.assertEqual(answer.usage.completion_tokens, 3)
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_seed(self):
        same = [chat(temperature=1, seed=7).choices[0].message.content for _ in range(3)]
        self.assertEqual(len(set(same)), 1)

    def test_roles_and_parts(self):
        answer = chat(
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Hello!"}]},
            ]
        )
        self.assertTrue(answer.id.startswith("chatcmpl-"))

    def test_with_raw_response(self):
        raw = CLIENT.chat.completions.with_raw_response.create(
            model=ARGS.model, messages=MESSAGES, extra_headers={"X-Request-Id": "abc"}, **GREEDY
        )
        self.assertEqual(raw.headers["x-request-id"], "abc")
        self.assertEqual(raw.parse().object, "chat.completion")


class Completions(unittest.TestCase):
    def test_whole_and_streamed(self):
        whole = complete()
        self.assertEqual(whole.object, "text_completion")
        self.assertTrue(whole.id.startswith("cmpl-"))
        chunks = list(complete(stream=True))
        self.assertEqual("".join(c.choices[0].text for c in chunks), whole.choices[0].text)
        self.assertEqual(chunks[-1].choices[0].finish_reason, whole.choices[0].finish_reason)

    def test_many_prompts(self):
        answer = complete(prompt=["Once upon", "Hello"], n=2, max_tokens=5)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        self.assertEqual(answer.choices[0].text, answer.choices[1].text)
        self.assertEqual(answer.choices[2].text, complete(prompt="Hello", max_tokens=5).choices[0].text)

    def test_token_ids(self):
        url = ARGS.base_url.removesuffix("/v1") + "/tokenize"
        body = json.dumps({"prompt": "Once upon"}).encode()
        tokens = json.load(urllib.request.urlopen(url, body, timeout=10))["tokens"]
        self.assertEqual(complete(prompt=tokens).choices[0].text, complete().choices[0].text)
        self.assertEqual(complete(prompt=[tokens]).choices[0].text, complete().choices[0].text)

    def test_tokens_with_their_texts(self):
        def post(path, body):
            url = ARGS.base_url.removesuffix("/v1") + path
            return json.load(urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10))

        ids = post("/tokenize", {"content": "Once upon"})["tokens"]
        pieces = post("/tokenize", {"content": "Once upon", "with_pieces": True})["tokens"]
        self.assertEqual([piece["id"] for piece in pieces], ids)
        self.assertEqual("".join(piece["piece"] for piece in pieces), "Once upon")
        texts = post("/tokenize", {"prompt": "Once upon", "add_special_tokens": False, "return_token_strs": True})
        self.assertEqual("".join(texts["token_strs"]), "Once upon")
        text = post("/detokenize", {"tokens": ids})
        self.assertEqual((text["prompt"], text["content"]), ("Once upon", "Once upon"))
        self.assertIsInstance(post("/tokenize", {"content": "\U0001F600é", "with_pieces": True})["tokens"][0]["id"], int)

    def test_default_is_sixteen_tokens(self):
        answer = CLIENT.completions.create(model=ARGS.model, prompt="Once", temperature=0)
        self.assertLessEqual(answer.usage.completion_tokens, 16)

    def test_echo_scores_the_prompt(self):
        answer = complete(echo=True, logprobs=1, max_tokens=0)
        choice = answer.choices[0]
        self.assertEqual(choice.text, "Once upon")
        scores = choice.logprobs
        self.assertEqual(len(scores.tokens), answer.usage.prompt_tokens)
        self.assertEqual(len(scores.token_logprobs), len(scores.tokens))
        self.assertEqual(len(scores.text_offset), len(scores.tokens))
        self.assertIsNone(scores.token_logprobs[0])
        self.assertIsNone(scores.top_logprobs[0])
        for token, logprob, top in list(
            zip(scores.tokens, scores.token_logprobs, scores.top_logprobs)
        )[1:]:
            self.assertLessEqual(logprob, 0)
            self.assertIn(token, top)


class Errors(unittest.TestCase):
    def test_bad_requests(self):
        for changes in (
            {"temperature": 9},
            {"n": 0},
            {"top_p": -1},
            {"messages": []},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            {"stop": ["1"] * 65},
        ):
            for stream in (False, True):
                with self.subTest(changes=changes, stream=stream):
                    with self.assertRaises(openai.BadRequestError) as caught:
                        chat(stream=stream, **changes)
                    error = caught.exception
                    self.assertEqual(error.type, "invalid_request_error")
                    self.assertTrue(error.param.startswith(next(iter(changes))))

    def test_too_long(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(messages=[{"role": "user", "content": "again and " * 100000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            chat(model="gpt-9")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_unknown_route(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            CLIENT.images.generate(model=ARGS.model, prompt="x")
        self.assertIn("nothing at", str(caught.exception))


class Fake(unittest.TestCase):
    def setUp(self):
        if not ARGS.fake:
            self.skipTest("needs the fake engine")

    def test_full_queue(self):
        with self.assertRaises(openai.RateLimitError) as caught:
            complete(prompt="(full)")
        self.assertEqual(caught.exception.response.headers["retry-after"], "1")

    def test_failure_before_and_after_the_first_token(self):
        for stream in (False, True):
            with self.assertRaises(openai.InternalServerError):
                complete(prompt="(broken)", stream=stream)
        with self.assertRaises(openai.InternalServerError):
            complete(prompt="(breaks)")
        texts = []
        with self.assertRaises(openai.APIError) as caught:
            for chunk in complete(prompt="(breaks)", stream=True):
                texts.append(chunk.choices[0].text)
        self.assertEqual("".join(texts), "Once")
        self.assertIn("the engine broke", str(caught.exception))


class Together(unittest.TestCase):
    def test_concurrent_streams_equal_single_ones(self):
        prompts = [f"Story number {i}:" for i in range(16)]
        alone = [complete(prompt=p).choices[0].text for p in prompts]

        async def run():
            async with openai.AsyncOpenAI(base_url=ARGS.base_url, api_key="none") as client:
                async def one(prompt):
                    text = ""
                    stream = await client.completions.create(
                        model=ARGS.model, prompt=prompt, stream=True, **GREEDY
                    )
                    async for chunk in stream:
                        text += chunk.choices[0].text
                    return text

                return await asyncio.gather(*(one(p) for p in prompts))

        self.assertEqual(asyncio.run(run()), alone)

    def test_a_closed_stream_leaves_nothing_running(self):
        for _ in range(5):
            stream = chat(stream=True, max_tokens=200)
            next(iter(stream))
            stream.close()
        deadline = time.monotonic() + 10
        while metric("heddle_running_sequences") > 0 or metric("heddle_open_streams") > 0:
            self.assertLess(time.monotonic(), deadline, "sequences still run for nobody")
        self.assertEqual(metric("heddle_orphaned_requests"), 0)


def main():
    global ARGS, CLIENT
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--start", help="program to run and test")
    parser.add_argument("--fake", action="store_true")
    ARGS, rest = parser.parse_known_args()
    server = None
    if ARGS.start:
        server = subprocess.Popen([ARGS.start], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = re.fullmatch(r"listening on (\d+)\n", server.stdout.readline()).group(1)
        ARGS.base_url = f"http://127.0.0.1:{port}/v1"
    CLIENT = openai.OpenAI(base_url=ARGS.base_url, api_key="none", max_retries=0, timeout=60)
    try:
        result = unittest.main(argv=[sys.argv[0], *rest], exit=False, verbosity=1).result
    finally:
        if server:
            server.terminate()
            stopped = server.wait(20)
    if server and stopped != 0:
        print(f"the server ended with {stopped}, not 0")
        sys.exit(1)
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
