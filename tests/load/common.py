"""What the load tests share: a daemon with the demo model, the load generator, and what /proc says of the daemon."""

import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from heddle_server import BINARY, Server, wait_until  # noqa: E402  (the folder of the conformance tests)

__all__ = ["Daemon", "Process", "Stub", "allow_descriptors", "load", "step_seconds", "wait_until"]


def allow_descriptors():
    """Raises this process's limit of open descriptors, and with it the daemon's, as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def load(mode, port, body, *arguments, on_running=None):
    """What heddle_http_load saw, as a dictionary. `on_running` is called ten times a second meanwhile."""
    command = [str(BINARY.parent / "tests" / "heddle_http_load"), mode, str(port), json.dumps(body)]
    process = subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        if on_running:
            on_running()
        time.sleep(0.1)
    assert process.returncode == 0, f"{command[0]} failed"
    return json.loads(process.stdout.read())


class Process:
    """What /proc says of a process."""

    def __init__(self, pid):
        self.folder = pathlib.Path(f"/proc/{pid}")

    def memory_mib(self, field="VmRSS"):
        """VmRSS: now; VmHWM: the most so far."""
        return int((self.folder / "status").read_text().split(f"{field}:")[1].split()[0]) / 1024

    def cpu_seconds(self):
        """{name of a thread: user and system seconds}, and their sum under ""."""
        seconds = {"": 0.0}
        for task in (self.folder / "task").iterdir():
            name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            used = sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
            seconds[name] = seconds.get(name, 0) + used
            seconds[""] += used
        return seconds

    def descriptors(self):
        return len(os.listdir(self.folder / "fd"))


class Daemon(Server, Process):
    def __init__(self, *flags, **options):
        Server.__init__(self, *flags, **options)
        Process.__init__(self, self.process.pid)

    def stats(self):
        return json.loads(self.request("GET", "/debug/stats")[2])

    def outcome(self, name):
        """Generation requests that ended so."""
        text = self.request("GET", "/metrics")[2]
        found = re.findall(rf'^heddle_generation_requests_total\{{[^}}]*outcome="{name}"[^}}]*\}} (\d+)', text, re.M)
        return sum(map(int, found))


class Stub(Process):
    """tests/server/fake_server.cc: the real HTTP front end with a stub in place of the engine."""

    def __init__(self, step_us=0):
        program = BINARY.parent / "tests" / "heddle_fake_server"
        command = [str(program), "--quiet", f"--step-us={step_us}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r"\d+", self.process.stdout.readline()).group())
        super().__init__(self.process.pid)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


def step_seconds(before, after):
    """Mean busy time of a step between two stats()."""
    parts = ("plan", "forward", "sample", "emit")
    spent = sum(after["step_seconds"][p] - before["step_seconds"][p] for p in parts)
    return spent / max(1, after["steps"] - before["steps"])
