"""Sends requests that are right, nearly right and absurd to a daemon, and looks at how it bears them.

No answer may be a server error but 503, none may fail to come, the process must live and its memory level off, and
a plain request beside them must be answered within two seconds. 2,000 requests by default; 100,000 by hand:
  tests/attack/request_mutations.py --requests 100000
Everything goes to a server of this program's own on 127.0.0.1.
"""

import argparse
import collections
import http.client
import json
import pathlib
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "load"))

from common import Daemon  # noqa: E402
from heddle_server import TIMEOUT_SCALE  # noqa: E402
from mutations import Maker  # noqa: E402

PATIENCE = 300 * TIMEOUT_SCALE  # 256 answers of 2,000 tokens take more than a minute on two cores
PLAIN_SECONDS = 2 * TIMEOUT_SCALE
GROWTH_MIB = 96  # of the second half: caches of grammars and prefixes are bounded, and fill by then


class Report:
    def __init__(self):
        self.lock = threading.Lock()
        self.statuses = collections.Counter()
        self.failures = []
        self.slowest = (0.0, None)
        self.plain = []
        self.sent = 0

    def fail(self, what):
        with self.lock:
            self.failures.append(what)


class Client(threading.Thread):
    """Takes the next index until there is none, over one connection as long as it lasts."""

    def __init__(self, port, maker, indexes, report):
        super().__init__(daemon=True)
        self.port, self.maker, self.indexes, self.report = port, maker, indexes, report
        self.connection = None

    def run(self):
        for index in self.indexes:
            self.send(index)
        if self.connection:
            self.connection.close()

    def send(self, index):
        method, path, headers, body = self.maker.make(index)
        began = time.monotonic()
        try:
            status = self.exchange(method, path, headers, body)
        except (http.client.HTTPException, OSError) as error:
            self.connection = None
            self.report.fail(f"request {index} ({method} {path}, {body[:300]!r}): {type(error).__name__} {error}")
            return
        seconds = time.monotonic() - began
        with self.report.lock:
            self.report.statuses[status] += 1
            self.report.sent += 1
            if seconds > self.report.slowest[0]:
                self.report.slowest = (seconds, index)
        if status >= 500 and status != 503:
            self.report.fail(f"request {index} ({method} {path}, {body[:300]!r}): status {status}")

    def exchange(self, method, path, headers, body):
        for retry in (True, False):
            reused = self.connection is not None
            if not reused:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            try:
                self.connection.request(method, path, body, headers)
                response = self.connection.getresponse()
                response.read()
                break
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                # A connection that was kept may have run into its time limit.
                self.connection.close()
                self.connection = None
                if not (retry and reused):
                    raise
        if response.will_close:
            self.connection.close()
            self.connection = None
        return response.status


def ask_plainly(port, report, stop):
    """One small request after another, as a client that means well sends them."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0})
    while not stop.wait(0.05):
        began = time.monotonic()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
            connection.close()
        except (http.client.HTTPException, OSError) as error:
            report.fail(f"a plain request: {type(error).__name__} {error}")
            return
        seconds = time.monotonic() - began
        report.plain.append(seconds)
        if status != 200 or seconds > PLAIN_SECONDS:
            report.fail(f"a plain request: status {status} after {seconds:.2f} s")


def attack(daemon, arguments):
    report = Report()
    document, models = (json.loads(daemon.request("GET", path)[2]) for path in ("/openapi.json", "/v1/models"))
    maker = Maker(document, models["data"][0]["id"], arguments.seed)
    last = arguments.first + arguments.requests
    indexes = iter(Shared(range(arguments.first, last)))
    stop = threading.Event()
    plain = threading.Thread(target=ask_plainly, args=(daemon.port, report, stop), daemon=True)
    clients = [Client(daemon.port, maker, indexes, report) for _ in range(arguments.connections)]
    memory = [daemon.memory_mib()]
    began = time.monotonic()
    for thread in [plain, *clients]:
        thread.start()
    next_sample = arguments.requests // 8
    while any(client.is_alive() for client in clients) and daemon.process.poll() is None and len(report.failures) < 20:
        time.sleep(0.1)
        if report.sent >= next_sample and daemon.process.poll() is None:
            memory.append(daemon.memory_mib())
            next_sample += arguments.requests // 8
    seconds = time.monotonic() - began
    stop.set()
    plain.join(PATIENCE)
    if daemon.process.poll() is not None:
        report.fail(f"the server ended with {daemon.process.returncode}:\n" + "\n".join(daemon.log[-20:]))
        return report
    memory.append(daemon.memory_mib())
    if memory[-1] > memory[len(memory) // 2] + GROWTH_MIB:
        report.fail(f"memory does not level off: {memory} MiB")
    if daemon.metric("heddle_request_exceptions_total") > 0:
        report.fail("requests ended in exceptions; see heddle_request_exceptions_total")
    report.plain.sort()
    print(f"{report.sent} requests in {seconds:.0f} s over {arguments.connections} connections, seed {arguments.seed}; statuses "
          f"{dict(sorted(report.statuses.items()))}; slowest {report.slowest[0]:.2f} s (request {report.slowest[1]}); "
          f"{len(report.plain)} plain requests beside them, median {report.plain[len(report.plain) // 2] * 1000:.0f} ms, "
          f"slowest {report.plain[-1] * 1000:.0f} ms; memory {', '.join(f'{m:.0f}' for m in memory)} MiB")
    return report


class Shared:
    """An iterator that several threads take from."""

    def __init__(self, values):
        self.values, self.lock = iter(values), threading.Lock()

    def __iter__(self):
        return self

    def __next__(self):
        with self.lock:
            return next(self.values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first request; with --requests 1, that one alone")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as batches, \
            Daemon("--kv-memory", "32MiB", "--log-level", "error", "--batch-dir", batches) as daemon:
        report = attack(daemon, arguments)
        if daemon.process.poll() is None and daemon.stop() != 0:
            report.fail("the server did not end in order")
    for failure in report.failures[:20]:
        print(failure, file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
