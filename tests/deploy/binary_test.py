"""What the built program must be hardened with, read from its ELF file.

The bits and notes are those of the System V ABI (gABI chapters 5 and 7) as readelf prints them.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SKIPPED = 77
BINARY = pathlib.Path(os.environ["HEDDLE_BINARY_DIR"]) / "heddle"


def readelf(*flags):
    return subprocess.run(["readelf", "--wide", *flags, str(BINARY)], capture_output=True, text=True, check=True).stdout


class Hardening(unittest.TestCase):
    def test_it_is_loaded_anywhere(self):
        self.assertRegex(readelf("--file-header"), r"Type:\s+DYN")
        self.assertRegex(readelf("--dynamic"), r"\(FLAGS_1\).*\bPIE\b")

    def test_tables_of_addresses_are_read_only_once_it_runs(self):
        self.assertRegex(readelf("--program-headers"), r"\bGNU_RELRO\b")
        dynamic = readelf("--dynamic")
        self.assertTrue(re.search(r"\(BIND_NOW\)|\(FLAGS\).*\bBIND_NOW\b", dynamic), dynamic)
        self.assertRegex(dynamic, r"\(FLAGS_1\).*\bNOW\b")

    def test_no_memory_is_writable_and_executable(self):
        headers = readelf("--program-headers")
        self.assertRegex(headers, r"GNU_STACK\s.*\sRW\s")
        for line in headers.splitlines():
            if line.split()[:1] == ["LOAD"]:
                self.assertNotRegex(line, r"\sRWE\s")

    def test_it_finds_no_libraries_in_a_folder_of_its_own(self):
        self.assertNotRegex(readelf("--dynamic"), r"\((RPATH|RUNPATH)\)")

    def test_stacks_and_calls_of_the_c_library_are_checked(self):
        symbols = readelf("--dyn-syms")
        self.assertIn("__stack_chk_fail", symbols)
        self.assertRegex(symbols, r"__(memcpy|sprintf|snprintf|read|memmove|memset|printf|vsnprintf)_chk")
        self.assertIn("__glibcxx_assert_fail", symbols)


if __name__ == "__main__":
    if shutil.which("readelf") is None or not BINARY.exists():
        print("there is no readelf, or no program")
        sys.exit(SKIPPED)
    unittest.main()
