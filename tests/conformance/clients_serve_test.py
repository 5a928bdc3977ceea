"""Structured answers and tools as the clients themselves ask for them: openai, anthropic,
langchain-openai and litellm against `heddle serve` with the demo model. What each of them parses into
its own types must be what the schema says, whatever the (small, randomly sampled) model would rather
write. A client that is not installed is passed over; without any the test is skipped.
"""

import importlib.util
import json
import os
import sys
import unittest

from heddle_server import Server

SERVER = None
MODEL = "heddle-demo"
MESSAGES = [{"role": "user", "content": "Tell me about a cat."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "colour": {"enum": ["black", "white", "striped"]},
    },
    "required": ["name", "age", "colour"],
    "additionalProperties": False,
}
TOOL = {"type": "function",
        "function": {"name": "describe_cat", "description": "A cat", "strict": True, "parameters": SCHEMA}}


def has(package):
    return importlib.util.find_spec(package) is not None


def check(cat):
    assert set(cat) == {"name", "age", "colour"}, cat
    assert len(cat["name"]) <= 12 and 0 <= cat["age"] <= 30, cat
    assert cat["colour"] in SCHEMA["properties"]["colour"]["enum"], cat


@unittest.skipUnless(has("openai"), "needs the package openai")
class OpenAi(unittest.TestCase):
    def setUp(self):
        import openai

        self.openai = openai
        self.client = openai.OpenAI(base_url=SERVER.base_url + "/v1", api_key="none", max_retries=0)

    def test_an_answer_parsed_into_a_class(self):
        from typing import Literal

        import pydantic

        class Cat(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=12)
            age: int = pydantic.Field(ge=0, le=30)
            colour: Literal["black", "white", "striped"]

        answer = self.client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Cat, temperature=1, seed=1, max_tokens=300)
        self.assertIsInstance(answer.choices[0].message.parsed, Cat)
        answer = self.client.responses.parse(
            model=MODEL, input="A cat, please.", text_format=Cat, temperature=1, max_output_tokens=300)
        self.assertIsInstance(answer.output_parsed, Cat)

    def test_a_tool_parsed_and_streamed(self):
        answer = self.client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice="required", temperature=1, seed=2,
            max_tokens=300, parallel_tool_calls=False)
        call = answer.choices[0].message.tool_calls[0]
        check(call.function.parsed_arguments)
        pieces = 0
        with self.client.chat.completions.stream(
                model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice="required", temperature=1, seed=2,
                max_tokens=300, parallel_tool_calls=False) as stream:
            for event in stream:
                pieces += event.type == "tool_calls.function.arguments.delta"
            whole = stream.get_final_completion()
        self.assertEqual(whole.choices[0].message.tool_calls[0].function.arguments, call.function.arguments)
        self.assertGreater(pieces, 2)

    def test_a_schema_that_is_not_supported(self):
        with self.assertRaises(self.openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model=MODEL, messages=MESSAGES,
                response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"extends": {}}}})
        self.assertEqual(caught.exception.param, "response_format.json_schema.schema")
        self.assertIn('"extends"', caught.exception.message)


@unittest.skipUnless(has("anthropic"), "needs the package anthropic")
class Anthropic(unittest.TestCase):
    def setUp(self):
        import anthropic

        self.client = anthropic.Anthropic(base_url=SERVER.base_url, api_key="none", max_retries=0)
        self.request = dict(
            model=MODEL, messages=MESSAGES, max_tokens=300,
            tools=[{"name": "describe_cat", "description": "A cat", "input_schema": SCHEMA}],
            tool_choice={"type": "any", "disable_parallel_tool_use": True})

    def test_a_tool_whole(self):
        answer = self.client.messages.create(**self.request)
        self.assertEqual(answer.stop_reason, "tool_use")
        check(answer.content[0].input)

    def test_a_tool_streamed(self):
        pieces = 0
        with self.client.messages.stream(**self.request) as stream:
            for event in stream:
                pieces += event.type == "input_json"
            answer = stream.get_final_message()
        check(answer.content[0].input)
        self.assertGreater(pieces, 2)


@unittest.skipUnless(has("langchain_openai"), "needs the package langchain-openai")
class LangChain(unittest.TestCase):
    def setUp(self):
        from langchain_openai import ChatOpenAI

        self.model = ChatOpenAI(base_url=SERVER.base_url + "/v1", api_key="none", model=MODEL,
                                temperature=1, max_tokens=300, seed=3)

    def test_structured_output_by_each_method(self):
        schema = {"title": "Cat", "description": "A cat", **SCHEMA}
        for method in ("json_schema", "function_calling"):
            with self.subTest(method=method):
                check(self.model.with_structured_output(schema, method=method).invoke("A cat, please."))

    def test_bound_tools(self):
        bound = self.model.bind_tools([TOOL], tool_choice="describe_cat")
        check(bound.invoke("A cat, please.").tool_calls[0]["args"])
        whole = None
        for chunk in bound.stream("A cat, please."):
            whole = chunk if whole is None else whole + chunk
        check(whole.tool_calls[0]["args"])


os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look at the network


@unittest.skipUnless(has("litellm"), "needs the package litellm")
class LiteLlm(unittest.TestCase):
    def complete(self, **fields):
        import litellm

        # Its handler of tools from elsewhere needs one more package.
        fields = {"_skip_mcp_handler": True, **fields}
        return litellm.completion(model="openai/" + MODEL, api_base=SERVER.base_url + "/v1", api_key="none",
                                  messages=MESSAGES, temperature=1, max_tokens=300, seed=4, **fields)

    def test_a_form(self):
        form = {"type": "json_schema", "json_schema": {"name": "cat", "strict": True, "schema": SCHEMA}}
        check(json.loads(self.complete(response_format=form).choices[0].message.content))

    def test_a_tool(self):
        choice = {"type": "function", "function": {"name": "describe_cat"}}
        call = self.complete(tools=[TOOL], tool_choice=choice).choices[0].message.tool_calls[0]
        check(json.loads(call.function.arguments))
        import litellm

        chunks = list(self.complete(tools=[TOOL], tool_choice=choice, stream=True))
        whole = litellm.stream_chunk_builder(chunks)
        check(json.loads(whole.choices[0].message.tool_calls[0].function.arguments))


if __name__ == "__main__":
    if not any(map(has, ("openai", "anthropic", "langchain_openai", "litellm"))):
        print("SKIPPED: needs one of the Python packages openai, anthropic, langchain-openai, litellm")
        sys.exit(77)
    with Server("--served-model-name", MODEL, "--kv-memory", "256MiB") as SERVER:
        result = unittest.main(exit=False, verbosity=1).result
    sys.exit(not result.wasSuccessful())
