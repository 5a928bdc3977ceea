"""Compiles the PTX of a library once more, with another ptxas, and looks at what that makes of it.

    other_ptxas.py LIBRARY PTXAS NVDISASM [PATTERN]

LIBRARY is libheddle_kernels_cuda.a of a build with tests, whose fat binaries hold PTX and are not
compressed. PTXAS and NVDISASM are of any CUDA that knows the PTX (newer ones do); `pip download
nvidia-cuda-nvcc nvidia-cuda-nvdisasm` has both. With a PATTERN only sources with a kernel of a name in which
it is found: "wgmma" stands for all with products of warpgroups.

Of each source: what ptxas says (a product that waits for another is a warning), stack beyond
allowed_stack.txt (resource_usage.py), and registers of products under way (wgmma_registers.py). Exit
code 1: something was found; 77: no PTX.
"""
import os
import re
import subprocess
import sys
import tempfile

import resource_usage
import wgmma_registers

HERE = os.path.dirname(os.path.abspath(__file__))
# Bytes that another compiler may spill more, in kernels that spill anyway.
SLACK = 16
ENTRY = re.compile(rb"\.entry\s+([\w$]+)")


def ptx_of(data):
    """The PTX texts in the fat binaries of an archive: each begins with its version and ends with a
    zero, or where the next entry begins."""
    for found in re.finditer(rb"\.version \d+\.\d+\s+\.target sm_\w+", data):
        end = data.find(b"\0", found.start())
        text = data[found.start():end if end >= 0 else len(data)]
        if ENTRY.search(text):
            yield text


def is_asked_for(text, pattern):
    if pattern == "wgmma":
        return b"wgmma.mma_async" in text
    return any(re.search(pattern, name.decode()) for name in ENTRY.findall(text))


def target_of(text):
    return re.search(rb"\.target (sm_\w+)", text)[1].decode()


def stack_of(image, rules):
    """(name, bytes, bytes that it may have) of the kernels with more than they may."""
    numbers = resource_usage.kernels(memoryview(image))
    names = resource_usage.demangled(sorted(numbers))
    for name, found in sorted(numbers.items()):
        stack = found.get(resource_usage.FRAME_SIZE, 0)
        allowed = max([most for pattern, most in rules
                       if pattern.search(f"sm_90 {names[name]}")] + [0])
        if stack > allowed + (SLACK if allowed > 0 else 0):
            yield names[name], stack, allowed


class Compiler:
    """One other ptxas, and the folder that its results lie in."""

    def __init__(self, ptxas, nvdisasm, folder):
        self.ptxas, self.nvdisasm = ptxas, nvdisasm
        self.source = os.path.join(folder, "one.ptx")
        self.cubin = os.path.join(folder, "one.cubin")
        self.rules = resource_usage.read_allowed(os.path.join(HERE, "allowed_stack.txt"))

    def check(self, text):
        """The number of findings, which it prints."""
        with open(self.source, "wb") as out:
            out.write(text)
        made = subprocess.run([self.ptxas, "-arch", target_of(text), "-o", self.cubin, self.source],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        failed = 0
        for line in made.stdout.splitlines():
            failed += 1
            print(f"FAIL  {line}")
        if made.returncode != 0:
            return max(failed, 1)
        with open(self.cubin, "rb") as file:
            image = file.read()
        for name, stack, allowed in stack_of(image, self.rules):
            failed += 1
            print(f"FAIL  {name}: {stack} bytes of stack, {allowed} allowed")
        listing = subprocess.run([self.nvdisasm, "-c", self.cubin], stdout=subprocess.PIPE, text=True,
                                 check=True).stdout
        return failed + wgmma_registers.main(listing.splitlines())


def main(arguments):
    library, ptxas, nvdisasm = arguments[:3]
    with open(library, "rb") as file:
        texts = list(ptx_of(file.read()))
    if not texts:
        print(f"{library} holds no PTX that is not compressed")
        return 77
    if len(arguments) > 3:
        texts = [text for text in texts if is_asked_for(text, arguments[3])]
    version = subprocess.run([ptxas, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    print(re.search(r"release .*", version)[0])
    kernels = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        compiler = Compiler(ptxas, nvdisasm, folder)
        for text in texts:
            kernels += len(ENTRY.findall(text))
            failed += compiler.check(text)
    print(f"{len(texts)} sources, {kernels} kernels, {failed} findings")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
