"""The process is stopped in the middle of a step (SIGSTOP, a debugger, a machine that sleeps) and goes on later.

Time in which nothing ran is no time without progress: /health stays 200, and the answer comes.
"""

import argparse
import pathlib
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from heddle_server import DEMO_MODEL, TIMEOUT_SCALE, Server  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="that the process is stopped for")
    arguments = parser.parse_args()
    flags = ["--kv-memory", "64MiB", "--watchdog-timeout", "1.5", "--stuck-timeout", "3"]
    with Server(*flags) as server:
        answers = []
        body = {"model": DEMO_MODEL.name, "prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True}
        clients = [threading.Thread(target=lambda: answers.append(server.request("POST", "/v1/completions", body)))
                   for _ in range(8)]
        for client in clients:
            client.start()
        while '"running_sequences":8' not in server.request("GET", "/debug/stats")[2].replace(" ", ""):
            assert len(answers) < 8, "the answers were too short to be interrupted"
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(arguments.seconds)  # the pause that is tried
        server.process.send_signal(signal.SIGCONT)
        for _ in range(10):
            status, _, text = server.request("GET", "/health")
            assert status == 200, text
        for client in clients:
            client.join(120 * TIMEOUT_SCALE)
        assert [status for status, _, _ in answers] == [200] * 8, answers
        assert server.stop() == 0
        print(f"stopped for {arguments.seconds} s: all answers came")


if __name__ == "__main__":
    main()
