#!/usr/bin/env python3
"""What the gguf package's dequantiser makes of random blocks: the golden of
tests/kernels/block_codes_test.cc and, for formats that are read into others, of
tests/files/gguf_codes_test.cc.

The test makes the same blocks (a linear congruential generator; the F16 fields get exponents below
2). Committed are the first values and a hash of all of them as F32 bits.
"""

import json
import pathlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
BLOCKS = 64
# name -> offsets of the block's F16 fields
FORMATS = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82],
           "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
           "IQ4_XS": [0], "MXFP4": [], "TQ2_0": [64], "TQ1_0": [52], "IQ1_S": [0], "IQ1_M": [54],
           "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0]}
MASK = 2**64 - 1


def blocks(name: str, size: int) -> np.ndarray:
    state = sum(ord(c) << 8 * i for i, c in enumerate(name))
    data = bytearray()
    for _ in range(BLOCKS * size):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        data.append(state >> 56)
    array = np.frombuffer(data, np.uint8).reshape(BLOCKS, size).copy()
    for field in FORMATS[name]:
        array[:, field + 1] &= 0xbf
    return array


def fnv1a(data: bytes) -> int:
    value = 0xcbf29ce484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001b3) & MASK
    return value


def main() -> None:
    golden = {}
    for name in FORMATS:
        kind = gguf.GGMLQuantizationType[name]
        columns, size = gguf.GGML_QUANT_SIZES[kind]
        with np.errstate(over="ignore"):
            values = gguf.quants.dequantize(blocks(name, size), kind).astype("<f4")
        assert values.shape == (BLOCKS, columns)
        golden[name] = dict(type=int(kind), columns=columns, block_bytes=size,
                            fields=FORMATS[name],
                            first=[float(v) for v in values.reshape(-1)[:8]],
                            hash=f"{fnv1a(values.tobytes()):016x}")
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    (HERE / "blocks.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
