"""All calls of run.sh, with gpu_check on the emulated device in rehearsal (sizes.h): each part starts,
succeeds, writes its file and ends within its limit. What is measured means nothing.

    rehearsal_test.py GPU_CHECK_EMULATED MODELS [CALL...]
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CALLS = ("first", "second", "third", "throughput")
# Files that each call leaves, beside the tables.
FILES = {
    "first": {"ops.txt": "0 failed", "shapes.txt": "0 failed", "same.txt": "0 failed",
              "models.txt": "ok "},
    "second": {"bench.jsonl": "short convolution", "hybrids.jsonl": "qwen3.5-9b bf16 128/256",
               "peers.jsonl": "peers", "memcheck.txt": "0 failed",
               "racecheck.txt": "0 failed"},
    "third": {"serve.jsonl": "5000/500/96", "tune.jsonl": "nano-batches", "tune_profile.jsonl": "{"},
    "throughput": {"split.jsonl": "5000/500/96"},
}
# Splits every step of two rows or more, whatever an emulated device would be the faster with.
PROFILE = ('{"device": "emulated", "min_rows": 2, "max_rows": 4096, "min_context": 0, "split": 1, '
           '"attention_multiprocessors": 2, "speedup": 1.0}\n')
SANITIZER = "#!/usr/bin/env bash\nwhile [ \"${1#--}\" != \"$1\" ]; do shift 2; done\nexec \"$@\"\n"


def make(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    os.chmod(path, 0o755)


def text_of(out, name):
    packed = os.path.join(out, "rest.tar")
    if not os.path.exists(os.path.join(out, name)) and os.path.exists(packed):
        subprocess.run(["tar", "-C", out, "-xf", packed, name], check=True)
    with open(os.path.join(out, name), encoding="utf-8") as file:
        return file.read()


def rehearse(root, call, environment):
    """Complains and returns False if something of the call is not as it must be."""
    out = os.path.join(root, "out")
    if call == "throughput" and not os.path.exists(out):  # else the third call has left one
        make(os.path.join(out, "tune_profile.jsonl"), PROFILE)
    run = subprocess.run([os.path.join(root, "tests/gpu/run.sh"), "run", "out", call],
                         env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         check=False)
    good = run.returncode == 0
    if not good:
        print(f"{call} ended with {run.returncode}:\n{run.stdout}")
    if len(os.listdir(out)) > 8:
        print(f"{call} left more than eight files: {os.listdir(out)}")
        good = False
    for name, words in FILES[call].items():
        try:
            found = text_of(out, name)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{call}: {name} is not there: {error}")
            good = False
            continue
        if words not in found:
            print(f"{call}: {name} does not say {words!r}: {found[-500:]}")
            good = False
        if name.endswith(".jsonl"):
            for line in found.splitlines():
                json.loads(line)
    return good


def main():
    program, models = sys.argv[1], sys.argv[2]
    calls = sys.argv[3:] or CALLS
    with tempfile.TemporaryDirectory() as root:
        for name in ("run.sh", "summary.py", "peers.py"):
            os.makedirs(os.path.join(root, "tests/gpu"), exist_ok=True)
            shutil.copy(os.path.join(HERE, name), os.path.join(root, "tests/gpu", name))
        os.makedirs(os.path.join(root, "build/gpu"))
        os.symlink(os.path.abspath(program), os.path.join(root, "build/gpu/gpu_check"))
        make(os.path.join(root, "bin/compute-sanitizer"), SANITIZER)
        environment = {**os.environ, "HEDDLE_GPU_REHEARSAL": "1", "HEDDLE_GPU_REPEATS": "2",
                       "HEDDLE_CUBLAS": "none", "HEDDLE_GPU_MODELS": models,
                       "PATH": os.path.join(root, "bin") + ":" + os.environ["PATH"]}
        return 0 if all([rehearse(root, call, environment) for call in calls]) else 1


if __name__ == "__main__":
    sys.exit(main())
