#!/usr/bin/env python3
"""Files and batches of a running server through the `openai` package: every endpoint, live requests beside a
batch, and a server that is killed in the middle of one. Exits 77 where the package is not installed."""

import json
import pathlib
import signal
import sys
import tempfile
import time
import unittest

try:
    import openai
except ImportError:
    print("SKIPPED: needs the Python package openai")
    sys.exit(77)

from heddle_server import TIMEOUT_SCALE, Server, wait_until

ENDED = {"completed", "failed", "expired", "cancelled"}
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "What is 7 + 5?"}], "max_tokens": 8},
    "/v1/completions": {"prompt": "Once", "max_tokens": 8},
    "/v1/responses": {"input": "What is 2 + 2?", "max_output_tokens": 8},
    "/v1/embeddings": {"input": "a text"},
}


def lines(endpoint, count, body=None):
    made = []
    for i in range(count):
        request = {**BODIES[endpoint], "model": "demo", **(body or {})}
        made.append(json.dumps({"custom_id": f"line {i}", "method": "POST", "url": endpoint, "body": request}))
    return ("\n".join(made) + "\n").encode()


def client_of(server):
    return openai.OpenAI(base_url=server.base_url + "/v1", api_key="none", max_retries=0, timeout=60 * TIMEOUT_SCALE)


def start(folder, *flags):
    # Without guesses: of lines that are all alike each would be done in a few steps.
    return Server("--batch-dir", str(folder), "--served-model-name", "demo", "--speculate", "off", *flags)


def create(client, content, endpoint, **fields):
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint,
                                 **{"completion_window": "24h", **fields})


def wait_for(client, batch):
    assert wait_until(lambda: client.batches.retrieve(batch.id).status in ENDED, 60 * TIMEOUT_SCALE)
    return client.batches.retrieve(batch.id)


def results(client, file_id):
    text = client.files.content(file_id).text
    return [json.loads(line) for line in text.splitlines()]


class Batches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = start(pathlib.Path(cls.folder.name) / "batches")
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        cls.server.__exit__()
        cls.folder.cleanup()
        assert status == 0, status

    def test_files(self):
        client = self.client
        made = client.files.create(file=("a b.txt", b"some text"), purpose="user_data",
                                   expires_after={"anchor": "created_at", "seconds": 3600})
        self.assertEqual((made.filename, made.bytes, made.purpose), ("a b.txt", 9, "user_data"))
        self.assertEqual(made.expires_at - made.created_at, 3600)
        self.assertEqual(client.files.retrieve(made.id), made)
        self.assertEqual(client.files.content(made.id).read(), b"some text")
        self.assertIn(made.id, [file.id for file in client.files.list(limit=1)])
        self.assertTrue(client.files.delete(made.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            client.files.retrieve(made.id)

    def test_every_endpoint(self):
        for endpoint in BODIES:
            with self.subTest(endpoint):
                batch = wait_for(self.client, create(self.client, lines(endpoint, 5), endpoint))
                self.assertEqual(batch.status, "completed", batch)
                self.assertEqual(batch.request_counts.completed, 5)
                answers = results(self.client, batch.output_file_id)
                self.assertEqual(sorted(a["custom_id"] for a in answers), [f"line {i}" for i in range(5)])
                for answer in answers:
                    self.assertEqual(answer["response"]["status_code"], 200)
                    self.assertIn("usage", answer["response"]["body"])
                self.assertIsNone(batch.error_file_id)

    def test_lines_that_fail(self):
        content = lines("/v1/completions", 2) + lines("/v1/completions", 1, {"n": -1}).replace(b"line 0", b"bad")
        batch = wait_for(self.client, create(self.client, content, "/v1/completions"))
        self.assertEqual((batch.request_counts.completed, batch.request_counts.failed), (2, 1))
        error = results(self.client, batch.error_file_id)[0]
        self.assertEqual((error["custom_id"], error["response"]["status_code"]), ("bad", 400))
        self.assertEqual(error["response"]["body"]["error"]["param"], "n")

    def test_cancel_and_list(self):
        batch = create(self.client, lines("/v1/completions", 400, {"max_tokens": 200, "ignore_eos": True}),
                       "/v1/completions", metadata={"name": "long"})
        self.assertIn(self.client.batches.cancel(batch.id).status, {"cancelling", "cancelled"})
        ended = wait_for(self.client, batch)
        self.assertEqual(ended.status, "cancelled")
        listed = next(b for b in self.client.batches.list(limit=1) if b.id == batch.id)
        self.assertEqual(listed, ended)
        self.assertEqual(listed.metadata, {"name": "long"})

    def test_live_requests_go_first(self):
        batch = create(self.client, lines("/v1/completions", 4000, {"max_tokens": 200, "ignore_eos": True}),
                       "/v1/completions")
        self.assertTrue(wait_until(lambda: self.client.batches.retrieve(batch.id).request_counts.completed > 0, 60))

        def time_one():
            begin = time.monotonic()
            self.client.completions.create(model="demo", prompt="x", max_tokens=100, extra_body={"ignore_eos": True})
            return time.monotonic() - begin

        beside = sorted(time_one() for _ in range(5))[2]
        self.client.batches.cancel(batch.id)
        wait_for(self.client, batch)
        alone = sorted(time_one() for _ in range(5))[2]
        # One line runs beside; eight would make it several times as long.
        self.assertLess(beside, 3 * alone + 0.1)


class Killed(unittest.TestCase):
    def run_killed(self, sig):
        with tempfile.TemporaryDirectory() as folder:
            # One line at a time, so that many are left when a busy machine comes to look.
            with start(folder, "--batch-concurrency", "1") as server:
                client = client_of(server)
                batch = create(client, lines("/v1/completions", 400, {"max_tokens": 150, "ignore_eos": True}),
                               "/v1/completions")
                done = lambda: client.batches.retrieve(batch.id).request_counts.completed
                self.assertTrue(wait_until(lambda: done() >= 5, 60 * TIMEOUT_SCALE))
                self.assertLess(done(), 400)
                server.stop(sig)
            partial = {}
            for path in pathlib.Path(folder, "files").iterdir():
                for line in path.read_bytes().split(b"\n")[:-1]:
                    if line.startswith(b'{"id":"batch_req_'):
                        parsed = json.loads(line)
                        partial[parsed["custom_id"]] = parsed
            self.assertGreaterEqual(len(partial), 5)
            with start(folder) as server:
                client = client_of(server)
                ended = wait_for(client, batch)
                self.assertEqual(ended.status, "completed")
                self.assertEqual(ended.request_counts.completed, 400)
                answers = results(client, ended.output_file_id)
                self.assertEqual(sorted(a["custom_id"] for a in answers), sorted(f"line {i}" for i in range(400)))
                by_id = {a["custom_id"]: a for a in answers}
                for custom_id, answer in partial.items():
                    self.assertEqual(by_id[custom_id], answer)

    def test_by_kill_9(self):
        self.run_killed(signal.SIGKILL)

    def test_by_sigterm(self):
        self.run_killed(signal.SIGTERM)


class Off(unittest.TestCase):
    def test_without_a_folder(self):
        with Server() as server:
            with self.assertRaises(openai.APIStatusError) as raised:
                client_of(server).files.list()
            self.assertEqual(raised.exception.status_code, 501)
            self.assertIn("--batch-dir", raised.exception.message)


if __name__ == "__main__":
    unittest.main(verbosity=2)
