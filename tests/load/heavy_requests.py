"""Clients whose requests take long to prepare beside streams on the same I/O thread: the streams' tokens go on.

    heavy_requests.py [--streams 4] [--heavy 2] [--seconds 10] [--max-gap-ms 250]

The heavy ones: schemas that no cache knows, each of which takes a second or so to compile, and prompts of a megabyte. A
third kind of client asks for one token at a time, in short requests, to see whether they wait. One round runs without
heavy clients, to compare with. HEDDLE_BINARY_DIR names the folder of another program to measure.
"""

import argparse
import http.client
import json
import sys
import threading
import time

from common import Daemon


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def schema(number):
    """A new one each time, short to write and long to compile: 2^16 states remember where the letter stood."""
    pattern = {"type": "string", "pattern": f"(.*{chr(0x4E00 + number)}.{{15}})"}
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": pattern}}}


def long_prompt(number):
    return {"prompt": f"{number} " + "The quick brown fox jumps over the lazy dog. " * 25000, "max_tokens": 1}


HEAVY = {"schemas": ("/v1/chat/completions", schema), "prompts": ("/v1/completions", long_prompt)}


class Clients:
    """Threads that ask again and again until `over`."""

    def __init__(self, port):
        self.port = port
        self.over = threading.Event()
        self.threads = []
        self.gaps = []  # seconds between two events of a stream
        self.firsts = []  # seconds of a short request
        self.heavy = []  # seconds of a heavy one
        self.lock = threading.Lock()

    def start(self, work, *arguments):
        self.threads.append(threading.Thread(target=work, args=arguments))
        self.threads[-1].start()

    def stream(self):
        body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 400, "stream": True,
                "ignore_eos": True, "seed": 1}
        while not self.over.is_set():
            connection, answer = post(self.port, "/v1/chat/completions", body)
            gaps, last = [], None
            for line in iter(answer.readline, b""):
                if not line.startswith(b"data: "):
                    continue
                now = time.monotonic()
                if last is not None:
                    gaps.append(now - last)
                last = now
            connection.close()
            with self.lock:
                self.gaps += gaps

    def ask(self, times, make):
        while not self.over.is_set():
            began = time.monotonic()
            connection, answer = post(self.port, *make())
            answer.read()
            connection.close()
            with self.lock:
                times.append(time.monotonic() - began)
            if times is self.firsts:
                time.sleep(0.02)


def percentiles(seconds):
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99)] + [ordered[-1]]
    return " / ".join(f"{1e3 * value:.1f}" for value in at) + f" ms ({len(ordered)})"


def run(kind, options):
    with Daemon("--log-level", "error", *options.flags) as server:
        clients = Clients(server.port)
        for _ in range(options.streams):
            clients.start(clients.stream)
        clients.start(clients.ask, clients.firsts,
                      lambda: ("/v1/completions", {"prompt": "a", "max_tokens": 1}))
        numbers = iter(range(1, 1 << 30))
        for _ in range(options.heavy if kind else 0):
            path, make = HEAVY[kind]
            clients.start(clients.ask, clients.heavy, lambda: (path, make(next(numbers))))
        time.sleep(options.seconds)
        clients.over.set()
        for thread in clients.threads:
            thread.join()
    print(f"beside {kind or 'nothing'}: median / 99th percentile / longest of gaps between tokens "
          f"{percentiles(clients.gaps)}, of short requests {percentiles(clients.firsts)}, "
          f"of heavy ones {percentiles(clients.heavy)}; {len(clients.gaps) / options.seconds:.0f} tokens/s", flush=True)
    return max(clients.gaps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--heavy", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--max-gap-ms", type=float, default=250)
    parser.add_argument("flags", nargs="*", help="of heddle serve, after --")
    options = parser.parse_args()
    longest = max(run(kind, options) for kind in (None, *HEAVY))
    sys.exit(0 if 1e3 * longest <= options.max_gap_ms else 1)


if __name__ == "__main__":
    main()
