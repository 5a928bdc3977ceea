"""Finds registers that a warpgroup's matrix instruction still works with when something else uses them.

    nvcc ... '--generate-code=arch=compute_90a,code=[sm_90a]' -cubin -o FILE.cubin FILE.cu
    nvdisasm -c FILE.cubin | python3 tests/gpu/wgmma_registers.py

An HGMMA (of FP8: a QGMMA) reads its left matrix from registers, and adds to its sums, until a WARPGROUP.DEPBAR has
retired its group (PTX ISA, wgmma.wait_group). nvcc knows that of sums; of left matrices that nobody
reads again it has been seen to hand the registers on, without a word: wrong numbers, now and then
(ptxas before CUDA 13.3; also reported in Triton's issue 9433 and pull request 11781).
Neither a compiler's warning nor the emulator shows that. To be run on kernels/cuda/linear/linear_mixed_*.cu,
linear_bulk.cu, linear_bulk_8.cu, linear_bulk_experts.cu and attention/attention_hopper_*.cu with every new nvcc. Exit code 1: something was found.
"""
import re
import sys
from collections import namedtuple

Instruction = namedtuple("Instruction", "address predicated op operands text")
# Sets of register numbers: left matrices and sums of products that are under way.
Group = namedtuple("Group", "left sums")
NONE = Group(frozenset(), frozenset())

PRODUCTS = ("HGMMA", "QGMMA")
LEFT_REGISTERS = 4
# These write no register of the general file.
WRITE_NOTHING = ("ST", "RED", "BAR", "SYNCS", "UBLK", "CCTL", "DEPBAR", "LDGDEPBAR", "WARPSYNC",
                 "BSSY", "NOP")
# These name a predicate before the register that they write.
PREDICATE_FIRST = ("SHFL", "ATOM", "LOP3", "MATCH")


def read(lines):
    """(name, instructions, index of each label) of each function of a listing."""
    name, code, labels = None, [], {}
    for line in lines:
        if found := re.match(r"\.text\.(\S+):", line):
            if name:
                yield name, code, labels
            name, code, labels = found[1], [], {}
        elif name and (found := re.match(r"(\.L_x_\d+|\$\S+):", line)):
            labels[found[1]] = len(code)
        elif name and (found := re.search(
                r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\d+\s+)?(\S+)\s*(.*?);", line)):
            operands = tuple(operand.strip() for operand in found[4].split(","))
            code.append(Instruction(found[1], bool(found[2]), found[3], operands, found[4].strip()))
    if name:
        yield name, code, labels


def from_register(operand, count):
    found = re.match(r"R(\d+)$", operand)
    return frozenset(range(int(found[1]), int(found[1]) + count)) if found else frozenset()


def registers_in(operands):
    return {int(r) for operand in operands for r in re.findall(r"\bR(\d+)\b", operand)}


def sums_of(op):
    """64 rows by N columns of F32 over 128 threads."""
    return int(re.search(r"64x(\d+)x", op)[1]) // 2


def width(op):
    """Registers that it writes, from the one that it names on."""
    if ".128" in op or (op.startswith("LDSM") and op.endswith(".4")):
        return 4
    is_pair = (".WIDE" in op or (".64" in op and op.startswith(("LD", "ATOM"))) or
               (op.startswith("LDSM") and op.endswith(".2")) or
               (op.startswith("CS2R") and ".32" not in op))
    return 2 if is_pair else 1


def written(instruction):
    op, operands = instruction.op, instruction.operands
    if op.startswith(WRITE_NOTHING) or not operands:
        return frozenset()
    has_predicate = op.startswith(PREDICATE_FIRST) and re.match(r"P(\d|T)$", operands[0])
    return from_register(operands[1 if has_predicate else 0].split(".")[0], width(op))


def used(instruction):
    """Registers that it reads."""
    first = 0 if instruction.op.startswith("ST") else 1
    return registers_in(instruction.operands[first:])


class Walk:
    """All ways through a function, with the products that may be under way at each place."""

    def __init__(self, code, labels):
        self.code, self.labels = code, labels
        self.found = {}

    def run(self):
        seen = set()
        # Where, groups that were committed, the one that was not.
        work = [(0, (), NONE)]
        while work:
            at, groups, current = work.pop()
            while at < len(self.code) and (at, groups, current) not in seen:
                seen.add((at, groups, current))
                step = self.code[at]
                if step.op.startswith(PRODUCTS):
                    groups, current = self.product(step, groups, current)
                elif step.op.startswith("WARPGROUP.DEPBAR"):
                    left = int(step.operands[1], 16)
                    groups = groups[-left:] if left else ()
                elif step.op == "EXIT" and not step.predicated:
                    break
                elif step.op.startswith("RET") and not step.predicated:
                    break  # the caller goes on behind its call
                elif (target := self.target(step)) is not None:
                    work.append((target, groups, current))
                    if self.always_leaves(step):
                        break
                else:
                    self.check(step, groups + (current,))
                at += 1
        return self.found

    @staticmethod
    def product(step, groups, current):
        current = Group(current.left | from_register(step.operands[1], LEFT_REGISTERS),
                        current.sums | from_register(step.operands[0], sums_of(step.op)))
        if "gsb0" not in step.text:
            return groups, current
        # Committed. In a loop that never waits the same group comes again and again.
        return groups if current in groups else groups + (current,), NONE

    def target(self, step):
        if not step.op.startswith(("BRA", "CALL", "WARPSYNC")):
            return None
        label = re.search(r"`\((\S+)\)", step.text)
        return self.labels.get(label[1]) if label else None

    @staticmethod
    def always_leaves(step):
        return (step.op.startswith("BRA") and ".DIV" not in step.op and not step.predicated and
                not re.match(r"!?U?P\d", step.operands[0]))

    def check(self, step, groups):
        for group in groups:
            if written(step) & group.left:
                self.found[step] = "writes a left matrix"
            elif (written(step) | used(step)) & group.sums:
                self.found[step] = "uses sums"


def main(lines):
    failed = 0
    for name, code, labels in read(lines):
        products = sum(step.op.startswith(PRODUCTS) for step in code)
        if products == 0:
            continue
        found = Walk(code, labels).run()
        failed += bool(found)
        print(f"{'FAIL' if found else 'ok  '}  {products} products  {name}")
        for step, what in found.items():
            print(f"      {step.address}  {step.op} {step.text}: {what} of a product under way")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin))
