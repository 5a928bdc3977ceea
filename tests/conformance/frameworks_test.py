#!/usr/bin/env python3
"""Frameworks that people build agents and evaluations with, against the server with the scripted engine.

    frameworks_test.py --start PROGRAM

Needs HEDDLE_FRAMEWORK_TESTS=1 and the packages of tests/requirements-frameworks.txt, which are large: without the first it
exits with 77, and a framework that is not installed is skipped by name. PROGRAM is tests/server/fake_server.cc, which says what
follows "(say)" in the last message that has it: a test scripts the model's answers, also those to results of tools.
"""

import argparse
import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look-up over the network
os.environ.setdefault("OPENAI_API_KEY", "none")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

BASE = None
MODEL = "test-model"
CITY = {"city": "Kyōto"}


def call(name, arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"


def needs(*names):
    """Skips a class whose packages are not there."""
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name} ({error})")
    return unittest.skipIf(missing, "not installed: " + ", ".join(missing))


def weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: name of the city
    """
    return "(say)It rains in " + city + "."


@needs("agents")
class OpenAiAgents(unittest.TestCase):
    def models(self):
        import agents
        import openai

        agents.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)
        yield agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
        yield agents.OpenAIResponsesModel(model=MODEL, openai_client=client)

    def test_text_tools_and_structured_output(self):
        import agents
        import pydantic

        class City(pydantic.BaseModel):
            city: str

        for model in self.models():
            with self.subTest(model=type(model).__name__):
                agent = agents.Agent(name="a", instructions="Be brief.", model=model)
                self.assertEqual(agents.Runner.run_sync(agent, "(say)hello").final_output, "hello")
                agent = agents.Agent(name="a", model=model, tools=[agents.function_tool(weather)])
                result = agents.Runner.run_sync(agent, "(say)" + call("weather", CITY))
                self.assertEqual(result.final_output, "It rains in Kyōto.")
                agent = agents.Agent(name="a", model=model, output_type=City)
                result = agents.Runner.run_sync(agent, "(say)" + json.dumps(CITY))
                self.assertEqual(result.final_output.city, "Kyōto")

    def test_streams_and_forced_tools(self):
        import agents

        async def run(model):
            settings = agents.ModelSettings(tool_choice="required", temperature=0, max_tokens=200)
            agent = agents.Agent(name="a", model=model, tools=[agents.function_tool(weather)], model_settings=settings)
            stream = agents.Runner.run_streamed(agent, "(say)" + call("weather", CITY))
            kinds = [event.type async for event in stream.stream_events()]
            return kinds, stream.final_output

        for model in self.models():
            with self.subTest(model=type(model).__name__):
                kinds, output = asyncio.run(run(model))
                self.assertIn("raw_response_event", kinds)
                self.assertEqual(output, "It rains in Kyōto.")


@needs("pydantic_ai", "openai")
class PydanticAi(unittest.TestCase):
    # Its Anthropic models do not work with this version of the package anthropic.
    def models(self):
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        yield OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE + "/v1", api_key="none"))
        yield OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=BASE + "/v1", api_key="none"))

    def test_text_tools_and_structured_output(self):
        import pydantic
        import pydantic_ai

        class City(pydantic.BaseModel):
            city: str

        for model in self.models():
            with self.subTest(model=type(model).__name__):
                self.assertEqual(pydantic_ai.Agent(model).run_sync("(say)hello").output, "hello")
                agent = pydantic_ai.Agent(model, tools=[weather])
                self.assertEqual(agent.run_sync("(say)" + call("weather", CITY)).output, "It rains in Kyōto.")
                agent = pydantic_ai.Agent(model, output_type=City)
                self.assertEqual(agent.run_sync("(say)" + call("final_result", CITY)).output, City(**CITY))

    def test_native_output_and_streams(self):
        import pydantic
        import pydantic_ai

        class City(pydantic.BaseModel):
            city: str

        async def streamed(model):
            async with pydantic_ai.Agent(model).run_stream("(say)hello there") as result:
                return [text async for text in result.stream_text(delta=True, debounce_by=None)]

        for model in self.models():
            with self.subTest(model=type(model).__name__):
                self.assertEqual("".join(asyncio.run(streamed(model))), "hello there")
                agent = pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(City))
                self.assertEqual(agent.run_sync("(say)" + json.dumps(CITY)).output, City(**CITY))


@needs("instructor", "openai", "anthropic")
class Instructor(unittest.TestCase):
    def test_every_mode(self):
        import anthropic
        import instructor
        import openai
        import pydantic

        class City(pydantic.BaseModel):
            """A city."""
            city: str

        tool, text = "(say)" + call("City", CITY), "(say)" + json.dumps(CITY)
        mode = instructor.Mode
        client = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)
        for each, say in ((mode.TOOLS, tool), (mode.TOOLS_STRICT, tool), (mode.JSON, text), (mode.JSON_SCHEMA, text),
                          (mode.MD_JSON, "(say)```json\n" + json.dumps(CITY) + "\n```"),
                          (mode.RESPONSES_TOOLS, tool)):
            with self.subTest(mode=each):
                patched = instructor.from_openai(client, mode=each)
                answer = patched.chat.completions.create(
                    model=MODEL, response_model=City, max_retries=0, messages=[{"role": "user", "content": say}])
                self.assertEqual(answer.city, "Kyōto")
        client = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
        for each, say in ((mode.ANTHROPIC_TOOLS, tool), (mode.ANTHROPIC_JSON, text)):
            with self.subTest(mode=each):
                patched = instructor.from_anthropic(client, mode=each)
                answer = patched.messages.create(model=MODEL, max_tokens=300, response_model=City, max_retries=0,
                                                 messages=[{"role": "user", "content": say}])
                self.assertEqual(answer.city, "Kyōto")


@needs("langgraph", "langchain_openai", "langchain_anthropic", "langchain_ollama")
class LangGraph(unittest.TestCase):
    def models(self):
        from langchain_anthropic import ChatAnthropic
        from langchain_ollama import ChatOllama
        from langchain_openai import ChatOpenAI

        yield ChatOpenAI(model=MODEL, base_url=BASE + "/v1", api_key="none", max_retries=0)
        yield ChatOpenAI(model=MODEL, base_url=BASE + "/v1", api_key="none", max_retries=0, use_responses_api=True)
        yield ChatAnthropic(model=MODEL, base_url=BASE, api_key="none", max_retries=0, max_tokens=300)
        yield ChatOllama(model=MODEL, base_url=BASE)

    def test_an_agent_calls_its_tool(self):
        from langgraph.prebuilt import create_react_agent

        for model in self.models():
            with self.subTest(model=type(model).__name__):
                agent = create_react_agent(model, [weather])
                state = agent.invoke({"messages": [("user", "(say)" + call("weather", CITY))]})
                self.assertEqual(state["messages"][-1].text, "It rains in Kyōto.")

    def test_streams_and_structured_output(self):
        import pydantic

        class City(pydantic.BaseModel):
            """A city."""
            city: str

        for model in self.models():
            with self.subTest(model=type(model).__name__):
                self.assertEqual("".join(chunk.text for chunk in model.stream("(say)hello")), "hello")
                method = "json_schema" if "Anthropic" not in type(model).__name__ else "function_calling"
                say = json.dumps(CITY) if method == "json_schema" else call("City", CITY)
                structured = model.with_structured_output(City, method=method)
                self.assertEqual(structured.invoke("(say)" + say).city, "Kyōto")

    def test_embeddings(self):
        from langchain_ollama import OllamaEmbeddings
        from langchain_openai import OpenAIEmbeddings

        for embeddings in (OpenAIEmbeddings(model=MODEL, base_url=BASE + "/v1", api_key="none",
                                            check_embedding_ctx_length=False),
                           OllamaEmbeddings(model=MODEL, base_url=BASE)):
            self.assertEqual(len(embeddings.embed_documents(["a", "b"])), 2)


@needs("llama_index.llms.openai_like", "llama_index.llms.ollama", "llama_index.embeddings.openai")
class LlamaIndex(unittest.TestCase):
    def models(self):
        from llama_index.llms.ollama import Ollama
        from llama_index.llms.openai_like import OpenAILike

        yield OpenAILike(model=MODEL, api_base=BASE + "/v1", api_key="none", is_chat_model=True, max_retries=0,
                         is_function_calling_model=True)
        yield Ollama(model=MODEL, base_url=BASE, request_timeout=60)

    def test_chat_completion_and_streams(self):
        from llama_index.core.llms import ChatMessage

        for model in self.models():
            with self.subTest(model=type(model).__name__):
                self.assertEqual(model.chat([ChatMessage(role="user", content="(say)hello")]).message.content, "hello")
                self.assertEqual(model.complete("(say)hello").text, "hello")
                pieces = model.stream_chat([ChatMessage(role="user", content="(say)hello")])
                self.assertEqual("".join(piece.delta for piece in pieces), "hello")

    def test_an_agent_calls_its_tool(self):
        from llama_index.core.agent.workflow import FunctionAgent

        async def run(model):
            return await FunctionAgent(tools=[weather], llm=model).run("(say)" + call("weather", CITY))

        for model in self.models():
            with self.subTest(model=type(model).__name__):
                self.assertEqual(str(asyncio.run(run(model))), "It rains in Kyōto.")

    def test_embeddings(self):
        from llama_index.embeddings.openai import OpenAIEmbedding

        embedding = OpenAIEmbedding(model_name=MODEL, api_base=BASE + "/v1", api_key="none")
        self.assertGreater(len(embedding.get_text_embedding("a")), 1)


@needs("dspy")
class Dspy(unittest.TestCase):
    def test_a_signature(self):
        import dspy

        for provider, url in (("openai", BASE + "/v1"), ("ollama_chat", BASE + "/v1")):
            with self.subTest(provider=provider):
                model = dspy.LM(f"{provider}/{MODEL}", api_base=url, api_key="none", cache=False, num_retries=0)
                say = "(say)[[ ## answer ## ]]\nrain\n\n[[ ## completed ## ]]"
                with dspy.context(lm=model, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
                    answer = dspy.Predict(dspy.Signature("question -> answer", instructions=say))(question="x").answer
                self.assertTrue(answer.startswith("rain") or "answer" in answer, answer)


@needs("mistralai.client")
class Mistral(unittest.TestCase):
    def test_chats_streams_and_calls(self):
        from mistralai.client import Mistral as Client

        client = Client(api_key="none", server_url=BASE)
        messages = [{"role": "user", "content": "(say)hello"}]
        answer = client.chat.complete(model=MODEL, messages=messages)
        self.assertEqual(answer.choices[0].message.content, "hello")
        parts = [event.data.choices[0].delta.content or "" for event in client.chat.stream(model=MODEL, messages=messages)
                 if event.data.choices]
        self.assertEqual("".join(parts), "hello")
        tool = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
        answer = client.chat.complete(model=MODEL, tools=[tool], tool_choice="any", messages=[
            {"role": "user", "content": "(say)" + call("weather", CITY)}])
        made, = answer.choices[0].message.tool_calls
        self.assertEqual(made.function.name, "weather")
        arguments = made.function.arguments
        self.assertEqual(json.loads(arguments) if isinstance(arguments, str) else arguments, CITY)
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")


@needs("smolagents", "openai")
class Smolagents(unittest.TestCase):
    def test_an_agent_calls_its_tool(self):
        import smolagents

        model = smolagents.OpenAIServerModel(model_id=MODEL, api_base=BASE + "/v1", api_key="none")
        message = model.generate([smolagents.ChatMessage(role="user", content=[{"type": "text", "text": "(say)hello"}])])
        self.assertEqual(message.content, "hello")
        agent = smolagents.ToolCallingAgent(tools=[], model=model, max_steps=1)
        self.assertEqual(agent.run("(say)" + call("final_answer", {"answer": "rain"})), "rain")


@needs("lm_eval")
class LmEval(unittest.TestCase):
    """EleutherAI's harness: log-likelihoods by completions, and generations by chats."""

    def test_log_likelihoods_and_generations(self):
        from lm_eval.api.instance import Instance
        from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

        model = LocalCompletionsAPI(model=MODEL, base_url=BASE + "/v1/completions", tokenizer_backend=None,
                                    num_concurrent=1, max_retries=1, batch_size=1)
        request = Instance("generate_until", {}, ("(say)hello. Bye", {"until": ["."], "max_gen_toks": 50}), 0)
        self.assertEqual(model.generate_until([request], disable_tqdm=True), ["hello"])
        model = LocalChatCompletion(model=MODEL, base_url=BASE + "/v1/chat/completions", num_concurrent=1,
                                    max_retries=1, batch_size=1)
        from lm_eval.models.api_models import JsonChatStr
        chat = JsonChatStr(json.dumps([{"role": "user", "content": "(say)hello. Bye"}]))
        request = Instance("generate_until", {}, (chat, {"until": ["."], "max_gen_toks": 50}), 0)
        self.assertEqual(model.generate_until([request], disable_tqdm=True), ["hello"])

    def test_log_likelihoods_by_token_ids(self):
        import urllib.request

        # The request of its loglikelihood: ids of context and continuation, echoed with log-probabilities.
        body = {"model": MODEL, "prompt": [[104, 105, 33]], "temperature": 0, "max_tokens": 1, "logprobs": 1,
                "seed": 1234, "echo": True}
        request = urllib.request.Request(BASE + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=60))
        from lm_eval.models.openai_completions import LocalCompletionsAPI

        (total, greedy), = LocalCompletionsAPI.parse_logprobs(outputs=answer, tokens=[[104, 105, 33]], ctxlens=[1])
        self.assertLess(total, 0)
        self.assertIsInstance(greedy, bool)


@needs("tritonclient.http", "numpy")
class TritonClient(unittest.TestCase):
    def test_texts_are_tensors_of_bytes(self):
        import numpy
        import tritonclient.http as triton

        client = triton.InferenceServerClient(BASE.removeprefix("http://"))
        self.assertTrue(client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL))
        self.assertEqual(client.get_server_metadata()["name"], "heddle")
        self.assertEqual(client.get_model_metadata(MODEL)["inputs"][0]["name"], "text_input")
        self.assertTrue(client.is_model_ready(MODEL, "1"))
        self.assertFalse(client.is_model_ready(MODEL, "2"))
        self.assertEqual(client.get_model_metadata(MODEL, "1")["versions"], ["1"])
        texts = numpy.array(["(say)hello", "(say)grüße"], dtype=object)
        for binary in (True, False):
            for packed in (None, "gzip"):
                with self.subTest(binary=binary, packed=packed):
                    tensor = triton.InferInput("text_input", [2], "BYTES")
                    tensor.set_data_from_numpy(texts, binary_data=binary)
                    result = client.infer(MODEL, [tensor], parameters={"max_tokens": 50}, request_id="7",
                                          request_compression_algorithm=packed)
                    self.assertEqual([text.decode() if isinstance(text, bytes) else text
                                      for text in result.as_numpy("text_output")], ["hello", "grüße"])
                    self.assertEqual(result.get_response()["id"], "7")
        same = client.infer(MODEL, [tensor], model_version="1", parameters={"max_tokens": 50})
        self.assertEqual(len(same.as_numpy("text_output")), 2)
        with self.assertRaises(Exception) as caught:
            client.infer("other", [tensor])
        self.assertIn("does not exist", str(caught.exception))
        client.close()


@needs("guidellm")
class GuideLlm(unittest.TestCase):
    def test_a_benchmark(self):
        with tempfile.TemporaryDirectory() as folder:
            data = os.path.join(folder, "prompts.jsonl")
            with open(data, "w", encoding="utf-8") as file:
                for _ in range(4):
                    file.write(json.dumps({"prompt": "(say)hello"}) + "\n")
            report = os.path.join(folder, "report.json")
            subprocess.run(
                [os.path.join(os.path.dirname(sys.executable), "guidellm"), "run", "--disable-console",
                 "--backend", f"kind=openai_http,target={BASE},model={MODEL}", "--profile", "kind=synchronous",
                 "--constraint", "kind=max_requests,count=3", "--data", f"kind=json_file,path={data}",
                 "--output", f"kind=json,path={report}"],
                check=True, capture_output=True, timeout=240)
            with open(report, encoding="utf-8") as file:
                benchmark, = json.load(file)["benchmarks"]
            totals = benchmark["metrics"]["request_totals"]
            self.assertEqual((totals["successful"], totals["errored"]), (3, 0))


def main():
    global BASE
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", required=True)
    args, rest = parser.parse_known_args()
    if os.environ.get("HEDDLE_FRAMEWORK_TESTS") != "1":
        print("SKIPPED: set HEDDLE_FRAMEWORK_TESTS=1, and install tests/requirements-frameworks.txt")
        sys.exit(77)
    server = subprocess.Popen([args.start, "--quiet"], stdout=subprocess.PIPE, text=True)
    try:
        port = re.search(r"listening on (\d+)", server.stdout.readline()).group(1)
        BASE = f"http://127.0.0.1:{port}"
        result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    finally:
        server.terminate()
        stopped = server.wait(20)
    sys.exit(0 if result.wasSuccessful() and stopped == 0 else 1)


if __name__ == "__main__":
    main()
