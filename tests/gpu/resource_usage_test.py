"""resource_usage.py on a made-up image: an ELF file with a kernel's attributes."""
import io
import os
import struct
import tempfile
import unittest
from contextlib import redirect_stdout

import resource_usage

NAMES = b"\0.shstrtab\0.strtab\0.symtab\0.nv.info\0"


def image(kernels):
    """An image with kernels of (name, registers, stack)."""
    strings = b"\0"
    symbols = bytes(24)
    info = struct.pack("<BBH", 3, 1, 0)  # an attribute without a size
    for i, (name, registers, stack) in enumerate(kernels, 1):
        symbols += struct.pack("<IBBHQQ", len(strings), 18, 0, 4, 0, 0)
        strings += name.encode() + b"\0"
        for attribute, number in ((0x2F, registers), (0x11, stack)):
            info += struct.pack("<BBHII", 4, attribute, 8, i, number)
    parts = [(".shstrtab", NAMES), (".strtab", strings), (".symtab", symbols), (".nv.info", info)]
    body, headers = b"", [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, content in parts:
        headers.append(struct.pack("<IIQQQQIIQQ", NAMES.index(b"\0" + name.encode() + b"\0") + 1, 1, 0,
                                   0, 64 + len(body), len(content), 0, 0, 1, 0))
        body += content
    head = resource_usage.MAGIC + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 90 << 8, 64, 0, 0, 64,
                        len(headers), 1)
    return head + body + b"".join(headers)


class ResourceUsageTest(unittest.TestCase):
    def check(self, data, allowed=None):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, "archive")]
            with open(paths[0], "wb") as out:
                out.write(data)
            if allowed is not None:
                paths.append(os.path.join(folder, "allowed"))
                with open(paths[1], "w", encoding="utf-8") as out:
                    out.write(allowed)
            printed = io.StringIO()
            with redirect_stdout(printed):
                code = resource_usage.main(paths)
            return code, printed.getvalue()

    def test_a_kernel_that_spills_fails_unless_it_may(self):
        data = b"noise" + image([("lean", 40, 0), ("fat", 255, 48)]) + b"more noise"
        code, printed = self.check(data, "")
        self.assertEqual(code, 1)
        self.assertIn("FAIL  sm_90 fat: 255 registers, 48 bytes of stack, 0 allowed", printed)
        self.assertIn("2 kernels, 1 failed", printed)
        self.assertEqual(self.check(data, "sm_90 f.t 48  # because\n")[0], 0)
        self.assertEqual(self.check(data, "sm_90 f.t 40\n")[0], 1)

    def test_a_line_that_nothing_needs_fails(self):
        code, printed = self.check(image([("lean", 40, 0)]), "lean 8\n")
        self.assertEqual(code, 1)
        self.assertIn('nothing has stack that "lean 8" is for', printed)

    def test_the_compilers_own_functions_do_not_count(self):
        code, _ = self.check(image([("lean", 40, 0), ("$__internal_0_$division", 0, 48)]), "")
        self.assertEqual(code, 0)

    def test_a_file_without_images_is_no_success(self):
        self.assertEqual(self.check(b"nothing", "")[0], 77)


if __name__ == "__main__":
    unittest.main()
