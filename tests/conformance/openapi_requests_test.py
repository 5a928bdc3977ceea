"""schemathesis against /openapi.json: thousands of generated requests, right and wrong, and no 5xx or answer that the
document does not allow.

    openapi_requests_test.py [--start PROGRAM] [--schemathesis PROGRAM] [--requests 5000] [--seed 1]

PROGRAM of --start is tests/server/fake_server.cc; without it the daemon runs with the demo model. Exits with 77 (skipped)
unless HEDDLE_OPENAPI_TESTS is set and schemathesis is there: it has dozens of dependencies, and a run takes a minute or
two. Written with 4.32.5: python3 -m venv v && v/bin/pip install schemathesis==4.32.5
"""

import argparse
import os
import re
import shutil
import subprocess
import sys

from heddle_server import Server

# Promises that every server should hold. Left out are checks of other promises: that a server refuses fields it does not know
# (this one ignores them unless --unknown-fields error), or takes whatever fits the schema (a model that is not there
# fits it).
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance", "unsupported_method", "allow_header_conformance")
OPERATIONS = 20  # of the document that take a body or a parameter; requests are asked for by operation


def run(program, url, requests, seed):
    """(exit status, requests sent)."""
    command = [program, "run", url + "/openapi.json", "--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing",
               "--max-examples", str(max(1, requests // OPERATIONS)), "--seed", str(seed), "--continue-on-failure",
               "--no-shrink", "--request-timeout", "60", "--suppress-health-check", "all", "--warnings", "off"]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(output.stdout)
    sent = re.search(r"(\d+) generated", output.stdout)
    return output.returncode, int(sent.group(1)) if sent else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--start")
    parser.add_argument("--schemathesis", default=shutil.which("schemathesis"))
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not os.environ.get("HEDDLE_OPENAPI_TESTS") or not options.schemathesis:
        print("skipped: set HEDDLE_OPENAPI_TESTS=1 and install schemathesis")
        sys.exit(77)
    if options.start:
        stub = subprocess.Popen([options.start, "--quiet"], stdout=subprocess.PIPE, text=True)
        try:
            port = re.search(r"\d+", stub.stdout.readline()).group()
            status, sent = run(options.schemathesis, f"http://127.0.0.1:{port}", options.requests, options.seed)
        finally:
            stub.terminate()
            stub.wait()
    else:
        with Server("--log-level", "error") as server:
            status, sent = run(options.schemathesis, server.base_url, options.requests, options.seed)
    print(f"{sent} requests")
    sys.exit(0 if status == 0 and sent >= options.requests else 1)


if __name__ == "__main__":
    main()
