#!/usr/bin/env python3
"""Small quantised matrices in the layouts of Hugging Face checkpoints, and what they decode to: the
goldens of tests/files/quantized_test.cc.

compressed-tensors and bitsandbytes write and read their own formats here; GPTQ, AWQ and FP8 are
packed by the lines below, after the layouts of AutoGPTQ, AutoAWQ and transformers, and decoded from
the numbers before packing. Each case is a safetensors file; quantized.json holds its
quantization_config, its shape and a hash of the decoded F32 values.
"""

import json
import pathlib

import bitsandbytes.functional
import numpy as np
import torch
from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor, \
    FloatQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
MASK = 2**64 - 1
GPTQ_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def fnv1a(data: bytes) -> int:
    value = 0xcbf29ce484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001b3) & MASK
    return value


def pack_rows(codes: np.ndarray, bits: int) -> np.ndarray:
    """[n, m] codes to [n * bits / 32, m] int32: a little-endian stream along the first axis."""
    n, m = codes.shape
    stream = ((codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1).reshape(n * bits, m)
    words = stream.reshape(-1, 32, m).astype(np.uint64) << np.arange(32, dtype=np.uint64)[None, :, None]
    return words.sum(axis=1).astype(np.uint32).view(np.int32)


def random_parts(seed: int, rows: int, cols: int, group: int, bits: int, symmetric: bool):
    random = np.random.default_rng(seed)
    groups = cols // group
    codes = random.integers(0, 2**bits, (rows, cols))
    zeros = np.full((rows, groups), 2**(bits - 1)) if symmetric else random.integers(
        0, 2**bits, (rows, groups))
    scales = (random.random((rows, groups)) * 0.02 + 0.001).astype(np.float16)
    return codes, zeros, scales


def decode(codes, zeros, scales, group_of_column):
    return scales.astype(np.float32)[:, group_of_column] * (
        codes - zeros[:, group_of_column]).astype(np.float32)


def gptq(seed, rows, cols, group, bits=4, symmetric=False, act_order=False, v2=False):
    size = cols if group == -1 else group
    codes, zeros, scales = random_parts(seed, rows, cols, size, bits, symmetric)
    group_of = np.arange(cols) // size
    if act_order:
        group_of = np.random.default_rng(seed + 1).permutation(group_of)
    stored_zeros = zeros if v2 else (zeros - 1) % 2**bits
    tensors = {"m.qweight": pack_rows(codes.T, bits), "m.scales": scales.T,
               "m.qzeros": pack_rows(stored_zeros, bits).T,
               "m.g_idx": group_of.astype(np.int32)}
    config = dict(quant_method="gptq", bits=bits, group_size=group, desc_act=act_order,
                  sym=symmetric, checkpoint_format="gptq_v2" if v2 else "gptq")
    return tensors, config, decode(codes, zeros, scales, group_of)


def awq(seed, rows, cols, group):
    codes, zeros, scales = random_parts(seed, rows, cols, group, 4, False)

    def pack(values):  # [n, rows] to [n, rows / 8]
        nibbles = values.reshape(values.shape[0], -1, 8)[:, :, GPTQ_AWQ_ORDER].astype(np.uint64)
        words = (nibbles << (4 * np.arange(8, dtype=np.uint64))).sum(axis=2)
        return words.astype(np.uint32).view(np.int32)

    tensors = {"m.qweight": pack(codes.T), "m.qzeros": pack(zeros.T), "m.scales": scales.T}
    config = dict(quant_method="awq", bits=4, group_size=group, zero_point=True, version="gemm")
    return tensors, config, decode(codes, zeros, scales, np.arange(cols) // group)


def compressed(seed, rows, cols, kind, args, act_order=False):
    """By the package itself: random weights, its own rounding, packing and decoding."""
    torch.manual_seed(seed)
    weight = torch.randn(rows, cols) * 0.05
    strategy = args["strategy"]
    group = args.get("group_size") or cols
    shape = {"group": (rows, cols // group), "channel": (rows, 1), "tensor": (1,),
             "block": (-(-rows // 128), -(-cols // 128))}[strategy]
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    top = 448.0 if args["type"] == "float" else 2.0**(args["num_bits"] - 1) - 1
    state = {"weight": weight, "weight_scale": torch.rand(shape) * 0.1 / top + 0.15 / top}
    if not args.get("symmetric", True):
        low, high = -2**(args["num_bits"] - 1), 2**(args["num_bits"] - 1)
        state["weight_zero_point"] = torch.randint(low, high, shape, dtype=torch.int8)
    packed = kind.compress(state, scheme)
    values = kind.decompress(packed, scheme)["weight"].to(torch.float32).numpy()
    tensors = {f"m.{name}": value for name, value in packed.items()}
    formats = {PackedQuantizationCompressor: "pack-quantized",
               IntQuantizationCompressor: "int-quantized",
               FloatQuantizationCompressor: "float-quantized"}
    config = dict(quant_method="compressed-tensors", format=formats[kind],
                  config_groups=dict(group_0=dict(targets=["Linear"], weights=args)))
    if act_order:  # decoded here: column k belongs to group g_idx[k]
        g_idx = torch.randperm(cols) // group
        tensors["m.weight_g_idx"] = g_idx.to(torch.int32)
        steps = values / state["weight_scale"].numpy().repeat(group, axis=1)
        values = np.rint(steps).astype(np.float32) * state["weight_scale"].numpy()[:, g_idx.numpy()]
    return tensors, config, values


def block_fp8(seed, rows, cols, scale_name="m.weight_scale_inv"):
    torch.manual_seed(seed)
    codes = (torch.randn(rows, cols) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
    codes[0, :4] = torch.tensor([448.0, -448.0, 2.0**-9, -0.0]).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-rows // 128), -(-cols // 128)) * 1e-3 + 1e-4
    spread = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
    tensors = {"m.weight": codes, scale_name: scale}
    config = dict(quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic")
    return tensors, config, (codes.to(torch.float32) * spread).numpy()


def nf4(seed, rows, cols, nested):
    torch.manual_seed(seed)
    weight = torch.randn(rows, cols) * 0.03
    codes, state = bitsandbytes.functional.quantize_4bit(
        weight, quant_type="nf4", blocksize=64, compress_statistics=nested)
    values = bitsandbytes.functional.dequantize_4bit(codes, state).to(torch.float32).numpy()
    tensors = {"m.weight": codes}
    for name, value in state.as_dict(packed=True).items():
        tensors[f"m.weight.{name}"] = value
    config = dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4")
    return tensors, config, values


INT4 = dict(num_bits=4, type="int", symmetric=True)
INT8 = dict(num_bits=8, type="int", symmetric=True)
FP8 = dict(num_bits=8, type="float", symmetric=True)
PACKED = PackedQuantizationCompressor
CASES = {
    "gptq_g32": lambda: gptq(1, 32, 96, 32),
    "gptq_g64": lambda: gptq(2, 40, 128, 64, v2=True),
    "gptq_g128_act_order": lambda: gptq(3, 32, 256, 128, symmetric=True, act_order=True),
    "gptq_channel": lambda: gptq(4, 32, 160, -1),
    "gptq_8bit": lambda: gptq(5, 32, 128, 128, bits=8),
    "gptq_3bit": lambda: gptq(6, 32, 128, 32, bits=3),
    "awq_g128": lambda: awq(7, 40, 256, 128),
    "awq_g32": lambda: awq(8, 32, 96, 32),
    "ct_w4_group": lambda: compressed(9, 33, 256, PACKED, dict(INT4, strategy="group", group_size=128)),
    "ct_w4_asymmetric": lambda: compressed(
        10, 33, 96, PACKED, dict(INT4, symmetric=False, strategy="group", group_size=32)),
    "ct_w4_act_order": lambda: compressed(
        11, 32, 128, PACKED, dict(INT4, strategy="group", group_size=32), act_order=True),
    "ct_w4_channel": lambda: compressed(12, 32, 160, PACKED, dict(INT4, strategy="channel")),
    "ct_w8_packed": lambda: compressed(13, 16, 128, PACKED, dict(INT8, strategy="channel")),
    "ct_int8": lambda: compressed(14, 17, 160, IntQuantizationCompressor, dict(INT8, strategy="channel")),
    "ct_fp8_channel": lambda: compressed(
        15, 17, 128, FloatQuantizationCompressor, dict(FP8, strategy="channel")),
    "ct_fp8_tensor": lambda: compressed(
        16, 16, 96, FloatQuantizationCompressor, dict(FP8, strategy="tensor")),
    "fp8_block": lambda: block_fp8(17, 130, 160),
    "nf4": lambda: nf4(18, 16, 128, nested=False),
    "nf4_nested": lambda: nf4(19, 300, 64, nested=True),
}


def main() -> None:
    folder = HERE / "quantized"
    folder.mkdir(exist_ok=True)
    golden = {}
    for name, make in CASES.items():
        tensors, config, values = make()
        tensors = {key: torch.as_tensor(np.ascontiguousarray(value) if isinstance(value, np.ndarray)
                                        else value.contiguous()) for key, value in tensors.items()}
        save_file(tensors, folder / f"{name}.safetensors")
        values = np.ascontiguousarray(values, dtype="<f4")
        golden[name] = dict(shape=list(values.shape), quantization_config=config,
                            first=[float(v) for v in values[0, :8]],
                            hash=f"{fnv1a(values.tobytes()):016x}")
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    (folder / "quantized.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
