"""Runs openai_client_test.py against `heddle serve` with the demo model."""

import importlib.util
import pathlib
import subprocess
import sys

from heddle_server import Server

if importlib.util.find_spec("openai") is None:
    print("SKIPPED: needs the Python package openai")
    sys.exit(77)

script = pathlib.Path(__file__).with_name("openai_client_test.py")
with Server("--served-model-name", "heddle-demo") as server:
    command = [sys.executable, str(script), "--base-url", server.base_url + "/v1"]
    sys.exit(subprocess.run([*command, "--model", "heddle-demo"]).returncode)
