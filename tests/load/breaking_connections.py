"""Connections that break at random bytes, of the request or of its answer: nothing is left of them.

    breaking_connections.py [--seconds 40 | --connections 100000] [--seed 1]
"""

import argparse
import asyncio
import random
import socket
import struct
import sys
import time

from common import Daemon, allow_descriptors, chat_body, http_request, wait_until

REQUEST = http_request("/v1/chat/completions", chat_body(24, stream=True))
AT_ONCE = 32


async def break_one(port, draw):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = draw.randrange(len(REQUEST) * 2)  # half of them are sent whole, and break in their answer
    writer.write(REQUEST[:sent])
    try:
        if sent >= len(REQUEST):
            await reader.readexactly(draw.randrange(4000))
        else:
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    if draw.random() < 0.5:  # a reset in place of an orderly end
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def run(port, seconds, connections, seed):
    until = time.monotonic() + seconds
    broken = 0

    async def worker(number):
        nonlocal broken
        draw = random.Random(seed * 1000 + number)
        while (broken < connections) if connections else (time.monotonic() < until):
            broken += 1
            await break_one(port, draw)

    await asyncio.gather(*(worker(i) for i in range(AT_ONCE)))
    return broken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    allow_descriptors()
    with Daemon("--log-level", "error") as server:
        # Some first, so that caches and pools have their size.
        asyncio.run(run(server.port, 3, 0, options.seed + 1))
        assert wait_until(lambda: server.stats()["open_connections"] <= 1)
        descriptors, mib = server.descriptors(), server.resident_mib()
        broken = asyncio.run(run(server.port, options.seconds, options.connections, options.seed))
        quiet = wait_until(lambda: server.stats()["open_connections"] <= 1 and
                           server.stats()["running_sequences"] == 0, seconds=60)
        stats = server.stats()
        left = server.descriptors() - descriptors
        grown = server.resident_mib() - mib
        whole = server.complete("The sky is", max_tokens=4)
    print(f"{broken} connections broke (seed {options.seed}); memory grew {grown:.1f} MiB from {mib:.0f}")
    print(f"descriptors left {left}, pages in use {stats['pages']['used']}, orphaned {stats['orphaned_requests']}")
    clean = quiet and left <= 1 and stats["pages"]["used"] == 0 and stats["orphaned_requests"] == 0 and grown < 32
    sys.exit(0 if clean and whole["choices"] else 1)


if __name__ == "__main__":
    main()
