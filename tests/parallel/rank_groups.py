"""Ranks that are processes, for tests: `heddle serve --join` beside a head, links that can be cut, streams of answers."""

import concurrent.futures
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from heddle_server import BINARY, DEMO_MODEL, TIMEOUT_SCALE, Server, wait_until  # noqa: E402
from ports import reserve_port  # noqa: E402

LIMITS = ("--threads", "1", "--kv-memory", "64MiB", "--max-batch-tokens", "64")
DRAFTERS = pathlib.Path(__file__).resolve().parents[1] / "demo_model"
EXPERTS = DRAFTERS / "moe"
PROMPTS = [f"The {animal} went to" for animal in ("cat", "dog", "old fish", "bird of the sea")]
CPUS = sorted(os.sched_getaffinity(0))
TWO_RANKS = ("--rank-cpus", ":".join(map(str, CPUS[:2])))  # of one process
RANKS_LOST = 75  # exit code: all processes are to be started again


class Rank:
    """`heddle serve --join`, and what it says."""

    binary = BINARY

    def __init__(self, port, *flags, model=DEMO_MODEL, limits=LIMITS, host="127.0.0.1", prefix=()):
        self.log = []
        self.process = subprocess.Popen(
            [*prefix, str(self.binary), "serve", str(model), "--join", f"{host}:{port}", *limits, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.log.append(line.rstrip("\n"))

    def says(self, text):
        return any(text in line for line in list(self.log))

    def wait(self, seconds=20):
        status = self.process.wait(seconds * TIMEOUT_SCALE)
        self._reader.join()
        return status

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


class HeadOfAnyPort(Server):
    """A head that listens for ranks where there is room, and the rank that has read in its log where that is."""

    def _wait_for_port(self, seconds):
        asks = lambda: "".join(line for line in list(self.log) if "waiting for ranks to join" in line)
        wait_until(asks)
        self.rank = Rank(re.search(r"at=127\.0\.0\.1:(\d+)", asks()).group(1))
        return super()._wait_for_port(seconds)


# A thread that was stopped while it held a lock (of the allocator, say) holds up the thread that sends beats too.
WHY_HUNG = "(computed nothing|nothing was heard of it)"


class HungThread:
    """Stops the one thread of a child that computes, until the child is killed at the end.

    `others`: names of threads that take time and do not compute.
    """

    SEIZE, INTERRUPT, ANY_THREAD = 0x4206, 0x4207, 0x40000000

    def __init__(self, pid, others=()):
        self.pid, self.others = pid, others
        before = self._ticks()
        time.sleep(0.3)
        now = self._ticks()
        self.thread = max(now, key=lambda thread: now[thread] - before.get(thread, 0))

    def _ticks(self):
        ticks = {}
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            if (task / "comm").read_text().strip() in self.others:
                continue
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks[int(task.name)] = int(fields[11]) + int(fields[12])
        return ticks

    def _ptrace(self, request):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(request, self.thread, None, None) != 0:
            raise unittest.SkipTest(f"no thread can be stopped here: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        self._ptrace(self.SEIZE)
        self._ptrace(self.INTERRUPT)

    def __exit__(self, *unused):
        os.kill(self.pid, signal.SIGKILL)
        while True:  # whoever traces a thread has to take note of its end
            _, status = os.waitpid(self.thread, self.ANY_THREAD)
            if os.WIFSIGNALED(status) or os.WIFEXITED(status):
                return


class Group:
    """A head and its ranks; a context manager that ends them."""

    server, rank = Server, Rank
    limits = LIMITS

    def __init__(self, others, *flags, rank_flags=(), model=DEMO_MODEL):
        self.port = reserve_port()
        self.ranks = [self.rank(self.port, *rank_flags, model=model, limits=self.limits) for _ in range(others)]
        try:
            self.head = self.server(*self.limits, "--ranks-listen", f"127.0.0.1:{self.port}", *flags, model=model)
        except RuntimeError:
            self.end()
            raise

    def end(self):
        for rank in self.ranks:
            rank.end()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.head.__exit__()
        self.end()


def answers(server, model=None):
    """What the server says to requests that run side by side."""
    named = {} if model is None else {"model": model}
    def ask(i):
        answer = server.complete(PROMPTS[i], max_tokens=24, temperature=0.8 * (i % 2), seed=i, logprobs=2, **named)
        choice = answer["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(ask, range(len(PROMPTS))))


def greedy_answers(server):
    """The likeliest answers to a few prompts, one after the other."""
    return [server.complete(prompt, max_tokens=24, temperature=0)["choices"][0]["text"] for prompt in PROMPTS]


def ask_in_background(server):
    """Begins a long answer; the list gets its events, and what ended it."""
    events = []

    def run():
        try:
            for event in server.stream("/v1/completions", {"prompt": "Once", "max_tokens": 100000,
                                                           "ignore_eos": True}):
                events.append(event)
        except Exception as error:  # the head may end in the middle
            events.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return events, thread


def chats(server):
    """What the server says to two questions, one after the other: with long answers guesses are tried."""
    said = []
    for question in ("Count from one to ten.", "Tell me a story about a fox."):
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 120, "temperature": 0}
        status, _, text = server.request("POST", "/v1/chat/completions", body)
        assert status == 200, text
        said.append(json.loads(text)["choices"][0]["message"]["content"])
    return said


class Streams:
    """Streams that run side by side, and their texts."""

    def __init__(self, server, count=4, tokens=500):
        self.texts = [[] for _ in range(count)]
        self.errors = []
        self._threads = [threading.Thread(target=self._run, args=(server, i, tokens), daemon=True)
                         for i in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, server, i, tokens):
        request = {"prompt": "The cat and the dog went " + "on " * i, "max_tokens": tokens, "seed": i,
                   "temperature": 0.7 * (i % 2), "ignore_eos": True}
        try:
            for event in server.stream("/v1/completions", request):
                if "error" in event:
                    self.errors.append(event)
                elif event != "[DONE]":
                    self.texts[i].append(event["choices"][0]["text"])
        except Exception as error:
            self.errors.append(error)

    def run_for(self, events):
        return wait_until(lambda: self.errors or min(map(len, self.texts)) > events)

    def end(self):
        """The texts; None: some stream was broken."""
        for thread in self._threads:
            thread.join(60 * TIMEOUT_SCALE)
        return None if self.errors else ["".join(parts) for parts in self.texts]


class Relay:
    """Passes bytes between a port of its own and another one, and stops doing so for a while: a link that is down."""

    def __init__(self, port):
        self._to = port
        self.recorded = []  # what came from each caller
        self._links = []  # both ends of each
        self._half_open = set()  # far ends that nobody closes
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near):
        self._open.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            return near.close()
        threading.Thread(target=self._pump, args=(far, near, bytearray()), daemon=True).start()
        self._links.append((near, far))
        self.recorded.append(bytearray())
        self._pump(near, far, self.recorded[-1])

    def _pump(self, source, sink, record):
        try:
            while data := source.recv(65536):
                self._open.wait()
                record += data
                sink.sendall(data)
        except OSError:
            pass
        for end in {source, sink} - self._half_open:
            end.close()

    def cut(self):
        """Ends all calls for the callers alone: the other side hears nothing more."""
        for near, far in self._links:
            self._half_open.add(far)
            near.shutdown(socket.SHUT_RDWR)

    def down(self, seconds):
        self._open.clear()
        time.sleep(seconds)
        self._open.set()

    def close(self):
        self._open.set()
        self._listener.close()
        for end in self._half_open:
            end.close()
