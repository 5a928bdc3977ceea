"""Many streams at once: none is dropped, and memory stays bounded.

    streams.py [--streams 2000] [--tokens 32] [--max-mib 400]
"""

import argparse
import asyncio
import sys
import time

from common import Daemon, Reader, allow_descriptors, chat_body, http_request


async def run(port, streams, tokens):
    request = http_request("/v1/chat/completions", chat_body(tokens, stream=True))
    readers = [Reader() for _ in range(streams)]
    await asyncio.gather(*(reader.run(port, request) for reader in readers))
    return readers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--max-mib", type=float, default=400)
    options = parser.parse_args()
    allow_descriptors()
    limits = ("--max-queue", "4096", "--max-connections", "4096", "--log-level", "warning")
    with Daemon(*limits) as server:
        before = server.cpu_seconds()
        began = time.monotonic()
        readers = asyncio.run(run(server.port, options.streams, options.tokens))
        seconds = time.monotonic() - began
        cpu = {name: used - before.get(name, 0) for name, used in server.cpu_seconds().items()}
        mib = server.resident_mib()
        stats = server.stats()
    done = sum(reader.done for reader in readers)
    tokens = stats["generated_tokens"]
    print(f"{done} of {options.streams} streams whole, {tokens} tokens in {seconds:.1f} s ({tokens / seconds:.0f}/s)")
    print(f"memory at the end {mib:.0f} MiB; CPU per token {1e6 * cpu[''] / max(1, tokens):.0f} µs in all")
    print("CPU by thread: " + ", ".join(f"{n} {s:.1f} s" for n, s in sorted(cpu.items()) if n))
    print(f"pages in use {stats['pages']['used']}, orphaned requests {stats['orphaned_requests']}")
    sound = done == options.streams and mib <= options.max_mib and stats["orphaned_requests"] == 0
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
