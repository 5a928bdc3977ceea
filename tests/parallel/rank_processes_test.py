"""Ranks that are processes: same tokens as threads; a rank that dies, hangs or does not belong is named."""

import concurrent.futures
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))
try:
    import grpc
except ImportError:
    grpc = None

from heddle_server import BINARY, DEMO_MODEL, TIMEOUT_SCALE, Server, wait_until  # noqa: E402
from ports import reserve_port  # noqa: E402

LIMITS = ("--threads", "1", "--kv-memory", "64MiB", "--max-batch-tokens", "64")
DRAFTERS = pathlib.Path(__file__).resolve().parents[1] / "demo_model"
EXPERTS = DRAFTERS / "moe"
PROMPTS = [f"The {animal} went to" for animal in ("cat", "dog", "old fish", "bird of the sea")]
CPUS = sorted(os.sched_getaffinity(0))
TWO_RANKS = ("--rank-cpus", ":".join(map(str, CPUS[:2])))  # of one process
RANKS_LOST = 75  # exit code: all processes are to be started again


def field(number, data):
    """A field of bytes in a protocol buffer."""
    head = [number << 3 | 2]
    length = len(data)
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes([*head, length]) + data


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


class HungThread:
    """Stops the one thread of a child that computes, until the child is killed at the end."""

    SEIZE, INTERRUPT, ANY_THREAD = 0x4206, 0x4207, 0x40000000

    def __init__(self, pid):
        self.pid = pid
        before = self._ticks()
        time.sleep(0.3)
        now = self._ticks()
        self.thread = max(now, key=lambda thread: now[thread] - before.get(thread, 0))

    def _ticks(self):
        ticks = {}
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
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

    def __init__(self, others, *flags, rank_flags=(), model=DEMO_MODEL):
        self.port = reserve_port()
        self.ranks = [self.rank(self.port, *rank_flags, model=model) for _ in range(others)]
        try:
            self.head = self.server(*LIMITS, "--ranks-listen", f"127.0.0.1:{self.port}", *flags, model=model)
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


class RankProcessesTest(unittest.TestCase):
    def test_processes_give_the_tokens_of_threads(self):
        for layout in (("--tp", "2"), ("--tp", "3"), ("--pp", "2"), ("--tp", "2", "--pp", "2")):
            with self.subTest(layout=layout):
                world = 1
                for number in layout[1::2]:
                    world *= int(number)
                with Server(*LIMITS, *layout) as threads:
                    expected = answers(threads)
                with Group(world - 1, *layout) as group:
                    self.assertEqual(answers(group.head), expected)
                    self.assertEqual(group.head.stop(), 0)
                    for rank in group.ranks:
                        self.assertEqual(rank.wait(), 0, rank.log)

    def test_a_head_says_which_port_it_found(self):
        with HeadOfAnyPort(*LIMITS, "--tp", "2", "--ranks-listen", "127.0.0.1:0") as head:
            self.addCleanup(head.rank.end)
            self.assertEqual(len(answers(head)), 4)

    @unittest.skipIf(len(CPUS) < 2, "ranks of one process need a processor each")
    def test_a_process_may_have_several_ranks(self):
        # Whole stages in each process; a stage with a rank in another process; all in the head's.
        for layout, others in ((("--tp", "2", "--pp", "2"), TWO_RANKS), (("--tp", "3"), ()), (("--tp", "4"), TWO_RANKS),
                               (("--tp", "2"), None)):
            with self.subTest(layout=layout):
                with Server(*LIMITS, *layout) as threads:
                    expected = answers(threads)
                count = 0 if others is None else 1
                with Group(count, *layout, *TWO_RANKS, rank_flags=others or ()) as group:
                    self.assertEqual(answers(group.head), expected)
                    links = [line for line in group.head.log if "links between ranks" in line]
                    self.assertEqual(len(links), count, group.head.log)
                    self.assertEqual(group.head.stop(), 0)
                    for rank in group.ranks:
                        self.assertEqual(rank.wait(), 0, rank.log)

    @unittest.skipIf(len(CPUS) < 2, "ranks of one process need a processor each")
    def test_a_process_that_dies_takes_its_ranks(self):
        with Group(1, "--tp", "2", "--pp", "2", *TWO_RANKS, rank_flags=TWO_RANKS) as group:
            expected = Streams(group.head).end()
            streams = Streams(group.head)
            self.assertTrue(streams.run_for(5))
            group.ranks[0].process.kill()
            named = r"rank (2|3) \(127\.0\.0\.1\) is lost in step \d+.*its process has rank (2|3)"
            self.assertTrue(wait_until(lambda: any(re.search(named, line) for line in list(group.head.log))),
                            group.head.log)
            group.ranks.append(Rank(group.port, *TWO_RANKS))
            self.assertEqual(streams.end(), expected, streams.errors)
            self.assertEqual(group.head.metric("heddle_recoveries_total"), 1)
            self.assertEqual(sum("the rank is loaded" in line for line in group.head.log), 1)
            self.assertEqual(group.head.stop(), 0)

    def test_ranks_share_each_expert(self):
        flags = ("--isa", "portable")  # sums in F32, so that no order of adding them changes a choice
        with Server(*LIMITS, *flags, model=EXPERTS) as one:
            expected = greedy_answers(one)
        for tp in (2, 3):
            layout = ("--tp", str(tp), *flags)
            with self.subTest(tp=tp):
                with Server(*LIMITS, *layout, model=EXPERTS) as threads:
                    self.assertEqual(greedy_answers(threads), expected)
                    drawn = answers(threads)
                with Group(tp - 1, *layout, rank_flags=flags, model=EXPERTS) as group:
                    self.assertEqual(greedy_answers(group.head), expected)
                    self.assertEqual(answers(group.head), drawn)

    def test_a_drafter_runs_on_the_head(self):
        for layout in (("--tp", "2"), ("--pp", "2"), ("--tp", "2", "--pp", "2")):
            for drafter in (f"draft:{DRAFTERS / 'draft'}", f"eagle:{DRAFTERS / 'eagle'}", f"dflash:{DRAFTERS / 'dflash'}"):
                with self.subTest(layout=layout, drafter=drafter):
                    world = 1
                    for number in layout[1::2]:
                        world *= int(number)
                    with Server(*LIMITS, *layout, "--speculate", "off") as threads:
                        expected = chats(threads), answers(threads)
                    with Group(world - 1, *layout, "--speculate", drafter) as group:
                        self.assertEqual((chats(group.head), answers(group.head)), expected)
                        self.assertGreater(group.head.metric("heddle_spec_decode_accepted_tokens_total"), 0)
                        self.assertEqual(group.head.stop(), 0)

    def test_adapters_are_cut_by_the_head(self):
        adapters = ",".join(f"{name}={DEMO_MODEL / 'adapters' / name}" for name in ("pirate", "upper"))
        for layout in (("--tp", "2"), ("--pp", "2"), ("--tp", "2", "--pp", "2")):
            with self.subTest(layout=layout):
                world = 1
                for number in layout[1::2]:
                    world *= int(number)
                with Server(*LIMITS, *layout, "--lora", adapters) as threads:
                    expected = {name: answers(threads, name) for name in ("pirate", "upper")}
                    self.assertNotEqual(expected["pirate"], expected["upper"])
                with Group(world - 1, *layout, "--lora", adapters) as group:
                    for name, answer in expected.items():
                        self.assertEqual(answers(group.head, name), answer)
                    group.ranks[0].process.kill()
                    self.assertTrue(wait_until(lambda: self.ready(group)[0] == 503))
                    group.ranks.append(Rank(group.port))
                    self.assertTrue(wait_until(lambda: self.ready(group)[0] == 200))
                    for name, answer in expected.items():
                        self.assertEqual(answers(group.head, name), answer)
                    self.assertEqual(group.head.stop(), 0)

    @unittest.skipIf(len(CPUS) < 2, "ranks of one process need a processor each")
    def test_drafters_and_adapters_run_where_a_process_has_several_ranks(self):
        names = ("pirate", "upper")
        adapters = ",".join(f"{name}={DEMO_MODEL / 'adapters' / name}" for name in names)
        for layout, others in ((("--tp", "2", "--pp", "2"), 1), (("--tp", "2"), 0)):
            with Server(*LIMITS, *layout, "--lora", adapters, "--speculate", "off") as threads:
                expected = chats(threads), [answers(threads, name) for name in names]
            for drafter in ("draft", "eagle"):
                with self.subTest(layout=layout, drafter=drafter):
                    flags = ("--lora", adapters, "--speculate", f"{drafter}:{DRAFTERS / drafter}")
                    with Group(others, *layout, *TWO_RANKS, *flags, rank_flags=TWO_RANKS) as group:
                        found = chats(group.head), [answers(group.head, name) for name in names]
                        self.assertEqual(found, expected)
                        self.assertGreater(group.head.metric("heddle_spec_decode_accepted_tokens_total"), 0)
                        self.assertEqual(group.head.stop(), 0)

    def lose(self, number, flags, seconds):
        with Group(2, "--tp", "3", "--rank-rejoin-timeout", "0", *flags) as group:
            events, thread = ask_in_background(group.head)
            self.assertTrue(wait_until(lambda: len(events) > 3))
            victim = next(rank for rank in group.ranks if rank.says("rank=1"))
            begin = time.monotonic()
            victim.process.send_signal(number)
            named = lambda: any(re.search(r"rank 1 \(127\.0\.0\.1\) is lost in step \d+.*op \d+", line)
                                for line in list(group.head.log))
            self.assertTrue(wait_until(named, 20), group.head.log)
            self.assertLess(time.monotonic() - begin, seconds * TIMEOUT_SCALE)
            self.assertEqual(group.head.process.wait(20), RANKS_LOST)
            thread.join(20)
            errors = [event for event in events if isinstance(event, dict) and "error" in event]
            self.assertEqual(len(errors), 1, events[-3:])
            self.assertNotIn("127.0.0.1", errors[0]["error"]["message"])
            for rank in group.ranks:
                if rank is not victim:
                    self.assertEqual(rank.wait(), RANKS_LOST, rank.log)

    def test_a_rank_that_dies_is_named_at_once(self):
        self.lose(signal.SIGKILL, (), 1)

    def test_a_rank_that_is_stopped_is_named_after_the_timeout(self):
        self.lose(signal.SIGSTOP, ("--rank-timeout", "1"), 2)

    def test_a_rank_whose_computation_hangs_is_named_after_the_timeout(self):
        with Group(2, "--tp", "3", "--rank-rejoin-timeout", "0", "--rank-timeout", "1") as group:
            events, _ = ask_in_background(group.head)
            self.assertTrue(wait_until(lambda: len(events) > 3))
            victim = next(rank for rank in group.ranks if rank.says("rank=1"))
            begin = time.monotonic()
            with HungThread(victim.process.pid):  # its beats go on
                named = lambda: any(re.search(r"rank 1 \(127\.0\.0\.1\) is lost in step \d+.*computed nothing", line)
                                    for line in list(group.head.log))
                self.assertTrue(wait_until(named, 20), group.head.log)
                self.assertLess(time.monotonic() - begin, 2.5 * TIMEOUT_SCALE)
                self.assertEqual(group.head.process.wait(20), RANKS_LOST)

    def test_shares_are_as_large_as_the_head_says(self):
        layout = ("--tp", "2", "--tp-shares", "3,1")
        with Server(*LIMITS, "--tp", "2") as even, Server(*LIMITS, *layout) as threads:
            expected = answers(threads)
            self.assertEqual(greedy_answers(even), greedy_answers(threads))
        with Group(1, *layout) as group:
            self.assertEqual(answers(group.head), expected)
            self.assertEqual(group.head.stop(), 0)

    def test_rounded_rows_give_the_same_answers_alone_and_under_load(self):
        layout = ("--tp", "2", "--pp", "2")
        with Server(*LIMITS, *layout) as threads:
            exact = answers(threads)
        with Group(3, *layout, "--rank-wire", "bf16") as group:
            together = answers(group.head)
            self.assertNotEqual(together, exact)  # in the last digits of log-probabilities
            alone = group.head.complete(PROMPTS[0], max_tokens=24, temperature=0, seed=0, logprobs=2)["choices"][0]
            self.assertEqual((alone["text"], alone["logprobs"]["token_logprobs"]), together[0])
            for mine, theirs in zip(together[0][1][:2], exact[0][1][:2]):
                self.assertAlmostEqual(mine, theirs, delta=0.1)
            self.assertEqual(group.head.stop(), 0)

    def test_a_process_gets_the_rank_that_it_wants(self):
        port = reserve_port()
        ranks = [Rank(port, "--rank", "2"), Rank(port, "--rank", "1")]
        try:
            with Server(*LIMITS, "--tp", "3", "--ranks-listen", f"127.0.0.1:{port}") as head:
                self.assertTrue(ranks[0].says("rank=2") and ranks[1].says("rank=1"))
                late = Rank(port, "--rank", "7")
                self.assertEqual(late.wait(), 1, late.log)
                self.assertTrue(late.says("--rank is 7"), late.log)
                late.end()
                self.assertEqual(head.stop(), 0)
        finally:
            for rank in ranks:
                rank.end()

    def test_a_rank_that_dies_while_nothing_runs_is_named(self):
        with Group(1, "--tp", "2", "--rank-rejoin-timeout", "0") as group:
            group.ranks[0].process.kill()
            self.assertEqual(group.head.process.wait(20), RANKS_LOST)
            self.assertIn("rank 1 (127.0.0.1) is lost", "\n".join(group.head.log))

    def test_ranks_end_when_the_head_dies(self):
        with Group(2, "--tp", "3", "--rank-rejoin-timeout", "0") as group:
            group.head.process.kill()
            for rank in group.ranks:
                self.assertEqual(rank.wait(), RANKS_LOST, rank.log)

    def ready(self, group):
        status, _, body = group.head.request("GET", "/ready")
        return status, body

    def test_streams_go_on_when_a_killed_rank_comes_back(self):
        for others, layout in ((2, ("--tp", "3")), (3, ("--tp", "2", "--pp", "2"))):
            with self.subTest(layout=layout), Group(others, *layout) as group:
                expected = Streams(group.head).end()
                self.assertIsNotNone(expected)
                streams = Streams(group.head)
                self.assertTrue(streams.run_for(5))
                victim = next(rank for rank in group.ranks if rank.says("rank=1"))
                victim.process.kill()
                self.assertTrue(wait_until(lambda: self.ready(group)[0] == 503))
                self.assertIn("Rank 1 of this server is lost", self.ready(group)[1])
                status, headers, body = group.head.request("POST", "/v1/completions",
                                                           {"prompt": "x", "max_tokens": 1})
                self.assertEqual(status, 503, body)
                self.assertGreaterEqual(int(headers["Retry-After"]), 1)
                self.assertIn("Rank 1 of this server is lost", body)
                self.assertEqual(group.head.request("GET", "/health")[0], 200)
                group.ranks.append(Rank(group.port))
                self.assertEqual(streams.end(), expected, streams.errors)
                self.assertEqual(self.ready(group)[0], 200)
                self.assertEqual(group.head.metric("heddle_recoveries_total"), 1)
                for rank in group.ranks:
                    if rank is not victim:
                        loads = sum("the rank is loaded" in line for line in rank.log)
                        self.assertEqual(loads, 1, rank.log)
                self.assertEqual(Streams(group.head).end(), expected)
                self.assertEqual(group.head.stop(), 0)
                for rank in group.ranks:
                    if rank is not victim:
                        self.assertEqual(rank.wait(), 0, rank.log)

    def test_a_stopped_rank_goes_on_with_its_weights(self):
        with Group(1, "--tp", "2", "--rank-timeout", "1") as group:
            expected = Streams(group.head).end()
            streams = Streams(group.head)
            self.assertTrue(streams.run_for(5))
            group.ranks[0].process.send_signal(signal.SIGSTOP)
            self.assertTrue(wait_until(lambda: self.ready(group)[0] == 503))
            group.ranks[0].process.send_signal(signal.SIGCONT)
            self.assertEqual(streams.end(), expected, streams.errors)
            self.assertEqual(sum("the rank is loaded" in line for line in group.ranks[0].log), 1)

    def test_a_head_that_is_stopped_for_a_while_loses_nothing(self):
        with Group(1, "--pp", "2", "--rank-timeout", "1") as group:
            expected = Streams(group.head).end()
            streams = Streams(group.head)
            self.assertTrue(streams.run_for(5))
            group.head.process.send_signal(signal.SIGSTOP)
            threading.Event().wait(1.5)  # longer than the timeout of ranks
            group.head.process.send_signal(signal.SIGCONT)
            self.assertEqual(streams.end(), expected, streams.errors)
            self.assertNotIn("lost", "\n".join(group.head.log))

    def test_a_head_that_is_stopped_for_longer_than_its_ranks_wait_loses_nothing(self):
        with Group(1, "--pp", "2", "--rank-timeout", "1") as group:
            expected = Streams(group.head).end()
            streams = Streams(group.head)
            self.assertTrue(streams.run_for(5))
            group.head.process.send_signal(signal.SIGSTOP)
            self.assertTrue(wait_until(lambda: group.ranks[0].says("joining again"), 20))
            group.head.process.send_signal(signal.SIGCONT)
            self.assertEqual(streams.end(), expected, streams.errors)
            self.assertEqual(sum("the rank is loaded" in line for line in group.ranks[0].log), 1)

    def test_a_link_that_is_down_for_a_while_breaks_no_stream(self):
        port = reserve_port()
        relay = Relay(port)
        self.addCleanup(relay.close)
        rank = Rank(relay.port)
        self.addCleanup(rank.end)
        with Server(*LIMITS, "--tp", "2", "--rank-timeout", "1", "--ranks-listen", f"127.0.0.1:{port}") as head:
            expected = Streams(head).end()
            for seconds, recoveries in ((0.3, 0), (3, 1)):
                streams = Streams(head)
                self.assertTrue(streams.run_for(5))
                relay.down(seconds)
                self.assertEqual(streams.end(), expected, streams.errors)
                self.assertEqual(head.metric("heddle_recoveries_total"), recoveries)
            self.assertEqual(sum("the rank is loaded" in line for line in rank.log), 1)

    def test_a_rank_comes_back_before_the_head_knows_that_it_was_gone(self):
        port = reserve_port()
        relay = Relay(port)
        self.addCleanup(relay.close)
        rank = Rank(relay.port)
        self.addCleanup(rank.end)
        with Server(*LIMITS, "--tp", "2", "--rank-timeout", "1", "--ranks-listen", f"127.0.0.1:{port}") as head:
            expected = Streams(head).end()
            streams = Streams(head)
            self.assertTrue(streams.run_for(5))
            relay.cut()
            self.assertEqual(streams.end(), expected, (streams.errors, rank.log))
            self.assertEqual(head.metric("heddle_recoveries_total"), 1)
            self.assertEqual(sum("the rank is loaded" in line for line in rank.log), 1)

    @unittest.skipIf(grpc is None, "a head of our own needs Python's grpcio")
    def test_a_head_that_hangs_up_without_a_reason_is_called_again(self):
        calls = []

        def join(_, context):
            calls.append(context)
            context.cancel()
            yield from ()

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            server = grpc.server(pool)
            handler = grpc.stream_stream_rpc_method_handler(join, lambda x: x, lambda x: x)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
                "heddle.ranks.v1.Ranks", {"Join": handler}),))
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            rank = Rank(port)
            self.addCleanup(rank.end)
            self.assertTrue(wait_until(lambda: len(calls) > 2), rank.log)
            self.assertIsNone(rank.process.poll(), rank.log)
            server.stop(None)

    def test_a_recorded_call_gets_no_place(self):
        port = reserve_port()
        relay = Relay(port)
        self.addCleanup(relay.close)
        rank = Rank(relay.port)
        self.addCleanup(rank.end)
        with Server(*LIMITS, "--tp", "2", "--ranks-listen", f"127.0.0.1:{port}") as head:
            streams = Streams(head, tokens=200)
            self.assertTrue(streams.run_for(5))
            calls = [bytes(call) for call in relay.recorded]
            self.assertTrue(any(len(call) > 500 for call in calls))
            for call in calls * 3:
                with socket.create_connection(("127.0.0.1", port), 10 * TIMEOUT_SCALE) as replay:
                    replay.sendall(call)
                    replay.shutdown(socket.SHUT_WR)
                    while replay.recv(65536):
                        pass
            self.assertEqual(streams.end(), Streams(head, tokens=200).end())
            self.assertEqual(head.metric("heddle_recoveries_total"), 0)
            self.assertFalse(any("lost" in line for line in list(head.log)), head.log)

    def test_the_rank_with_the_least_memory_decides(self):
        def limits(memory):
            return tuple(memory if flag == "64MiB" else flag for flag in LIMITS)

        pages = {}
        for memory in ("64MiB", "1MiB"):
            port = reserve_port()
            short = Rank(port, limits=limits("1KiB"))
            self.addCleanup(short.end)
            others = []
            threading.Timer(2 * TIMEOUT_SCALE, lambda: others.append(Rank(port, limits=limits(memory)))).start()
            with Server(*LIMITS, "--tp", "2", "--ranks-listen", f"127.0.0.1:{port}") as head:
                self.assertEqual(short.wait(), 1)
                self.assertTrue(short.says("--kv-memory"), short.log)
                pages[memory] = head.metric("heddle_kv_pages")
                self.assertEqual(len(answers(head)), 4)
            for rank in others:
                rank.end()
        self.assertGreater(pages["1MiB"], 0)
        self.assertLess(pages["1MiB"], pages["64MiB"] / 32)

    def test_ranks_wait_for_another_head(self):
        with Group(1, "--tp", "2") as group:
            expected = Streams(group.head, tokens=20).end()
            group.head.process.kill()
            self.assertTrue(wait_until(lambda: group.ranks[0].says("joining again")))
            with Server(*LIMITS, "--tp", "2", "--ranks-listen", f"127.0.0.1:{group.port}") as other:
                self.assertEqual(Streams(other, tokens=20).end(), expected)
                self.assertEqual(other.stop(), 0)
            self.assertEqual(group.ranks[0].wait(), 0, group.ranks[0].log)

    def test_all_end_when_nobody_comes_in_time(self):
        with Group(2, "--tp", "3", "--rank-rejoin-timeout", "1") as group:
            streams = Streams(group.head, tokens=2000)
            self.assertTrue(streams.run_for(5))
            victim = next(rank for rank in group.ranks if rank.says("rank=1"))
            victim.process.kill()
            self.assertEqual(group.head.process.wait(20), RANKS_LOST)
            self.assertIn("--rank-rejoin-timeout", "\n".join(group.head.log))
            self.assertIsNone(streams.end())
            for rank in group.ranks:
                if rank is not victim:
                    self.assertEqual(rank.wait(), RANKS_LOST, rank.log)

    def test_a_rank_that_is_lost_while_nothing_runs_comes_back(self):
        with Group(1, "--tp", "2") as group:
            group.ranks[0].process.kill()
            self.assertTrue(wait_until(lambda: self.ready(group)[0] == 503, 2))
            group.ranks.append(Rank(group.port))
            self.assertTrue(wait_until(lambda: self.ready(group)[0] == 200))
            self.assertEqual(len(answers(group.head)), 4)

    def test_what_does_not_belong_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            token, other = pathlib.Path(folder) / "token", pathlib.Path(folder) / "other"
            token.write_text("a-secret-of-this-group")
            other.write_text("a-secret-of-that-group")
            for file in (token, other):
                file.chmod(0o600)
            model = pathlib.Path(folder) / "model"
            shutil.copytree(DEMO_MODEL, model)
            weights = next(model.glob("*.safetensors"))
            data = bytearray(weights.read_bytes())
            data[-3] ^= 1
            weights.write_bytes(data)

            port = reserve_port()
            good = ("--rank-token-file", str(token))
            strangers = [(Rank(port), "the token differs"),
                         (Rank(port, "--rank-token-file", str(other)), "the token differs"),
                         (Rank(port, *good, model=model), "the model differs"),
                         (Rank(port, *good, "--isa", "portable"), "the instruction set (--isa, --device) differs")]
            started = {}

            def start():
                started["head"] = Server(*LIMITS, "--tp", "2", "--ranks-listen", f"127.0.0.1:{port}", *good)

            thread = threading.Thread(target=start)
            thread.start()
            try:
                for rank, why in strangers:
                    self.assertEqual(rank.wait(), 1)
                    self.assertTrue(rank.says(why), rank.log)
                self.disturb(port)
                member = Rank(port, *good)
                strangers.append((member, ""))
                thread.join(60)
                self.assertIn("head", started)
                late = Rank(port, *good)
                strangers.append((late, ""))
                self.assertEqual(late.wait(), 1)
                self.assertTrue(late.says("are there"), late.log)
                self.disturb(port)
                started["head"].complete("Once", max_tokens=5)
                self.assertEqual(started["head"].stop(), 0)
            finally:
                for rank, _ in strangers:
                    rank.end()
                thread.join(60)
                if "head" in started:
                    started["head"].__exit__()

    def disturb(self, port):
        """A port scan, garbage, and a connection that stays open and says nothing."""
        silent = socket.create_connection(("127.0.0.1", port))
        self.addCleanup(silent.close)
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64,
                     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500, *[b""] * 50):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(data)

    @unittest.skipIf(grpc is None, "calls with messages of our own need Python's grpcio")
    def test_strangers_who_speak_the_protocol_get_no_place(self):
        with tempfile.TemporaryDirectory() as folder:
            token = pathlib.Path(folder) / "token"
            token.write_text("a-secret-of-this-group")
            token.chmod(0o600)
            good = ("--rank-token-file", str(token))
            with Group(1, "--tp", "2", *good, rank_flags=good) as group:
                expected = group.head.complete("Once", max_tokens=5)["choices"]
                channel = grpc.insecure_channel(f"127.0.0.1:{group.port}")
                join = channel.stream_stream("/heddle.ranks.v1.Ranks/Join", lambda x: x, lambda x: x)

                def hello(secret):
                    fields = field(1, secret) + field(2, b"x") + field(5, b"nowhere")
                    return field(1, fields)

                cases = {"the token differs": [hello(b"guess"), hello(b""), hello(b"\xff" * 4000)],
                         "the build differs": [hello(b"a-secret-of-this-group")],
                         "says Hello first": [b"", field(2, b""), field(4, b"\x08\x01"), field(15, b"x" * 100)]}
                for why, messages in cases.items():
                    for message in messages:
                        with self.subTest(message=message[:60]), self.assertRaises(grpc.RpcError) as refused:
                            list(join(iter([message, message]), timeout=20))
                        self.assertIn(why, refused.exception.details())
                for message in (b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 64, b"x" * (2 << 20)):
                    with self.subTest(message=message[:60]), self.assertRaises(grpc.RpcError):
                        list(join(iter([message]), timeout=20))
                # Calls that say nothing: those that the head has a place for end after a while.
                silence = threading.Event()
                self.addCleanup(silence.set)

                def nothing():
                    silence.wait(60)
                    yield from ()

                silent = [join(nothing(), timeout=20) for _ in range(40)]
                is_refused = lambda call: call.done() and call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                self.assertTrue(wait_until(lambda: sum(map(is_refused, silent)) == 8))
                self.disturb(group.port)
                self.assertEqual(group.head.complete("Once", max_tokens=5)["choices"], expected)
                self.assertFalse(any("lost" in line for line in list(group.head.log)), group.head.log)
                for call in silent:
                    call.cancel()
                channel.close()
                silence.set()

    def test_what_cannot_be_combined_yet_is_refused_at_start(self):
        cases = [(("--ranks-listen", "127.0.0.1:0"), "for --tp or --pp above 1"),
                 (("--ranks-listen", "127.0.0.1:0", "--tp", "2", "--join", "127.0.0.1:1"), "leave out"),
                 (("--ranks-listen", "0.0.0.0:0", "--tp", "2"), "needs --rank-token-file"),
                 (("--ranks-listen", "nowhere", "--tp", "2"), "HOST:PORT"),
                 (("--ranks-listen", "127.0.0.1:0", "--tp", "2", "--lora-merge", f"it={DEMO_MODEL / 'adapters' / 'pirate'}"),
                  "--lora-merge does not work"),
                 (("--ranks-listen", "127.0.0.1:0", "--tp", "2", "--rank-cpus", f"{CPUS[0]}:{CPUS[0]}"),
                  f"names processor {CPUS[0]} twice")]
        if len(CPUS) > 1:
            cases.append((("--ranks-listen", "127.0.0.1:0", "--pp", "2", *TWO_RANKS), "share layers: 1 at most"))
        for flags, why in cases:
            with self.subTest(flags=flags):
                ended = subprocess.run([str(BINARY), "serve", str(DEMO_MODEL), "--port", "0", *flags],
                                       capture_output=True, text=True, timeout=60)
                self.assertIn(ended.returncode, (1, 2))
                self.assertIn(why, ended.stderr + ended.stdout)


if __name__ == "__main__":
    unittest.main()
