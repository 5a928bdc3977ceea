"""Nobody reads the server's log: its standard error is a pipe that is full, gone, or a full disk.

The server must answer on, count what it drops, say so when the reader comes back, and end in time. Everything
goes to a server of this program's own on 127.0.0.1.
"""

import argparse
import fcntl
import http.client
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from heddle_server import BINARY, DEMO_MODEL, TIMEOUT_SCALE, wait_until  # noqa: E402

DRAIN_SECONDS = 2
F_SETPIPE_SZ = 1031


class Server:
    """A daemon whose standard error is `stderr`; its standard output names the port."""

    def __init__(self, stderr, *flags):
        self.process = subprocess.Popen(
            [str(BINARY), "serve", str(DEMO_MODEL), "--port", "0", "--drain-timeout", f"{DRAIN_SECONDS}s",
             "--kv-memory", "16MiB", *flags],
            stdout=subprocess.PIPE, stderr=stderr, text=True)
        lines = iter(self.process.stdout.readline, "")
        self.port = next(int(m.group(1)) for m in (re.search(r"http://127\.0\.0\.1:(\d+)/v1", line) for line in lines) if m)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def get(self, path, timeout=2):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * TIMEOUT_SCALE)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def dropped(self):
        """So far: the thread that writes may be behind."""
        return int(re.search(r"^heddle_log_messages_dropped_total (\d+)", self.get("/metrics")[1], re.M).group(1))

    def flood(self, requests):
        """Requests that are logged, over connections that are kept."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2 * TIMEOUT_SCALE)
        for number in range(requests):
            connection.request("GET", f"/v1/models?{number}")
            connection.getresponse().read()
        connection.close()

    def ends_in_time(self):
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30 * TIMEOUT_SCALE) == 0, self.process.returncode
        took = time.monotonic() - began
        assert took < (DRAIN_SECONDS + 1) * TIMEOUT_SCALE, f"{took:.1f} s to end"
        return took


def full_pipe(requests):
    """A reader that has stopped: today's container runtime under load, or `heddle serve 2>&1 | less`."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    with Server(writer) as server:
        os.close(writer)
        server.flood(requests)
        assert server.get("/health")[0] == 200
        dropped = server.dropped()
        print(f"full pipe: {requests} requests, {dropped} lines dropped", end="", flush=True)
        if requests > 5000:  # more than are kept
            assert dropped > 0
            text = []
            thread = threading.Thread(target=lambda: text.extend(iter(lambda: os.read(reader, 65536), b"")))
            thread.start()
            mentions = lambda: b"".join(text).count(b"log messages were dropped")
            assert wait_until(lambda: mentions() > 0)
            server.flood(10)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30 * TIMEOUT_SCALE) == 0
            thread.join()
            assert mentions() == 1, mentions()
            print(", mentioned once")
        else:
            print(f", ended {server.ends_in_time():.1f} s after SIGTERM")
    os.close(reader)


def gone_reader(requests):
    """A write is answered by SIGPIPE or EPIPE."""
    reader, writer = os.pipe()
    with Server(writer) as server:
        os.close(writer)
        os.close(reader)
        server.flood(requests)
        assert server.get("/health")[0] == 200
        assert wait_until(lambda: server.dropped() >= requests), server.dropped()
        print(f"no reader: {server.dropped()} lines dropped, ended {server.ends_in_time():.1f} s after SIGTERM")


def full_disk(requests):
    with open("/dev/full", "wb") as full, Server(full) as server:
        server.flood(requests)
        assert server.get("/health")[0] == 200
        assert wait_until(lambda: server.dropped() >= requests), server.dropped()
        print(f"full disk: {server.dropped()} lines dropped, ended {server.ends_in_time():.1f} s after SIGTERM")


def two_readers_stall():
    """Standard output is a full pipe, too: the words of welcome are not said, and nobody waits for them."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    process = subprocess.Popen([str(BINARY), "serve", str(DEMO_MODEL), "--port", "0", "--kv-memory", "16MiB",
                                "--drain-timeout", "1s"], stdout=writer, stderr=writer)
    time.sleep(1)  # most of it to load the model; a signal is taken at any time
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    process.wait(30 * TIMEOUT_SCALE)
    took = time.monotonic() - began
    assert took < 3 * TIMEOUT_SCALE, f"{took:.1f} s to end"
    print(f"both streams full: ended {took:.1f} s after SIGTERM")
    os.close(writer)
    os.close(reader)


def start_up_errors_come_out():
    found = subprocess.run([str(BINARY), "serve", "/nowhere"], capture_output=True, text=True, timeout=60 * TIMEOUT_SCALE)
    assert found.returncode == 1 and "/nowhere" in found.stderr, found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="that are logged while nobody reads")
    arguments = parser.parse_args()
    start_up_errors_come_out()
    full_pipe(arguments.requests)
    full_pipe(6000)
    gone_reader(arguments.requests)
    full_disk(arguments.requests)
    two_readers_stall()


if __name__ == "__main__":
    main()
