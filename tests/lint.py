#!/usr/bin/env python3
"""clang-tidy over the sources of the program (not its tests), with the checks of .clang-tidy.

  tests/lint.py [--deep] [BUILD_DIR [FILE...]]

BUILD_DIR (build) holds compile_commands.json. --deep adds the static analyzer, which takes three
times as long.

Most of the time goes into the libraries' headers, again for every source. So sources that are
compiled alike, and have no helpers of the same name, are looked at together as one translation
unit; where there is something to say of that, its halves are, down to single sources.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ["base", "config", "kernels", "engine", "scheduler", "server"]
LINES_AT_A_TIME = 5000
# The name that a line at the margin defines or declares: a function, a type, a constant.
DEFINED = re.compile(r"^[A-Za-z].*?\b([A-Za-z_]\w*) ?(?:[({=[;]|:[^:]|final )")


def sources_of(path):
    """The sources that a command's file stands for: itself, or those that a unity build includes there."""
    if "Unity" not in path.parts:
        return [path]
    return [pathlib.Path(line.split('"')[1]) for line in path.read_text().splitlines() if line.startswith("#include")]


def compile_flags(build):
    """Flags by source, relative to ROOT: of the first command that compiles it."""
    flags = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        for path in sources_of(pathlib.Path(entry["file"])):
            flags.setdefault(os.path.relpath(path, ROOT), tuple(words[1 : words.index("-o")]))
    return flags


def helpers_of(text):
    """The names in a source's unnamed namespaces, each with the namespace around them."""
    names, around, inside = set(), "", False
    for line in text.splitlines():
        if line.startswith("namespace heddle"):
            around = line
        inside = line == "namespace {" or (inside and not line.startswith("}  // namespace"))
        if inside and (found := DEFINED.match(line)):
            names.add((around, found.group(1)))
    return names


def groups_of(files, flags):
    """Lists of (flags, files): as few as their helpers and LINES_AT_A_TIME allow."""
    of_folder = {os.path.dirname(path): each for path, each in flags.items()}
    groups = collections.defaultdict(list)  # of flags: [files, names, lines]
    for path in files:
        folder = os.path.dirname(path)
        each = flags.get(path) or of_folder.get(folder)
        if each is None:
            sys.exit(f"tests/lint.py: nothing in {folder} is compiled in that build directory")
        text = (ROOT / path).read_text()
        names, lines = helpers_of(text), text.count("\n")
        for group in groups[each]:
            if group[2] + lines <= LINES_AT_A_TIME and not group[1] & names:
                break
        else:
            group = [[], set(), 0]
            groups[each].append(group)
        group[0].append(path)
        group[1].update(names)
        group[2] += lines
    return [(each, group[0]) for each, alike in groups.items() for group in alike]


def tidy(path, flags, checks):
    """What clang-tidy says of a file; nothing if it has nothing to say."""
    folders = "|".join(FOLDERS)
    result = subprocess.run(
        ["clang-tidy-14", "--quiet", f"--config-file={ROOT / '.clang-tidy'}", f"--checks={checks}",
         f"--header-filter={ROOT}/({folders})/.*", str(path), "--", *flags,
         "-Wno-unknown-warning-option"],
        capture_output=True, text=True, cwd=ROOT)
    return result.stdout if result.returncode == 0 else result.stdout or result.stderr


def check(group, scratch, checks):
    flags, files = group
    if len(files) > 1:
        unit = pathlib.Path(scratch, files[0].replace("/", "_"))
        unit.write_text("".join(f'#include "{ROOT / path}"\n' for path in files))
        said = tidy(unit, flags, checks + ",-bugprone-suspicious-include")
        if not said.strip():
            return said
        half = len(files) // 2
        return "".join(check((flags, part), scratch, checks) for part in (files[:half], files[half:]))
    return tidy(ROOT / files[0], flags, checks)


def main():
    parser = argparse.ArgumentParser(usage="tests/lint.py [--deep] [BUILD_DIR [FILE...]]")
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    build = pathlib.Path(args.build).resolve()
    if not (build / "compile_commands.json").exists():
        sys.exit(f"tests/lint.py: {build}/compile_commands.json is missing; configure first")
    files = [os.path.relpath(path, ROOT) for path in args.files] or subprocess.run(
        ["git", "ls-files", *(f"{folder}/*.cc" for folder in FOLDERS)],
        capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    checks = "" if args.deep else "-clang-analyzer-*"
    groups = groups_of(files, compile_flags(build))
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for said in pool.map(lambda group: check(group, scratch, checks), groups):
                failed = failed or bool(said.strip())
                print(said, end="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
