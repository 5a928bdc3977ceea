"""What the load tests share: a daemon with the demo model, raw HTTP over asyncio, and what /proc says of the daemon."""

import asyncio
import json
import os
import pathlib
import resource
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from heddle_server import Server, wait_until  # noqa: E402  (the folder of the conformance tests)

__all__ = ["Daemon", "Reader", "allow_descriptors", "chat_body", "http_request", "wait_until"]


def allow_descriptors():
    """Raises this process's limit of open descriptors, and with it the daemon's, as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def chat_body(max_tokens, stream):
    return {
        "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": max_tokens, "stream": stream,
        "ignore_eos": True, "seed": 1,
    }


def http_request(path, body):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Daemon(Server):
    def resident_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def cpu_seconds(self):
        """{name of a thread: user and system seconds}, and their sum under ""."""
        seconds = {"": 0.0}
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            used = sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
            seconds[name] = seconds.get(name, 0) + used
            seconds[""] += used
        return seconds

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stats(self):
        return json.loads(self.request("GET", "/debug/stats")[2])

    def seconds_per_step(self, since):
        """Mean busy time of a step since the earlier `since` = stats()."""
        now = self.stats()
        parts = ("plan", "forward", "sample", "emit")
        spent = sum(now["step_seconds"][p] - since["step_seconds"][p] for p in parts)
        return spent / max(1, now["steps"] - since["steps"])


class Reader:
    """One streamed answer, read to its end."""

    def __init__(self):
        self.tokens = 0
        self.done = False
        self.first = None

    async def run(self, port, request):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        tail = b""
        while not self.done:
            data = await reader.read(1 << 16)
            if not data:
                break
            self.first = self.first or asyncio.get_running_loop().time()
            self.tokens += data.count(b'"delta":{"content"')
            self.done = b"[DONE]" in tail + data
            tail = data[-8:]
        writer.close()
