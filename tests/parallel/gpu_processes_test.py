"""Ranks on emulated GPUs of several processes: the answers of GPUs of one process, also behind a lost rank."""

import json
import os
import pathlib
import re
import shutil
import signal
import tempfile
import time
import unittest

from rank_groups import (BINARY, CPUS, DEMO_MODEL, DRAFTERS, EXPERTS, LIMITS, RANKS_LOST, TIMEOUT_SCALE, Group,
                         WHY_HUNG, HungThread, Rank, Server, ask_in_background, reserve_port, wait_until)

EMULATED = BINARY.parent / "tests" / "heddle_emulated"
GPU = ("--device", "cuda")
TWO_GPUS = (*GPU, "--rank-devices", "0,1")  # of one process
PROMPTS = ("The cat went to", "The old fish")
# More of the same kind, every night (tests/run.sh --long).
NIGHTLY = unittest.skipUnless("HEDDLE_LONG_TESTS" in os.environ, "every night")


class GpuServer(Server):
    binary = EMULATED


class GpuRank(Rank):
    binary = EMULATED


class GpuGroup(Group):
    server, rank = GpuServer, GpuRank


def answers(server, tokens=6, **fields):
    """What the server says to each prompt, with its log-probabilities."""
    said = []
    for prompt in PROMPTS:
        choice = server.complete(prompt, max_tokens=tokens, temperature=0, logprobs=1, **fields)["choices"][0]
        said.append((choice["text"], choice["logprobs"]["token_logprobs"]))
    return said


class GpuProcessesTest(unittest.TestCase):
    def check(self, layout, others, flags=GPU, rank_flags=None, model=DEMO_MODEL):
        with GpuServer(*LIMITS, *GPU, *layout, model=model) as one:
            expected = answers(one)
        with GpuGroup(others, *layout, *flags, rank_flags=rank_flags or flags, model=model) as group:
            self.assertEqual(answers(group.head), expected)
            for rank in group.ranks:
                self.assertTrue(rank.says("cuda:"), rank.log)
            self.assertEqual(group.head.stop(), 0)
            for rank in group.ranks:
                self.assertEqual(rank.wait(), 0, rank.log)

    def test_stages_in_processes_give_the_answers_of_one(self):
        self.check(("--pp", "3"), 2)

    def test_layers_that_processes_share_give_the_answers_of_one(self):
        self.check(("--tp", "2"), 1)

    def test_shares_of_processes_may_be_unequal(self):
        self.check(("--tp", "2", "--tp-shares", "3,1"), 1)

    def test_machines_of_two_gpus_are_stages(self):
        self.check(("--tp", "2", "--pp", "2"), 1, TWO_GPUS)

    @NIGHTLY
    def test_a_stage_may_have_a_rank_elsewhere(self):
        self.check(("--tp", "3"), 1, TWO_GPUS, GPU)

    @NIGHTLY
    def test_experts_may_be_in_other_processes(self):
        self.check(("--tp", "2", "--expert-parallel"), 1, model=EXPERTS)

    def test_sums_of_ladder_models_begin_early(self):
        self.check_ladder(("--tp", "2"), 1)

    @NIGHTLY
    def test_late_rows_of_ladder_models_pass_between_stages(self):
        self.check_ladder(("--tp", "2", "--pp", "2"), 3)

    def check_ladder(self, layout, others):
        with tempfile.TemporaryDirectory() as directory:
            model = pathlib.Path(directory) / "ladder"
            shutil.copytree(DEMO_MODEL, model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "ladder_residual": True}))
            self.check(layout, others, model=model)

    def test_drafters_and_adapters_run_on_gpus_of_processes(self):
        flags = ("--lora", f"pirate={DEMO_MODEL / 'adapters' / 'pirate'}", "--speculate", f"draft:{DRAFTERS / 'draft'}")
        layout = ("--tp", "2", "--pp", "2")
        asked = ({"tokens": 16}, {"tokens": 4, "model": "pirate"})
        with GpuServer(*LIMITS, *GPU, *layout, *flags) as one:
            expected = [answers(one, **fields) for fields in asked]
        with GpuGroup(1, *layout, *TWO_GPUS, *flags, rank_flags=TWO_GPUS) as group:
            self.assertEqual([answers(group.head, **fields) for fields in asked], expected)
            self.assertGreater(group.head.metric("heddle_spec_decode_accepted_tokens_total"), 0)
            self.assertEqual(group.head.stop(), 0)

    def lose(self, number, layout, *flags):
        with GpuGroup(1, *layout, *GPU, *flags, rank_flags=GPU) as group:
            expected = answers(group.head)
            events = iter(group.head.stream("/v1/completions", {"prompt": "Once", "max_tokens": 20,
                                                                "temperature": 0, "ignore_eos": True}))
            for _ in range(3):
                next(events)
            group.ranks[0].process.send_signal(number)
            begin = time.monotonic()
            named = lambda: any("rank 1 (127.0.0.1) is lost in step" in line for line in list(group.head.log))
            self.assertTrue(wait_until(named, 20), group.head.log)
            self.assertLess(time.monotonic() - begin, 3 * TIMEOUT_SCALE)
            if number == signal.SIGSTOP:
                group.ranks[0].process.send_signal(signal.SIGCONT)
            else:
                group.ranks.append(GpuRank(group.port, *GPU))
            rest = list(events)
            self.assertEqual(rest[-1], "[DONE]", rest[-3:])
            self.assertEqual(answers(group.head), expected)
            self.assertEqual(group.head.metric("heddle_recoveries_total"), 1)
            self.assertEqual(group.head.stop(), 0)

    def test_streams_go_on_when_a_killed_stage_comes_back(self):
        self.lose(signal.SIGKILL, ("--pp", "2"))

    def test_a_stopped_rank_goes_on_with_its_weights(self):
        self.lose(signal.SIGSTOP, ("--tp", "2"), "--rank-timeout", "1")

    def test_a_gpu_that_hangs_is_named_after_the_timeout(self):
        flags = ("--tp", "2", *GPU, "--rank-rejoin-timeout", "0", "--rank-timeout", "1")
        with GpuGroup(1, *flags, rank_flags=GPU) as group:
            events, _ = ask_in_background(group.head)
            self.assertTrue(wait_until(lambda: len(events) > 3))
            # The thread that is the emulated device; the one that watches it goes on, and so do beats.
            with HungThread(group.ranks[0].process.pid, ("rank-relay",)):
                named = lambda: any(re.search(rf"rank 1 \(127\.0\.0\.1\) is lost in step \d+.*{WHY_HUNG}", line)
                                    for line in list(group.head.log))
                self.assertTrue(wait_until(named, 20), group.head.log)
                self.assertEqual(group.head.process.wait(20), RANKS_LOST)

    def test_a_rank_without_page_locked_memory_is_named_when_it_joins(self):
        port = reserve_port()
        # Rows of 384 bytes in four places: 96 MiB beside 56 that a device locks for itself.
        limits = (*LIMITS[:-1], "65536")
        rank = GpuRank(port, *GPU, prefix=("env", "HEDDLE_EMULATED_PINNED_MIB=128"))
        try:
            with self.assertRaisesRegex(RuntimeError, "rank 1"):
                GpuServer(*limits, "--pp", "2", *GPU, "--ranks-listen", f"127.0.0.1:{port}")
            self.assertEqual(rank.wait(), 1, rank.log)
            self.assertTrue(rank.says("needs 96 MiB of page-locked memory of the host for what stage 1 exchanges with others"), rank.log)
        finally:
            rank.end()

    def test_what_does_not_fit_is_refused_by_name(self):
        port = reserve_port()
        listen = ("--ranks-listen", f"127.0.0.1:{port}")
        for flags, why in (
                (("--rank-devices", "1,1"), "names GPU 1 twice"),
                (("--rank-devices", "0,1,2"), "--rank-devices has 3 numbers"),
                (("--rank-wire", "bf16"), "--rank-wire is for ranks on CPUs"),
                (("--rank-devices", "0,1", "--rank-cpus", str(CPUS[0])), "1 lists for 2 GPUs")):
            with self.assertRaisesRegex(RuntimeError, why):
                GpuServer(*LIMITS, "--tp", "2", *GPU, *listen, *flags)
        with self.assertRaisesRegex(RuntimeError, "--device is cuda:3; with --rank-devices"):
            GpuServer(*LIMITS, "--tp", "2", "--device", "cuda:3", *listen, "--rank-devices", "0,1")
        ranks = [GpuRank(port), GpuRank(port, "--device", "cuda:2")]  # the first one on the CPU
        try:
            with GpuServer(*LIMITS, "--pp", "2", *GPU, *listen) as head:
                self.assertEqual(ranks[0].wait(), 1, ranks[0].log)
                self.assertTrue(ranks[0].says("the instruction set (--isa, --device) differs"), ranks[0].log)
                self.assertTrue(ranks[1].says("cuda:2"), ranks[1].log)
                self.assertEqual(head.stop(), 0)
        finally:
            for rank in ranks:
                rank.end()


if __name__ == "__main__":
    unittest.main()
