"""The gRPC services against a running daemon, by the official Python client; also an example of
how to use them. Stubs are made from the .proto files when the test starts."""

import contextlib
import importlib
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from heddle_server import DEMO_MODEL, SOURCE, Server, wait_until

try:
    import grpc
    from google.protobuf import descriptor_pool, json_format
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )
    from grpc_tools import protoc
except ImportError as error:
    print(f"grpc_test: skipped, {error}")
    sys.exit(77)


def make_stubs(folder):
    """Compiles proto/ into `folder` and imports what comes of it."""
    protos = [str(p.relative_to(SOURCE)) for p in (SOURCE / "proto").rglob("*.proto")]
    well_known = pathlib.Path(protoc.__file__).parent / "_proto"
    status = protoc.main(
        ["protoc", f"-I{SOURCE}", f"-I{well_known}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
        + protos
    )
    assert status == 0
    sys.path.insert(0, folder)
    names = ["proto.heddle.v1.inference", "proto.inference.open_inference"]
    return [importlib.import_module(n + s) for n in names for s in ("_pb2", "_pb2_grpc")]


def code_of(call):
    """The status code and details that `call` ends with."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


class Suite:
    def __init__(self, server, channel, stubs):
        self.server = server
        self.channel = channel
        self.pb, pb_grpc, self.oip, oip_grpc = stubs
        self.stub = pb_grpc.InferenceStub(channel)
        self.open = oip_grpc.GRPCInferenceServiceStub(channel)

    def test_chat_streams_what_http_answers(self):
        message = {"role": "user", "content": "What is 3 plus 4?"}
        _, _, text = self.server.request(
            "POST", "/v1/chat/completions", {"messages": [message], "temperature": 0}
        )
        expected = json.loads(text)
        request = self.pb.ChatRequest(messages=[self.pb.ChatMessage(**message)], temperature=0)
        chunks = list(self.stub.Chat(request))
        answer = "".join(c.choices[0].delta.content for c in chunks if c.choices)
        assert answer == expected["choices"][0]["message"]["content"], answer
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage.total_tokens == expected["usage"]["total_tokens"]

    def test_generate_takes_text_or_ids_and_gives_logprobs(self):
        ids = self.stub.Tokenize(self.pb.TokenizeRequest(prompt="The sky is")).tokens
        assert len(ids) > 0
        assert self.stub.Detokenize(self.pb.DetokenizeRequest(tokens=ids)).prompt.endswith("sky is")
        fields = dict(max_tokens=8, temperature=0, logprobs=2, ignore_eos=True)
        by_text = list(self.stub.Generate(self.pb.GenerateRequest(prompt="The sky is", **fields)))
        by_ids = list(
            self.stub.Generate(
                self.pb.GenerateRequest(prompt_token_ids=self.pb.TokenIds(ids=ids), **fields)
            )
        )
        text = "".join(c.choices[0].text for c in by_text if c.choices)
        assert text and text == "".join(c.choices[0].text for c in by_ids if c.choices)
        logprobs = [c.choices[0].logprobs for c in by_text if c.choices and c.choices[0].text]
        assert sum(len(l.tokens) for l in logprobs) == 8
        assert all(v.number_value <= 0 for l in logprobs for v in l.token_logprobs)
        assert by_text[-1].usage.completion_tokens == 8

    def test_adapters_are_chosen_listed_loaded_and_unloaded(self):
        pb = self.pb

        def text_of(**fields):
            message = pb.ChatMessage(role="user", content="Hello!")
            request = pb.ChatRequest(messages=[message], temperature=0, max_tokens=16, **fields)
            return "".join(c.delta.content for chunk in self.stub.Chat(request) for c in chunk.choices)

        pirate = text_of(model="pirate")
        base = text_of()
        assert pirate != base
        assert text_of(lora=[pb.LoraUse(id="pirate")]) == pirate
        assert text_of(lora=[pb.LoraUse(id="pirate", scale=1)]) == pirate
        assert text_of(lora=[pb.LoraUse(id="pirate", scale=0)]) == base
        models = {m.id: m for m in self.stub.ListModels(pb.ListModelsRequest()).data}
        assert models["pirate"].parent and models["pirate"].root.endswith("pirate")
        loaded = self.stub.LoadLoraAdapter(pb.LoadLoraAdapterRequest(lora_name="copy", lora_path="pirate"))
        assert loaded.message == "Success: LoRA adapter 'copy' added successfully."
        assert text_of(model="copy") == pirate
        code, details = code_of(lambda: self.stub.LoadLoraAdapter(
            pb.LoadLoraAdapterRequest(lora_name="other", lora_path="/etc")))
        assert code == grpc.StatusCode.PERMISSION_DENIED and "--lora-dir" in details, details
        self.stub.UnloadLoraAdapter(pb.UnloadLoraAdapterRequest(lora_name="copy"))
        assert code_of(lambda: text_of(model="copy"))[0] == grpc.StatusCode.NOT_FOUND
        (upper,) = self.stub.ListLoraScales(pb.ListLoraScalesRequest()).adapters
        assert upper.name == "upper" and upper.scale == 0
        scale = pb.SetLoraScalesRequest.Scale(id=upper.id, scale=1)
        assert self.stub.SetLoraScales(pb.SetLoraScalesRequest(adapters=[scale])).success
        assert text_of() == text_of(model="upper") != base
        assert self.stub.SetLoraScales(pb.SetLoraScalesRequest()).success
        assert text_of() == base

    def test_branches_are_named_in_the_stream_and_are_those_of_http(self):
        custom = dict(fork_at=".", items=r"\bt[a-z]+", header=" The {id}", branch_end=".", join="concurrent",
                      after="\n", tail="\nSo")
        fields = dict(prompt="Once upon a time there was a small robot who", max_tokens=90, temperature=0, ignore_eos=True)
        limits = dict(format="custom", max_depth=1, max_branches=4, max_branch_tokens=16, max_total_tokens=1000)
        parallel = self.pb.Parallel(**limits, custom=self.pb.Parallel.Custom(**custom))
        chunks = list(self.stub.Generate(self.pb.GenerateRequest(**fields, parallel=parallel)))
        texts = {}
        for choice in (c.choices[0] for c in chunks if c.choices):
            texts[choice.branch] = texts.get(choice.branch, "") + choice.text
        status, _, text = self.server.request("POST", "/v1/completions", {
            **fields, "parallel": {**limits, "custom": custom}})
        assert status == 200, text
        whole = json.loads(text)
        assert sorted("".join(texts.values())) == sorted(whole["choices"][0]["text"]), texts
        details = chunks[-1].usage.completion_tokens_details
        expected = whole["usage"]["completion_tokens_details"]
        assert details.branches == expected["branches"] > 0
        assert details.critical_path_tokens == expected["critical_path_tokens"]
        assert len(texts) >= details.branches, texts
        parallel.max_branches = 1000
        code, message = code_of(lambda: list(self.stub.Generate(self.pb.GenerateRequest(**fields, parallel=parallel))))
        assert code == grpc.StatusCode.INVALID_ARGUMENT and message.startswith("parallel.max_branches"), message

    def test_searches_and_beams_come_at_their_end(self):
        message = dict(role="user", content="What is 3 + 4?")
        search = self.pb.Search(answer=r"= (\d+)\.", samples=8)
        chunks = list(self.stub.Chat(self.pb.ChatRequest(
            messages=[self.pb.ChatMessage(**message)], temperature=0.2, seed=1, max_tokens=40, search=search)))
        assert "".join(c.choices[0].delta.content for c in chunks if c.choices) == "3 + 4 = 7."
        details = chunks[-1].usage.completion_tokens_details
        assert details.votes == details.samples == 4 and details.saved_tokens > 0, details
        beams = dict(use_beam_search=True, beam_width=4, n=2, max_tokens=12)
        _, _, text = self.server.request("POST", "/v1/chat/completions", {"messages": [message], **beams})
        expected = [choice["message"]["content"] for choice in json.loads(text)["choices"]]
        got = ["", ""]
        for chunk in self.stub.Chat(self.pb.ChatRequest(messages=[self.pb.ChatMessage(**message)], **beams)):
            for choice in chunk.choices:
                got[choice.index] += choice.delta.content
        assert got == expected, (got, expected)

    def test_a_seed_of_64_bits_repeats(self):
        request = self.pb.GenerateRequest(prompt="Once", max_tokens=12, seed=2**63 + 5, temperature=1)
        texts = {
            "".join(c.choices[0].text for c in self.stub.Generate(request) if c.choices)
            for _ in range(3)
        }
        assert len(texts) == 1

    def test_tools_and_json_fields_arrive(self):
        function = self.pb.Function(
            name="get_weather",
            description="Weather of a city",
            parameters_json=json.dumps(
                {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
            ),
        )
        request = self.pb.ChatRequest(
            messages=[self.pb.ChatMessage(role="user", content="What is the weather in Paris?")],
            tools=[self.pb.Tool(type="function", function=function)],
            temperature=0,
        )
        calls = [
            call
            for chunk in self.stub.Chat(request)
            for choice in chunk.choices
            for call in choice.delta.tool_calls
        ]
        if calls:  # the demo model decides; what it calls must be whole
            assert calls[0].function.name == "get_weather" and calls[0].id
            json.loads("".join(c.function.arguments for c in calls))
        function.parameters_json = "{broken"
        request.tools[0].function.CopyFrom(function)
        code, details = code_of(lambda: list(self.stub.Chat(request)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "parameters_json" in details

    def test_an_answer_of_a_given_form(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        request = self.pb.ChatRequest(
            messages=[self.pb.ChatMessage(role="user", content="How many?")],
            response_format_json=json.dumps(form), temperature=1, seed=5, max_tokens=100,
        )
        text = "".join(c.delta.content for chunk in self.stub.Chat(request) for c in chunk.choices)
        assert isinstance(json.loads(text)["n"], int), text
        generate = self.pb.GenerateRequest(prompt="I say", temperature=1, max_tokens=50)
        generate.extra.update({"guided_regex": "[a-f]{3}-[0-9]"})
        text = "".join(c.text for chunk in self.stub.Generate(generate) for c in chunk.choices)
        assert re.fullmatch("[a-f]{3}-[0-9]", text), text
        schema["properties"]["n"]["not"] = {}
        request.response_format_json = json.dumps(form)
        code, details = code_of(lambda: list(self.stub.Chat(request)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "#/properties/n" in details, details

    def test_errors_are_statuses_that_name_the_field(self):
        generate = lambda **f: code_of(lambda: list(self.stub.Generate(self.pb.GenerateRequest(**f))))
        code, details = generate(prompt="a", temperature=-1)
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "temperature" in details, details
        code, details = generate(prompt="a", model="other")
        assert code == grpc.StatusCode.NOT_FOUND and "other" in details, details
        code, details = generate()
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "prompt" in details, details

    def test_extra_carries_other_fields(self):
        request = self.pb.GenerateRequest(prompt="a", max_tokens=1)
        request.extra.update({"temperature": "hot"})
        code, details = code_of(lambda: list(self.stub.Generate(request)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "temperature" in details, details

    def running(self):
        stats = self.stub.GetStats(self.pb.GetStatsRequest())
        return stats.running_sequences + stats.waiting_requests

    def wait_for_idle(self):
        deadline = time.monotonic() + 10
        while self.running() > 0:
            assert time.monotonic() < deadline, "a cancelled call still runs"
            time.sleep(0.01)

    def long_request(self):
        return self.pb.GenerateRequest(prompt="Once", max_tokens=1900, ignore_eos=True)

    def test_cancelling_a_call_frees_what_it_held(self):
        call = self.stub.Generate(self.long_request())
        next(call)
        assert self.running() == 1
        call.cancel()
        self.wait_for_idle()

    def test_a_deadline_ends_a_call(self):
        code, _ = code_of(lambda: list(self.stub.Generate(self.long_request(), timeout=0.15)))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED, code
        self.wait_for_idle()

    def test_many_calls_at_once_equal_one_alone(self):
        def generate(i):
            request = self.pb.GenerateRequest(prompt=f"Count {i}", max_tokens=24, temperature=0)
            return "".join(c.choices[0].text for c in self.stub.Generate(request) if c.choices)

        alone = [generate(i) for i in range(16)]
        together = [None] * 16

        def run(i):
            together[i] = generate(i)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert together == alone

    def test_models_and_stats(self):
        models = self.stub.ListModels(self.pb.ListModelsRequest()).data
        assert [m.id for m in models if not m.parent] == ["model"], models
        stats = self.stub.GetStats(self.pb.GetStatsRequest())
        assert stats.state == self.pb.GetStatsResponse.STATE_SERVING
        assert stats.pages_total > 0 and stats.generated_tokens > 0
        shown = json.loads(self.server.request("GET", "/debug/stats")[2])
        for name in ("pages.swapped_out", "forced_tokens", "pages.host_total", "step_seconds.swap"):
            member = shown
            for part in name.split("."):
                member = member[part]
            assert stats.figures[name] == member, name
        assert stats.figures["generated_tokens"] == stats.generated_tokens

    def test_open_inference_protocol(self):
        assert self.open.ServerLive(self.oip.ServerLiveRequest()).live
        assert self.open.ServerReady(self.oip.ServerReadyRequest()).ready
        assert self.open.ModelReady(self.oip.ModelReadyRequest(name="model")).ready
        assert not self.open.ModelReady(self.oip.ModelReadyRequest(name="other")).ready
        metadata = self.open.ModelMetadata(self.oip.ModelMetadataRequest(name="model"))
        assert [t.name for t in metadata.inputs] == ["text_input"]
        texts = [b"The sky is", b"Count to three:"]
        request = self.oip.ModelInferRequest(model_name="model", id="seven")
        tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[2])
        request.parameters["max_tokens"].int64_param = 6
        request.parameters["temperature"].double_param = 0
        raw = self.oip.ModelInferRequest()
        raw.CopyFrom(request)
        raw.raw_input_contents.append(b"".join(len(t).to_bytes(4, "little") + t for t in texts))
        tensor.contents.bytes_contents.extend(texts)
        answer = self.open.ModelInfer(request)
        assert answer.id == "seven" and list(answer.outputs[0].shape) == [2]
        raw_answer = self.open.ModelInfer(raw)  # the content comes as the input's did
        packed = b"".join(len(t).to_bytes(4, "little") + t for t in answer.outputs[0].contents.bytes_contents)
        assert list(raw_answer.raw_output_contents) == [packed] and not raw_answer.outputs[0].HasField("contents")
        _, _, http = self.server.request(
            "POST",
            "/v1/completions",
            {"prompt": [t.decode() for t in texts], "max_tokens": 6, "temperature": 0},
        )
        expected = [c["text"].encode() for c in json.loads(http)["choices"]]
        assert list(answer.outputs[0].contents.bytes_contents) == expected
        raw.raw_input_contents[0] = b"\x09\x00\x00"
        code, details = code_of(lambda: self.open.ModelInfer(raw))
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "raw_input_contents" in details
        tensor = request.inputs[0]
        tensor.contents.bytes_contents[1] = b"\xff\xfe"
        code, details = code_of(lambda: self.open.ModelInfer(request))
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "element 1" in details

    def infer_request(self, text, request_id, **parameters):
        request = self.oip.ModelInferRequest(model_name="model", id=request_id)
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text)
        for name, value in {"max_tokens": 6, "temperature": 0, **parameters}.items():
            field = "bool_param" if isinstance(value, bool) else "int64_param"
            setattr(request.parameters[name], field, value)
        return request

    def test_requests_of_one_call_are_answered_in_their_order(self):
        requests = [self.infer_request(b"The sky is", "1"), self.infer_request(b"\xff", "2"),
                    self.infer_request(b"The sky is", "3", stream=True, triton_enable_empty_final_response=True),
                    self.infer_request(b"x", "4", max_tokens=-7), self.infer_request(b"The sky is", "5")]
        answers = list(self.open.ModelStreamInfer(iter(requests)))
        ids = [answer.infer_response.id for answer in answers]
        assert ids == sorted(ids) and set(ids) == {"1", "2", "3", "4", "5"}, ids
        text = {i: b"".join(b for a in answers if a.infer_response.id == i for o in a.infer_response.outputs
                            for b in o.contents.bytes_contents) for i in ids}
        expected = self.open.ModelInfer(requests[0]).outputs[0].contents.bytes_contents[0]
        assert text["1"] == text["3"] == text["5"] == expected
        errors = {a.infer_response.id: a.error_message for a in answers if a.error_message}
        assert set(errors) == {"2", "4"} and "UTF-8" in errors["2"] and "max_tokens" in errors["4"], errors
        streamed = [a.infer_response for a in answers if a.infer_response.id == "3"]
        assert len(streamed) > 2 and streamed[0].parameters["index"].int64_param == 0
        assert streamed[-1].parameters["triton_final_response"].bool_param and not streamed[-1].outputs
        # Only the request that asked for it gets a message more.
        marked = [a.infer_response.id for a in answers if "triton_final_response" in a.infer_response.parameters]
        assert marked == ["3"], marked
        assert list(self.open.ModelStreamInfer(iter([]))) == []

    def test_a_call_of_many_requests_can_be_left(self):
        call = self.open.ModelStreamInfer(
            iter([self.infer_request(b"x", "1", max_tokens=100000, stream=True, ignore_eos=True)]))
        next(call)
        call.cancel()
        self.wait_for_idle()

    def test_health_and_reflection(self):
        health = health_pb2_grpc.HealthStub(self.channel)
        status = health.Check(health_pb2.HealthCheckRequest()).status
        assert status == health_pb2.HealthCheckResponse.SERVING
        reflection = ProtoReflectionDescriptorDatabase(self.channel)
        services = reflection.get_services()
        assert "heddle.v1.Inference" in services and "inference.GRPCInferenceService" in services
        for name in services:  # what is listed can be described
            reflection.FindFileContainingSymbol(name)
        pool = descriptor_pool.DescriptorPool(reflection)
        ours = pool.FindServiceByName("grpc.health.v1.Health")
        theirs = health_pb2.DESCRIPTOR.services_by_name["Health"]
        for method in ours.methods:
            same = theirs.methods_by_name[method.name]
            assert method.server_streaming == same.server_streaming
            for mine, known in ((method.input_type, same.input_type), (method.output_type, same.output_type)):
                fields = [[(f.name, f.number, f.type) for f in m.fields] for m in (mine, known)]
                assert mine.full_name == known.full_name and fields[0] == fields[1], fields
        statuses = [pool.FindEnumTypeByName("grpc.health.v1.HealthCheckResponse.ServingStatus"),
                    health_pb2.HealthCheckResponse.ServingStatus.DESCRIPTOR]
        statuses = [[(v.name, v.number) for v in s.values] for s in statuses]
        assert statuses[0] == statuses[1], statuses


def grpc_port(server):
    for line in server.log:
        if line.startswith("gRPC"):
            return int(line.rsplit(":", 1)[1])
    raise RuntimeError("no gRPC line:\n" + "\n".join(server.log))


def test_keys_are_asked_for(stubs):
    with Server("--grpc-port", "0", "--api-key", "secret") as server:
        time.sleep(0.1)
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port(server)}") as channel:
            stub, pb = stubs[1].InferenceStub(channel), stubs[0]
            request = pb.GenerateRequest(prompt="a", max_tokens=1)
            code, _ = code_of(lambda: list(stub.Generate(request)))
            assert code == grpc.StatusCode.UNAUTHENTICATED, code
            with_key = [("authorization", "Bearer secret")]
            assert list(stub.Generate(request, metadata=with_key))


def test_a_drain_finishes_the_calls_in_progress(stubs):
    with Server("--grpc-port", "0", "--served-model-name", "model") as server:
        time.sleep(0.1)
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port(server)}") as channel:
            stub, pb = stubs[1].InferenceStub(channel), stubs[0]
            call = stub.Generate(pb.GenerateRequest(prompt="Once", max_tokens=400, ignore_eos=True))
            next(call)
            results = []
            thread = threading.Thread(target=lambda: results.append(server.stop()))
            thread.start()
            chunks = list(call)
            thread.join()
            assert chunks[-1].usage.completion_tokens == 400
            assert results == [0], results


def slow_link(port, bytes_a_second):
    """The port of a proxy of one connection to `port`, whose client gets that many bytes a second."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source, target, pause):
        is_open = True
        while chunk := source.recv(4096):
            try:
                if is_open:
                    target.sendall(chunk)
            except OSError:
                is_open = False  # reads on: a socket closed with bytes unread loses what it is to send
            time.sleep(pause)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve():
        client, _ = listener.accept()
        with listener, client, socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            server.connect(("127.0.0.1", port))
            up = threading.Thread(target=pump, args=(client, server, 0))
            up.start()
            pump(server, client, 4096 / bytes_a_second)
            up.join()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def test_a_drain_waits_for_bytes_on_their_way(stubs):
    with Server("--grpc-port", "0", "--served-model-name", "model") as server:
        time.sleep(0.1)
        port = slow_link(grpc_port(server), 400_000)
        window = [("grpc.http2.lookahead_bytes", 4 << 20)]  # all is sent at once
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=window) as channel:
            stub, pb = stubs[1].InferenceStub(channel), stubs[0]
            call = stub.Generate(pb.GenerateRequest(prompt="Once", max_tokens=400, ignore_eos=True, logprobs=20))
            next(call)
            server.process.send_signal(signal.SIGTERM)
            chunks = list(call)
            assert chunks[-1].usage.completion_tokens == 400
            assert sum(chunk.ByteSize() for chunk in chunks) > 100_000, len(chunks)
            assert server.process.wait(timeout=30) == 0


def test_a_server_that_leaves_says_so_and_still_serves(stubs):
    with Server("--grpc-port", "0", "--served-model-name", "model", "--drain-delay", "60") as server:
        time.sleep(0.1)
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port(server)}") as channel:
            stub, pb = stubs[1].InferenceStub(channel), stubs[0]
            health = health_pb2_grpc.HealthStub(channel)

            def status():
                return health.Check(health_pb2.HealthCheckRequest()).status

            assert status() == health_pb2.HealthCheckResponse.SERVING
            server.process.send_signal(signal.SIGTERM)
            assert wait_until(lambda: status() == health_pb2.HealthCheckResponse.NOT_SERVING)
            assert list(stub.Generate(pb.GenerateRequest(prompt="Once", max_tokens=2)))
            assert server.stop() == 128 + signal.SIGTERM  # the second one waits for nothing


def make_certificate(folder, name):
    """A self-signed certificate of 127.0.0.1: replaces cert.pem and key.pem, returns the former's bytes."""
    new = [str(folder / f"{name}.{part}.new") for part in ("cert", "key")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-out", new[0], "-keyout", new[1]],
        check=True, stderr=subprocess.DEVNULL)
    for path, place in zip(new, ("cert.pem", "key.pem")):
        pathlib.Path(path).replace(folder / place)
    return (folder / "cert.pem").read_bytes()


def test_a_new_certificate_is_served_without_a_restart(stubs):
    def served(port, root):
        """Whether a client that trusts `root` alone is answered."""
        credentials = grpc.ssl_channel_credentials(root)
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            stub, pb = stubs[1].InferenceStub(channel), stubs[0]
            code, _ = code_of(lambda: stub.ListModels(pb.ListModelsRequest(), timeout=5))
            return code == grpc.StatusCode.OK

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first = make_certificate(folder, "first")
        files = ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
        with Server("--grpc-port", "0", *files) as server:
            time.sleep(0.1)
            port = grpc_port(server)
            assert served(port, first)
            second = make_certificate(folder, "second")
            # gRPC looks at the files every ten seconds.
            assert wait_until(lambda: served(port, second) or time.sleep(0.5), 40)
            assert not served(port, first)


def main():
    with tempfile.TemporaryDirectory() as folder:
        stubs = make_stubs(folder)
        adapters = DEMO_MODEL / "adapters"
        with Server("--grpc-port", "0", "--served-model-name", "model", "--lora", f"upper={adapters / 'upper'}",
                    "--lora-dir", str(adapters), "--allow-lora-updates") as server:
            time.sleep(0.1)
            with grpc.insecure_channel(f"127.0.0.1:{grpc_port(server)}") as channel:
                suite = Suite(server, channel, stubs)
                for name in [n for n in dir(suite) if n.startswith("test_")]:
                    getattr(suite, name)()
                    print("passed:", name)
        for test in (test_keys_are_asked_for, test_a_drain_finishes_the_calls_in_progress,
                     test_a_drain_waits_for_bytes_on_their_way, test_a_server_that_leaves_says_so_and_still_serves,
                     test_a_new_certificate_is_served_without_a_restart):
            test(stubs)
            print("passed:", test.__name__)


if __name__ == "__main__":
    main()
