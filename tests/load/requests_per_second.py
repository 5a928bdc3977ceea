"""What the HTTP front end costs, with a stub in place of the engine.

    requests_per_second.py [--connections 32] [--seconds 5] [--pipelined 1] [--min-requests 5000] [--max-us 30]

Whole answers of one token: requests a second. Streams: CPU of the server per token, the stub's own share included; a
step takes --step-us, so that each token is an event, a wake-up and a write of its own, as with a model. Client and
server share the machine. --daemon measures the daemon with the demo model instead.
"""

import argparse
import sys

from common import Daemon, Stub, allow_descriptors, load


def requests(options):
    body = {"prompt": "Once", "max_tokens": 1, "ignore_eos": True, "seed": 1}
    with Daemon("--log-level", "error") if options.daemon else Stub() as server:
        seen = load("requests", server.port, body, options.connections, options.seconds, options.pipelined)
    print(f"{seen['per_second']} requests/s, {seen['answered'] - seen['ok']} refused or failed")
    return seen["answered"] == seen["ok"] and seen["per_second"] >= options.min_requests


def streams(options):
    body = {"prompt": "(long)", "max_tokens": options.tokens, "stream": True, "ignore_eos": True, "seed": 1}
    with Daemon("--log-level", "error") if options.daemon else Stub(options.step_us) as server:
        before = server.cpu_seconds()
        seen = load("streams", server.port, body, options.streams, 0)
        cpu = {name: used - before.get(name, 0) for name, used in server.cpu_seconds().items()}
    tokens = options.streams * options.tokens
    print(f"{seen['whole']} of {options.streams} streams whole, {tokens / seen['seconds']:.0f} tokens/s, "
          f"{seen['events'] / tokens:.2f} events a token")
    by_thread = ", ".join(f"{n} {1e6 * s / tokens:.1f}" for n, s in sorted(cpu.items()) if n and s > 0)
    print(f"CPU per streamed token {1e6 * cpu[''] / tokens:.1f} µs ({by_thread})")
    return seen["whole"] == options.streams and 1e6 * cpu[""] / tokens <= options.max_us


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--daemon", action="store_true")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--pipelined", type=int, default=1)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--step-us", type=int, default=5000)
    parser.add_argument("--min-requests", type=float, default=5000)
    parser.add_argument("--max-us", type=float, default=30)
    options = parser.parse_args()
    allow_descriptors()
    good = [requests(options), streams(options)]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
