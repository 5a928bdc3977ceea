"""Ranks on two machines, which network namespaces stand for: the tokens of ranks in one process, and what becomes of
streams when the cable is out. Skipped where namespaces cannot be made: that takes root, iproute2 and tc."""

import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

import namespaces  # noqa: E402
from heddle_server import TIMEOUT_SCALE, Server, wait_until  # noqa: E402
from ports import reserve_port  # noqa: E402
from rank_groups import LIMITS, Rank, Streams, answers  # noqa: E402

SKIPPED = 77


class NetworkTest(unittest.TestCase):
    far = None  # the namespace of the other machine; this process is in the near one
    near = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        token = pathlib.Path(folder.name) / "token"
        token.write_text("a-secret-of-this-group")
        token.chmod(0o600)
        self.token = ("--rank-token-file", str(token))
        self.port = reserve_port()

    def group(self, *flags):
        rank = Rank(self.port, *self.token, host=namespaces.ADDRESSES[0], prefix=namespaces.inside(self.far))
        self.addCleanup(rank.end)
        head = Server(*LIMITS, *self.token, "--ranks-listen", f"{namespaces.ADDRESSES[0]}:{self.port}", *flags)
        self.addCleanup(head.__exit__)
        return head, rank

    def test_machines_give_the_tokens_of_threads(self):
        for layout in (("--tp", "2"), ("--pp", "2")):
            with self.subTest(layout=layout):
                with Server(*LIMITS, *layout) as threads:
                    expected = answers(threads)
                head, rank = self.group(*layout)
                self.assertEqual(answers(head), expected)
                (link,) = [line for line in head.log if "links between ranks" in line]
                of, latency, rate = re.search(r'of="?([a-z ]+)"? latency_us=([\d.]+) gbit_per_s=([\d.]+)', link).groups()
                self.assertEqual(of, "stages" if layout[0] == "--pp" else "ranks that share layers")
                self.assertGreater(float(latency), 1)
                self.assertLess(float(rate), 1.2)  # the cable's is 1
                self.assertEqual(head.stop(), 0)
                self.assertEqual(rank.wait(), 0, rank.log)

    def test_a_cable_that_is_out_for_3_s_breaks_no_stream(self):
        for layout in (("--tp", "2"), ("--pp", "2")):
            with self.subTest(layout=layout):
                head, _ = self.group(*layout)
                expected = Streams(head, tokens=400).end()
                self.assertIsNotNone(expected)
                streams = Streams(head, tokens=400)
                self.assertTrue(streams.run_for(20))
                namespaces.set_link(self.far, "down")
                self.assertLess(max(map(len, streams.texts)), 400)
                try:
                    time.sleep(3)
                finally:
                    namespaces.set_link(self.far, "up")
                self.assertEqual(streams.end(), expected, (streams.errors, head.log[-5:]))
                self.assertEqual(head.stop(), 0)

    def test_a_machine_behind_a_cable_that_stays_out_is_named(self):
        head, _ = self.group("--tp", "2", "--rank-timeout", "2")
        streams = Streams(head, tokens=2000)
        self.assertTrue(streams.run_for(20))
        begin = time.monotonic()
        namespaces.set_link(self.far, "down")
        try:
            named = f"rank 1 ({namespaces.ADDRESSES[1]})"
            self.assertTrue(wait_until(lambda: any(named in line for line in list(head.log)), 20), head.log)
            self.assertLess(time.monotonic() - begin, 3.5 * TIMEOUT_SCALE)
            self.assertTrue(wait_until(lambda: head.request("GET", "/ready")[0] == 503))
        finally:
            namespaces.set_link(self.far, "up")
        self.assertIsNotNone(streams.end(), streams.errors)


if __name__ == "__main__":
    try:
        with namespaces.joined_namespaces("1gbit") as (NetworkTest.near, NetworkTest.far):
            namespaces.enter(NetworkTest.near)
            unittest.main(verbosity=2)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: no network namespaces can be made here: {error}")
        sys.exit(SKIPPED)
