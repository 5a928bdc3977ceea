"""Starts `heddle serve` for a test and talks plain HTTP to it. Standard library only."""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

SOURCE = pathlib.Path(os.environ.get("HEDDLE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BINARY = pathlib.Path(os.environ.get("HEDDLE_BINARY_DIR", SOURCE / "build")) / "heddle"
TIMEOUT_SCALE = float(os.environ.get("HEDDLE_TIMEOUT_SCALE", "1"))  # sanitizers make everything slower
DEMO_MODEL = SOURCE / "share" / "demo-model"


class Server:
    """A running daemon on a free port; a context manager that ends it."""

    binary = BINARY

    def __init__(self, *flags, model=DEMO_MODEL, ready_seconds=60):
        self.log = []
        self.process = subprocess.Popen(
            [str(self.binary), "serve", str(model), "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.port = self._wait_for_port(ready_seconds)

    def _read_log(self):
        for line in self.process.stdout:
            self.log.append(line.rstrip("\n"))

    def _wait_for_port(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.log):
                found = re.search(r"https?://127\.0\.0\.1:(\d+)", line)
                if found:
                    return int(found.group(1))
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError("the server did not start:\n" + "\n".join(self.log))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self, sig=signal.SIGTERM, timeout=60):
        """Sends a signal and returns the exit status."""
        self.process.send_signal(sig)
        return self.process.wait(timeout)

    def request(self, method, path, body=None, timeout=120):
        """(status, headers, text) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * TIMEOUT_SCALE)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def complete(self, prompt, **fields):
        """The JSON answer of /v1/completions; fails on any status but 200."""
        status, _, text = self.request("POST", "/v1/completions", {"prompt": prompt, **fields})
        assert status == 200, text
        return json.loads(text)

    def stream(self, path, body):
        """Yields the parsed data events of a streamed answer, "[DONE]" last."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120 * TIMEOUT_SCALE)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            for line in response:
                line = line.decode().rstrip("\r\n")
                if line.startswith("data: "):
                    data = line[len("data: "):]
                    yield data if data == "[DONE]" else json.loads(data)
        finally:
            connection.close()

    def metric(self, name):
        """The value of a metric without labels, or the sum over its labels."""
        _, _, text = self.request("GET", "/metrics")
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert values, f"no metric {name} in:\n{text}"
        return sum(float(value) for value in values)


def wait_until(condition, seconds=20):
    """Polls a condition; returns whether it came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False
