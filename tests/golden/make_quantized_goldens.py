#!/usr/bin/env python3
"""Small quantised matrices in the layouts of Hugging Face checkpoints, and what they decode to: the
goldens of tests/files/quantized_test.cc.

compressed-tensors and bitsandbytes write and read their own formats here, and AutoAWQ packs for its
kernels of single rows and for Marlin; the rest is packed by the lines below, after the layouts of
AutoGPTQ, AutoAWQ, transformers and NVIDIA's TensorRT Model Optimizer, and decoded from the numbers
before packing. Each case is a safetensors file; quantized.json holds its quantization_config, its
shape and a hash of the decoded F32 values. The gguf package writes nvfp4.gguf, gguf.json has what it
decodes. Arguments choose cases.
"""

import importlib.util
import json
import pathlib
import sys
import types

import bitsandbytes.functional
import gguf
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


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])


def awq_module(name: str):
    """A file of AutoAWQ, whose package imports much that is not needed here."""
    if "awq" not in sys.modules:
        package = types.ModuleType("awq")
        package.__path__ = importlib.util.find_spec("awq").submodule_search_locations
        sys.modules["awq"] = package
    folder = sys.modules["awq"].__path__[0]
    spec = importlib.util.spec_from_file_location(name, f"{folder}/modules/linear/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def fp4(seed, rows, cols):
    """NF4's layout with another table."""
    torch.manual_seed(seed)
    codes, state = bitsandbytes.functional.quantize_4bit(
        torch.randn(rows, cols) * 0.03, quant_type="fp4", blocksize=64, compress_statistics=False)
    values = bitsandbytes.functional.dequantize_4bit(codes, state).to(torch.float32).numpy()
    tensors = {"m.weight": codes}
    for name, value in state.as_dict(packed=True).items():
        tensors[f"m.weight.{name}"] = value
    config = dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="fp4")
    return tensors, config, values


def llm_int8(seed, rows, cols):
    """A scale for each row: its largest magnitude over 127."""
    torch.manual_seed(seed)
    codes, largest, _ = bitsandbytes.functional.int8_vectorwise_quant(torch.randn(rows, cols) * 0.05)
    values = (largest.numpy() * np.float32(1 / 127))[:, None] * codes.numpy().astype(np.float32)
    package = bitsandbytes.functional.int8_vectorwise_dequant(codes, largest)
    assert np.allclose(values, package.to(torch.float32).numpy(), rtol=1e-6, atol=0)
    tensors = {"m.weight": codes, "m.SCB": largest.to(torch.float32),
               "m.weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, dict(quant_method="bitsandbytes", load_in_8bit=True), values


def random_e4m3(seed, shape):
    """Positive scales from the subnormal ones to 448."""
    codes = np.random.default_rng(seed).integers(1, 0x7f, shape).astype(np.uint8)
    return torch.from_numpy(codes).view(torch.float8_e4m3fn)


def random_fp4(seed, rows, cols):
    """Bytes with two codes, the first in the low nibble, and what the codes stand for."""
    packed = np.random.default_rng(seed).integers(0, 256, (rows, cols // 2)).astype(np.uint8)
    return packed, E2M1[np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, cols)]


def nvfp4(seed, rows, cols, divides):
    packed, values = random_fp4(seed, rows, cols)
    scales = random_e4m3(seed + 1, (rows, cols // 16))
    factor = np.float32(0.0123)
    given = np.float32(1) / factor if divides else factor
    factor = np.float32(1) / given if divides else factor
    decoded = values * (factor * scales.to(torch.float32).numpy()).repeat(16, axis=1)
    if divides:
        tensors = {"m.weight_packed": packed, "m.weight_global_scale": np.array([given]),
                   "m.input_global_scale": np.array([2], np.float32), "m.weight_scale": scales}
        package = compressed_values(tensors, dict(num_bits=4, type="float", strategy="tensor_group",
                                                  group_size=16), "nvfp4-pack-quantized")
        assert np.allclose(decoded, package, rtol=2**-7)  # it computes in BF16
        config = dict(quant_method="compressed-tensors", format="nvfp4-pack-quantized")
    else:
        tensors = {"m.weight": packed, "m.weight_scale_2": np.array(given),
                   "m.input_scale": np.array(0.5, np.float32), "m.weight_scale": scales}
        config = dict(quant_method="modelopt", quant_algo="NVFP4", group_size=16)
    return tensors, config, decoded + np.float32(0)  # our table has no negative zero


def compressed_values(tensors, args, layout):
    """What the package decodes."""
    from compressed_tensors.compressors.base import BaseCompressor
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    state = {name.removeprefix("m."): value if isinstance(value, torch.Tensor)
             else torch.from_numpy(np.ascontiguousarray(value)) for name, value in tensors.items()}
    kind = BaseCompressor.get_value_from_registry(layout)
    return kind.decompress(state, scheme)["weight"].to(torch.float32).numpy()


def powers(seed, shape):
    exponents = np.random.default_rng(seed).integers(110, 130, shape).astype(np.uint8)
    return exponents, np.float32(2)**(exponents.astype(np.float32) - 127)


def mxfp4(seed, rows, cols):
    packed, values = random_fp4(seed, rows, cols)
    exponents, scales = powers(seed + 1, (rows, cols // 32))
    tensors = {"m.weight_packed": packed, "m.weight_scale": exponents}
    decoded = values * scales.repeat(32, axis=1)
    package = compressed_values(tensors, dict(num_bits=4, type="float", strategy="group",
                                              group_size=32), "mxfp4-pack-quantized")
    assert (decoded == package).all()
    config = dict(quant_method="compressed-tensors", format="mxfp4-pack-quantized")
    return tensors, config, decoded + np.float32(0)


def mxfp8(seed, rows, cols, as_bytes):
    torch.manual_seed(seed)
    codes = (torch.randn(rows, cols) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
    exponents, scales = powers(seed + 1, (rows, cols // 32))
    exponents[0, 0], scales[0, 0] = 0, np.float32(2.0**-127)
    decoded = codes.to(torch.float32).numpy() * scales.repeat(32, axis=1)
    if as_bytes:
        config = dict(quant_method="modelopt", quant_algo="MXFP8")
        return {"m.weight": codes, "m.weight_scale": exponents}, config, decoded
    exponents = torch.from_numpy(exponents).view(torch.float8_e8m0fnu)
    config = dict(quant_method="mxfp8", weight_block_size=[1, 32])
    return {"m.weight": codes, "m.weight_scale_inv": exponents}, config, decoded


def block_fp8_powers(seed, rows, cols):
    tensors, config, _ = block_fp8(seed, rows, cols)
    codes = tensors["m.weight"]
    exponents, scales = powers(seed + 1, (-(-rows // 128), -(-cols // 128)))
    spread = scales.repeat(128, axis=0)[:rows].repeat(128, axis=1)[:, :cols]
    tensors = {"m.weight": codes,
               "m.weight_scale_inv": torch.from_numpy(exponents).view(torch.float8_e8m0fnu)}
    return tensors, dict(config, scale_fmt="ue8m0"), codes.to(torch.float32).numpy() * spread


def modelopt_fp8(seed, rows, cols, blocks):
    tensors, _, values = block_fp8(seed, rows, cols, "m.weight_scale")
    if blocks:
        scale = tensors["m.weight_scale"]
        tensors["m.weight_scale"] = scale.reshape(scale.shape[0], 1, scale.shape[1], 1)
        return tensors, dict(quant_method="modelopt", quant_algo="fp8_pb_wo"), values
    scale = np.array(0.0123, np.float32)
    values = tensors["m.weight"].to(torch.float32).numpy() * scale
    tensors = {"m.weight": tensors["m.weight"], "m.weight_scale": scale,
               "m.input_scale": np.array(0.5, np.float32)}
    config = dict(quant_method="modelopt", quantization=dict(quant_algo="FP8"))
    return tensors, config, values


def auto_round(make, packing_format, **overrides):
    """The packing of GPTQ and AWQ; the config's bits and groups are those of other layers."""
    tensors, _, values = make()
    config = dict(quant_method="auto-round", packing_format=packing_format, data_type="int",
                  bits=2, group_size=128, sym=False, extra_config=dict(m=overrides))
    tensors.pop("m.g_idx", None)
    return tensors, config, values


def packed_by_awq(seed, rows, cols, group, module, kind, version, symmetric=False):
    codes, zeros, scales = random_parts(seed, rows, cols, group, 4, symmetric)
    group_of = np.arange(cols) // group
    values = decode(codes, zeros, scales, group_of)
    linear = torch.nn.Linear(cols, rows, bias=False)
    linear.weight.data = torch.from_numpy(values)
    layer = getattr(awq_module(module), kind).from_linear(
        linear, 4, group, scales=torch.from_numpy(scales).to(torch.float32 if symmetric else torch.float16),
        zeros=None if symmetric else torch.from_numpy(zeros))
    tensors = {f"m.{name}": value for name, value in layer.state_dict().items()}
    if version == "gemv_fast":  # adds the product of scale and zero point, rounded to F16
        offsets = -(scales.astype(np.float32) * zeros).astype(np.float16)
        values = (scales.astype(np.float32)[:, group_of] * codes +
                  offsets.astype(np.float32)[:, group_of]).astype(np.float32)
    config = dict(quant_method="awq", bits=4, group_size=group, zero_point=not symmetric,
                  version=version)
    return tensors, config, values


def gptq_marlin(*args):
    """Marlin's packing under AutoGPTQ's names."""
    tensors, _, values = packed_by_awq(*args, "marlin", "WQLinear_Marlin", "marlin", True)
    tensors = {"m.B": tensors["m.qweight"], "m.s": tensors["m.scales"]}
    config = dict(quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=True,
                  is_marlin_format=True)
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
    "fp4": lambda: fp4(20, 16, 128),
    "llm_int8": lambda: llm_int8(21, 17, 160),
    "nvfp4": lambda: nvfp4(22, 9, 192, divides=False),
    "ct_nvfp4": lambda: nvfp4(23, 9, 128, divides=True),
    "ct_mxfp4": lambda: mxfp4(24, 9, 96),
    "mxfp8": lambda: mxfp8(25, 9, 160, as_bytes=True),
    "mxfp8_e8m0": lambda: mxfp8(26, 9, 96, as_bytes=False),
    "fp8_block_e8m0": lambda: block_fp8_powers(27, 130, 160),
    "modelopt_fp8": lambda: modelopt_fp8(28, 9, 96, blocks=False),
    "modelopt_fp8_blocks": lambda: modelopt_fp8(29, 128, 256, blocks=True),
    "auto_round": lambda: auto_round(lambda: gptq(30, 32, 96, 32, bits=8, v2=True), "auto_round",
                                     bits=8, group_size=32),
    "auto_round_gptq": lambda: auto_round(lambda: gptq(31, 32, 128, 64), "auto_round:auto_gptq",
                                          bits=4, group_size=64),
    "auto_round_awq": lambda: auto_round(lambda: awq(32, 32, 96, 32), "auto_round:auto_awq",
                                         bits=4, group_size=32),
    "awq_gemv": lambda: packed_by_awq(33, 24, 256, 64, "gemv", "WQLinear_GEMV", "gemv"),
    "awq_gemv_fast": lambda: packed_by_awq(34, 24, 256, 64, "gemv_fast", "WQLinear_GEMVFast", "gemv_fast"),
    "awq_marlin": lambda: packed_by_awq(35, 128, 256, 128, "marlin", "WQLinear_Marlin", "marlin",
                                        symmetric=True),
    "gptq_marlin": lambda: gptq_marlin(36, 64, 256, 128),
    "gptq_marlin_channel": lambda: gptq_marlin(37, 64, 160, 160),
}


def make_gguf(folder: pathlib.Path) -> None:
    """NVFP4 with a scale for the matrix, with one for each of three, and without; all products are
    exact in F32."""
    random = np.random.default_rng(38)
    writer = gguf.GGUFWriter(str(folder / "nvfp4.gguf"), "llama")
    golden = {}
    kind = gguf.GGMLQuantizationType.NVFP4
    for name, shape, scales in (("one", (5, 128), [3 / 256]), ("none", (3, 64), []),
                                ("experts", (3, 2, 64), [0.5, 5 / 512, 3.0])):
        blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // 64 * 36)).astype(np.uint8)
        blocks.reshape(-1, 36)[:, :4] &= 0x7f  # scales have no sign
        values = gguf.quants.dequantize(blocks, kind).astype(np.float32)
        spread = np.array(scales or [1], np.float32).reshape(-1, *[1] * (len(shape) - 1))
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
        if scales:
            writer.add_tensor(f"{name}.scale", np.array(scales, np.float32))
            writer.add_tensor(f"{name}.input_scale", np.array([1.5], np.float32))
        values = np.ascontiguousarray(values * spread, dtype="<f4")
        golden[f"{name}.weight"] = dict(shape=list(shape), hash=f"{fnv1a(values.tobytes()):016x}",
                                        first=[float(v) for v in values.reshape(-1)[:8]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "gguf.json").write_text(json.dumps(golden, indent=0) + "\n")


def main() -> None:
    folder = HERE / "quantized"
    folder.mkdir(exist_ok=True)
    path = folder / "quantized.json"
    golden = json.loads(path.read_text()) if sys.argv[1:] else {}
    if not sys.argv[1:] or "gguf" in sys.argv[1:]:
        make_gguf(folder)
    for name, make in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        tensors, config, values = make()
        tensors = {key: torch.as_tensor(np.ascontiguousarray(value) if isinstance(value, np.ndarray)
                                        else value.contiguous()) for key, value in tensors.items()}
        save_file(tensors, folder / f"{name}.safetensors")
        values = np.ascontiguousarray(values, dtype="<f4")
        golden[name] = dict(shape=list(values.shape), quantization_config=config,
                            first=[float(v) for v in values[0, :8]],
                            hash=f"{fnv1a(values.tobytes()):016x}")
    lines = [f"{json.dumps(key)}: {json.dumps(golden[key])}" for key in CASES if key in golden]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
