"""API keys of a running server: what opens it, when they are read again, and what one key learns of another."""

import hashlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

from heddle_server import BINARY, DEMO_MODEL, TIMEOUT_SCALE, Server, wait_until

SMALL = ["--kv-memory", "16MiB"]


def line(name, key, *more):
    return " ".join([name, hashlib.sha256(key.encode()).hexdigest(), *more]) + "\n"


def ask(server, key, method="GET", path="/v1/models", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30 * TIMEOUT_SCALE)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class Start(unittest.TestCase):
    def refused(self, *flags, **environment):
        done = subprocess.run([str(BINARY), "serve", str(DEMO_MODEL), "--port", "0", *SMALL, *flags],
                              env={**os.environ, **environment}, capture_output=True, text=True,
                              timeout=30 * TIMEOUT_SCALE)
        self.assertIn(done.returncode, (1, 2))
        return done.stderr

    def test_a_key_that_is_set_to_nothing_does_not_open_the_server(self):
        for name in ("HEDDLE_API_KEY", "HEDDLE_API_KEY_FILE", "HEDDLE_ADMIN_KEY", "HEDDLE_TLS_CERT"):
            for nothing in ("", " "):
                self.assertIn(f"{name} must not be empty", self.refused(**{name: nothing}))
        self.assertIn("--api-key-file must not be empty", self.refused("--api-key-file", ""))

    def test_a_file_without_keys_does_not_open_the_server(self):
        for text in ("", "\n\n", "# alice comes later\n", "\r\n  \t\n"):
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write(text)
                file.flush()
                self.assertIn("there is no key in it", self.refused("--api-key-file", file.name))


class Reload(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = pathlib.Path(self.folder.name) / "keys.txt"
        self.write(line("one", "sk-one"))
        self.file.chmod(0o600)
        self.server = Server("--api-key-file", str(self.file), *SMALL)

    def tearDown(self):
        self.server.__exit__()
        self.folder.cleanup()

    def write(self, text):
        """As editors and kubelets do: a new file in place of the old."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)

    def status(self, key):
        return ask(self.server, key)[0]

    def logged(self, text):
        return any(text in entry for entry in self.server.log)

    def test_a_changed_file_is_read_again(self):
        self.assertEqual((self.status("sk-one"), self.status("sk-two")), (200, 401))
        self.write(line("two", "sk-two"))
        self.assertTrue(wait_until(lambda: self.status("sk-two") == 200))
        self.assertEqual(self.status("sk-one"), 401)

    def test_a_wrong_file_leaves_the_keys_that_are_in_use(self):
        self.write("one sk-in-clear\n")
        self.assertTrue(wait_until(lambda: self.logged("API keys were not read again")))
        self.assertEqual(self.status("sk-one"), 200)
        self.assertFalse(self.logged("sk-in-clear"))
        self.file.unlink()
        self.assertEqual(self.status("sk-one"), 200)
        self.write(line("one", "sk-one") + line("two", "sk-two"))
        self.assertTrue(wait_until(lambda: self.status("sk-two") == 200))

    def test_sighup_reads_at_once_and_does_not_end_the_process(self):
        self.server.process.send_signal(signal.SIGHUP)
        self.assertTrue(wait_until(lambda: self.logged("API keys were read again")))
        self.assertEqual(self.status("sk-one"), 200)

    def test_a_file_that_others_may_read_is_warned_about(self):
        self.assertFalse(self.logged("can be read by every user"))
        self.file.chmod(0o644)
        with Server("--api-key-file", str(self.file), *SMALL) as server:
            self.assertTrue(wait_until(lambda: any("can be read by every user" in entry for entry in server.log)))


class Sharing(unittest.TestCase):
    PROMPT = "The quick brown fox jumps over the lazy dog, time and again, until both are tired of it. " * 6

    def cached(self, server, key, prompt, **more):
        status, answer = ask(server, key, "POST", "/v1/completions",
                             {"model": DEMO_MODEL.name, "prompt": prompt, "max_tokens": 1, **more})
        self.assertEqual(status, 200, answer)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def response(self, server, key):
        return ask(server, key, "POST", "/v1/responses", {"model": DEMO_MODEL.name, "input": "Hi", "max_output_tokens": 2})[1]["id"]

    def test_keys_share_nothing_unless_the_operator_says_so(self):
        keys = ["--api-key", "sk-one", "--api-key", "sk-two", *SMALL]
        with Server(*keys) as server:
            self.assertEqual(self.cached(server, "sk-one", self.PROMPT), 0)
            self.assertGreater(self.cached(server, "sk-one", self.PROMPT), 0)
            self.assertEqual(self.cached(server, "sk-two", self.PROMPT), 0)
            self.assertEqual(self.cached(server, "sk-one", self.PROMPT, cache_salt="a"), 0)
            self.assertEqual(self.cached(server, "sk-two", self.PROMPT, cache_salt="a"), 0)
            self.assertGreater(self.cached(server, "sk-two", self.PROMPT, cache_salt="a"), 0)
            # A response is its key's own, whatever is asked of it.
            own = self.response(server, "sk-one")
            for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
                self.assertEqual(ask(server, "sk-two", method, f"/v1/responses/{own}{path}")[0], 404)
            status, _ = ask(server, "sk-two", "POST", "/v1/responses",
                            {"model": DEMO_MODEL.name, "input": "Go on", "previous_response_id": own})
            self.assertIn(status, (400, 404))
            self.assertEqual(ask(server, "sk-one", "GET", f"/v1/responses/{own}")[0], 200)
            # The history of single requests is not for every key.
            self.assertEqual(ask(server, "sk-one", "GET", "/debug/requests")[0], 403)
        with Server(*keys, "--prefix-cache-scope", "all") as server:
            self.cached(server, "sk-one", self.PROMPT)
            self.assertGreater(self.cached(server, "sk-two", self.PROMPT), 0)

    def test_counts_are_of_whole_pages(self):
        """Else a known beginning can be continued by trial: each right token counts one more."""
        with Server(*SMALL, "--page-tokens", "16") as server:
            self.cached(server, "", self.PROMPT)
            found = {self.cached(server, "", self.PROMPT[:length] + "#" * 20) for length in range(40, 400, 23)}
            self.assertGreater(len(found), 2)
            self.assertEqual({count % 16 for count in found}, {0})


if __name__ == "__main__":
    unittest.main(verbosity=2)
