#!/usr/bin/env python3
"""Blocks quantised by the gguf package: the golden of tests/support/quantize.h, whose quantiser in
turn makes the weights of the GGUF goldens."""

import json
import pathlib

import gguf
import numpy as np

import synthetic_weights

HERE = pathlib.Path(__file__).parent


def rows() -> np.ndarray:
    """Ordinary values, and blocks that a quantiser may get wrong."""
    data = synthetic_weights.values("quantize", [4, 64], 2.0, 0.0)
    data[1, :32] = 0.0  # no scale
    data[1, 32:] = -1.5  # all equal
    data[2, :32] = np.arange(-16, 16, dtype=np.float32)  # ties in rounding
    data[2, 32:] *= np.float32(2.0**-20)  # a scale that is subnormal in F16
    data[3, :32] *= np.float32(2.0**12)
    return data


def main() -> None:
    data = rows()
    golden = dict(rows=[[float(x) for x in row] for row in data])
    for name in ("Q8_0", "Q4_0"):
        kind = gguf.GGMLQuantizationType[name]
        blocks = gguf.quants.quantize(data, kind)
        golden[name] = [row.tobytes().hex() for row in blocks]
        golden[f"{name}_values"] = [[float(x) for x in row]
                                    for row in gguf.quants.dequantize(blocks, kind)]
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
             for key, value in golden.items()]
    (HERE / "quantize.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
