"""Lists what compiled kernels take of a multiprocessor, and fails where one has more bytes of stack than
it may: registers that spill, or an array that is indexed at run time, cost what they were to save.

    resource_usage.py ARCHIVE [ALLOWED]

ARCHIVE is a library or an object with fat binaries that are not compressed (nvcc --no-compress, as
builds with tests have them). ALLOWED has a line for each group of kernels that may have some: a regular
expression for names, and bytes. Every line must be needed. It reads the images itself, as ELF files with
NVIDIA's attributes (.nv.info): no tool of the toolkit is needed. Exit code 1: too much, or a line that
nothing needs; 77: no kernels to look at.
"""
import re
import struct
import subprocess
import sys

MAGIC = b"\x7fELF\x02\x01\x01"
CUDA_MACHINE = 190
FRAME_SIZE, REGISTERS = 0x11, 0x2F
WITH_BYTES = 4  # attributes of this format carry a size; the others two bytes of value


def images(data):
    """(architecture's flags, image) of each ELF file for a GPU."""
    at = data.find(MAGIC)
    while at >= 0:
        machine, = struct.unpack_from("<H", data, at + 18)
        if machine == CUDA_MACHINE:
            flags, = struct.unpack_from("<I", data, at + 48)
            yield flags, memoryview(data)[at:]
        at = data.find(MAGIC, at + 1)


def sections(image):
    """(name, type, bytes) of each section."""
    begin, = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQ", image, begin + i * size) for i in range(count)]
    name_at = headers[names][4]
    for name, kind, _, _, offset, length in headers:
        end = bytes(image[name_at + name:name_at + name + 4096]).find(b"\0")
        text = bytes(image[name_at + name:name_at + name + end]).decode()
        yield text, kind, image[offset:offset + length]


def attributes(info):
    """(attribute, payload) of a section .nv.info."""
    at = 0
    while at + 4 <= len(info):
        kind, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind != WITH_BYTES:
            continue
        yield attribute, info[at:at + value]
        at += value


def kernels(image):
    """{name: {attribute: number}} of one image."""
    found, symbols, names, info = {}, b"", b"", None
    for name, kind, content in sections(image):
        if name == ".symtab":
            symbols = content
        elif name == ".strtab":
            names = bytes(content)
        elif name == ".nv.info":
            info = content
    for attribute, payload in attributes(info or b""):
        if attribute not in (FRAME_SIZE, REGISTERS) or len(payload) != 8:
            continue
        symbol, number = struct.unpack("<II", payload)
        name_at, = struct.unpack_from("<I", symbols, symbol * 24)
        name = names[name_at:names.find(b"\0", name_at)].decode()
        if name.startswith("$"):  # the compiler's own functions, which kernels call
            continue
        found.setdefault(name, {})[attribute] = number
    return found


def demangled(names):
    """Without parameters, by c++filt where it is there."""
    try:
        out = subprocess.run(["c++filt", "-p"], input="\n".join(names), text=True, check=True,
                             stdout=subprocess.PIPE).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return dict(zip(names, names))
    return dict(zip(names, [re.sub(r"heddle::kernels::cuda::|\(anonymous namespace\)::", "", line)
                            for line in out]))


def read_allowed(path):
    rules = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.split("#")[0].strip()
            if line:
                pattern, most = line.rsplit(None, 1)
                rules.append((re.compile(pattern), int(most)))
    return rules


def architecture_of(flags):
    """The number behind sm_, in the second byte since CUDA 13 and in the first before."""
    return flags >> 8 & 0xFF or flags & 0xFF


def main(arguments):
    with open(arguments[0], "rb") as file:
        data = file.read()
    rows = []
    for flags, image in images(data):
        for name, numbers in kernels(image).items():
            rows.append((architecture_of(flags), name, numbers.get(REGISTERS, 0),
                         numbers.get(FRAME_SIZE, 0)))
    if not rows:
        print(f"{arguments[0]} holds no kernels that are not compressed")
        return 77
    names = demangled(sorted({row[1] for row in rows}))
    rules = read_allowed(arguments[1]) if len(arguments) > 1 else []
    used, failed = set(), 0
    for architecture, name, registers, stack in sorted(rows):
        allowed = 0
        for i, (pattern, most) in enumerate(rules):
            if pattern.search(f"sm_{architecture} {names[name]}"):
                allowed = max(allowed, most)
                if stack > 0:
                    used.add(i)
        bad = len(arguments) > 1 and stack > allowed
        failed += bad
        if bad or (len(arguments) == 1 and stack > 0):
            print(f"{'FAIL  ' if bad else ''}sm_{architecture} {names[name]}: {registers} registers, "
                  f"{stack} bytes of stack" + (f", {allowed} allowed" if bad else ""))
    for i, (pattern, most) in enumerate(rules):
        if i not in used:
            failed += 1
            print(f"FAIL  nothing has stack that \"{pattern.pattern} {most}\" is for")
    print(f"{len(rows)} kernels, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
