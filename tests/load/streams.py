"""Many streams at once: none is dropped, and memory stays bounded.

    streams.py [--streams 2000] [--tokens 64] [--max-mib 400]

All of them run at one time: --max-batch-seqs is their number.
"""

import argparse
import sys

from common import Daemon, allow_descriptors, load


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--max-mib", type=float, default=400)
    options = parser.parse_args()
    allow_descriptors()
    body = {"prompt": "Tell me a story.", "max_tokens": options.tokens, "stream": True, "ignore_eos": True, "seed": 1}
    limits = ("--max-queue", "4096", "--max-connections", "4096", "--log-level", "warning",
              "--max-batch-seqs", str(options.streams), "--max-batch-tokens", str(options.streams + 512))
    with Daemon(*limits) as server:
        running = []
        before = server.cpu_seconds()
        seen = load("streams", server.port, body, options.streams, 0,
                    on_running=lambda: running.append(server.stats()["running_sequences"]))
        cpu = {name: used - before.get(name, 0) for name, used in server.cpu_seconds().items()}
        mib = server.memory_mib("VmHWM")
        stats = server.stats()
    tokens = stats["generated_tokens"]
    print(f"{seen['whole']} of {options.streams} streams whole; {seen['most_open']} streamed at one time, "
          f"{max(running)} ran at one time; {tokens} tokens in {seen['seconds']:.1f} s "
          f"({tokens / seen['seconds']:.0f}/s); the last first token after {seen['last_first_event']:.2f} s")
    print(f"memory at most {mib:.0f} MiB; CPU per token {1e6 * cpu[''] / max(1, tokens):.0f} µs in all")
    print("CPU by thread: " + ", ".join(f"{n} {s:.1f} s" for n, s in sorted(cpu.items()) if n))
    print(f"pages in use {stats['pages']['used']}, orphaned requests {stats['orphaned_requests']}")
    at_once = seen["most_open"] >= 0.95 * options.streams
    sound = seen["whole"] == options.streams and at_once and mib <= options.max_mib and stats["orphaned_requests"] == 0
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
