"""The rules that OpenAI's clients rely on, one test per rule, on the bytes of the answers.

    client_rules_test.py --start PROGRAM

PROGRAM is the server with the scripted engine (tests/server/fake_server.cc): it prints "listening on
PORT", and answers a prompt that contains "(say)" with what follows it. Standard library only.
"""

import argparse
import gzip
import http.client
import json
import re
import socket
import subprocess
import sys
import time
import unittest

PORT = None
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("weather", "clock")
]
TWO_CALLS = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Kyōto"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LISTED_CODES = {400, 401, 404, 405, 413, 429, 500, 503}


def request(method, path, body=None, headers=None):
    """(status, headers in lower case, text)"""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    try:
        data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return response.status, names, response.read().decode()
    finally:
        connection.close()


def say(text, **fields):
    return {"messages": [{"role": "user", "content": "(say)" + text}], **fields}


def chat(text, **fields):
    status, _, body = request("POST", CHAT, say(text, **fields))
    assert status == 200, body
    return json.loads(body)


def stream(path, body):
    """The data of all events, "[DONE]" included; fails on anything that is not one event."""
    status, headers, text = request("POST", path, {**body, "stream": True})
    assert status == 200, text
    assert headers["content-type"].startswith("text/event-stream"), headers
    assert text.endswith("\n\n"), text[-40:]
    events = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        assert re.fullmatch(r"data: [^\n]+", block), block
        data = block[len("data: "):]
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


def chunks(path, body):
    events = stream(path, body)
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1, events
    return events[:-1]


class Streams(unittest.TestCase):
    def test_framing_and_end(self):
        chunks(CHAT, say("hello"))
        chunks(COMPLETIONS, {"prompt": "(say)hello"})

    def test_the_role_comes_first_and_alone(self):
        first = chunks(CHAT, say("hello"))[0]["choices"][0]
        self.assertEqual(first["delta"], {"role": "assistant", "content": ""})

    def test_every_chunk_carries_the_same_head_and_a_null_finish_reason_until_the_last(self):
        all_chunks = chunks(CHAT, say("hello"))
        heads = {(c["id"], c["created"], c["model"], c["object"]) for c in all_chunks}
        self.assertEqual(len(heads), 1)
        self.assertEqual(all_chunks[0]["object"], "chat.completion.chunk")
        reasons = [c["choices"][0]["finish_reason"] for c in all_chunks]
        self.assertEqual(reasons, [None] * (len(reasons) - 1) + ["stop"])

    def test_the_finish_reason_comes_in_a_chunk_of_its_own(self):
        self.assertEqual(chunks(CHAT, say("hello"))[-1]["choices"][0]["delta"], {})

    def test_the_usage_chunk(self):
        whole = chat("hello")["usage"]
        asked = chunks(CHAT, say("hello", stream_options={"include_usage": True}))
        self.assertEqual(asked[-1]["choices"], [])
        self.assertEqual(asked[-1]["usage"], whole)
        self.assertTrue(all(c["usage"] is None for c in asked[:-1]))
        self.assertTrue(all("usage" not in c for c in chunks(CHAT, say("hello"))))
        self.assertIn("cached_tokens", whole["prompt_tokens_details"])
        self.assertIn("reasoning_tokens", whole["completion_tokens_details"])

    def test_bodies_may_be_compressed(self):
        body = json.dumps(say("hello" * 300)).encode()
        for coding, packed, status in (("gzip", gzip.compress(body), 200), ("gzip", body, 400), ("br", body, 415),
                                       ("gzip", gzip.compress(b" " * (128 << 20)), 400)):
            answered, _, text = request("POST", CHAT, packed, {"Content-Encoding": coding})
            self.assertEqual(answered, status, text)
            if status == 200:
                self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], "hello" * 300)

    def test_stream_options_without_a_stream_have_no_effect(self):
        self.assertEqual(chat("x", stream_options={"include_usage": True})["choices"],
                         chat("x")["choices"])

    def test_streamed_and_whole_are_the_same(self):
        for text in ("plain words", "grüße 🎉 日本", TWO_CALLS):
            for options in ({}, {"tools": TOOLS}, {"stop": ["日"]}, {"logprobs": True}):
                with self.subTest(text=text, options=options):
                    whole = chat(text, **options)
                    message = whole["choices"][0]["message"]
                    parts = chunks(CHAT, say(text, stream_options={"include_usage": True}, **options))
                    content, calls, tokens = "", {}, []
                    for part in parts[:-1]:
                        choice = part["choices"][0]
                        content += choice["delta"].get("content") or ""
                        tokens += (choice["logprobs"] or {}).get("content", [])
                        for call in choice["delta"].get("tool_calls", []):
                            known = calls.setdefault(call["index"], {"name": "", "arguments": ""})
                            known["name"] += call["function"].get("name", "")
                            known["arguments"] += call["function"]["arguments"]
                    self.assertEqual(content, message["content"] or "")
                    self.assertEqual(
                        list(calls.values()), [c["function"] for c in message.get("tool_calls", [])]
                    )
                    self.assertEqual(parts[-1]["usage"], whole["usage"])
                    self.assertEqual(parts[-2]["choices"][0]["finish_reason"],
                                     whole["choices"][0]["finish_reason"])
                    if "logprobs" in options:
                        self.assertEqual(tokens, whole["choices"][0]["logprobs"]["content"])

    def test_no_chunk_splits_a_code_point(self):
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks(CHAT, say("日本🎉é")))
        self.assertEqual(text, "日本🎉é")

    def test_n_choices_interleave_with_their_own_role_and_finish(self):
        parts = chunks(CHAT, say("hello", n=3, stream_options={"include_usage": True}))
        for index in range(3):
            own = [p["choices"][0] for p in parts[:-1] if p["choices"][0]["index"] == index]
            self.assertEqual(own[0]["delta"].get("role"), "assistant")
            self.assertEqual([c["finish_reason"] for c in own].count("stop"), 1)
        order = [p["choices"][0]["index"] for p in parts[:-1]]
        self.assertNotEqual(order, sorted(order))
        self.assertEqual(parts[-1]["usage"]["prompt_tokens"], chat("hello")["usage"]["prompt_tokens"])

    def test_headers_of_a_stream(self):
        _, headers, _ = request("POST", CHAT, say("x", stream=True), {"X-Request-Id": "mine-1"})
        self.assertEqual(headers["x-request-id"], "mine-1")
        self.assertEqual(headers["cache-control"], "no-cache")
        self.assertEqual(headers["x-accel-buffering"], "no")


class Errors(unittest.TestCase):
    def check(self, status, code, answer):
        self.assertEqual(answer[0], status)
        self.assertIn(status, LISTED_CODES)
        body = json.loads(answer[2])
        self.assertEqual(set(body), {"error"})
        self.assertEqual(set(body["error"]), {"message", "type", "param", "code"})
        self.assertTrue(body["error"]["message"])
        if code:
            self.assertEqual(body["error"]["code"], code)
        return body["error"]

    def test_the_shape_is_the_same_on_every_route(self):
        self.check(404, None, request("GET", "/v1/nothing"))
        self.check(404, None, request("POST", "/v1/audio/speech", {}))
        self.check(405, None, request("GET", CHAT))
        self.check(405, None, request("POST", "/v1/models", {}))
        self.check(404, "model_not_found", request("GET", "/v1/models/gpt-9"))
        for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
            for body in (b"{", b"[]", b"\xff", b"", {"model": 5}, {"model": "gpt-9", "messages": []}):
                answer = request("POST", path, body)
                self.assertIn(answer[0], (400, 404), path)
                self.check(answer[0], None, answer)

    def test_codes(self):
        self.check(404, "model_not_found", request("POST", CHAT, say("x", model="gpt-9")))
        self.check(400, "context_length_exceeded", request("POST", CHAT, say("x" * 5000)))
        full = request("POST", COMPLETIONS, {"prompt": "(full)"})
        self.check(429, None, full)
        self.assertGreaterEqual(int(full[1]["retry-after"]), 1)
        large = request("POST", CHAT, b" " * (9 << 20))
        self.check(413, None, large)
        for field, value in (("temperature", 3), ("n", 0), ("top_p", "high"), ("messages", {}),
                             ("tools", [1]), ("logit_bias", {"x": 1}), ("stream", "yes")):
            with self.subTest(field=field):
                error = self.check(400, None, request("POST", CHAT, {**say("x"), field: value}))
                self.assertTrue(error["param"].startswith(field))

    def test_before_the_first_token_an_error_is_a_status(self):
        for streamed in (False, True):
            self.check(500, None, request("POST", COMPLETIONS, {"prompt": "(broken)", "stream": streamed}))

    def test_after_it_an_error_event_and_an_orderly_end(self):
        events = stream(COMPLETIONS, {"prompt": "(breaks)"})
        self.assertEqual(events[-2]["error"]["message"], "the engine broke")
        self.assertEqual(events[-1], "[DONE]")
        self.assertTrue(all(e["choices"][0]["finish_reason"] is None for e in events[:-2]))


class Tools(unittest.TestCase):
    def test_deltas(self):
        parts = chunks(CHAT, say(TWO_CALLS, tools=TOOLS))
        calls = [c for p in parts for c in p["choices"][0]["delta"].get("tool_calls", [])]
        begun = [c for c in calls if "id" in c]
        self.assertEqual([c["index"] for c in begun], [0, 1])
        for call in begun:
            self.assertEqual(call["type"], "function")
            self.assertEqual(call["function"]["arguments"], "")
        self.assertEqual(len({c["id"] for c in begun}), 2)
        for call in calls:
            if "id" not in call:
                self.assertEqual(set(call), {"index", "function"})
                self.assertEqual(set(call["function"]), {"arguments"})
        arguments = ["".join(c["function"]["arguments"] for c in calls if c["index"] == i) for i in (0, 1)]
        self.assertEqual([json.loads(a) for a in arguments], [{"city": "Kyōto"}, {}])
        self.assertEqual(parts[-1]["choices"][0]["finish_reason"], "tool_calls")

    def test_no_call_no_claim(self):
        for text in ("just words", '<tool_call>\n{"name": "weather", "argu'):
            choice = chat(text, tools=TOOLS)["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop")
            self.assertNotIn("tool_calls", choice["message"])
            self.assertNotIn("<tool_call>", choice["message"]["content"])

    def test_one_call_at_most_by_ending_the_answer(self):
        answer = chat(TWO_CALLS, tools=TOOLS, parallel_tool_calls=False)
        self.assertEqual(len(answer["choices"][0]["message"]["tool_calls"]), 1)
        self.assertLess(answer["usage"]["completion_tokens"], len(TWO_CALLS.encode()))

    def test_a_named_choice_is_honoured_or_refused(self):
        choice = {"type": "function", "function": {"name": "nobody"}}
        status, _, text = request("POST", CHAT, say("x", tools=TOOLS, tool_choice=choice))
        self.assertEqual(status, 400, text)


class Fields(unittest.TestCase):
    def test_what_is_empty_is_left_out(self):
        message = chat("hello")["choices"][0]["message"]
        for name in ("tool_calls", "reasoning_content", "reasoning", "function_call"):
            self.assertNotIn(name, message)
        for part in chunks(CHAT, say("hello")):
            self.assertTrue(set(part["choices"][0]["delta"]) <= {"role", "content"})

    def test_content_is_null_beside_calls_alone(self):
        calls = TWO_CALLS[TWO_CALLS.index("<"):]
        message = chat(calls, tools=TOOLS)["choices"][0]["message"]
        self.assertIn("content", message)
        self.assertIsNone(message["content"])

    def test_what_clients_send_is_accepted(self):
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": None},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
            {"role": "assistant", "content": "Rain.", "tool_calls": None, "reasoning_content": None},
            {"role": "user", "content": "(say)fine"},
        ]
        nulls = dict.fromkeys(
            ("temperature", "top_p", "n", "stop", "seed", "logit_bias", "user", "tools", "tool_choice",
             "response_format", "stream", "stream_options", "max_tokens", "max_completion_tokens",
             "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty", "functions",
             "function_call", "parallel_tool_calls", "reasoning_effort", "modalities", "audio"))
        body = {"model": None, "messages": messages, **nulls, "a_field_of_next_year": {"x": 1}}
        status, _, text = request("POST", CHAT, body)
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], "fine")

    def test_both_limits_the_latter_wins(self):
        answer = chat("hello world", max_tokens=9, max_completion_tokens=3)
        self.assertEqual(answer["usage"]["completion_tokens"], 3)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")

    def test_without_a_limit_chat_takes_the_context_and_completions_sixteen(self):
        self.assertEqual(chat("x" * 100)["usage"]["completion_tokens"], 101)
        _, _, text = request("POST", COMPLETIONS, {"prompt": "(say)" + "x" * 100})
        self.assertEqual(json.loads(text)["usage"]["completion_tokens"], 16)

    def test_more_than_the_context_is_cut_with_a_warning(self):
        status, headers, _ = request("POST", CHAT, say("x", max_tokens=100000))
        self.assertEqual(status, 200)
        self.assertIn("max_tokens", headers["x-heddle-warning"])

    def test_stop_is_a_string_or_a_list_and_not_in_the_text(self):
        for stop in ("lo w", ["zzz", "lo w"]):
            answer = chat("hello world", stop=stop)["choices"][0]
            self.assertEqual(answer["message"]["content"], "hel")
            self.assertEqual(answer["finish_reason"], "stop")
        text = "".join(c["choices"][0]["delta"].get("content", "")
                       for c in chunks(CHAT, say("hello world", stop="lo w")))
        self.assertEqual(text, "hel")
        self.assertEqual(answer["stop_reason"], "lo w")
        status, _, _ = request("POST", CHAT, say("x", stop=["a"] * 65))
        self.assertEqual(status, 400)

    def test_chat_logprobs(self):
        logprobs = chat("hé", logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]
        self.assertIsNone(logprobs["refusal"])
        self.assertEqual(bytes(b for t in logprobs["content"] for b in t["bytes"]).decode(), "hé")
        for token in logprobs["content"]:
            self.assertEqual(set(token), {"token", "logprob", "bytes", "top_logprobs"})
            self.assertEqual(len(token["top_logprobs"]), 2)

    def test_legacy_logprobs_with_echo_score_the_prompt(self):
        body = {"prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 0}
        choice = json.loads(request("POST", COMPLETIONS, body)[2])["choices"][0]
        scores = choice["logprobs"]
        self.assertEqual(choice["text"], "ab")
        self.assertEqual(set(scores), {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
        self.assertEqual({len(values) for values in scores.values()}, {3})
        self.assertIsNone(scores["token_logprobs"][0])
        self.assertIsNone(scores["top_logprobs"][0])
        self.assertEqual(scores["text_offset"], [0, 0, 1])

    def test_models(self):
        body = json.loads(request("GET", "/v1/models")[2])
        self.assertEqual(body["object"], "list")
        card = body["data"][0]
        self.assertEqual(card["object"], "model")
        self.assertIsInstance(card["created"], int)
        self.assertGreater(card["max_model_len"], 0)
        self.assertTrue(card["owned_by"])


class Reasoning(unittest.TestCase):
    TEXT = "<think>\nLet me see. \n</think>\n\nIt rains."

    def test_it_has_a_field_of_its_own_and_is_counted(self):
        answer = chat(self.TEXT)
        message = answer["choices"][0]["message"]
        self.assertEqual(message["reasoning_content"], "Let me see.")
        self.assertEqual(message["content"], "It rains.")
        self.assertGreater(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 10)

    def test_it_never_shares_a_delta_with_content(self):
        reasoning, content = "", ""
        for part in chunks(CHAT, say(self.TEXT)):
            delta = part["choices"][0]["delta"]
            self.assertLessEqual(len(delta), 2 if "role" in delta else 1)
            reasoning += delta.get("reasoning_content", "")
            content += delta.get("content", "")
        self.assertEqual((reasoning, content), ("Let me see.", "It rains."))

    def test_earlier_reasoning_and_template_switches_are_accepted(self):
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
            {"role": "user", "content": "(say)fine"},
        ]
        for switch in ({"reasoning_effort": "low"}, {"enable_thinking": False},
                       {"chat_template_kwargs": {"enable_thinking": False}}):
            status, _, text = request("POST", CHAT, {"messages": messages, **switch})
            self.assertEqual(status, 200, text)

    def test_the_last_message_can_be_continued(self):
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "(say)one"}]
        body = {"messages": messages, "continue_final_message": True}
        self.assertEqual(request("POST", CHAT, body)[0], 200)
        self.assertEqual(request("POST", CHAT, {**body, "add_generation_prompt": True})[0], 400)
        self.assertEqual(request("POST", CHAT, {**body, "messages": messages[:1]})[0], 400)


class OpenApi(unittest.TestCase):
    def setUp(self):
        self.document = json.loads(request("GET", "/openapi.json")[2])

    def test_every_route_is_described_and_every_reference_resolves(self):
        self.assertEqual(self.document["openapi"], "3.1.0")
        for path in (CHAT, COMPLETIONS, "/v1/responses", "/v1/responses/{id}", "/v1/messages",
                     "/v1/responses/{id}/input_items", "/v1/responses/{id}/cancel", "/v1/responses/input_tokens",
                     "/v1/messages/count_tokens", "/v1/embeddings", "/v1/score", "/v1/rerank",
                     "/v1/models", "/api/chat", "/completion", "/tokenize", "/detokenize", "/health", "/ready", "/metrics"):
            self.assertIn(path, self.document["paths"])
        for reference in re.findall(r'"#/([^"]+)"', json.dumps(self.document)):
            node = self.document
            for part in reference.split("/"):
                node = node[part]

    def test_what_the_document_forbids_is_refused_by_name(self):
        wrong = {"string": 5, "integer": "x", "number": "x", "boolean": "x", "array": 5, "object": 5}
        checked = 0
        for path, operations in self.document["paths"].items():
            if "requestBody" not in operations.get("post", {}):
                continue
            # Refused as a whole: this server takes no changes of adapters, and has no folder for batches.
            if "lora" in path or path.startswith(("/v1/files", "/v1/batches")):
                continue
            content = operations["post"]["requestBody"]["content"]
            schema = content["application/json"]["schema"]
            for name, field in schema["properties"].items():
                if len(field["type"]) > 4:  # any value
                    continue
                bad = [wrong[field["type"][0]]]
                if "maximum" in field:
                    bad.append(field["maximum"] + 1)
                if "minimum" in field:
                    bad.append(field["minimum"] - 1)
                for value in bad:
                    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "input": "x",
                            "max_tokens": 5, "tokens": [], "query": "x", "documents": ["x"],
                            "text_1": "x", "text_2": "x", "children": ["x"], "continuations": ["x"], name: value}
                    tensors = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]}]
                    inputs = {"/embed": "x", "/predict": "x", "/similarity": {"source_sentence": "x", "sentences": ["x"]}}
                    body.setdefault("inputs", inputs.get(path, tensors))
                    if path in ("/v1/embed", "/v2/embed"):
                        body.setdefault("texts", ["x"])
                        body.setdefault("input_type", "search_query")
                    if path == "/tokenize":
                        body.pop("messages", None) if name == "prompt" else None
                    status, _, text = request("POST", path.replace("{id}", "test-model"), body)
                    self.assertEqual(status, 400, (path, name, value, text))
                    if path.startswith(("/v1/messages", "/api/", "/v2/models/")):
                        self.assertIn(name, text)
                    else:
                        self.assertEqual(json.loads(text)["error"]["param"], name)
                    checked += 1
        self.assertGreater(checked, 150)


class Embeddings(unittest.TestCase):
    def test_order_scores_and_usage(self):
        status, _, text = request("POST", "/v1/embeddings", {"input": ["a", "b"]})
        self.assertEqual(status, 200, text)
        body = json.loads(text)
        self.assertEqual([e["index"] for e in body["data"]], [0, 1])
        self.assertEqual(len(body["data"][0]["embedding"]), 4)
        self.assertEqual(body["usage"], {"prompt_tokens": 4, "total_tokens": 4})
        body = {"query": "a", "documents": ["z", "a", "b"]}
        results = json.loads(request("POST", "/v1/rerank", body)[2])["results"]
        self.assertEqual([r["index"] for r in results], [1, 2, 0])


class Disconnect(unittest.TestCase):
    def test_a_client_that_leaves_is_cancelled_and_no_success(self):
        def cancelled():
            text = request("GET", "/metrics")[2]
            found = re.search(r'^heddle_generation_requests_total\{[^}]*outcome="cancelled"[^}]*\} (\S+)$', text, re.M)
            return float(found.group(1)) if found else 0

        before = cancelled()
        body = json.dumps({"prompt": "(waits)", "stream": True}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", PORT)) as connection:
            connection.sendall(head + body)
        deadline = time.monotonic() + 10
        while cancelled() == before:
            self.assertLess(time.monotonic(), deadline, "the request was not counted as cancelled")
            time.sleep(0.02)


def main():
    global PORT
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", required=True)
    arguments, rest = parser.parse_known_args()
    server = subprocess.Popen([arguments.start], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    PORT = int(re.fullmatch(r"listening on (\d+)\n", server.stdout.readline()).group(1))
    try:
        result = unittest.main(argv=[sys.argv[0], *rest], exit=False, verbosity=1).result
    finally:
        server.terminate()
        stopped = server.wait(20)
        server.stdout.close()
    sys.exit(0 if result.wasSuccessful() and stopped == 0 else 1)


if __name__ == "__main__":
    main()
