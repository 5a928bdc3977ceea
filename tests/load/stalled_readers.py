"""Clients that ask for a long stream and then stop reading: the engine's steps take no longer than beside clients that
read, memory stays bounded, and each is cut off.

    stalled_readers.py [--clients 500] [--readers 64] [--tokens 240] [--max-mib 400]

Each token's event has about two kilobytes (20 logprobs), so that the kernel's buffers are full at once and the
server's own fill up. The same number of sequences runs in both rounds: first all clients read, then only the readers.
"""

import argparse
import sys

from common import Daemon, allow_descriptors, load, step_seconds, wait_until


def run(server, body, readers, stalled):
    """What the load saw; the mean time of a step while it ran; the most bytes that clients left unread; the most MiB."""
    before = server.stats()
    unsent = [0]
    seen = load("streams", server.port, body, readers, stalled,
                on_running=lambda: unsent.append(server.stats()["unsent_bytes"]))
    after = server.stats()
    return seen, step_seconds(before, after), max(unsent), server.memory_mib("VmHWM")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--readers", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--max-mib", type=float, default=400)
    options = parser.parse_args()
    allow_descriptors()
    all_clients = options.clients + options.readers
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": options.tokens, "stream": True,
            "ignore_eos": True, "seed": 1, "logprobs": True, "top_logprobs": 20}
    limits = ("--max-connections", "4096", "--log-level", "error", "--max-batch-seqs", str(all_clients),
              "--max-batch-tokens", str(all_clients + 512), "--kv-type", "int8")
    with Daemon(*limits) as server:
        _, all_read, _, mib_read = run(server, body, all_clients, 0)
        seen, beside, unsent, mib = run(server, body, options.readers, options.clients)
        # Cut off as soon as they leave too much, or when they take nothing for the write timeout.
        freed = wait_until(lambda: server.stats()["open_connections"] <= 1, seconds=60)
        stats = server.stats()
        cancelled = server.outcome("cancelled")
    print(f"a step takes {1e6 * all_read:.0f} µs with {all_clients} clients that read, {1e6 * beside:.0f} µs where "
          f"{options.clients} of them do not: {beside / all_read:.2f} times (must be below 1.2)")
    print(f"{seen['whole']} of {options.readers} streams read whole beside them; {cancelled:.0f} cut off")
    print(f"unread at most {unsent / 2**20:.0f} MiB; memory at most {mib:.0f} MiB ({mib_read:.0f} with readers alone); "
          f"pages in use {stats['pages']['used']}, unread at the end {stats['unsent_bytes']}")
    sound = freed and seen["whole"] == options.readers and stats["pages"]["used"] == 0
    sys.exit(0 if sound and beside < 1.2 * all_read and mib <= options.max_mib else 1)


if __name__ == "__main__":
    main()
