#!/usr/bin/env python3
"""Other APIs and other clients: /v1/responses with the `openai` package, /v1/messages with `anthropic`,
and chat through `langchain-openai` and `litellm`.

    more_clients_test.py --start PROGRAM

PROGRAM is the server with the scripted engine (tests/server/fake_server.cc). A client that is not
installed is skipped by name; exits 77 where none is.
"""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look-up over the network

BASE = None
MODEL = "test-model"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Kyōto"}}\n</tool_call>'
THOUGHT = "<think>\nLet me see.\n</think>\n\nIt rains."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FOUND = []


def client_package(name, purpose):
    try:
        module = importlib.import_module(name)
    except ImportError:
        print(f"SKIPPED: {purpose} needs the Python package {name}")
        return None
    FOUND.append(name)
    return module


openai = client_package("openai", "Responses")
anthropic = client_package("anthropic", "Messages")
langchain_openai = client_package("langchain_openai", "LangChain")
litellm = client_package("litellm", "LiteLLM")


@unittest.skipUnless(openai, "needs the Python package openai")
class Responses(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0, timeout=60)

    def create(self, text, **fields):
        return self.client.responses.create(model=MODEL, input="(say)" + text, **fields)

    def test_text(self):
        answer = self.create("hello", metadata={"a": "b"}, instructions="Be brief.")
        self.assertEqual(answer.status, "completed")
        self.assertEqual(answer.output_text, "hello")
        self.assertEqual(answer.metadata, {"a": "b"})
        self.assertEqual(answer.instructions, "Be brief.")
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
        self.assertEqual(answer.output[0].content[0].type, "output_text")

    def test_the_end_of_the_budget(self):
        answer = self.create("hello world", max_output_tokens=3)
        self.assertEqual(answer.status, "incomplete")
        self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")
        self.assertEqual(answer.output_text, "hel")
        self.assertEqual(answer.output[0].status, "incomplete")
        events = list(self.create("hello world", max_output_tokens=3, stream=True))
        self.assertEqual(events[-1].type, "response.incomplete")
        done = next(e for e in events if e.type == "response.output_item.done")
        self.assertEqual([done.item.status, events[-1].response.output[0].status], ["incomplete"] * 2)
        self.assertEqual(self.create("hello").output[0].status, "completed")

    def test_reasoning_and_calls_are_items(self):
        tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
        answer = self.create(THOUGHT, reasoning={"effort": "low"})
        self.assertEqual([item.type for item in answer.output], ["reasoning", "message"])
        self.assertEqual(answer.output[0].content[0].text, "Let me see.")
        answer = self.create("One moment. " + CALL, tools=tools)
        self.assertEqual([item.type for item in answer.output], ["message", "function_call"])
        call = answer.output[1]
        self.assertEqual((call.name, json.loads(call.arguments)), ("weather", {"city": "Kyōto"}))
        follow = self.client.responses.create(
            model=MODEL, previous_response_id=answer.id, tools=tools,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
                   {"role": "user", "content": [{"type": "input_text", "text": "(say)It rains."}]}])
        self.assertEqual(follow.output_text, "It rains.")
        self.assertEqual(follow.previous_response_id, answer.id)

    def test_a_conversation_goes_on_while_it_is_kept(self):
        first = self.create("one")
        second = self.create("two", previous_response_id=first.id)
        plain = self.create("two")
        self.assertGreater(second.usage.input_tokens, plain.usage.input_tokens + len("one"))
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, "one")
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.create("three", previous_response_id=first.id)
        unkept = self.create("four", store=False)
        with self.assertRaises(openai.NotFoundError):
            self.create("five", previous_response_id=unkept.id)

    def test_what_a_response_was_made_of_is_listed_page_by_page(self):
        tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
        first = self.create(THOUGHT + CALL, tools=tools)
        call = first.output[-1]
        second = self.client.responses.create(
            model=MODEL, previous_response_id=first.id, tools=tools, instructions="Be brief.",
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
                   {"id": "msg_mine", "role": "user", "content": [{"type": "input_text", "text": "(say)yes"}]}])
        for limit in (1, 2, 20):
            items = list(self.client.responses.input_items.list(second.id, order="asc", limit=limit))
            self.assertEqual([item.type for item in items], ["message", "reasoning", "message", "function_call",
                                                             "function_call_output", "message"])
            self.assertEqual([item.id for item in items[1:4]], [item.id for item in first.output])
            self.assertEqual(items[3].arguments, call.arguments)
            self.assertEqual((items[4].call_id, items[4].output), (call.call_id, "rain"))
            self.assertEqual((items[5].id, items[5].role, items[5].content[0].text), ("msg_mine", "user", "(say)yes"))
            backwards = list(self.client.responses.input_items.list(second.id, limit=limit))
            self.assertEqual([item.id for item in backwards], [item.id for item in items][::-1])
        again = self.client.responses.create(  # what is listed can be sent
            model=MODEL, tools=tools, instructions="Be brief.", input=[item.to_dict() for item in items])
        self.assertEqual(again.usage.input_tokens, second.usage.input_tokens)
        for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "msg_none"}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.responses.input_items.list(second.id, **wrong)
            self.assertEqual(caught.exception.param, *wrong)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.input_items.list("resp_none")

    def test_tokens_can_be_counted_before_they_are_read(self):
        tools = [{"type": "function", "name": n, "parameters": SCHEMA, "strict": False} for n in ("weather", "clock")]
        choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}
        first = self.create("one")
        for fields in ({}, {"instructions": "Be brief."}, {"previous_response_id": first.id},
                       {"tools": tools}, {"tools": tools, "tool_choice": choice},
                       {"tools": tools, "tool_choice": "none"}, {"reasoning": {"effort": "low"}}):
            counted = self.client.responses.input_tokens.count(model=MODEL, input="(say)two", **fields)
            self.assertEqual(counted.object, "response.input_tokens")
            self.assertEqual(counted.input_tokens, self.create("two", **fields).usage.input_tokens, fields)

    def wait_for(self, response):
        for _ in range(1000):
            response = self.client.responses.retrieve(response.id)
            if response.status not in ("queued", "in_progress"):
                return response
            time.sleep(0.01)
        self.fail("the response does not end")

    def test_in_the_background(self):
        ended = self.wait_for(self.create("hello", background=True))
        self.assertEqual((ended.status, ended.output_text, ended.background), ("completed", "hello", True))
        waiting = self.client.responses.create(model=MODEL, input="(waits)", background=True)
        self.assertEqual(self.client.responses.retrieve(waiting.id).status, "queued")
        self.assertEqual(self.client.responses.cancel(waiting.id).status, "cancelled")
        self.assertEqual(self.client.responses.retrieve(waiting.id).status, "cancelled")
        self.client.responses.delete(waiting.id)
        broken = self.wait_for(self.client.responses.create(model=MODEL, input="(breaks)", background=True))
        self.assertEqual((broken.status, broken.error.message), ("failed", "the engine broke"))

    def test_a_stream_is_resumed(self):
        events = list(self.create("hello world", background=True, stream=True))
        self.assertEqual([events[0].type, events[1].type], ["response.created", "response.queued"])
        response = events[-1].response
        self.assertEqual((events[-1].type, response.output_text), ("response.completed", "hello world"))
        again = list(self.client.responses.retrieve(response.id, stream=True, starting_after=4))
        self.assertEqual(again, events[5:])

    def test_conversations(self):
        made = self.client.conversations.create(
            metadata={"a": "b"}, items=[{"type": "message", "role": "user", "content": "My name is Ada."}])
        answer = self.create("hello", conversation=made.id)
        self.assertEqual(answer.conversation.id, made.id)
        items = list(self.client.conversations.items.list(made.id, order="asc"))
        self.assertEqual([item.role for item in items], ["user", "user", "assistant"])
        self.assertEqual(items[2].content[0].text, "hello")
        self.assertEqual(self.client.conversations.items.retrieve(items[0].id, conversation_id=made.id), items[0])
        self.client.conversations.items.delete(items[0].id, conversation_id=made.id)
        added = self.client.conversations.items.create(
            made.id, items=[{"type": "message", "role": "user", "content": "More."}])
        self.assertEqual(len(added.data), 1)
        self.assertEqual(self.client.conversations.update(made.id, metadata={"c": "d"}).metadata, {"c": "d"})
        self.assertEqual(self.client.conversations.retrieve(made.id).metadata, {"c": "d"})
        self.assertTrue(self.client.conversations.delete(made.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.create("hello", conversation=made.id)

    def test_compaction(self):
        compacted = self.client.responses.compact(model=MODEL, input=[{"role": "user", "content": "Weave."}])
        self.assertEqual([item.type for item in compacted.output], ["message", "compaction"])
        items = [item.model_dump(exclude_none=True) for item in compacted.output]
        answer = self.client.responses.create(model=MODEL, input=[*items, {"role": "user", "content": "(say)go on"}])
        self.assertEqual(answer.output_text, "go on")

    def test_what_has_ended_cannot_be_cancelled(self):
        kept = self.create("one")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.cancel(kept.id)
        self.assertIn("background", caught.exception.message)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.cancel("resp_none")

    def test_events(self):
        tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
        text = "<think>hm</think>Well. " + CALL
        whole = self.create(text, tools=tools)
        events = list(self.create(text, tools=tools, stream=True))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        kinds = [e.type for e in events]
        self.assertEqual(kinds[:2], ["response.created", "response.in_progress"])
        self.assertEqual(kinds[-1], "response.completed")
        for added, done in (("response.output_item.added", "response.output_item.done"),
                            ("response.content_part.added", "response.content_part.done")):
            self.assertEqual(kinds.count(added), kinds.count(done))
        def joined(kind):
            return "".join(e.delta for e in events if e.type == kind)
        self.assertEqual(joined("response.output_text.delta"), whole.output_text)
        self.assertEqual(joined("response.reasoning_text.delta"), "hm")
        self.assertEqual(joined("response.function_call_arguments.delta"), whole.output[2].arguments)
        final = events[-1].response
        self.assertEqual([i.type for i in final.output], ["reasoning", "message", "function_call"])
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        with self.client.responses.stream(model=MODEL, input="(say)hello") as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().output_text, "hello")

    def test_logprobs_stand_beside_their_text(self):
        wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        text = "<think>hm</think>hé"
        part = self.create(text, **wanted).output[1].content[0]
        # The mark between reasoning and text stands before the text.
        self.assertTrue(bytes(b for t in part.logprobs for b in t.bytes).decode().endswith(part.text))
        self.assertTrue(all(len(token.top_logprobs) == 2 for token in part.logprobs))
        events = list(self.create(text, stream=True, **wanted))
        streamed = [t.token for e in events if e.type == "response.output_text.delta" for t in e.logprobs]
        self.assertEqual(streamed, [t.token for t in part.logprobs])
        done = next(e for e in events if e.type == "response.output_text.done")
        self.assertEqual([t.token for t in done.logprobs], streamed)
        self.assertEqual(events[-1].response.output[1].content[0].logprobs[0].token, streamed[0])
        self.assertEqual(self.create("hello").output[0].content[0].logprobs, [])

    def test_automatic_truncation_drops_the_oldest_turns(self):
        # The model's context is 4,096 bytes; each turn takes some hundred.
        turns = [{"role": "developer", "content": "Be brief."}]
        for i in range(20):
            turns += [{"role": "user", "content": f"turn {i} " + "x" * 400},
                      {"role": "assistant", "content": "yes"}]
        turns.append({"role": "user", "content": "(say)short"})
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.create(model=MODEL, input=turns)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        answer = self.client.responses.create(model=MODEL, input=turns, truncation="auto")
        self.assertEqual(answer.output_text, "short")
        self.assertLess(answer.usage.input_tokens, 3 * 4096 // 4 + 1)
        self.assertGreater(answer.usage.input_tokens, 2048)
        with self.assertRaises(openai.BadRequestError):
            self.create("x" * 5000, truncation="auto")

    def test_allowed_tools(self):
        tools = [{"type": "function", "name": n, "parameters": SCHEMA, "strict": False} for n in ("weather", "clock")]
        choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}
        answer = self.create(CALL, tools=tools, tool_choice=choice)
        self.assertEqual([item.type for item in answer.output], ["function_call"])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(CALL, tools=tools[1:], tool_choice=choice)
        self.assertEqual(caught.exception.param, "tool_choice.tools")

    def test_tools_of_agents_are_run_by_the_client(self):
        tools = [{"type": "custom", "name": "apply_patch", "description": "Changes files.",
                  "format": {"type": "grammar", "syntax": "lark", "definition": "start: /(.|\\n)+/"}},
                 {"type": "local_shell"}, {"type": "web_search"},
                 {"type": "namespace", "name": "mcp__files__", "description": "Files.", "tools": [
                     {"type": "function", "name": "read", "parameters": SCHEMA, "strict": False}]}]
        calls = {"apply_patch": {"input": "*** Begin\n+é"}, "local_shell": {"command": ["ls", "-l"], "timeout_ms": 5},
                 "mcp__files__read": {"city": "x"}}
        text = "".join("<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
                       + "\n</tool_call>\n" for name, arguments in calls.items())
        raw = self.client.responses.with_raw_response.create(model=MODEL, input="(say)" + text, tools=tools)
        self.assertIn("web_search", raw.headers["x-heddle-warning"])
        self.assertNotIn("grammar", raw.headers["x-heddle-warning"])
        answer = raw.parse()
        patch, shell, read = answer.output
        self.assertEqual((patch.type, patch.name, patch.input),
                         ("custom_tool_call", "apply_patch", calls["apply_patch"]["input"]))
        self.assertEqual((shell.type, shell.action.command, shell.action.timeout_ms),
                         ("local_shell_call", ["ls", "-l"], 5))
        self.assertEqual((read.type, read.name, read.to_dict()["namespace"], json.loads(read.arguments)),
                         ("function_call", "read", "mcp__files__", {"city": "x"}))
        events = list(self.create(text, tools=tools, stream=True))
        done = [e.item for e in events if e.type == "response.output_item.done"]
        self.assertEqual([item.type for item in done], ["custom_tool_call", "local_shell_call", "function_call"])
        self.assertEqual([e.input for e in events if e.type == "response.custom_tool_call_input.done"],
                         [calls["apply_patch"]["input"]])
        self.assertEqual("".join(e.delta for e in events if e.type == "response.function_call_arguments.delta"),
                         read.arguments)
        follow = self.client.responses.create(
            model=MODEL, tools=tools, previous_response_id=answer.id,
            input=[{"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "ok"},
                   {"type": "local_shell_call_output", "id": shell.call_id, "output": "total 0"},
                   {"type": "function_call_output", "call_id": read.call_id, "output": "(say)done"}])
        self.assertEqual(follow.output_text, "done")
        items = list(self.client.responses.input_items.list(follow.id, order="asc"))
        again = self.client.responses.create(model=MODEL, tools=tools, input=[item.to_dict() for item in items])
        self.assertEqual(again.usage.input_tokens, follow.usage.input_tokens)

    def test_tools_that_the_api_describes_are_run_by_the_client(self):
        tools = [{"type": "shell", "environment": {"type": "local"}}, {"type": "apply_patch"}]
        calls = {"shell": {"commands": ["ls -l", "pwd"], "timeout_ms": 5},
                 "apply_patch": {"type": "update_file", "path": "a.txt", "diff": "@@\n-a\n+é"}}
        text = "".join("<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
                       + "\n</tool_call>\n" for name, arguments in calls.items())
        answer = self.create(text, tools=tools)
        shell, patch = answer.output
        self.assertEqual((shell.type, shell.action.commands, shell.action.timeout_ms, shell.action.max_output_length),
                         ("shell_call", ["ls -l", "pwd"], 5, None))
        self.assertEqual((patch.type, patch.operation.to_dict()), ("apply_patch_call", calls["apply_patch"]))
        events = list(self.create(text, tools=tools, stream=True))
        done = [e.item.to_dict() for e in events if e.type == "response.output_item.done"]
        self.assertEqual([item["type"] for item in done], ["shell_call", "apply_patch_call"])
        self.assertEqual(done[1]["operation"], calls["apply_patch"])
        outputs = [{"type": "shell_call_output", "call_id": shell.call_id, "max_output_length": 100, "output": [
                        {"stdout": "total 0", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
                   {"type": "apply_patch_call_output", "call_id": patch.call_id, "status": "completed"},
                   {"role": "user", "content": "(say)done"}]
        follow = self.client.responses.create(model=MODEL, tools=tools, previous_response_id=answer.id, input=outputs)
        self.assertEqual(follow.output_text, "done")
        items = list(self.client.responses.input_items.list(follow.id, order="asc"))
        self.assertEqual([item.type for item in items], ["message", "shell_call", "apply_patch_call",
                                                         "shell_call_output", "apply_patch_call_output", "message"])
        again = self.client.responses.create(model=MODEL, tools=tools, input=[item.to_dict() for item in items])
        self.assertEqual(again.usage.input_tokens, follow.usage.input_tokens)
        forced = self.create(text.split("</tool_call>")[0] + "</tool_call>", tools=tools, tool_choice={"type": "shell"})
        self.assertEqual([item.type for item in forced.output], ["shell_call"])
        hosted = self.client.responses.with_raw_response.create(
            model=MODEL, input="(say)x", tools=[{"type": "shell", "environment": {"type": "container_auto"}}])
        self.assertIn("the tool shell is left out", hosted.headers["x-heddle-warning"])

    def test_calls_that_another_server_answered_are_read(self):
        answer = self.client.responses.create(model=MODEL, input=[
            {"role": "user", "content": "x"},
            {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "read", "arguments": "{}", "output": "ok"},
            {"type": "mcp_approval_request", "id": "r", "server_label": "s", "name": "read", "arguments": "{}"},
            {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
            {"role": "user", "content": "(say)y"}])
        self.assertEqual(answer.output_text, "y")

    def test_items_are_referred_to_by_their_ids(self):
        first = self.create("one")
        second = self.client.responses.create(model=MODEL, input=[
            {"role": "user", "content": "(say)one"}, {"type": "item_reference", "id": first.output[0].id},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"role": "user", "content": "(say)two"}])
        third = self.create("two", previous_response_id=first.id)
        self.assertEqual((second.output_text, second.usage.input_tokens), ("two", third.usage.input_tokens))
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.responses.create(model=MODEL, input=[{"type": "item_reference", "id": "msg_0_1"}])
        self.assertEqual(caught.exception.param, "input[0].id")

    def test_an_error_in_the_middle_is_a_failed_response(self):
        events = list(self.client.responses.create(model=MODEL, input="(breaks)", stream=True))
        self.assertEqual(events[-1].type, "response.failed")
        self.assertEqual(events[-1].response.error.message, "the engine broke")

    def test_bad_requests_name_the_field_as_the_client_knows_it(self):
        for fields, param in (({"max_output_tokens": 0}, "max_output_tokens"),
                              ({"input": [{"type": "wat"}]}, "input[0].type"),
                              ({"input": [{"role": "nobody", "content": "x"}]}, "input"),
                              ({"tools": [{"type": "wat"}]}, "tools[0].type"),
                              ({"background": True, "store": False}, "background"),
                              ({"text": {"format": 5}}, "text.format"),
                              ({"text": {"format": {"type": "wat"}}}, "text.format.type"),
                              ({"truncation": "wat"}, "truncation"),
                              ({"previous_response_id": "resp_none"}, "previous_response_id")):
            with self.assertRaises(openai.APIStatusError) as caught:
                self.client.responses.create(**{"model": MODEL, "input": "x", **fields})
            self.assertIn(caught.exception.status_code, (400, 404))
            self.assertEqual(caught.exception.param, param)


@unittest.skipUnless(openai, "needs the Python package openai")
class Azure(unittest.TestCase):
    def test_deployments_are_models(self):
        client = openai.AzureOpenAI(azure_endpoint=BASE, api_key="none", api_version="2025-01-01", max_retries=0)
        messages = [{"role": "user", "content": "(say)hello"}]
        answer = client.chat.completions.create(model="gpt-test", messages=messages)
        self.assertEqual((answer.choices[0].message.content, answer.model), ("hello", MODEL))
        self.assertEqual(client.completions.create(model=MODEL, prompt="(say)hello").choices[0].text, "hello")
        self.assertEqual(len(client.embeddings.create(model=MODEL, input=["a", "b"]).data), 2)
        with self.assertRaises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="other", messages=messages)
        self.assertIn("gpt-test", caught.exception.message)  # names all that there are


@unittest.skipUnless(anthropic, "needs the Python package anthropic")
class Messages(unittest.TestCase):
    TOOLS = [{"name": "weather", "description": "Weather of a city.", "input_schema": SCHEMA}]

    def setUp(self):
        self.client = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0, timeout=60)

    def test_models_are_listed_in_this_apis_form(self):
        models = list(self.client.models.list(limit=1))  # page by page
        self.assertEqual([(m.type, m.id) for m in models], [("model", MODEL), ("model", "gpt-test")])
        self.assertEqual(self.client.models.retrieve("gpt-test").display_name, "gpt-test")
        self.assertEqual([m.id for m in self.client.models.list(before_id="gpt-test")], [MODEL])
        for wrong in ({"limit": 0}, {"after_id": "other"}):
            with self.assertRaises(anthropic.BadRequestError):
                self.client.models.list(**wrong)

    def test_tools_that_the_api_describes(self):
        tools = [{"type": "bash_20250124", "name": "bash"},
                 {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
                 {"type": "memory_20250818", "name": "memory"},
                 {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]
        call = {"name": "bash", "arguments": {"command": "ls"}}
        raw = self.client.messages.with_raw_response.create(
            model=MODEL, max_tokens=200, tools=tools,
            messages=[{"role": "user", "content": f"(say)<tool_call>\n{json.dumps(call)}\n</tool_call>"}])
        self.assertIn("web_search_20250305 is left out", raw.headers["x-heddle-warning"])
        [block] = raw.parse().content
        self.assertEqual((block.type, block.name, block.input), ("tool_use", "bash", {"command": "ls"}))
        alone = self.client.messages.create(model=MODEL, max_tokens=20, tools=tools[3:],
                                            messages=[{"role": "user", "content": "(say)hello"}])
        self.assertEqual(alone.content[0].text, "hello")
        with self.assertRaises(anthropic.BadRequestError):  # it needs a model that sees
            self.client.messages.create(model=MODEL, max_tokens=20, messages=[{"role": "user", "content": "x"}],
                                        tools=[{"type": "computer_20250124", "name": "computer",
                                                "display_width_px": 10, "display_height_px": 10}])

    def test_what_another_server_searched_is_passed_over_and_what_the_client_found_is_read(self):
        def ask(*blocks):
            return self.client.messages.create(model=MODEL, max_tokens=20, messages=[
                {"role": "user", "content": "x"}, {"role": "assistant", "content": [*blocks, {"type": "text", "text": "a"}]},
                {"role": "user", "content": [
                    {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "F"}]},
                    {"type": "text", "text": "(say)hello"}]}])
        found = ask({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
                    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []})
        self.assertEqual(found.content[0].text, "hello")
        self.assertEqual(found.usage.input_tokens, ask().usage.input_tokens)

    def test_documents_are_text(self):
        def ask(source, **fields):
            content = [{"type": "document", "source": source, **fields}, {"type": "text", "text": "(say)ok"}]
            return self.client.messages.create(model=MODEL, max_tokens=50,
                                               messages=[{"role": "user", "content": content}])
        text = {"type": "text", "media_type": "text/plain", "data": "A" * 100}
        plain = ask(text).usage.input_tokens
        self.assertGreater(plain, 100)
        self.assertEqual(ask(text, title="four").usage.input_tokens, plain + 5)
        blocks = {"type": "content", "content": [{"type": "text", "text": "A" * 100}]}
        self.assertEqual(ask(blocks).usage.input_tokens, plain)
        for wrong in ((blocks, {"citations": {"enabled": True}}),
                      ({"type": "base64", "media_type": "application/pdf", "data": "eA=="}, {})):
            with self.assertRaises(anthropic.BadRequestError) as caught:
                ask(wrong[0], **wrong[1])
            self.assertIn("messages[0].content[0]", caught.exception.message)

    def create(self, text, **fields):
        messages = [{"role": "user", "content": "(say)" + text}]
        return self.client.messages.create(model=MODEL, max_tokens=500, messages=messages, **fields)

    def test_text(self):
        answer = self.create("hello", system="Be brief.")
        self.assertEqual((answer.type, answer.role, answer.stop_reason), ("message", "assistant", "end_turn"))
        self.assertEqual(answer.content[0].text, "hello")
        self.assertEqual(answer.usage.output_tokens, 6)

    def test_why_it_stopped(self):
        self.assertEqual(self.client.messages.create(
            model=MODEL, max_tokens=3, messages=[{"role": "user", "content": "(say)hello"}]).stop_reason,
            "max_tokens")
        answer = self.create("hello world", stop_sequences=["zz", "o w"])
        self.assertEqual((answer.stop_reason, answer.stop_sequence), ("stop_sequence", "o w"))
        self.assertEqual(answer.content[0].text, "hell")

    def test_thinking_and_tools_are_blocks(self):
        answer = self.create(THOUGHT, thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertEqual([b.type for b in answer.content], ["thinking", "text"])
        answer = self.create(THOUGHT)
        self.assertEqual([b.type for b in answer.content], ["thinking", "text"])
        self.assertEqual(answer.content[0].thinking, "Let me see.")
        answer = self.create("Well. " + CALL, tools=self.TOOLS)
        self.assertEqual(answer.stop_reason, "tool_use")
        call = answer.content[1]
        self.assertEqual((call.name, call.input), ("weather", {"city": "Kyōto"}))
        follow = self.client.messages.create(
            model=MODEL, max_tokens=50, tools=self.TOOLS,
            messages=[{"role": "user", "content": "Weather?"},
                      {"role": "assistant", "content": [b.model_dump() for b in answer.content]},
                      {"role": "user", "content": [
                          {"type": "tool_result", "tool_use_id": call.id, "content": "rain"},
                          {"type": "text", "text": "(say)It rains."}]}])
        self.assertEqual(follow.content[0].text, "It rains.")

    def test_events(self):
        text = "<think>hm</think>Well. " + CALL
        whole = self.create(text, tools=self.TOOLS)
        with self.client.messages.stream(
                model=MODEL, max_tokens=500, tools=self.TOOLS,
                messages=[{"role": "user", "content": "(say)" + text}]) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        self.assertEqual(kinds[0], "message_start")
        self.assertEqual(kinds[-1], "message_stop")
        self.assertEqual(kinds.count("content_block_start"), 3)
        self.assertEqual(kinds.count("content_block_stop"), 3)
        self.assertEqual([b.type for b in final.content], [b.type for b in whole.content])
        self.assertEqual(final.content[2].input, whole.content[2].input)
        self.assertEqual(final.content[1].text, whole.content[1].text)
        self.assertEqual((final.stop_reason, final.usage.output_tokens),
                         (whole.stop_reason, whole.usage.output_tokens))

    def test_count_tokens(self):
        messages = [{"role": "user", "content": "(say)hello"}]
        counted = self.client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
        answer = self.create("hello", system="Be brief.")
        self.assertEqual(counted.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens)

    def test_errors_have_this_apis_envelope(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.client.messages.create(model="gpt-9", max_tokens=5, messages=[{"role": "user", "content": "x"}])
        self.assertEqual(caught.exception.body["type"], "error")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        with self.assertRaises(anthropic.RateLimitError):
            self.create("(full)")
        with self.assertRaises(anthropic.BadRequestError):
            self.create("x", extra_body={"temperature": 9})
        for method, body in (("GET", None), ("POST", b"{}")):
            request = urllib.request.Request(BASE + "/v1/messages", body, method=method)
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=10)
            self.assertEqual(json.load(caught.exception)["type"], "error")

    def test_an_answer_of_a_form(self):
        schema = {"type": "object", "properties": {"a": {"extends": {}}}}
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create("x", extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}})
        message = caught.exception.body["error"]["message"]
        self.assertEqual(message, "'output_config.format.schema': at \"#/properties/a\": \"extends\" is not supported")
        for config in ({"format": 5}, {"format": {"type": "xml"}}, {"format": {"type": "json_schema"}}, {"effort": 1}):
            with self.assertRaises(anthropic.BadRequestError) as caught:
                self.create("x", extra_body={"output_config": config})
            self.assertIn("'output_config.", str(caught.exception))
        self.assertEqual(self.create("x", extra_body={"output_config": {"effort": "low"}}).content[0].text, "x")

    def test_blocks_that_lack_their_parts_are_refused_by_name(self):
        def user(block):
            return [{"role": "user", "content": [block]}]
        for messages, name in (
                ([{"role": "user"}], "messages[0].content"),
                (user({"type": "text", "text": 5}), "messages[0].content[0].text"),
                (user({"type": "text"}), "messages[0].content[0].text"),
                (user({"type": "tool_result", "content": "x"}), "messages[0].content[0].tool_use_id"),
                (user({"type": "tool_use", "id": "x"}), "messages[0].content[0].name")):
            with self.assertRaises(anthropic.BadRequestError) as caught:
                self.client.messages.create(model=MODEL, max_tokens=5, messages=messages)
            self.assertIn(f"'{name}'", str(caught.exception))
        for fields, name in (({"thinking": {"type": "wat"}}, "thinking.type"),
                             ({"tools": self.TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
                             ({"tools": self.TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice")):
            with self.assertRaises(anthropic.BadRequestError) as caught:
                self.create("x", extra_body=fields)
            self.assertIn(f"'{name}", str(caught.exception))

    def test_an_error_in_the_middle(self):
        with self.assertRaises(anthropic.APIStatusError) as caught:
            for _ in self.client.messages.create(model=MODEL, max_tokens=5, stream=True,
                                                 messages=[{"role": "user", "content": "(breaks)"}]):
                pass
        self.assertIn("the engine broke", str(caught.exception))


@unittest.skipUnless(langchain_openai, "needs the Python package langchain-openai")
class LangChain(unittest.TestCase):
    def setUp(self):
        self.model = langchain_openai.ChatOpenAI(model=MODEL, base_url=BASE + "/v1", api_key="none",
                                                 max_retries=0)

    def test_whole_and_streamed(self):
        self.assertEqual(self.model.invoke("(say)hello there").content, "hello there")
        self.assertEqual("".join(c.content for c in self.model.stream("(say)hello there")), "hello there")

    def test_tools(self):
        tool = {"type": "function", "function": {"name": "weather", "description": "w", "parameters": SCHEMA}}
        bound = self.model.bind_tools([tool])
        answer = bound.invoke("(say)" + CALL)
        self.assertEqual(answer.tool_calls[0]["args"], {"city": "Kyōto"})
        total = None
        for chunk in bound.stream("(say)" + CALL):
            total = chunk if total is None else total + chunk
        self.assertEqual(total.tool_calls[0]["args"], {"city": "Kyōto"})


@unittest.skipUnless(litellm, "needs the Python package litellm")
class LiteLlm(unittest.TestCase):
    def complete(self, text, **fields):
        return litellm.completion(model="openai/" + MODEL, api_base=BASE + "/v1", api_key="none",
                                  messages=[{"role": "user", "content": text}], **fields)

    def test_whole_and_streamed(self):
        self.assertEqual(self.complete("(say)hello").choices[0].message.content, "hello")
        text = "".join(c.choices[0].delta.content or "" for c in self.complete("(say)hello", stream=True))
        self.assertEqual(text, "hello")

    def test_reasoning(self):
        message = self.complete("(say)" + THOUGHT).choices[0].message
        self.assertEqual((message.reasoning_content, message.content), ("Let me see.", "It rains."))

    def test_errors(self):
        with self.assertRaises(litellm.exceptions.RateLimitError):
            self.complete("(full)", num_retries=0, max_retries=0)


def main():
    global BASE
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", required=True)
    arguments, rest = parser.parse_known_args()
    if not FOUND:
        sys.exit(77)
    server = subprocess.Popen([arguments.start], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    port = re.fullmatch(r"listening on (\d+)\n", server.stdout.readline()).group(1)
    BASE = f"http://127.0.0.1:{port}"
    try:
        result = unittest.main(argv=[sys.argv[0], *rest], exit=False, verbosity=1).result
    finally:
        server.terminate()
        stopped = server.wait(20)
        server.stdout.close()
    sys.exit(0 if result.wasSuccessful() and stopped == 0 else 1)


if __name__ == "__main__":
    main()
