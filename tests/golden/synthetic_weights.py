"""Weights that need no file: each value is a function of the tensor's name and the index.

tests/support/synthetic_weights.h computes the same values in C++, bit for bit, so that a golden
commits a config and logits, and no weights.
"""

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _fnv1a(name: str) -> np.uint64:
    """64-bit FNV-1a of the name's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return np.uint64(value)


def _splitmix(state: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def values(name: str, shape, scale: float, offset: float, bits: int = 24) -> np.ndarray:
    """offset + scale * u, u uniform on the grid of 2^bits points in [-1, 1), in float32.

    scale is a power of two and bits at most 24, so that the product is exact.
    """
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        index = np.arange(1, count + 1, dtype=np.uint64)
        random = _splitmix(_fnv1a(name) + index * _GAMMA) >> np.uint64(64 - bits)
    grid = random.astype(np.float32) * np.float32(2.0 ** (1 - bits)) - np.float32(1.0)
    return (np.float32(offset) + np.float32(scale) * grid).reshape(shape)
