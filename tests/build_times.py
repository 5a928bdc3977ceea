#!/usr/bin/env python3
"""Where the time of a build goes: seconds by folder, and the longest files.

  tests/build_times.py [--longest N] [BUILD_DIR]      a table of what BUILD_DIR (build) has built

Seconds are those that passed while each file was made, as ninja keeps them: right on a machine that
does nothing else. For processor seconds, which other work disturbs little, let this program run the
compiler in a fresh folder; without ccache, which would have most of it ready:

  cmake --preset release -B build-times -DHEDDLE_CUDA=OFF \\
      "-DCMAKE_CXX_COMPILER_LAUNCHER=$PWD/tests/build_times.py;--record" \\
      "-DCMAKE_CXX_LINKER_LAUNCHER=$PWD/tests/build_times.py;--record"
  cmake --build build-times --target heddle && tests/build_times.py build-times
"""

import argparse
import collections
import fcntl
import pathlib
import resource
import subprocess
import sys
import time

RECORD = "build_times.log"  # in the build's folder: seconds of processor and of clock, file


def record(command):
    """Runs the command, and notes its seconds under the file that it makes."""
    begin = time.monotonic()
    code = subprocess.run(command).returncode
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = command[command.index("-o") + 1] if "-o" in command else command[-1]
    cpu = spent.ru_utime + spent.ru_stime
    with open(RECORD, "a", encoding="utf-8") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        log.write(f"{cpu:.3f}\t{time.monotonic() - begin:.3f}\t{output}\n")
    return code


def read_record(path):
    """Seconds by file; of a file that was made twice, the later."""
    return {line.split("\t")[2]: float(line.split("\t")[0]) for line in path.read_text().splitlines()}


def read_ninja_log(path):
    """The same from ninja's log: of what one command made together, the first."""
    files, commands = {}, {}
    for line in path.read_text().splitlines()[1:]:
        begin, end, _, output, command = line.split("\t")
        if commands.setdefault((begin, end, command), output) == output:
            files[output] = (int(end) - int(begin)) / 1000
    return files


def kind_of(output):
    """The folder of the sources that a file is made of, or that it is linked."""
    if not output.endswith(".o"):
        return "(libraries and programs)"
    folder = output.split("CMakeFiles/", maxsplit=1)[0].rstrip("/")
    return "/".join(folder.split("/")[:2])


def main():
    if sys.argv[1:2] == ["--record"]:
        return record(sys.argv[2:])
    parser = argparse.ArgumentParser(usage="tests/build_times.py [--longest N] [BUILD_DIR]")
    parser.add_argument("--longest", type=int, default=15)
    parser.add_argument("build", nargs="?", default="build", type=pathlib.Path)
    args = parser.parse_args()
    recorded = (args.build / RECORD).exists()
    if not recorded and not (args.build / ".ninja_log").exists():
        sys.exit(f"tests/build_times.py: nothing was built in {args.build}")
    files = (read_record(args.build / RECORD) if recorded
             else read_ninja_log(args.build / ".ninja_log"))

    folders = collections.defaultdict(list)
    for output, seconds in files.items():
        folders[kind_of(output)].append(seconds)
    unit = "processor seconds" if recorded else "seconds"
    print(f"| folder | files | {unit} |\n|---|---:|---:|")
    for folder, seconds in sorted(folders.items(), key=lambda item: -sum(item[1])):
        print(f"| {folder} | {len(seconds)} | {sum(seconds):.1f} |")
    print(f"| all | {len(files)} | {sum(files.values()):.1f} |\n")
    print(f"| longest | {unit} |\n|---|---:|")
    for output, seconds in sorted(files.items(), key=lambda item: -item[1])[: args.longest]:
        print(f"| {output.replace('CMakeFiles/', '')} | {seconds:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
