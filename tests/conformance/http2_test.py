#!/usr/bin/env python3
"""HTTP/2 from outside: curl and httpx with prior knowledge and over TLS, many streams, streams that are paused,
and clients that attack: streams taken back, floods of frames that carry nothing, header bombs, windows that stay shut.

    http2_test.py --start PROGRAM

PROGRAM is the server with the scripted engine (tests/server/fake_server.cc). Exits 77 without the Python package h2.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
import unittest

try:
    import h2.config
    import h2.connection
    import h2.events
    import h2.settings
except ImportError:
    print("SKIPPED: needs the Python package h2")
    sys.exit(77)

PORT = None
SCALE = float(os.environ.get("HEDDLE_TIMEOUT_SCALE", "1"))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def metric(name, label=""):
    with socket.create_connection(("127.0.0.1", PORT), 10) as raw:
        raw.sendall(b"GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        text = b""
        while part := raw.recv(1 << 16):
            text += part
    found = re.findall(rf"^{name}\{{[^}}]*{label}[^}}]*\}} (\S+)$", text.decode(), re.MULTILINE)
    return sum(float(value) for value in found)


class Client:
    """A connection whose streams are read by hand."""

    def __init__(self, window=None, **config):
        self.socket = socket.create_connection(("127.0.0.1", PORT), 20 * SCALE)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(
            client_side=True, header_encoding="utf-8", **config))
        if window is not None:
            self.h2.local_settings = h2.settings.Settings(
                client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.h2.initiate_connection()
        self.reads_windows = window is None
        self.answers = {}
        self.ended = set()
        self.reset = {}
        self.is_over = False
        self.flush()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.socket.close()

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def ask(self, method, path, body=None, headers=(), ends=True):
        stream = self.h2.get_next_available_stream_id()
        fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "t"), *headers]
        self.h2.send_headers(stream, fields, end_stream=body is None and ends)
        if body is not None:
            self.h2.send_data(stream, json.dumps(body).encode(), end_stream=ends)
        self.flush()
        return stream

    def read(self):
        data = self.socket.recv(1 << 16)
        if not data:
            self.is_over = True
            return
        for event in self.h2.receive_data(data):
            stream = getattr(event, "stream_id", None)
            answer = self.answers.setdefault(stream, {"headers": None, "body": b""})
            if isinstance(event, h2.events.ResponseReceived):
                answer["headers"] = dict(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                answer["body"] += event.data
                if self.reads_windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(stream)
            elif isinstance(event, h2.events.StreamReset):
                self.reset[stream] = event.error_code
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.is_over = True
        self.flush()

    def answer(self, stream):
        while stream not in self.ended and stream not in self.reset and not self.is_over:
            self.read()
        return self.answers[stream]


def chat(text, **fields):
    return {"model": "test-model", "messages": [{"role": "user", "content": text}], **fields}


class Requests(unittest.TestCase):
    def test_many_streams_of_one_connection(self):
        with Client() as client:
            streams = {client.ask("POST", "/v1/chat/completions", chat(f"(say)answer {i}")): i for i in range(100)}
            for stream, i in streams.items():
                answer = client.answer(stream)
                self.assertEqual(answer["headers"][":status"], "200")
                self.assertEqual(json.loads(answer["body"])["choices"][0]["message"]["content"], f"answer {i}")
            self.assertEqual(client.answers[1]["headers"]["content-type"], "application/json")
            self.assertTrue(client.answers[1]["headers"]["x-request-id"])

    def test_a_streamed_answer(self):
        with Client() as client:
            stream = client.ask("POST", "/v1/chat/completions", chat("(say)hello", stream=True))
            body = client.answer(stream)["body"].decode()
            self.assertTrue(body.endswith("data: [DONE]\n\n"))
            self.assertNotIn("content-length", client.answers[stream]["headers"])

    def test_methods_and_errors(self):
        with Client() as client:
            for method, path, status in [("GET", "/health", "200"), ("HEAD", "/health", "200"),
                                         ("GET", "/nothing", "404"), ("DELETE", "/health", "405"),
                                         ("OPTIONS", "/health", "204")]:
                answer = client.answer(client.ask(method, path))
                self.assertEqual(answer["headers"][":status"], status, path)
                if method == "HEAD":
                    self.assertEqual(answer["body"], b"")
            bad = client.answer(client.ask("POST", "/v1/completions", {"prompt": 7}))
            self.assertEqual(bad["headers"][":status"], "400")
            self.assertEqual(json.loads(bad["body"])["error"]["param"], "prompt")

    def test_large_bodies_and_those_that_are_too_large(self):
        with Client() as client:
            text = "x" * 2000000
            body = json.dumps({"content": text, "add_special_tokens": False}).encode()
            stream = client.h2.get_next_available_stream_id()
            client.h2.send_headers(stream, [(":method", "POST"), (":path", "/tokenize"), (":scheme", "http"),
                                            (":authority", "t"), ("content-length", str(len(body)))])
            while body:
                size = min(len(body), client.h2.local_flow_control_window(stream), client.h2.max_outbound_frame_size)
                if size <= 0:
                    client.flush()
                    client.read()
                    continue
                client.h2.send_data(stream, body[:size], end_stream=size == len(body))
                body = body[size:]
                client.flush()
            self.assertEqual(json.loads(client.answer(stream)["body"])["count"], len(text))
            stream = client.ask("POST", "/tokenize", headers=[("content-length", str(1 << 30))], ends=False)
            self.assertEqual(client.answer(stream)["headers"][":status"], "413")
            # The connection goes on.
            self.assertEqual(client.answer(client.ask("GET", "/health"))["headers"][":status"], "200")

    def test_a_stream_that_is_taken_back_is_cancelled(self):
        with Client() as client:
            stream = client.ask("POST", "/v1/chat/completions", chat("(long)", stream=True, max_tokens=3000))
            while not client.answers.get(stream, {}).get("body"):
                client.read()
            client.h2.reset_stream(stream)
            client.flush()
            self.assertEqual(client.answer(client.ask("GET", "/health"))["headers"][":status"], "200")
        self.assertTrue(wait_until(lambda: metric("heddle_generation_requests_total", 'outcome="cancelled"') >= 1))

    def test_curl(self):
        curl = shutil.which("curl")
        if curl is None or "HTTP2" not in subprocess.run([curl, "--version"], capture_output=True, text=True).stdout:
            self.skipTest("no curl with HTTP/2")
        run = subprocess.run([curl, "-s", "--http2-prior-knowledge", "-w", "\n%{http_version} %{http_code}",
                              f"http://127.0.0.1:{PORT}/v1/completions", "-H", "Content-Type: application/json",
                              "-d", json.dumps({"prompt": "(say)hi", "max_tokens": 8})],
                             capture_output=True, text=True, check=True, timeout=60)
        body, _, version = run.stdout.rpartition("\n")
        self.assertEqual(json.loads(body)["choices"][0]["text"], "hi")
        self.assertEqual(version, "2 200")

    def test_httpx(self):
        try:
            import httpx
        except ImportError:
            self.skipTest("no httpx")
        with httpx.Client(http1=False, http2=True, base_url=f"http://127.0.0.1:{PORT}", timeout=60) as client:
            answer = client.post("/v1/completions", json={"prompt": "(say)hi", "max_tokens": 8})
            self.assertEqual((answer.http_version, answer.json()["choices"][0]["text"]), ("HTTP/2", "hi"))
            with client.stream("POST", "/v1/completions", json={"prompt": "(say)hi", "stream": True}) as stream:
                self.assertEqual(list(stream.iter_lines())[-2], "data: [DONE]")


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds * SCALE
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def talk(payload, pieces=1, pause=0.0, seconds=20):
    """Sends raw bytes as a client and returns what came until the server closed, or None if it did not."""
    with socket.create_connection(("127.0.0.1", PORT), 10) as raw:
        raw.settimeout(seconds * SCALE)
        raw.sendall(PREFACE + frame(SETTINGS))
        received = b""
        try:
            for _ in range(pieces):
                raw.sendall(payload)
                time.sleep(pause)
            while part := raw.recv(1 << 16):
                received += part
        except (ConnectionError, BrokenPipeError):
            return received
        except TimeoutError:
            return None
        return received


# ":method: GET, :path: /health, :scheme: http, :authority: t" without compression.
def block(*more, path=b"/health"):
    fields = [(b":method", b"GET"), (b":path", path), (b":scheme", b"http"), (b":authority", b"t"), *more]
    out = b""
    for name, value in fields:
        out += b"\0" + integer(len(name), 7) + name + integer(len(value), 7) + value
    return out


def integer(number, bits):
    most = (1 << bits) - 1
    if number < most:
        return bytes([number])
    out = [most]
    number -= most
    while number >= 128:
        out.append(number % 128 + 128)
        number //= 128
    return bytes(out + [number])


class Attacks(unittest.TestCase):
    def check_cut(self, received, reason):
        self.assertIsNotNone(received, "the server did not close")
        self.assertGreaterEqual(metric("heddle_refused_total", f'reason="{reason}"'), 1)
        with Client() as client:  # others are served
            self.assertEqual(client.answer(client.ask("GET", "/health"))["headers"][":status"], "200")

    def test_rapid_reset(self):
        payload = b"".join(frame(HEADERS, 5, 2 * i + 1, block()) + frame(RST, 0, 2 * i + 1, struct.pack(">I", 8))
                           for i in range(2000))
        self.check_cut(talk(payload), "http2_resets")

    def test_resets_over_many_connections(self):
        def resets(count):
            return b"".join(frame(HEADERS, 5, 2 * i + 1, block()) + frame(RST, 0, 2 * i + 1, struct.pack(">I", 8))
                            for i in range(count))

        before = metric("heddle_refused_total", 'reason="http2_resets"')
        with contextlib.ExitStack() as open_ones:
            for _ in range(10):  # none of them resets more than one connection may
                raw = open_ones.enter_context(socket.create_connection(("127.0.0.1", PORT), 10))
                raw.sendall(PREFACE + frame(SETTINGS) + resets(250))
            # A connection that begins now has a small burst.
            self.assertTrue(wait_until(lambda: talk(resets(60), seconds=1) is not None and
                                       metric("heddle_refused_total", 'reason="http2_resets"') > before))

    def test_resets_that_the_client_makes_the_server_send(self):
        # A window update of 0 is an error of the stream (CVE-2025-8671).
        payload = b"".join(frame(HEADERS, 5, 2 * i + 1, block(path=b"/v1/models")) +
                           frame(WINDOW, 0, 2 * i + 1, struct.pack(">I", 0)) for i in range(3000))
        received = talk(payload)
        self.assertIsNotNone(received)

    def test_floods_of_frames_that_carry_nothing(self):
        floods = {
            "pings": frame(PING, 0, 0, b"12345678"),
            "settings": frame(SETTINGS),
            "priorities": frame(PRIORITY, 0, 1, struct.pack(">IB", 0, 1)),
            "empty data": frame(DATA, 0, 1),
            "windows": frame(WINDOW, 0, 0, struct.pack(">I", 1)),
        }
        for name, one in floods.items():
            with self.subTest(name):
                self.check_cut(talk(one * 20000), "http2_flood")

    def test_header_bombs(self):
        # Without an end; in too many pieces; and one that is short on the wire and long in memory.
        endless = frame(HEADERS, 1, 1, block()) + frame(CONTINUATION, 0, 1, b"\0\1a\1b" * 100) * 400
        self.check_cut(talk(endless), "http2_frame")
        pieces = frame(HEADERS, 1, 1, block()) + frame(CONTINUATION, 0, 1, b"") * 100
        self.check_cut(talk(pieces), "http2_frame")
        with Client() as client:
            stream = client.h2.get_next_available_stream_id()
            client.h2.send_headers(stream, [(":method", "GET"), (":path", "/health"), (":scheme", "http"),
                                            (":authority", "t")] + [("a", "b" * 3000)] * 300, end_stream=True)
            client.flush()
            self.assertEqual(client.answer(stream)["headers"][":status"], "431")
            self.assertEqual(client.answer(client.ask("GET", "/health"))["headers"][":status"], "200")

    def test_too_many_streams(self):
        payload = b"".join(frame(HEADERS, 4, 2 * i + 1, block(path=b"/tokenize").replace(b"GET", b"PUT"))
                           for i in range(1000))
        self.assertIsNotNone(talk(payload))

    def test_what_is_no_http2(self):
        for payload in (frame(DATA, 1, 1, b"x"), frame(HEADERS, 5, 2, block()), frame(HEADERS, 5, 1, b"\xff" * 20),
                        frame(5, 4, 1, b"x"), frame(CONTINUATION, 4, 1, b"x"), b"\xff" * 100):
            self.assertIsNotNone(talk(payload))
        with socket.create_connection(("127.0.0.1", PORT), 10) as raw:
            raw.sendall(b"PRI * HTTP/1.1\r\n\r\n")
            self.assertIn(b"400", raw.recv(100))

    def test_requests_that_smuggle(self):
        cases = [[("transfer-encoding", "chunked")], [("connection", "close")], [("Upper", "x")],
                 [("content-length", "5")], [("host", "other")], [("x", "a\r\nb: c")], [(":path", "/twice")]]
        for extra in cases:
            with self.subTest(extra), Client(validate_outbound_headers=False, normalize_outbound_headers=False) as client:
                stream = client.ask("POST", "/v1/completions", headers=extra)
                answer = client.answer(stream)
                status = (answer["headers"] or {}).get(":status")
                self.assertTrue(stream in client.reset or client.is_over or status == "400", (status, extra))

    def test_a_client_that_opens_no_window_is_behind_on_that_stream_alone(self):
        with Client(window=1000) as client:
            shut = client.ask("POST", "/v1/chat/completions", chat("(long)", stream=True, max_tokens=3000))
            time.sleep(0.3)
            open_ = client.ask("GET", "/health")
            self.assertEqual(client.answer(open_)["headers"][":status"], "200")
            self.assertLessEqual(len(client.answers[shut]["body"]), 1000)
            # The server has not computed it all for nobody, or it is cut; with windows the rest comes.
            client.h2.increment_flow_control_window(1 << 20)
            client.h2.increment_flow_control_window(1 << 20, shut)
            client.flush()
            body = client.answer(shut)["body"]
            self.assertTrue(body.endswith(b"data: [DONE]\n\n") or shut in client.reset, body[-200:])


def main():
    global PORT
    program = sys.argv[sys.argv.index("--start") + 1]
    server = subprocess.Popen([program, "--quiet"], stdout=subprocess.PIPE, text=True)
    try:
        PORT = int(server.stdout.readline().split()[-1])
        result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    finally:
        server.terminate()
        status = server.wait(30)
    sys.exit(0 if result.wasSuccessful() and status == 0 else 1)


if __name__ == "__main__":
    main()
