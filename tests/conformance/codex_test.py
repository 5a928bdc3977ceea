#!/usr/bin/env python3
"""Codex CLI itself (the package openai-codex-cli-bin) against the scripted engine, with its default settings: a plain
answer, and a command that the model calls and whose output it reads.

    codex_test.py --start PROGRAM

PROGRAM is tests/server/fake_server.cc. Exits 77 unless HEDDLE_FRAMEWORK_TESTS=1 and the package is installed.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PORT = None
CODEX = None

CONFIG = """
model = "test-model"
model_provider = "heddle"
[model_providers.heddle]
name = "Heddle"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def find_codex():
    spec = importlib.util.find_spec("codex_cli_bin")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = pathlib.Path(spec.submodule_search_locations[0], "bin", "codex")
    return path if path.exists() else None


class Codex(unittest.TestCase):
    def run_codex(self, prompt, *flags):
        """The events of one `codex exec`, in a folder of its own."""
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as work:
            pathlib.Path(home, "config.toml").write_text(CONFIG.format(port=PORT))
            run = subprocess.run([str(CODEX), "exec", "--json", "--skip-git-repo-check", *flags, prompt],
                                 cwd=work, env={**os.environ, "CODEX_HOME": home}, stdin=subprocess.DEVNULL,
                                 capture_output=True, text=True, timeout=120)
        events = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        self.assertFalse([e for e in events if e["type"] in ("error", "turn.failed")], run.stdout[-2000:])
        return events

    def items(self, events, kind):
        return [e["item"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == kind]

    def test_an_answer(self):
        events = self.run_codex("(say)hello from the loom", "-s", "read-only")
        self.assertEqual([m["text"] for m in self.items(events, "agent_message")], ["hello from the loom"])
        usage = next(e for e in events if e["type"] == "turn.completed")["usage"]
        self.assertGreater(usage["input_tokens"], 1000)
        self.assertGreater(usage["output_tokens"], 0)

    def test_a_command_is_run_and_its_output_read(self):
        # The command's output is what the model says next.
        call = {"name": "exec_command", "arguments": {"cmd": "printf '(s%sy)it is done' a"}}
        events = self.run_codex(f"(say)<tool_call>\n{json.dumps(call)}\n</tool_call>", "-s", "danger-full-access")
        commands = self.items(events, "command_execution")
        self.assertEqual([command["exit_code"] for command in commands], [0], events)
        self.assertIn("(say)it is done", commands[0]["aggregated_output"])
        self.assertIn("it is done", self.items(events, "agent_message")[-1]["text"])


def main():
    global PORT, CODEX
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", required=True)
    args = parser.parse_args()
    CODEX = find_codex()
    if os.environ.get("HEDDLE_FRAMEWORK_TESTS") != "1" or CODEX is None:
        print("SKIPPED: set HEDDLE_FRAMEWORK_TESTS=1 and install tests/requirements-frameworks.txt")
        sys.exit(77)
    server = subprocess.Popen([args.start, "--quiet", "--context=1000000"], stdout=subprocess.PIPE, text=True)
    try:
        PORT = int(server.stdout.readline().split()[-1])
        result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    finally:
        server.terminate()
        server.wait(30)
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
