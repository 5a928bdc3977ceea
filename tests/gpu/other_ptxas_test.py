"""other_ptxas.py on an archive of made-up entries, with scripts in the place of the tools."""
import os
import stat
import struct
import tempfile
import unittest

import other_ptxas

PTX = b"//\n.version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry %s(\n) { %s }\n\0"
# An image without sections: no kernel of it has stack.
IMAGE = b"\x7fELF\x02\x01\x01" + bytes(33) + struct.pack("<Q", 64) + bytes(10) + struct.pack(
    "<HHH", 64, 1, 0) + bytes(64)
LISTING = """.text.bad:
        /*0000*/ HGMMA.64x8x16.F32 R24, R4, gdesc[UR4], R24, gsb0 ;
        /*0010*/ MOV R4, R9 ;
"""


class OtherPtxasTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def make(self, name, content):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as out:
            out.write(content)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def run_on(self, library, says="", listing="", *pattern):
        image = self.make("image", IMAGE)
        ptxas = self.make("ptxas", f"""#!/bin/sh
[ "$1" = --version ] && echo 'release 99.1, V99.1.7' && exit
cp {image} "$4"; printf '{says}'
""".encode())
        nvdisasm = self.make("nvdisasm", f"#!/bin/sh\ncat <<'end'\n{listing}end\n".encode())
        return other_ptxas.main([self.make("lib.a", library), ptxas, nvdisasm, *pattern])

    def test_texts_are_found_between_other_bytes(self):
        library = b"!<arch>\n\x01" + PTX % (b"one", b"ret;") + b"\0\x02junk" + PTX % (b"two", b"")
        texts = list(other_ptxas.ptx_of(library))
        self.assertEqual([other_ptxas.ENTRY.findall(text) for text in texts], [[b"one"], [b"two"]])
        self.assertEqual(other_ptxas.target_of(texts[0]), "sm_90a")

    def test_a_library_without_ptx_is_skipped(self):
        self.assertEqual(self.run_on(b"!<arch>\n"), 77)

    def test_what_compiles_well_is_no_finding(self):
        self.assertEqual(self.run_on(PTX % (b"one", b"ret;")), 0)

    def test_words_of_the_compiler_are_findings(self):
        self.assertEqual(self.run_on(PTX % (b"one", b"ret;"), "serialized\\n"), 1)

    def test_registers_of_products_under_way_are_findings(self):
        self.assertEqual(self.run_on(PTX % (b"one", b"ret;"), "", LISTING), 1)

    def test_a_pattern_leaves_sources_out(self):
        library = PTX % (b"one", b"ret;")
        self.assertEqual(self.run_on(library, "serialized\\n", "", "two"), 0)
        self.assertEqual(self.run_on(library, "serialized\\n", "", "wgmma"), 0)
        library = PTX % (b"one", b"wgmma.mma_async.sync")
        self.assertEqual(self.run_on(library, "serialized\\n", "", "wgmma"), 1)


if __name__ == "__main__":
    unittest.main()
