"""run.sh with programs in gpu_check's place: what fails is at the head of the table and in the exit
code, and costs nothing but its own results."""
import os
import shutil
import subprocess
import tarfile
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))

# The output of each of gpu_check's commands, and its status.
GOOD = """#!/usr/bin/env bash
case $1 in
  ops) echo 'run   one'; echo 'ok    one'; echo '0 failed' ;;
  model) echo "ok    $2" ;;
  same) echo "ok    $2, without graphs" ;;
  bench) echo '{"name": "linear bf16 8192 x 8192, 16 rows", "us": 40, "TB_per_s": 3.4, "share": 0.8}' ;;
  serve)
    echo '{"model": "llama-3.1-8b '$3'", "load_s": 6}'
    for load in "${@:4}"; do
      echo '{"name": "llama-3.1-8b '$3' '$load'", "requests": 2, "failed": 0, "output_tok_s": 9,' \\
           '"first_token_ms_p50": 4, "between_tokens_ms_p50": 4, "host_share": 0.01}'
    done ;;
esac
"""

# The second and third of four ops end the program, as a fault of the device does.
FAULTY = """#!/usr/bin/env bash
[ "$1" = ops ] || exit 77
names=(one two three four)
for name in "${names[@]:${HEDDLE_GPU_SKIP:-0}}"; do
  echo "run   $name"
  case $name in two|three) kill -ABRT $$ ;; esac
  echo "ok    $name"
done
echo '0 failed'
"""

# Cut off in the middle of a line; a load with requests that failed.
CUT_OFF = """#!/usr/bin/env bash
case $1 in
  bench) printf '{"name": "linear bf16 8192 x 8192, 16 rows", "us": 40, "TB_per_s": inf}\\n{"na'; exit 1 ;;
  serve) echo '{"name": "llama-3.1-8b fp8 16/256/1", "requests": 2, "failed": 2, "output_tok_s": 9,' \\
    '"first_token_ms_p50": 4, "between_tokens_ms_p50": 1, "host_share": 0.01}'; exit 1 ;;
esac
"""

# Ends by itself, and longer than a part may take.
HANGING = "#!/usr/bin/env bash\nexit 124\n"


class Run:
    def __init__(self, program, *parts, **environment):
        self.folder = tempfile.TemporaryDirectory()
        root = self.folder.name
        for name in ("run.sh", "summary.py"):
            os.makedirs(os.path.join(root, "tests/gpu"), exist_ok=True)
            shutil.copy(os.path.join(HERE, name), os.path.join(root, "tests/gpu", name))
        self.make("build/gpu/gpu_check", program)
        self.make("share/demo-model/config.json", "{}")
        self.environment = {**os.environ, "HEDDLE_CUBLAS": "none", **environment}
        self.again(*parts)

    def make(self, path, text):
        path = os.path.join(self.folder.name, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(path, 0o755)

    def again(self, *parts):
        self.call = subprocess.run(
            [os.path.join(self.folder.name, "tests/gpu/run.sh"), "run", "out", *parts],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False)

    def read(self, name):
        with open(os.path.join(self.folder.name, "out", name), encoding="utf-8") as file:
            return file.read()


class RunTest(unittest.TestCase):
    def started(self, program, *parts, **environment):
        run = Run(program, *parts, **environment)
        self.addCleanup(run.folder.cleanup)
        return run

    def test_parts_that_succeed_fill_the_table(self):
        run = self.started(GOOD)
        self.assertEqual(run.call.returncode, 0, run.call.stdout)
        table = run.read("table.txt")
        self.assertEqual(table.splitlines()[:4],
                         ["ops: ok", "models: ok", "bench: ok", "serve: ok"])
        for line in table.splitlines():
            if line.startswith(("8B BF16, one stream", "8B FP8, one stream", "first token")):
                self.assertNotIn("not measured", line)

    def test_eight_files_come_back_at_most(self):
        run = self.started(GOOD, "first")
        self.assertEqual(run.call.returncode, 0, run.call.stdout)
        run.again("bench", "serve", "same")  # finds what the first call packed
        self.assertEqual(run.call.returncode, 0, run.call.stdout)
        out = os.path.join(run.folder.name, "out")
        self.assertLessEqual(len(os.listdir(out)), 8, os.listdir(out))
        with tarfile.open(os.path.join(out, "rest.tar")) as rest:
            self.assertLess({"models.txt", "same.txt"}, set(rest.getnames()))
            same = rest.extractfile("same.txt").read().decode()
        self.assertIn("llama-3.1-8b, without graphs", same)
        self.assertEqual(run.read("table.txt").splitlines()[:4],
                         ["ops: ok", "shapes: ok", "models: ok", "bench: ok"])

    def test_an_op_that_ends_its_program_does_not_end_the_others(self):
        run = self.started(FAULTY, "ops")
        self.assertEqual(run.call.returncode, 1)
        self.assertIn("ops: FAILED: ops ended with exit code 134\n", run.read("table.txt"))
        ops = run.read("ops.txt").splitlines()
        self.assertEqual(ops, ["run   one", "ok    one", "run   two", "FAIL  two: exit code 134",
                               "run   three", "FAIL  three: exit code 134", "run   four",
                               "ok    four", "0 failed"])
        self.assertIn("FAIL  two: exit code 134", run.call.stdout)

    def test_a_machine_without_a_gpu_fails_every_part(self):
        run = self.started(FAULTY, "models", "bench")
        self.assertEqual(run.call.returncode, 1)
        head = run.read("table.txt").splitlines()[:2]
        self.assertIn("no usable GPU", head[0])
        self.assertEqual(head[1], "bench: FAILED: bench: no usable GPU")

    def test_what_is_cut_off_leaves_the_rest(self):
        run = self.started(CUT_OFF, "bench", "serve")
        self.assertEqual(run.call.returncode, 1)
        table = run.read("table.txt")
        self.assertIn("bench: FAILED: bench failed", table)
        self.assertEqual(table.count("bench.jsonl: not readable"), 2)
        self.assertIn("2 of 2 requests FAILED", table)
        stream = [line for line in table.splitlines() if line.startswith("8B FP8, one stream")]
        self.assertIn("not measured", stream[0])

    def test_a_later_call_takes_the_place_of_what_failed(self):
        run = self.started(HANGING, "bench")
        self.assertIn("bench: FAILED: bench: out of time", run.read("table.txt"))
        run.make("build/gpu/gpu_check", GOOD)
        run.again("ops", "bench")
        self.assertEqual(run.call.returncode, 0, run.call.stdout)
        self.assertEqual(run.read("table.txt").splitlines()[:2], ["ops: ok", "bench: ok"])

    def test_without_models_their_part_fails(self):
        run = self.started(GOOD, "models", HEDDLE_GPU_MODELS=" ")
        self.assertEqual(run.call.returncode, 1)
        self.assertIn("models: FAILED: there are no models", run.read("table.txt"))

    def test_without_python_the_results_are_kept(self):
        run = self.started(GOOD)
        run.make("bin/python3", "#!/bin/sh\nexit 127\n")
        run.environment["PATH"] = os.path.join(run.folder.name, "bin") + ":" + os.environ["PATH"]
        run.again("ops", "bench")
        self.assertEqual(run.call.returncode, 0, run.call.stdout)
        self.assertIn("no tables", run.read("table.txt"))
        self.assertIn("40", run.read("bench.jsonl"))

    def test_a_part_in_the_place_of_the_folder_is_refused(self):
        run = self.started(GOOD)
        call = subprocess.run([os.path.join(run.folder.name, "tests/gpu/run.sh"), "run", "ops"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(call.returncode, 2)
        self.assertIn("OUT comes before the parts", call.stdout)


if __name__ == "__main__":
    unittest.main()
