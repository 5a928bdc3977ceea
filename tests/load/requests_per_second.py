"""Whole answers of one token: requests a second through the HTTP front end.

    requests_per_second.py [--start PROGRAM] [--connections 32] [--seconds 5]

PROGRAM is a server that prints "listening on PORT": tests/server/fake_server.cc, which has the real front end
and a stub in place of the engine. Without it the daemon with the demo model is measured. Requests are pipelined, so
that this client costs little of the two cores that it shares with the server.
"""

import argparse
import asyncio
import re
import subprocess
import time

from common import Daemon, http_request

PIPELINED = 16


async def ask(port, request, until):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = failed = 0
    while time.monotonic() < until:
        writer.write(request * PIPELINED)
        left, tail = PIPELINED, b""
        while left:
            data = tail + await reader.read(1 << 16)
            heads = re.findall(rb"HTTP/1\.1 (\d{3})", data)
            failed += sum(status != b"200" for status in heads)
            left -= len(heads)
            tail = data[-11:] if not re.search(rb"HTTP/1\.1 \d{3}", data[-11:]) else b""
        answered += PIPELINED
    writer.close()
    return answered, failed


async def measure(port, connections, seconds):
    body = {"prompt": "Once", "max_tokens": 1, "ignore_eos": True, "seed": 1}
    request = http_request("/v1/completions", body)
    until = time.monotonic() + seconds
    began = time.monotonic()
    results = await asyncio.gather(*(ask(port, request, until) for _ in range(connections)))
    answered, failed = (sum(column) for column in zip(*results))
    print(f"{answered / (time.monotonic() - began):.0f} requests/s, {failed} refused or failed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--start")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    if not options.start:
        with Daemon("--log-level", "error") as server:
            asyncio.run(measure(server.port, options.connections, options.seconds))
        return
    stub = subprocess.Popen([options.start], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = int(re.search(r"\d+", stub.stdout.readline()).group())
        asyncio.run(measure(port, options.connections, options.seconds))
    finally:
        stub.terminate()
        stub.wait()


if __name__ == "__main__":
    main()
