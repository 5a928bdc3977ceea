"""Ranks on emulated GPUs of several processes: the answers of GPUs of one process, also behind a lost rank."""

import contextlib
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
# Steps of more than 128 rows, whose sums go over NCCL, and of fewer.
LONG_PROMPTS = ("The cat went to " * 45, "The old fish")
# More of the same kind, every night (tests/run.sh --long).
NIGHTLY = unittest.skipUnless("HEDDLE_LONG_TESTS" in os.environ, "every night")


# Where the emulated GPUs find a library in NCCL's place, which fails if ranks call different ops.
NCCL = BINARY.parent / "tests" / "nccl"
OVER_NCCL = (*GPU, "--rank-network", "nccl")


@contextlib.contextmanager
def environment(**values):
    """Processes that begin inside have these variables, too."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class GpuServer(Server):
    binary = EMULATED


class GpuRank(Rank):
    binary = EMULATED


class GpuGroup(Group):
    server, rank = GpuServer, GpuRank


class GroupOfManyRows(GpuGroup):
    limits = (*LIMITS[:-1], "256")  # --max-batch-tokens


def answers(server, tokens=6, prompts=PROMPTS, **fields):
    """What the server says to each prompt, with its log-probabilities."""
    said = []
    for prompt in prompts:
        choice = server.complete(prompt, max_tokens=tokens, temperature=0, logprobs=1, **fields)["choices"][0]
        said.append((choice["text"], choice["logprobs"]["token_logprobs"]))
    return said


class GpuProcessesTest(unittest.TestCase):
    def check(self, layout, others, flags=GPU, rank_flags=None, model=DEMO_MODEL, carrier="the host", prompts=PROMPTS):
        group_of = GroupOfManyRows if prompts is LONG_PROMPTS else GpuGroup
        with GpuServer(*group_of.limits, *GPU, *layout, model=model) as one:
            expected = answers(one, prompts=prompts)
        with group_of(others, *layout, *flags, rank_flags=rank_flags or flags, model=model) as group:
            self.assertEqual(answers(group.head, prompts=prompts), expected)
            for rank in group.ranks:
                self.assertTrue(rank.says("cuda:"), rank.log)
                self.assertTrue(rank.says(f"meet over {carrier}"), rank.log)
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

    def check_nccl(self, layout, others, flags=(), **more):
        with tempfile.TemporaryDirectory() as directory, environment(LD_LIBRARY_PATH=str(NCCL), TMPDIR=directory):
            self.check(layout, others, (*OVER_NCCL, *flags), carrier="NCCL 2.28.9", prompts=LONG_PROMPTS, **more)

    def test_layers_that_processes_share_over_nccl_give_the_answers_of_one(self):
        self.check_nccl(("--tp", "2"), 1)

    def test_stages_over_nccl_give_the_answers_of_one(self):
        self.check_nccl(("--pp", "2"), 1)

    @NIGHTLY
    def test_machines_of_two_gpus_are_stages_over_nccl(self):
        self.check_nccl(("--tp", "2", "--pp", "2"), 1, ("--rank-devices", "0,1"))

    @NIGHTLY
    def test_layers_of_three_gpus_in_two_processes_meet_over_nccl(self):
        self.check_nccl(("--tp", "3"), 1, ("--rank-devices", "0,1"), rank_flags=OVER_NCCL)

    def test_ranks_without_nccl_end_by_name_if_they_are_to_use_it(self):
        port = reserve_port()
        rank = GpuRank(port, *OVER_NCCL)
        try:
            with self.assertRaisesRegex(RuntimeError, "--rank-network is nccl: rank 0 of the group: .* cannot be loaded"):
                GpuServer(*LIMITS, "--tp", "2", *OVER_NCCL, "--ranks-listen", f"127.0.0.1:{port}")
            self.assertEqual(rank.wait(), 1, rank.log)
        finally:
            rank.end()

    def test_gpus_out_of_each_others_reach_share_a_model(self):
        layout = ("--tp", "2", "--pp", "2")
        with GpuServer(*LIMITS, *GPU, *layout) as within:
            expected = answers(within)
        with environment(HEDDLE_EMULATED_APART="1"), GpuServer(*LIMITS, *GPU, *layout) as apart:
            self.assertEqual(answers(apart), expected)
            self.assertTrue(any("do not read each other's memory" in line for line in apart.log), apart.log)

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
        self.check_drafters("draft:" + str(DRAFTERS / "draft"))

    @NIGHTLY
    def test_drafters_that_read_hidden_rows_get_them_over_nccl(self):
        with tempfile.TemporaryDirectory() as directory, environment(LD_LIBRARY_PATH=str(NCCL), TMPDIR=directory):
            self.check_drafters("dflash:" + str(DRAFTERS / "dflash"), "--rank-network", "nccl")

    def check_drafters(self, drafter, *network):
        flags = ("--lora", f"pirate={DEMO_MODEL / 'adapters' / 'pirate'}", "--speculate", drafter)
        layout = ("--tp", "2", "--pp", "2")
        asked = ({"tokens": 16}, {"tokens": 4, "model": "pirate"})
        with GpuServer(*LIMITS, *GPU, *layout, *flags) as one:
            expected = [answers(one, **fields) for fields in asked]
        with GpuGroup(1, *layout, *TWO_GPUS, *flags, *network, rank_flags=(*TWO_GPUS, *network)) as group:
            self.assertEqual([answers(group.head, **fields) for fields in asked], expected)
            if drafter.startswith("draft:"):
                self.assertGreater(group.head.metric("heddle_spec_decode_accepted_tokens_total"), 0)
            self.assertEqual(group.head.stop(), 0)

    def lose(self, number, layout, *flags, rank_flags=GPU):
        with GpuGroup(1, *layout, *GPU, *flags, rank_flags=rank_flags) as group:
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
                group.ranks.append(GpuRank(group.port, *rank_flags))
            rest = list(events)
            self.assertEqual(rest[-1], "[DONE]", rest[-3:])
            self.assertEqual(answers(group.head), expected)
            self.assertEqual(group.head.metric("heddle_recoveries_total"), 1)
            self.assertEqual(group.head.stop(), 0)

    def test_streams_go_on_when_a_killed_stage_comes_back(self):
        self.lose(signal.SIGKILL, ("--pp", "2"))

    def lose_over_nccl(self, number, layout, *flags):
        with tempfile.TemporaryDirectory() as directory, environment(LD_LIBRARY_PATH=str(NCCL), TMPDIR=directory):
            self.lose(number, layout, "--rank-network", "nccl", *flags, rank_flags=OVER_NCCL)

    def test_streams_go_on_when_a_rank_that_was_killed_in_an_op_of_nccl_comes_back(self):
        self.lose_over_nccl(signal.SIGKILL, ("--pp", "2"))

    @NIGHTLY
    def test_a_stopped_stage_over_nccl_goes_on_with_its_weights(self):
        self.lose_over_nccl(signal.SIGSTOP, ("--pp", "2"), "--rank-timeout", "1")

    def test_a_stopped_rank_goes_on_with_its_weights(self):
        self.lose(signal.SIGSTOP, ("--tp", "2"), "--rank-timeout", "1")

    def test_a_gpu_that_hangs_is_named_after_the_timeout(self):
        flags = ("--tp", "2", *GPU, "--rank-rejoin-timeout", "0", "--rank-timeout", "1")
        with GpuGroup(1, *flags, rank_flags=GPU) as group:
            events, _ = ask_in_background(group.head)
            self.assertTrue(wait_until(lambda: len(events) > 3))
            # The thread that is the emulated device; the one that watches it goes on, and so do beats.
            with HungThread(group.ranks[0].process.pid, ("rank-relay", "rank-nccl")):
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
