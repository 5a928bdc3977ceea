"""Ranks that are processes: same tokens as threads; a rank that dies or hangs is named."""

import concurrent.futures
import pathlib
import re
import signal
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))
try:
    import grpc
except ImportError:
    grpc = None

from heddle_server import DEMO_MODEL, TIMEOUT_SCALE, Server, wait_until  # noqa: E402
from ports import reserve_port  # noqa: E402
from rank_groups import (  # noqa: E402
    CPUS, DRAFTERS, EXPERTS, LIMITS, PROMPTS, RANKS_LOST, TWO_RANKS, WHY_HUNG, Group, HeadOfAnyPort, HungThread, Rank, Relay,
    Streams, answers, ask_in_background, chats, greedy_answers)


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
                named = lambda: any(re.search(rf"rank 1 \(127\.0\.0\.1\) is lost in step \d+.*{WHY_HUNG}", line)
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


if __name__ == "__main__":
    unittest.main()
