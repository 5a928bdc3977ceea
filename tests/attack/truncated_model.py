"""Someone writes into a model file that is in use: the server ends with a message, or goes on without it.

A copy of the demo model is truncated at random moments while it is loaded, and while it is served from.
"""

import argparse
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from heddle_server import BINARY, DEMO_MODEL, TIMEOUT_SCALE, Server  # noqa: E402


def copy_model(folder):
    model = pathlib.Path(folder) / "model"
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(DEMO_MODEL, model, copy_function=shutil.copyfile)
    return model


def truncate(model):
    with open(model / "model.safetensors", "r+b") as file:
        file.truncate(random.choice([0, 1, 4096, 100_000]))


def while_loading(folder, delay):
    model = copy_model(folder)
    process = subprocess.Popen([str(BINARY), "serve", str(model), "--port", "0", "--kv-memory", "16MiB"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(delay)  # the moment is what is tried
    truncate(model)
    try:
        process.wait(timeout=1 * TIMEOUT_SCALE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60 * TIMEOUT_SCALE)
    assert process.returncode in (0, 1, 128 + signal.SIGTERM), (process.returncode, err)
    if process.returncode == 1:
        assert "model.safetensors" in err, err
    return process.returncode


def while_serving(folder):
    model = copy_model(folder)
    with Server("--kv-memory", "16MiB", model=model) as server:
        truncate(model)
        try:
            server.request("POST", "/v1/completions", {"model": "model", "prompt": "What is 7 + 5?", "max_tokens": 8})
            code = server.stop()
        except OSError:
            code = server.process.wait(30 * TIMEOUT_SCALE)
            assert any("model.safetensors" in line for line in server.log), server.log
        assert code in (0, 1), code


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="truncations while it is loaded")
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        codes = [while_loading(folder, random.uniform(0, 0.15)) for _ in range(arguments.rounds)]
        print(f"seed {arguments.seed}: truncated while it was loaded, exit codes {codes}")
        while_serving(folder)


if __name__ == "__main__":
    main()
