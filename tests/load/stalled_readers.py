"""Clients that ask for a stream and then stop reading do not slow the engine's steps, and their requests end.

    stalled_readers.py [--clients 500] [--seconds 15]

Their answers are short and mostly fit into the kernel's buffers, so that this shows what connections that nobody reads
cost; that a client with too much unsent is cancelled is tested in tests/server/http_limits_test.cc.

Compares the mean time of a step with one client that reads, alone and beside those that do not.
"""

import argparse
import asyncio
import socket
import sys
import time

from common import Daemon, Reader, allow_descriptors, chat_body, http_request, wait_until


def read_for(server, seconds):
    """Mean seconds per step while one client reads streams one after the other."""
    request = http_request("/v1/chat/completions", chat_body(64, stream=True))
    before = server.stats()
    until = time.monotonic() + seconds
    whole = 0
    while time.monotonic() < until:
        reader = Reader()
        asyncio.run(reader.run(server.port, request))
        whole += reader.done
    return server.seconds_per_step(before), whole


def stall(port, tokens):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(http_request("/v1/chat/completions", chat_body(tokens, stream=True)))
    return client


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    allow_descriptors()
    with Daemon("--max-connections", "4096", "--log-level", "error") as server:
        alone, _ = read_for(server, options.seconds)
        stalled = [stall(server.port, tokens=64) for _ in range(options.clients)]
        # They compute until their answers are whole or cancelled; then only their connections remain.
        assert wait_until(lambda: server.stats()["running_sequences"] == 0, seconds=120)
        beside, whole = read_for(server, options.seconds)
        mib = server.resident_mib()
        for client in stalled:
            client.close()
        freed = wait_until(lambda: server.stats()["open_connections"] <= 2, seconds=60)
        stats = server.stats()
    print(f"a step takes {1e6 * alone:.0f} µs alone and {1e6 * beside:.0f} µs beside {options.clients} stalled clients")
    print(f"{whole} streams read whole beside them; memory {mib:.0f} MiB; pages in use {stats['pages']['used']}")
    sys.exit(0 if freed and whole > 0 and beside < 1.5 * alone and stats["orphaned_requests"] == 0 else 1)


if __name__ == "__main__":
    main()
