"""wgmma_registers.py on listings as nvdisasm writes them."""
import io
import unittest
from contextlib import redirect_stdout

import wgmma_registers

START = [
    "MOV R124, R1",
    "WARPGROUP.ARRIVE",
    "HGMMA.64x64x16.F32.BF16 R24, R124, gdesc[UR16], R24",
    "HGMMA.64x64x16.F32.BF16 R24, R144, gdesc[UR20], R24, gsb0",
]


def check(instructions):
    lines = [".text.kernel:"]
    for i, text in enumerate(instructions):
        lines.append(text if text.endswith(":") else f"        /*{16 * i:04x}*/   {text} ;")
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = wgmma_registers.main(lines)
    return code, printed.getvalue()


class WgmmaRegistersTest(unittest.TestCase):
    def assert_found(self, instructions, what):
        code, printed = check(START + instructions + ["EXIT"])
        self.assertEqual(code, 1, printed)
        self.assertIn(what, printed)

    def assert_clean(self, instructions):
        self.assertEqual(check(START + instructions + ["EXIT"])[0], 0)

    def test_a_left_matrix_is_not_written_before_its_group_is_retired(self):
        write = "MOV R147, R3"
        self.assert_found([write], "MOV R147, R3: writes a left matrix")
        self.assert_found(["WARPGROUP.DEPBAR.LE gsb0, 0x1", write], "writes a left matrix")
        self.assert_clean(["WARPGROUP.DEPBAR.LE gsb0, 0x0", write])
        self.assert_clean(["MOV R148, R3"])

    def test_loads_write_as_many_registers_as_they_are_wide(self):
        self.assert_found(["LDG.E.NA.128.CONSTANT R144, desc[UR4][R8.64]"], "writes a left matrix")
        self.assert_found(["LDG.E.128 R120, desc[UR4][R8.64]", "LDG.E.64 R123, desc[UR4][R8.64]"],
                          "LDG.E.64")
        self.assert_clean(["LDG.E.128 R120, desc[UR4][R8.64]"])

    def test_the_register_behind_a_predicate_is_written_too(self):
        self.assert_found(["SHFL.IDX PT, R146, R5, R6, 0x1c1f"], "SHFL.IDX")
        self.assert_found(["LOP3.LUT P1, R125, R4, 0x1, RZ, 0xc0, !PT"], "LOP3.LUT")
        self.assert_found(["ATOMG.E.ADD.STRONG.GPU PT, R144, desc[UR4][R8.64], R9"], "ATOMG")
        self.assert_clean(["SHFL.IDX PT, R5, R146, R6, 0x1c1f"])
        self.assert_clean(["LOP3.LUT P1, RZ, R125, 0x1, RZ, 0xc0, !PT"])
        self.assert_clean(["ISETP.NE.AND P0, PT, R125, RZ, PT"])

    def test_pairs_are_cleared_at_once(self):
        self.assert_found(["CS2R R143, SRZ"], "CS2R R143")
        self.assert_clean(["CS2R.32 R143, SR_CLOCKLO"])

    def test_functions_that_are_called_are_walked_through(self):
        call = "CALL.REL.NOINC `($divide)"
        rest = [call, "WARPGROUP.DEPBAR.LE gsb0, 0x0", "EXIT", "$divide:"]
        back = "RET.REL.NODEC R2 `(kernel)"
        self.assert_found(rest + ["MOV R145, R3", back], "MOV R145, R3")
        self.assert_clean(rest + ["MOV R3, R145", back])
        self.assert_found(["BRA.DIV UR4, `(.L_x_9)"] + rest[1:3] + [".L_x_9:", "MOV R127, R3"],
                          "MOV R127, R3")

    def test_sums_are_neither_read_nor_stored_meanwhile(self):
        self.assert_found(["FADD R2, R55, R3"], "uses sums")
        self.assert_found(["STS.128 [R8], R24"], "uses sums")
        self.assert_clean(["FADD R2, R56, R3"])

    def test_loops_are_walked_around(self):
        turn = ["FADD R2, R144, 1"]  # reading a left matrix harms nobody
        self.assertEqual(check(["MOV R9, R1", ".L_x_0:"] + START + turn +
                               ["@P0 BRA `(.L_x_0)", "EXIT"])[0], 1)  # R124 at the next turn
        self.assertEqual(check(["MOV R9, R1", ".L_x_0:"] + START + turn +
                               ["WARPGROUP.DEPBAR.LE gsb0, 0x0", "@P0 BRA `(.L_x_0)",
                                "EXIT"])[0], 0)

    def test_products_of_fp8_are_products(self):
        product = "QGMMA.64x96x32.F32.E4M3.E4M3 R24, gdesc[UR28], R24, gsb0"
        code, printed = check(["WARPGROUP.ARRIVE", product, "FADD R2, R71, R3", "EXIT"])
        self.assertEqual(code, 1, printed)
        self.assertIn("uses sums", printed)
        self.assertEqual(check([product, "WARPGROUP.DEPBAR.LE gsb0, 0x0", "FADD R2, R71, R3",
                                "EXIT"])[0], 0)

    def test_functions_without_products_are_left_out(self):
        self.assertEqual(check(["MOV R1, R2", "EXIT"]), (0, ""))


if __name__ == "__main__":
    unittest.main()
