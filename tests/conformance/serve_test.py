"""The daemon as a user meets it: starts it with the demo model and watches it from outside."""

import concurrent.futures
import contextlib
import errno
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from heddle_server import BINARY, DEMO_MODEL, Server, wait_until

STORY = "Once upon a time"
TRAINED_HERE = pathlib.Path(__file__).resolve().parents[1] / "demo_model"


def mixed_prompts(count):
    """Prompts of very different lengths."""
    words = "the little red heddle lifts one thread and then another while the river sings".split()
    return [
        STORY + " " + " ".join(words[(i + j) % len(words)] for j in range((i * 7) % 90))
        for i in range(count)
    ]


class WelcomeTest(unittest.TestCase):
    def first_request(self, server):
        """Path and body of the request that the start-up lines propose."""
        lines = "\n".join(server.log)
        found = re.search(r"curl (http://127\.0\.0\.1:\d+)(/\S+) .*\\\n +-d '(.*)'", lines)
        self.assertTrue(found, lines)
        self.assertEqual(found.group(1), server.base_url)
        return found.group(2), json.loads(found.group(3))

    def answered(self, server, path, body):
        status, _, text = server.request("POST", path, body)
        self.assertEqual(status, 200, text)
        return json.loads(text)["choices"][0]

    def test_the_proposed_request_is_a_chat_that_the_model_answers(self):
        with Server() as server:
            self.assertTrue(wait_until(lambda: any("-d '" in line for line in server.log)))
            path, body = self.first_request(server)
            self.assertEqual(path, "/v1/chat/completions")
            choice = self.answered(server, path, {**body, "temperature": 0})
            self.assertIn("12", choice["message"]["content"])

    def test_without_a_chat_template_it_is_a_completion(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in DEMO_MODEL.iterdir():
                pathlib.Path(folder, file.name).symlink_to(file)
            settings = json.loads((DEMO_MODEL / "tokenizer_config.json").read_text())
            del settings["chat_template"]
            pathlib.Path(folder, "tokenizer_config.json").unlink()
            pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(settings))
            with Server(model=folder) as server:
                self.assertTrue(wait_until(lambda: any("-d '" in line for line in server.log)))
                self.assertIn("no chat template", "\n".join(server.log))
                path, body = self.first_request(server)
                self.assertEqual(path, "/v1/completions")
                self.assertGreater(len(self.answered(server, path, body)["text"]), 10)
                status, _, text = server.request("POST", "/v1/chat/completions", {
                    "messages": [{"role": "user", "content": "Hello"}]})
                self.assertEqual(status, 400, text)

    def test_a_port_that_is_taken_is_said_with_what_to_do(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            done = subprocess.run([BINARY, "serve", "demo", "--port", str(port)], capture_output=True, text=True,
                                  timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertRegex(done.stderr, f"port {port}.*--port")

    def test_on_every_address_the_proposed_request_is_for_this_machine(self):
        with Server("--host", "0.0.0.0") as server:
            self.assertTrue(wait_until(lambda: any("-d '" in line for line in server.log)))
            path, body = self.first_request(server)
            self.answered(server, path, body)

    def test_demo_is_served_under_its_name(self):
        with Server(model="demo") as server:
            models = json.loads(server.request("GET", "/v1/models")[2])["data"]
            self.assertEqual([model["id"] for model in models], ["heddle-demo"])


class DrafterTest(unittest.TestCase):
    def test_trained_networks_guess_most_tokens_right_and_change_none(self):
        questions = ["Tell me a story about a fox.", "Count from one to ten.", "Say a rhyme.", "Who are you?"]

        def answers(server):
            texts = []
            for question in questions:
                body = {"messages": [{"role": "user", "content": question}], "max_tokens": 120, "temperature": 0}
                status, _, text = server.request("POST", "/v1/chat/completions", body)
                self.assertEqual(status, 200, text)
                texts.append(json.loads(text)["choices"][0]["message"]["content"])
            return texts

        with Server("--speculate", "off") as server:
            plain = answers(server)
        for kind in ("draft", "eagle", "dflash"):
            with self.subTest(kind), Server("--speculate", f"{kind}:{TRAINED_HERE / kind}") as server:
                self.assertEqual(answers(server), plain)
                drafted = server.metric("heddle_spec_decode_draft_tokens_total")
                self.assertGreater(drafted, 0)  # how many depends on measured times
                self.assertGreater(server.metric("heddle_spec_decode_accepted_tokens_total"), drafted / 2)


class ConcurrencyTest(unittest.TestCase):
    def test_32_streams_return_what_each_returns_alone(self):
        fields = {"max_tokens": 40, "ignore_eos": True, "logprobs": 0}
        with Server("--max-batch-tokens", "64", "--max-batch-seqs", "48") as server:
            prompts = mixed_prompts(32)
            requests = [
                {"prompt": p, "seed": i, "temperature": 0.0 if i % 2 else 0.8, **fields}
                for i, p in enumerate(prompts)
            ]

            def tokens_of(request):
                events = list(server.stream("/v1/completions", request))
                self.assertEqual(events[-1], "[DONE]")
                choices = [c for e in events[:-1] for c in e["choices"]]
                tokens = [t for c in choices if c.get("logprobs") for t in c["logprobs"]["tokens"]]
                logprobs = [
                    p for c in choices if c.get("logprobs") for p in c["logprobs"]["token_logprobs"]
                ]
                return "".join(c["text"] for c in choices), tokens, logprobs

            alone = [tokens_of(request) for request in requests]
            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                together = list(pool.map(tokens_of, requests))
            for one, other in zip(alone, together):
                self.assertEqual(len(one[1]), 40)
                self.assertEqual(one, other)  # text, tokens and logprobs, to the last digit
            self.assertEqual(server.metric("heddle_orphaned_requests"), 0)

    def test_a_pool_too_small_for_all_changes_no_token(self):
        # 32 sequences of up to 250 tokens in a pool of some 1,000: preemptions must happen.
        prompts = mixed_prompts(32)
        request = {"max_tokens": 120, "ignore_eos": True, "temperature": 0}
        with Server() as server:
            expected = [server.complete(p, **request)["choices"][0]["text"] for p in prompts]
        with Server("--kv-memory", "3MiB") as server:
            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                texts = list(
                    pool.map(lambda p: server.complete(p, **request)["choices"][0]["text"], prompts)
                )
            self.assertEqual(texts, expected)
            self.assertGreater(server.metric("heddle_preemptions_total"), 0)


class DisconnectTest(unittest.TestCase):
    def test_a_closed_connection_frees_its_pages(self):
        body = {"prompt": STORY, "max_tokens": 1500, "ignore_eos": True}
        with Server() as server:
            for stream in (True, False):
                payload = json.dumps({**body, "stream": stream}).encode()
                head = (
                    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(payload)}\r\n\r\n"
                )
                connection = socket.create_connection(("127.0.0.1", server.port))
                connection.sendall(head.encode() + payload)
                self.assertTrue(wait_until(lambda: server.metric("heddle_running_sequences") == 1))
                connection.close()
                self.assertTrue(wait_until(lambda: server.metric("heddle_running_sequences") == 0))
                self.assertEqual(server.metric("heddle_orphaned_requests"), 0)
            # The server goes on.
            self.assertTrue(server.complete(STORY, max_tokens=4)["choices"][0]["text"])


def open_once_it_is_read(fifo):
    """A descriptor that writes to a FIFO, as soon as another process has opened it to read."""
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            time.sleep(0.01)


class ShutdownTest(unittest.TestCase):
    def test_sigterm_finishes_what_runs_and_exits_with_0(self):
        with Server() as server:
            events = server.stream(
                "/v1/completions", {"prompt": STORY, "max_tokens": 300, "ignore_eos": True}
            )
            first = next(events)
            server.process.send_signal(signal.SIGTERM)
            rest = list(events)
            self.assertEqual(rest[-1], "[DONE]")
            reasons = [c["finish_reason"] for e in [first] + rest[:-1] for c in e["choices"]]
            self.assertEqual([r for r in reasons if r], ["length"])
            self.assertEqual(server.process.wait(30), 0)

    def test_a_server_that_leaves_is_not_ready_and_still_serves(self):
        with Server("--drain-delay", "60") as server:
            kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            kept.request("GET", "/ready")
            response = kept.getresponse()
            self.assertEqual((response.status, response.will_close), (200, False))
            response.read()
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(wait_until(lambda: server.request("GET", "/ready")[0] == 503))
            self.assertEqual(server.request("GET", "/health")[0], 200)
            self.assertTrue(server.complete(STORY, max_tokens=4)["choices"][0]["text"])
            # A client with a connection is told to make a new one, which finds another server.
            kept.request("GET", "/health")
            response = kept.getresponse()
            self.assertEqual((response.status, response.will_close), (200, True))
            response.read()
            # Whoever does not want to wait sends the signal again.
            self.assertEqual(server.stop(timeout=30), 128 + signal.SIGTERM)

    def test_the_drain_delay_ends_by_itself(self):
        with Server("--drain-delay", "0.5") as server:
            begin = time.monotonic()
            self.assertEqual(server.stop(timeout=30), 0)
            self.assertGreater(time.monotonic() - begin, 0.5)

    def test_the_drain_timeout_bounds_the_wait(self):
        with Server("--drain-timeout", "1") as server:
            # More than any machine does in a second.
            events = server.stream(
                "/v1/completions",
                {"prompt": STORY, "max_tokens": 1900, "ignore_eos": True, "n": 128},
            )
            next(events)
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            # A stream that is cut off says so.
            errors = [event["error"] for event in events if "error" in event]
            self.assertIn("ended this request", errors[0]["message"])
            self.assertEqual(server.process.wait(30), 0)
            self.assertLess(time.monotonic() - begin, 10)

    def test_a_signal_ends_a_server_that_is_still_loading(self):
        with tempfile.TemporaryDirectory() as folder:
            template = pathlib.Path(folder, "template.jinja")
            os.mkfifo(template)  # nobody writes to it: loading takes forever
            process = subprocess.Popen(
                [str(BINARY), "serve", str(DEMO_MODEL), "--port", "0", "--chat-template", template],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            writer = open_once_it_is_read(template)
            try:
                process.send_signal(signal.SIGTERM)
                _, log = process.communicate(timeout=30)
                self.assertEqual(process.returncode, 128 + signal.SIGTERM)
                self.assertIn("loading", log)
            finally:
                process.kill()
                os.close(writer)

    def test_ctrl_c_ends_an_idle_server_with_0(self):
        with Server() as server:
            self.assertEqual(server.stop(signal.SIGINT, timeout=10), 0)


class StandardStreamsTest(unittest.TestCase):
    def test_closed_ones_are_never_taken_by_anything_else(self):
        # gRPC's library opens a descriptor before the program begins.
        for closed in ("0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"):
            with self.subTest(closed=closed):
                process = subprocess.Popen(
                    ["sh", "-c", f'exec "$0" serve "$1" --port 0 {closed}', str(BINARY), str(DEMO_MODEL)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                try:
                    listens = lambda: any("socket:" in target for target in self.descriptors(process.pid))
                    self.assertTrue(wait_until(listens))
                    self.assertEqual(self.descriptors(process.pid)[:3], ["/dev/null"] * 3)
                finally:
                    process.kill()
                    process.wait()

    def descriptors(self, pid):
        folder = f"/proc/{pid}/fd"
        targets = []
        for name in sorted(os.listdir(folder), key=int):
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                targets.append(os.readlink(f"{folder}/{name}"))
        return targets


class GenerateTest(unittest.TestCase):
    def test_a_length_of_minus_one_is_the_rest_of_the_context_as_in_the_api(self):
        result = subprocess.run([str(BINARY), "generate", str(DEMO_MODEL), "--prompt", STORY, "--max-tokens", "-1",
                                 "--max-context", "60", "--ignore-eos", "--json"],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        answer = json.loads(result.stdout)
        self.assertEqual(sum(len(value) for key, value in answer.items() if key in ("prompt_ids", "ids")), 60, answer)


class StuckTest(unittest.TestCase):
    def test_a_step_that_does_not_end_is_an_error_and_exit_status_1(self):
        # Any step is too long for this limit, and some step is under way whenever it is looked at.
        with Server("--stuck-timeout", "0.0001") as server:
            events = server.stream(
                "/v1/completions",
                {"prompt": STORY, "max_tokens": 1900, "ignore_eos": True, "n": 128},
            )
            errors = [event["error"] for event in events if "error" in event]
            self.assertIn("has not ended", errors[0]["message"])
            self.assertEqual(server.process.wait(30), 1)
        self.assertIn("the engine has failed", "\n".join(server.log))


class HealthCommandTest(unittest.TestCase):
    def asks(self, port):
        return subprocess.run([str(BINARY), "health", "--url", f"http://127.0.0.1:{port}"],
                              capture_output=True, text=True, timeout=60)

    def test_it_ends_with_0_while_the_server_is_well(self):
        with Server() as server:
            result = self.asks(server.port)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "ok\n", ""))
        result = self.asks(server.port)  # nobody is there any more
        self.assertEqual(result.returncode, 1)
        self.assertIn("no answer from 127.0.0.1", result.stderr)


class DocumentTest(unittest.TestCase):
    def test_what_is_read_is_what_the_document_says(self):
        kinds = {"array": list, "object": dict}
        read = []
        with Server() as server:
            document = json.loads(server.request("GET", "/openapi.json")[2])
            for path, operations in document["paths"].items():
                answers = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
                schema = answers.get("application/json", {}).get("schema")
                if schema is None or "{" in path:
                    continue
                status, _, text = server.request("GET", path)
                if status == 501:
                    continue  # the route needs an option
                self.assertEqual(status, 200, path)
                answer = json.loads(text)
                self.assertIsInstance(answer, kinds[schema["type"]], path)
                for part in answer if schema["type"] == "array" else [answer]:
                    self.assertLessEqual(set(schema.get("items", schema).get("required", [])), set(part), path)
                read.append(path)
        self.assertLessEqual({"/slots", "/props", "/v1/models", "/api/tags", "/v2"}, set(read))


class LogTest(unittest.TestCase):
    def test_probes_are_not_in_the_log_unless_they_fail(self):
        with Server() as server:
            for path in ("/health", "/ready", "/metrics", "/v1/models"):
                self.assertEqual(server.request("GET", path)[0], 200)
            server.stop()
        paths = re.findall(r" request .*path=(\S+)", "\n".join(server.log))
        self.assertEqual(paths, ["/v1/models"])


    def test_in_json_every_line_is_an_object(self):
        with Server("--log-format", "json", "--drain-delay", "0.1") as server:
            server.complete(STORY, max_tokens=4)
            server.stop()
        lines = [json.loads(line) for line in server.log]
        messages = [line["message"] for line in lines]
        messages.remove("request")  # its line comes when the server hears that the answer has been sent
        self.assertEqual(messages,
                         ["tokens are guessed ahead where it pays", "serving", "shutting down",
                          "leaving: /ready says so, requests are still served",
                          "draining: no new requests, finishing what runs"])
        self.assertEqual(lines[1]["url"], server.base_url)


class StartTest(unittest.TestCase):
    def fails(self, *arguments):
        result = subprocess.run([str(BINARY), *arguments], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(result.returncode, 0)
        self.assertGreater(result.returncode, 0)  # not killed by a signal
        return result.stderr

    def test_errors_at_start_name_the_thing(self):
        self.assertIn("/no/such/model", self.fails("serve", "/no/such/model"))
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("config.json", self.fails("serve", folder))
        self.assertIn("--port", self.fails("serve", str(DEMO_MODEL), "--prot", "1"))
        self.assertIn("isa", self.fails("serve", str(DEMO_MODEL), "--isa", "sse9"))
        self.assertIn("max-context", self.fails("serve", str(DEMO_MODEL), "--max-context", "99999999"))

    def test_a_port_in_use_is_said_before_the_model_is_loaded(self):
        with Server() as server, tempfile.TemporaryDirectory() as folder:
            template = pathlib.Path(folder, "template.jinja")
            os.mkfifo(template)  # nobody writes to it: loading takes forever
            for flags in (["--port", str(server.port)],
                          ["--port", "0", "--grpc-port", str(server.port)]):
                error = self.fails(
                    "serve", str(DEMO_MODEL), "--chat-template", str(template), *flags
                )
                self.assertIn(f"port {server.port}: Address already in use", error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
