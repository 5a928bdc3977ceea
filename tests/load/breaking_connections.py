"""Connections that break at random bytes, of the request or of its answer: nothing is left of them.

    breaking_connections.py [--connections 100000] [--seed 1]
"""

import argparse
import sys

from common import Daemon, allow_descriptors, load, wait_until

BODY = {"prompt": "Tell me a story.", "max_tokens": 24, "stream": True, "ignore_eos": True, "seed": 1}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    allow_descriptors()
    with Daemon("--log-level", "error") as server:

        def is_quiet():
            stats = server.stats()
            return stats["open_connections"] <= 1 and stats["running_sequences"] + stats["waiting_requests"] == 0

        # Some first, so that caches and pools have their size.
        load("broken", server.port, BODY, 5000, options.seed + 1)
        assert wait_until(is_quiet)
        descriptors, mib = server.descriptors(), server.memory_mib()
        seen = load("broken", server.port, BODY, options.connections, options.seed)
        quiet = wait_until(is_quiet, seconds=60)
        stats = server.stats()
        left = server.descriptors() - descriptors
        grown = server.memory_mib() - mib
        whole = server.complete("The sky is", max_tokens=4)
    print(f"{seen['broken']} connections broke in {seen['seconds']:.1f} s (seed {options.seed}); "
          f"memory grew {grown:.1f} MiB from {mib:.0f}")
    print(f"descriptors left {left}, pages in use {stats['pages']['used']}, orphaned {stats['orphaned_requests']}, "
          f"unsent bytes {stats['unsent_bytes']}")
    kept = stats["pages"]["used"] + stats["orphaned_requests"] + stats["unsent_bytes"]
    sys.exit(0 if quiet and left <= 1 and kept == 0 and grown < 16 and whole["choices"] else 1)


if __name__ == "__main__":
    main()
