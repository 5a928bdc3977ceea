"""Fifty hostile clients beside eight plain streams: the streams keep their speed, memory stays bounded, and SIGTERM ends
the server in time while the attack goes on.

    hostile_clients.py [--clients 50] [--streams 8] [--seconds 20] [--model FOLDER] [--grpc] [--only KIND[,KIND]]

The streams run alone first, then beside the hostile clients. Some of those have the model work for them, as any client
may: a sequence is due the same share of the engine, whoever asked for it, so the streams are due their speed alone
times their part of the running sequences, which /metrics counts. At least four fifths of that must be theirs. The
hostile clients are a process of their own at the lowest priority, so that their own work takes no processor from the
server; what the server does for them counts. Each client repeats its kind of attack at a bounded pace; kinds take turns
over the clients. Five minutes by hand: --seconds 300.
"""

import argparse
import json
import os
import pathlib
import random
import selectors
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "load"))

from common import Daemon, allow_descriptors  # noqa: E402  (the folder of the load tests)

STREAM = {"prompt": "Once upon a time", "max_tokens": 256, "stream": True, "ignore_eos": True}


# What hostile clients do. Each function is one round against `port`; what the server makes of it is of no interest, but
# connections that it closes end the round.


def post(path, body, length=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length or len(data)}\r\n\r\n")
    return head.encode() + data


def connect(port, timeout=5.0):
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def ask_and_leave(port, body, patience, path="/v1/completions"):
    """Sends a request and closes the connection when there is no answer after `patience` seconds."""
    with connect(port, patience) as client:
        client.sendall(post(path, body))
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


def hostile_grammar(port, rng):
    grammar = rng.choice(GRAMMARS) + "\n" * rng.randrange(40)  # not what another client has had compiled
    ask_and_leave(port, {"prompt": "a", "max_tokens": 200, "guided_grammar": grammar}, rng.uniform(0.2, 3))


def hostile_schema(port, rng):
    salt = rng.randrange(1000)
    uris = {f"p{i}": {"type": "string", "format": "uri", "maxLength": 90 + i + salt} for i in range(8)}
    deep = {"type": "string"}
    for i in range(60):
        deep = {"anyOf": [deep, {"type": "object", "properties": {f"k{i}": deep if i < 8 else {"type": "null"}}}]}
    words = {"enum": [f"{salt} {'x' * (i % 50)} {i}" for i in range(4000)]}
    pattern = {"type": "string", "pattern": f"^((a|b)*c){{1,{30 + salt % 50}}}[^{chr(97 + salt % 26)}]{{0,3000}}$"}
    schema = rng.choice([{"type": "object", "properties": uris, "required": list(uris)}, deep, words, pattern])
    ask_and_leave(port, {"prompt": "a", "max_tokens": 50,
                         "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
                  rng.uniform(0.2, 3))


def unfinished_body(port, rng):
    size = 8 << 20
    with connect(port) as client:
        client.sendall(post("/v1/completions", b"", size))
        for _ in range(63):
            client.sendall(b'{"prompt": "' + b"x" * (size // 64 - 12))
        time.sleep(rng.uniform(1, 5))


def slow_header(port, rng):
    with connect(port) as client:
        for byte in b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"x" * 20:
            client.sendall(bytes([byte]))
            time.sleep(0.1)


def reader_that_stops(port, rng):
    body = {**STREAM, "logprobs": 20, "max_tokens": 2000}
    with connect(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(post("/v1/completions", body))
        time.sleep(rng.uniform(2, 6))


def reset_connection(port, rng):
    client = connect(port)
    client.sendall(post("/v1/completions", STREAM)[:rng.randrange(20, 200)])
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def cancelled_stream(port, rng):
    with connect(port) as client:
        client.sendall(post("/v1/completions", {**STREAM, "max_tokens": 2000, "n": 4}))
        client.recv(2000)
        time.sleep(rng.uniform(0, 0.2))


def broken_request(port, rng):
    bodies = [b"[" * 100000, b'{"a":' * 50000, b"\xff\xfe\x00" * 1000, b'{"prompt": 1e999999}', b"{}",
              b'{"prompt": "' + b"\\ud800" * 5000 + b'"}', bytes(rng.randrange(256) for _ in range(500))]
    ask_and_leave(port, rng.choice(bodies), 2,
                  rng.choice(["/v1/completions", "/v1/chat/completions", "/v1/rerank", "/tokenize", "/v1/messages"]))


def pipelined(port, rng):
    with connect(port) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200)
        client.settimeout(1)
        while client.recv(65536):
            pass


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


# HPACK literals without indexing: what a gRPC call begins with.
GRPC_HEADERS = b"".join(
    b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
    for name, value in [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/heddle.v1.Inference/Complete"),
                        (b":authority", b"127.0.0.1"), (b"content-type", b"application/grpc"), (b"te", b"trailers")])


def rapid_reset(port, rng):
    with connect(port) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        for first in range(1, 2000, 100):
            burst = [frame(1, 4, stream, GRPC_HEADERS) + frame(3, 0, stream, b"\0\0\0\x08")
                     for stream in range(first, first + 100, 2)]
            client.sendall(b"".join(burst))
            time.sleep(0.02)


KINDS = {"grammar": hostile_grammar, "schema": hostile_schema, "body": unfinished_body, "header": slow_header,
         "reader": reader_that_stops, "reset": reset_connection, "cancel": cancelled_stream, "broken": broken_request,
         "pipeline": pipelined}


def attack(port, grpc_port, clients, kinds, until):
    """What the child process does until the clock says so."""
    os.nice(19)
    kinds = [(KINDS[name], port) for name in kinds] + ([(rapid_reset, grpc_port)] if grpc_port else [])
    rounds = [0] * clients

    def run(number):
        rng = random.Random(number)
        kind, to = kinds[number % len(kinds)]
        while time.time() < until:
            try:
                kind(to, rng)
            except OSError:
                pass
            rounds[number] += 1
            time.sleep(rng.uniform(0.1, 0.5))

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(max(0, until - time.time()))
    print(json.dumps(rounds))


def plain_streams(port, streams, seconds, on_second=None):
    """Tokens per second of `streams` clients that ask for one stream after the other, and the longest gap of one."""
    choose = selectors.DefaultSelector()
    request = post("/v1/completions", STREAM)

    def ask():
        client = connect(port)
        client.sendall(request)
        choose.register(client, selectors.EVENT_READ, {"tail": b"", "last": time.monotonic()})

    for _ in range(streams):
        ask()
    tokens, longest, begin = 0, 0.0, time.monotonic()
    ticked = begin
    while (now := time.monotonic()) < begin + seconds:
        if on_second and now - ticked >= 1:
            on_second()
            ticked = now
        for key, _ in choose.select(timeout=1):
            data, state = key.fileobj.recv(65536), key.data
            now = time.monotonic()
            longest, state["last"] = max(longest, now - state["last"]), now
            text = state["tail"] + data
            assert b"HTTP/1.1 4" not in text and b"HTTP/1.1 5" not in text and b'"error"' not in text, text
            tokens += text.count(b"data: {")
            state["tail"] = text[-6:]
            if not data or b"[DONE]" in text:
                choose.unregister(key.fileobj)
                key.fileobj.close()
                ask()
    spent = time.monotonic() - begin
    for key in list(choose.get_map().values()):
        key.fileobj.close()
    return tokens / spent, longest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--model")
    parser.add_argument("--grpc", action="store_true", help="attack the gRPC port as well")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--least-share", type=float, default=0.8)
    parser.add_argument("--max-mib", type=float, default=500, help="above idle")
    parser.add_argument("--end-seconds", type=float, default=3, help="from SIGTERM; the drain timeout is 2 s")
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)  # the child: port, gRPC port, end
    options = parser.parse_args()
    allow_descriptors()
    kinds = options.only.split(",")
    if options.attack:
        port, grpc_port, until = options.attack
        return attack(int(port), int(grpc_port), options.clients, kinds, float(until))

    flags = ["--drain-timeout", "2", "--log-level", "error"]
    grpc_port = 0
    if options.grpc:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            grpc_port = free.getsockname()[1]
        flags += ["--grpc-port", str(grpc_port)]
    with Daemon(*flags, **({"model": options.model} if options.model else {})) as server:
        plain_streams(server.port, options.streams, 2)
        idle = server.memory_mib()
        alone, gap_alone = plain_streams(server.port, options.streams, options.seconds / 4)
        until = time.time() + options.seconds + 4
        child = subprocess.Popen([sys.executable, __file__, "--clients", str(options.clients), "--only", options.only,
                                  "--attack", str(server.port), str(grpc_port), str(until)], stdout=subprocess.PIPE)
        time.sleep(1)
        most, running = [idle], []
        cpu_before = server.cpu_seconds()

        def look():
            most.append(server.memory_mib())
            running.append(server.metric("heddle_running_sequences"))

        beside, gap = plain_streams(server.port, options.streams, options.seconds, look)
        cpu = {name: used - cpu_before.get(name, 0) for name, used in server.cpu_seconds().items()}
        alive = server.request("GET", "/health")[0]
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)  # while the attack goes on
        code = server.process.wait(60)
        ended = time.monotonic() - began
        rounds = json.loads(child.communicate()[0])
    due = alone * min(1, options.streams / statistics.mean(running))
    share = beside / due
    print(f"{options.streams} streams: {alone:.0f} tokens/s alone (longest gap {1e3 * gap_alone:.0f} ms), {beside:.0f} "
          f"beside {options.clients} hostile clients ({1e3 * gap:.0f} ms): {beside / alone:.2f} of it, and {share:.2f} of what is "
          f"due with {statistics.mean(running):.1f} sequences running (must be {options.least_share})")
    print(f"rounds of attack: {sum(rounds)}; memory {max(most) - idle:.0f} MiB above idle (must be below {options.max_mib:.0f}); "
          f"/health {alive}; SIGTERM took {ended:.1f} s (must be below {options.end_seconds:.0f}), exit status {code}")
    print("CPU by thread: " + ", ".join(f"{n} {s:.1f} s" for n, s in sorted(cpu.items()) if n))
    sound = share >= options.least_share and max(most) - idle < options.max_mib and ended < options.end_seconds and code == 0 and alive == 200
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
