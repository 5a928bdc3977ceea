"""Linear layers of tiny models in the quantised layouts of Hugging Face folders: the tensors that
stand for a weight, as random codes of synthetic_weights.py, and the weight that they decode to.

A tensor is [name, shape, scale, offset, type, bits] or, where its values are given, the same with a
list of them at the end. "I32" is made of random bytes, four to a word; "F8_E4M3" of random bytes
without their second highest bit (so no NaN, and magnitudes below 2); "U8" of random bytes. Layouts after AutoGPTQ,
AutoAWQ, the compressed-tensors package, transformers' fine-grained FP8, and NVIDIA's TensorRT Model Optimizer.
"""

import math

import numpy as np

import synthetic_weights

GROUP = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # output that nibble i of a word holds
SCALE = (2.0**-7, 2.0**-6)  # of int4 codes: scale and offset, exact in F16 with 6 bits
F8_SCALE = (2.0**-4, 2.0**-3)
FP4_SCALE = (2.0**-7, 2.0**-6)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])


def random_bytes(tensor: list) -> np.ndarray:
    name, shape = tensor[:2]
    count = int(np.prod(shape)) * (4 if tensor[4] == "I32" else 1)
    return synthetic_weights.values(name, [count], *tensor[2:4], tensor[5]).astype(np.uint8)


def words(name: str, shape: list[int]) -> tuple[list, np.ndarray]:
    tensor = [name, shape, 128.0, 128.0, "I32", 8]
    return tensor, random_bytes(tensor).view("<u4").reshape(shape)


def scales(name: str, shape: list[int], type_name: str, range_: tuple) -> tuple[list, np.ndarray]:
    tensor = [name, shape, *range_, type_name, 6]
    return tensor, synthetic_weights.values(name, shape, *range_, 6)


def nibbles(packed: np.ndarray, order=range(8)) -> np.ndarray:
    """[n, m] words to [n, 8 m] codes: element order[i] of a word is its nibble i."""
    codes = np.empty((*packed.shape, 8), np.int64)
    for i, element in enumerate(order):
        codes[:, :, element] = packed >> np.uint32(4 * i) & 15
    return codes.reshape(packed.shape[0], -1)


def spread(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """[n_groups, rows] to [rows, cols] by the group of each column."""
    return values[groups].T


def gptq(name: str, rows: int, cols: int) -> tuple[list, np.ndarray]:
    """With act-order, another one for each layer."""
    step = [29, 13, 5, 37][sum(name.encode()) % 4]
    if math.gcd(step, cols) > 1:
        step = 7  # coprime to the columns of these models
    groups = np.arange(cols) * step % cols // GROUP
    weight, codes = words(name + "qweight", [cols // 8, rows])
    zero, zeros = words(name + "qzeros", [cols // GROUP, rows // 8])
    scale, factors = scales(name + "scales", [cols // GROUP, rows], "F16", SCALE)
    order = [name + "g_idx", [cols], 0.0, 0.0, "I32", 0, [int(g) for g in groups]]
    codes = nibbles(codes.T)  # [rows, cols]
    zeros = (nibbles(zeros) + 1) % 16
    return [weight, zero, scale, order], spread(factors, groups) * (codes - spread(zeros, groups))


def awq(name: str, rows: int, cols: int) -> tuple[list, np.ndarray]:
    groups = np.arange(cols) // GROUP
    weight, codes = words(name + "qweight", [cols, rows // 8])
    zero, zeros = words(name + "qzeros", [cols // GROUP, rows // 8])
    scale, factors = scales(name + "scales", [cols // GROUP, rows], "F16", SCALE)
    zeros = nibbles(zeros, AWQ_ORDER)
    return [weight, zero, scale], spread(factors, groups) * (
        nibbles(codes, AWQ_ORDER).T - spread(zeros, groups))


def pack_quantized(name: str, rows: int, cols: int) -> tuple[list, np.ndarray]:
    weight, codes = words(name + "weight_packed", [rows, cols // 8])
    scale, factors = scales(name + "weight_scale", [rows, cols // GROUP], "BF16", SCALE)
    shape = [name + "weight_shape", [2], 0.0, 0.0, "I64", 0, [rows, cols]]
    return [weight, scale, shape], factors.repeat(GROUP, axis=1) * (nibbles(codes) - 8)


def decode_f8(codes: np.ndarray) -> np.ndarray:
    """E4M3 without infinities (Micikevicius et al. 2022)."""
    exponent = (codes >> 3 & 15).astype(np.int64)
    mantissa = (codes & 7).astype(np.float64)
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0**(exponent - 7))
    return np.where(codes & 128, -value, value)


def block_fp8(name: str, rows: int, cols: int, block=(32, 32)) -> tuple[list, np.ndarray]:
    weight = [name + "weight", [rows, cols], 128.0, 128.0, "F8_E4M3", 8]
    codes = random_bytes(weight).reshape(rows, cols) & 0xbf
    grid = [-(-rows // block[0]), -(-cols // block[1])]
    scale, factors = scales(name + "weight_scale_inv", grid, "F32", F8_SCALE)
    factors = factors.repeat(block[0], axis=0)[:rows].repeat(block[1], axis=1)[:, :cols]
    return [weight, scale], decode_f8(codes) * factors


def nvfp4(name: str, rows: int, cols: int) -> tuple[list, np.ndarray]:
    weight = [name + "weight", [rows, cols // 2], 128.0, 128.0, "U8", 8]
    pairs = random_bytes(weight).reshape(rows, cols // 2)
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(rows, cols)
    group = [name + "weight_scale", [rows, cols // 16], 128.0, 128.0, "F8_E4M3", 8]
    groups = decode_f8(random_bytes(group).reshape(rows, cols // 16) & 0xbf)
    scale, factor = scales(name + "weight_scale_2", [1], "F32", FP4_SCALE)
    values = np.where(codes & 8, -1, 1) * E2M1[codes & 7] * groups.repeat(16, axis=1)
    return [weight, group, scale], values * factor


METHODS = {"gptq": gptq, "awq": awq, "compressed-tensors": pack_quantized, "fp8": block_fp8,
           "modelopt": nvfp4}


def layer(method: str, weight_name: str, rows: int, cols: int) -> tuple[list, np.ndarray]:
    """The tensors in the place of "...weight" [rows, cols], and its values."""
    tensors, values = METHODS[method](weight_name.removesuffix("weight"), rows, cols)
    return tensors, values.astype(np.float32)


def is_quantised(name: str) -> bool:
    """What such folders quantise: projections and experts, neither routers nor embeddings."""
    return name.endswith(("_proj.weight", "_proj_with_mqa.weight", ".w1.weight", ".w2.weight",
                          ".w3.weight"))
