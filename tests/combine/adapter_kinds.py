"""Adapters for the demo model that change more than plain linears, written for a test: small random values, so that
answers are the demo model's with other numbers behind them."""

import json
import math
import pathlib
import random
import struct


def read_safetensors(path):
    """{name: (shape, values)} of a file in BF16."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    tensors = {}
    for name, tensor in json.loads(content[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in tensor["data_offsets"])
            halves = struct.unpack(f"<{(end - begin) // 2}H", content[begin:end])
            tensors[name] = (tensor["shape"], struct.unpack(f"<{len(halves)}f", b"".join(
                struct.pack("<I", half << 16) for half in halves)))
    return tensors


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write(folder, config, tensors):
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 4, **config}))
    write_safetensors(folder / "adapter_model.safetensors",
                      {f"base_model.model.{name}": tensor for name, tensor in tensors.items()})


def uniform(source, shape, size):
    return shape, [source.uniform(-size, size) for _ in range(math.prod(shape))]


def norms(weight, rows):
    columns = len(weight) // rows
    return [math.sqrt(sum(value * value for value in weight[row * columns:(row + 1) * columns])) for row in range(rows)]


def write_dora(folder, base, source):
    """DoRA on two matrices of each layer."""
    tensors = {}
    for name, (shape, weight) in base.items():
        if name.endswith(("q_proj.weight", "down_proj.weight")):
            module, (outputs, inputs) = name.removesuffix(".weight"), shape
            tensors[f"{module}.lora_A.weight"] = uniform(source, [2, inputs], 0.3)
            tensors[f"{module}.lora_B.weight"] = uniform(source, [outputs, 2], 0.02)
            tensors[f"{module}.lora_magnitude_vector"] = (
                [outputs], [norm * source.uniform(0.95, 1.05) for norm in norms(weight, outputs)])
    write(folder, {"r": 2, "use_dora": True}, tensors)


def write_tables(folder, base, source):
    """Factors of embedding and head, a bias of B, and norms."""
    vocab, hidden = base["model.embed_tokens.weight"][0]
    up = "model.layers.1.mlp.up_proj"
    inter = base[f"{up}.weight"][0][0]
    tensors = {"model.embed_tokens.lora_embedding_A": uniform(source, [3, vocab], 0.1),
               "model.embed_tokens.lora_embedding_B": uniform(source, [hidden, 3], 0.1),
               "lm_head.lora_A.weight": uniform(source, [3, hidden], 0.1),
               "lm_head.lora_B.weight": uniform(source, [vocab, 3], 0.05),
               f"{up}.lora_A.weight": uniform(source, [3, hidden], 0.1),
               f"{up}.lora_B.weight": uniform(source, [inter, 3], 0.02),
               f"{up}.lora_B.bias": uniform(source, [inter], 0.02)}
    for name, (shape, weight) in base.items():
        if "norm" in name:
            tensors[name] = (shape, [value * source.uniform(0.98, 1.02) for value in weight])
    write(folder, {"r": 3, "modules_to_save": ["norm", "input_layernorm", "post_attention_layernorm"],
                   "lora_bias": True}, tensors)


def write_whole(folder, base, source):
    """A whole head."""
    shape, weight = base["model.embed_tokens.weight"]
    write(folder, {"r": 2, "modules_to_save": ["lm_head"]},
          {"lm_head.weight": (shape, [value + source.uniform(-0.02, 0.02) for value in weight])})


KINDS = {"dora": write_dora, "tables": write_tables, "whole": write_whole}


def write_adapters(folder, model):
    """{name: path} of an adapter of each kind for the model in the folder `model`."""
    base = read_safetensors(pathlib.Path(model) / "model.safetensors")
    paths = {name: pathlib.Path(folder) / name for name in KINDS}
    for name, make in KINDS.items():
        make(paths[name], base, random.Random(name))
    return paths
