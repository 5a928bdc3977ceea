"""Processes that are no ranks of the group: they get no place, and are told why."""

import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))
try:
    import grpc
except ImportError:
    grpc = None

from heddle_server import BINARY, DEMO_MODEL, TIMEOUT_SCALE, Server, wait_until  # noqa: E402
from ports import reserve_port  # noqa: E402
from rank_groups import CPUS, LIMITS, TWO_RANKS, Group, Rank, Relay, Streams  # noqa: E402


def field(number, data):
    """A field of bytes in a protocol buffer."""
    head = [number << 3 | 2]
    length = len(data)
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes([*head, length]) + data


class RankStrangersTest(unittest.TestCase):
    def test_a_recorded_call_gets_no_place(self):
        port = reserve_port()
        relay = Relay(port)
        self.addCleanup(relay.close)
        rank = Rank(relay.port)
        self.addCleanup(rank.end)
        with Server(*LIMITS, "--tp", "2", "--ranks-listen", f"127.0.0.1:{port}") as head:
            streams = Streams(head, tokens=200)
            self.assertTrue(streams.run_for(5))
            calls = [bytes(call) for call in relay.recorded]
            self.assertTrue(any(len(call) > 500 for call in calls))
            for call in calls * 3:
                with socket.create_connection(("127.0.0.1", port), 10 * TIMEOUT_SCALE) as replay:
                    replay.sendall(call)
                    replay.shutdown(socket.SHUT_WR)
                    while replay.recv(65536):
                        pass
            self.assertEqual(streams.end(), Streams(head, tokens=200).end())
            self.assertEqual(head.metric("heddle_recoveries_total"), 0)
            self.assertFalse(any("lost" in line for line in list(head.log)), head.log)

    def test_what_does_not_belong_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            token, other = pathlib.Path(folder) / "token", pathlib.Path(folder) / "other"
            token.write_text("a-secret-of-this-group")
            other.write_text("a-secret-of-that-group")
            for file in (token, other):
                file.chmod(0o600)
            model = pathlib.Path(folder) / "model"
            shutil.copytree(DEMO_MODEL, model)
            weights = next(model.glob("*.safetensors"))
            data = bytearray(weights.read_bytes())
            data[-3] ^= 1
            weights.write_bytes(data)

            port = reserve_port()
            good = ("--rank-token-file", str(token))
            strangers = [(Rank(port), "the token differs"),
                         (Rank(port, "--rank-token-file", str(other)), "the token differs"),
                         (Rank(port, *good, model=model), "the model differs"),
                         (Rank(port, *good, "--isa", "portable"), "the instruction set (--isa, --device) differs")]
            started = {}

            def start():
                started["head"] = Server(*LIMITS, "--tp", "2", "--ranks-listen", f"127.0.0.1:{port}", *good)

            thread = threading.Thread(target=start)
            thread.start()
            try:
                for rank, why in strangers:
                    self.assertEqual(rank.wait(), 1)
                    self.assertTrue(rank.says(why), rank.log)
                self.disturb(port)
                member = Rank(port, *good)
                strangers.append((member, ""))
                thread.join(60)
                self.assertIn("head", started)
                late = Rank(port, *good)
                strangers.append((late, ""))
                self.assertEqual(late.wait(), 1)
                self.assertTrue(late.says("are there"), late.log)
                self.disturb(port)
                started["head"].complete("Once", max_tokens=5)
                self.assertEqual(started["head"].stop(), 0)
            finally:
                for rank, _ in strangers:
                    rank.end()
                thread.join(60)
                if "head" in started:
                    started["head"].__exit__()

    def disturb(self, port):
        """A port scan, garbage, and a connection that stays open and says nothing."""
        silent = socket.create_connection(("127.0.0.1", port))
        self.addCleanup(silent.close)
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64,
                     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500, *[b""] * 50):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(data)

    @unittest.skipIf(grpc is None, "calls with messages of our own need Python's grpcio")
    def test_strangers_who_speak_the_protocol_get_no_place(self):
        with tempfile.TemporaryDirectory() as folder:
            token = pathlib.Path(folder) / "token"
            token.write_text("a-secret-of-this-group")
            token.chmod(0o600)
            good = ("--rank-token-file", str(token))
            with Group(1, "--tp", "2", *good, rank_flags=good) as group:
                expected = group.head.complete("Once", max_tokens=5)["choices"]
                channel = grpc.insecure_channel(f"127.0.0.1:{group.port}")
                join = channel.stream_stream("/heddle.ranks.v1.Ranks/Join", lambda x: x, lambda x: x)

                def hello(secret):
                    fields = field(1, secret) + field(2, b"x") + field(5, b"nowhere")
                    return field(1, fields)

                cases = {"the token differs": [hello(b"guess"), hello(b""), hello(b"\xff" * 4000)],
                         "the build differs": [hello(b"a-secret-of-this-group")],
                         "says Hello first": [b"", field(2, b""), field(4, b"\x08\x01"), field(15, b"x" * 100)]}
                for why, messages in cases.items():
                    for message in messages:
                        with self.subTest(message=message[:60]), self.assertRaises(grpc.RpcError) as refused:
                            list(join(iter([message, message]), timeout=20))
                        self.assertIn(why, refused.exception.details())
                for message in (b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 64, b"x" * (2 << 20)):
                    with self.subTest(message=message[:60]), self.assertRaises(grpc.RpcError):
                        list(join(iter([message]), timeout=20))
                # Calls that say nothing: those that the head has a place for end after a while.
                silence = threading.Event()
                self.addCleanup(silence.set)

                def nothing():
                    silence.wait(60)
                    yield from ()

                silent = [join(nothing(), timeout=20) for _ in range(40)]
                is_refused = lambda call: call.done() and call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                self.assertTrue(wait_until(lambda: sum(map(is_refused, silent)) == 8))
                self.disturb(group.port)
                self.assertEqual(group.head.complete("Once", max_tokens=5)["choices"], expected)
                self.assertFalse(any("lost" in line for line in list(group.head.log)), group.head.log)
                for call in silent:
                    call.cancel()
                channel.close()
                silence.set()

    def test_what_cannot_be_combined_yet_is_refused_at_start(self):
        cases = [(("--ranks-listen", "127.0.0.1:0"), "for --tp or --pp above 1"),
                 (("--ranks-listen", "127.0.0.1:0", "--tp", "2", "--join", "127.0.0.1:1"), "leave out"),
                 (("--ranks-listen", "0.0.0.0:0", "--tp", "2"), "needs --rank-token-file"),
                 (("--ranks-listen", "nowhere", "--tp", "2"), "HOST:PORT"),
                 (("--ranks-listen", "127.0.0.1:0", "--tp", "2", "--lora-merge", f"it={DEMO_MODEL / 'adapters' / 'pirate'}"),
                  "--lora-merge does not work"),
                 (("--ranks-listen", "127.0.0.1:0", "--tp", "2", "--rank-cpus", f"{CPUS[0]}:{CPUS[0]}"),
                  f"names processor {CPUS[0]} twice")]
        if len(CPUS) > 1:
            cases.append((("--ranks-listen", "127.0.0.1:0", "--pp", "2", *TWO_RANKS), "share layers: 1 at most"))
        for flags, why in cases:
            with self.subTest(flags=flags):
                ended = subprocess.run([str(BINARY), "serve", str(DEMO_MODEL), "--port", "0", *flags],
                                       capture_output=True, text=True, timeout=60)
                self.assertIn(ended.returncode, (1, 2))
                self.assertIn(why, ended.stderr + ended.stdout)


if __name__ == "__main__":
    unittest.main()
