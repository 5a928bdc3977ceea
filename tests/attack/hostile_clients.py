"""Fifty hostile clients beside eight plain streams: the streams keep their speed, memory stays bounded, and SIGTERM ends
the server in time while the attack goes on.

    hostile_clients.py [--clients 50] [--streams 8] [--seconds 20] [--rounds 1] [--model FOLDER] [--grpc]
                       [--identities each|users|two] [--weight N] [--only KIND[,KIND]]

The streams run alone, then beside the hostile clients, in turn, --rounds times, so that whatever else the machine does
falls on both. --identities says whose the API keys are:

    each   every stream and every hostile client has a key of its own: as many users as attackers
    users  every stream has a key of its own, and all hostile clients have one: an attacker among users
    two    one key for the streams, another for the hostile clients: two tenants, each due a half of the machine

--weight is that of each stream's key; hostile keys have 1. A client is due its part of the weights of those that have
requests in the engine, and the streams are due that part of their speed alone; what they get is printed as a part of
both, and at least four fifths of their speed alone must be theirs. Where others work on the machine, tokens per second
of the server's processor time say more: what the attack costs them of what the server gets. The hostile clients are a process of their own at the
lowest priority, so that their own work takes no processor from the server; what the server does for them counts. Each
client repeats its kind of attack at a bounded pace; kinds take turns over the clients. Five minutes by hand: --seconds 300.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import selectors
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "load"))

from common import Daemon, allow_descriptors  # noqa: E402  (the folder of the load tests)
from ports import reserve_port  # noqa: E402  (in that of conformance, as above)

STREAM = {"prompt": "Once upon a time", "max_tokens": 256, "stream": True, "ignore_eos": True}
TOKEN_IDS = re.compile(rb'"token_ids":\[([0-9,]+)\]')


# The doings of hostile clients. Each function is one round against `port` with the API key `key`; what the server makes of it
# is of no interest, but connections that it closes end the round.


def post(path, body, key, length=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length or len(data)}\r\n\r\n")
    return head.encode() + data


def connect(port, timeout=5.0):
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def ask_and_leave(port, key, body, patience, path="/v1/completions"):
    """Sends a request and closes the connection when there is no answer after `patience` seconds."""
    with connect(port, patience) as client:
        client.sendall(post(path, body, key))
        client.recv(65536)


def nullable_chain(depth, form):
    rules = ["root ::= r0"] + [f"r{i} ::= {form.format(f'r{i + 1}')}" for i in range(depth)]
    return "\n".join([*rules, f'r{depth} ::= "a"'])


def nested_repeats(depth):
    inner = '"a"?'
    for _ in range(depth):
        inner = f"({inner} {inner})*"
    return f"root ::= {inner}"


GRAMMARS = [
    nullable_chain(40, '{0} {0} | ""'),
    nullable_chain(40, "{0}? {0}?"),
    nullable_chain(40, "({0} {0})? | {0}"),
    nested_repeats(6),
    'root ::= s\ns ::= s s | "a" | ""',
    'root ::= e\ne ::= e e e | e e | [a-z]* | ""',
    'root ::= (("a"* "b"*)* ("a" | "b")*)* [a-z ]*',
    'root ::= ([a-z]{0,100} ){0,100}',
]


def hostile_grammar(port, key, rng):
    grammar = rng.choice(GRAMMARS) + "\n" * rng.randrange(40)  # not what another client has had compiled
    ask_and_leave(port, key, {"prompt": "a", "max_tokens": 200, "guided_grammar": grammar}, rng.uniform(0.2, 3))


def hostile_schema(port, key, rng):
    salt = rng.randrange(1000)
    uris = {f"p{i}": {"type": "string", "format": "uri", "maxLength": 90 + i + salt} for i in range(8)}
    deep = {"type": "string"}
    for i in range(60):
        deep = {"anyOf": [deep, {"type": "object", "properties": {f"k{i}": deep if i < 8 else {"type": "null"}}}]}
    words = {"enum": [f"{salt} {'x' * (i % 50)} {i}" for i in range(4000)]}
    pattern = {"type": "string", "pattern": f"^((a|b)*c){{1,{30 + salt % 50}}}[^{chr(97 + salt % 26)}]{{0,3000}}$"}
    schema = rng.choice([{"type": "object", "properties": uris, "required": list(uris)}, deep, words, pattern])
    ask_and_leave(port, key, {"prompt": "a", "max_tokens": 50,
                         "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
                  rng.uniform(0.2, 3))


def unfinished_body(port, key, rng):
    size = 8 << 20
    with connect(port) as client:
        client.sendall(post("/v1/completions", b"", key, size))
        for _ in range(63):
            client.sendall(b'{"prompt": "' + b"x" * (size // 64 - 12))
        time.sleep(rng.uniform(1, 5))


def slow_header(port, key, rng):
    with connect(port) as client:
        for byte in b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"x" * 20:
            client.sendall(bytes([byte]))
            time.sleep(0.1)


def reader_that_stops(port, key, rng):
    body = {**STREAM, "logprobs": 20, "max_tokens": 2000}
    with connect(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(post("/v1/completions", body, key))
        time.sleep(rng.uniform(2, 6))


def reset_connection(port, key, rng):
    client = connect(port)
    client.sendall(post("/v1/completions", STREAM, key)[:rng.randrange(20, 200)])
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def cancelled_stream(port, key, rng):
    with connect(port) as client:
        client.sendall(post("/v1/completions", {**STREAM, "max_tokens": 2000, "n": 4}, key))
        client.recv(2000)
        time.sleep(rng.uniform(0, 0.2))


def broken_request(port, key, rng):
    bodies = [b"[" * 100000, b'{"a":' * 50000, b"\xff\xfe\x00" * 1000, b'{"prompt": 1e999999}', b"{}",
              b'{"prompt": "' + b"\\ud800" * 5000 + b'"}', bytes(rng.randrange(256) for _ in range(500))]
    ask_and_leave(port, key, rng.choice(bodies), 2,
                  rng.choice(["/v1/completions", "/v1/chat/completions", "/v1/rerank", "/tokenize", "/v1/messages"]))


def pipelined(port, key, rng):
    with connect(port) as client:
        client.sendall(f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n".encode() * 200)
        client.settimeout(1)
        while client.recv(65536):
            pass


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def grpc_headers(key):
    """HPACK literals without indexing: what a gRPC call begins with."""
    return b"".join(
        b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/heddle.v1.Inference/Generate"),
                            (b":authority", b"127.0.0.1"), (b"content-type", b"application/grpc"), (b"te", b"trailers"),
                            (b"authorization", b"Bearer " + key.encode())])


def rapid_reset(port, key, rng):
    headers = grpc_headers(key)
    with connect(port) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        for first in range(1, 2000, 100):
            burst = [frame(1, 4, stream, headers) + frame(3, 0, stream, b"\0\0\0\x08")
                     for stream in range(first, first + 100, 2)]
            client.sendall(b"".join(burst))
            time.sleep(0.02)


KINDS = {"grammar": hostile_grammar, "schema": hostile_schema, "body": unfinished_body, "header": slow_header,
         "reader": reader_that_stops, "reset": reset_connection, "cancel": cancelled_stream, "broken": broken_request,
         "pipeline": pipelined}


def hostile_key(identities, number):
    return f"hostile-{number if identities == 'each' else 0}"


def stream_key(identities, number):
    return f"stream-{0 if identities == 'two' else number}"


def key_file(options):
    """The lines of the server's key file, with an admin key for this program itself."""
    keys = {stream_key(options.identities, i): f"weight={options.weight}" for i in range(options.streams)}
    keys.update({hostile_key(options.identities, i): "" for i in range(options.clients)})
    keys["admin"] = "admin"
    return "".join(f"{key} {hashlib.sha256(key.encode()).hexdigest()} {rest}\n" for key, rest in keys.items())


def attack(port, grpc_port, options, kinds, until):
    """What the child process does until the clock says so."""
    os.nice(19)
    kinds = [(KINDS[name], port) for name in kinds] + ([(rapid_reset, grpc_port)] if grpc_port else [])
    rounds = [0] * options.clients

    def run(number):
        rng = random.Random(number)
        kind, to = kinds[number % len(kinds)]
        while time.time() < until:
            try:
                kind(to, hostile_key(options.identities, number), rng)
            except OSError:
                pass
            rounds[number] += 1
            time.sleep(rng.uniform(0.1, 0.5))

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(options.clients)]
    for thread in threads:
        thread.start()
    time.sleep(max(0, until - time.time()))
    print(json.dumps(rounds), flush=True)
    os._exit(0)  # without waiting for rounds that go on


def plain_streams(port, keys, seconds, on_second=None):
    """Tokens of clients with these keys that ask for one stream after the other, the time, and the longest gap of one."""
    choose = selectors.DefaultSelector()

    def ask(key):
        client = connect(port)
        client.sendall(post("/v1/completions", {**STREAM, "return_token_ids": True}, key))
        choose.register(client, selectors.EVENT_READ, {"tail": b"", "last": time.monotonic(), "key": key})

    for key in keys:
        ask(key)
    tokens, longest, begin = 0, 0.0, time.monotonic()
    ticked = begin
    while (now := time.monotonic()) < begin + seconds:
        if on_second and now - ticked >= 1:
            on_second()
            ticked = now
        for ready, _ in choose.select(timeout=1):
            data, state = ready.fileobj.recv(65536), ready.data
            now = time.monotonic()
            longest, state["last"] = max(longest, now - state["last"]), now
            text, _, state["tail"] = (state["tail"] + data).rpartition(b"\n")
            assert b"HTTP/1.1 4" not in text and b"HTTP/1.1 5" not in text and b'"error"' not in text, text
            # Where tokens are guessed ahead, an event has several of them.
            tokens += sum(1 + ids.count(b",") for ids in TOKEN_IDS.findall(text))
            if not data or b"[DONE]" in text:
                choose.unregister(ready.fileobj)
                ready.fileobj.close()
                ask(state["key"])
    spent = time.monotonic() - begin
    for ready in list(choose.get_map().values()):
        ready.fileobj.close()
    return tokens, spent, longest


class Measure:
    """Runs the streams, and sums up what they got."""

    def __init__(self, server, options):
        self.server = server
        self.keys = [stream_key(options.identities, i) for i in range(options.streams)]
        self.weights = len(set(self.keys)) * options.weight
        self.most_mib, self.due, self.running = 0, [], []
        self.sums = {}  # kind of phase: tokens, seconds, seconds of the server's processor time, longest gap

    def run(self, phase, seconds, on_second=None):
        cpu = self.server.cpu_seconds()[""]
        tokens, spent, longest = plain_streams(self.server.port, self.keys, seconds, on_second)
        cpu = self.server.cpu_seconds()[""] - cpu
        before = self.sums.get(phase, (0, 0.0, 0.0, 0.0))
        self.sums[phase] = (before[0] + tokens, before[1] + spent, before[2] + cpu, max(before[3], longest))

    def look(self):
        self.most_mib = max(self.most_mib, self.server.memory_mib())
        others = max(0, self.server.metric("heddle_live_clients") - len(set(self.keys)))
        self.due.append(self.weights / (self.weights + others))
        self.running.append(self.server.metric("heddle_running_sequences"))

    def speed(self, phase):
        return self.sums[phase][0] / self.sums[phase][1]

    def per_cpu_second(self, phase):
        return self.sums[phase][0] / self.sums[phase][2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20, help="of attack, over all rounds")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--identities", choices=["each", "users", "two"], default="each")
    parser.add_argument("--weight", type=int, default=1, help="of each key of the streams")
    parser.add_argument("--model")
    parser.add_argument("--grpc", action="store_true", help="attack the gRPC port as well")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--flags", default="", help="more flags of the server, with spaces between them")
    parser.add_argument("--least-share", type=float, default=0.8, help="of the streams' speed alone")
    parser.add_argument("--max-mib", type=float, default=500, help="above idle")
    parser.add_argument("--end-seconds", type=float, default=3, help="from SIGTERM; the drain timeout is 2 s")
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)  # the child: port, gRPC port, end
    options = parser.parse_args()
    allow_descriptors()
    kinds = options.only.split(",")
    if options.attack:
        port, grpc_port, until = options.attack
        return attack(int(port), int(grpc_port), options, kinds, float(until))

    flags = ["--drain-timeout", "2", "--log-level", "error", *options.flags.split()]
    grpc_port = 0
    if options.grpc:
        grpc_port = reserve_port()
        flags += ["--grpc-port", str(grpc_port)]
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write(key_file(options))
        keys.flush()
        flags += ["--api-key-file", keys.name]
        with Daemon(*flags, **({"model": options.model} if options.model else {})) as server:
            return judge(server, grpc_port, options)


def start_attack(server, grpc_port, options, seconds):
    until = time.time() + seconds
    return subprocess.Popen([sys.executable, __file__, "--clients", str(options.clients), "--only", options.only,
                             "--identities", options.identities, "--attack", str(server.port), str(grpc_port), str(until)],
                            stdout=subprocess.PIPE)


def judge(server, grpc_port, options):
    measure = Measure(server, options)
    plain_streams(server.port, measure.keys, 2)
    idle = server.memory_mib()
    rounds, cpu = 0, {}
    for number in range(options.rounds):
        last = number + 1 == options.rounds
        measure.run("alone", options.seconds / options.rounds / 4)
        child = start_attack(server, grpc_port, options, options.seconds / options.rounds + (4 if last else 1))
        time.sleep(1)
        before = server.cpu_seconds()
        measure.run("beside", options.seconds / options.rounds, measure.look)
        for name, used in server.cpu_seconds().items():
            cpu[name] = cpu.get(name, 0) + used - before.get(name, 0)
        if not last:
            rounds += sum(json.loads(child.communicate()[0]))
            time.sleep(1)
    alive = server.request("GET", "/health")[0]
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)  # while the attack goes on
    code = server.process.wait(60)
    ended = time.monotonic() - began
    rounds += sum(json.loads(child.communicate()[0]))

    alone, beside = measure.speed("alone"), measure.speed("beside")
    share, due = beside / alone, statistics.mean(measure.due)
    print(f"{options.streams} streams: {alone:.0f} tokens/s alone (longest gap {1e3 * measure.sums['alone'][3]:.0f} ms), "
          f"{beside:.0f} beside {options.clients} hostile clients ({1e3 * measure.sums['beside'][3]:.0f} ms): {share:.2f} of it "
          f"(must be {options.least_share}); their weight makes {due:.2f} of it due, of which that is {share / due:.2f}; "
          f"{statistics.mean(measure.running):.1f} sequences running, keys: {options.identities}, weight {options.weight}")
    print(f"rounds of attack: {rounds}; memory {measure.most_mib - idle:.0f} MiB above idle (must be below {options.max_mib:.0f}); "
          f"/health {alive}; SIGTERM took {ended:.1f} s (must be below {options.end_seconds:.0f}), exit status {code}")
    print(f"tokens per second of the server's processor time: {measure.per_cpu_second('alone'):.0f} alone, "
          f"{measure.per_cpu_second('beside'):.0f} beside them: "
          f"{measure.per_cpu_second('beside') / measure.per_cpu_second('alone'):.2f} of it")
    print("CPU by thread: " + ", ".join(f"{n} {s:.1f} s" for n, s in sorted(cpu.items()) if n))
    in_time = ended < options.end_seconds and code == 0 and alive == 200
    return 0 if share >= options.least_share and measure.most_mib - idle < options.max_mib and in_time else 1


if __name__ == "__main__":
    sys.exit(main())
