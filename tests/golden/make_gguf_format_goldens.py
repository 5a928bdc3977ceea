#!/usr/bin/env python3
"""Logits of a tiny mixture of experts whose matrices are random blocks of each GGUF type: the golden
of tests/model/gguf_formats_test.cc. The gguf package decodes the blocks, transformers computes the
logits in float64.

The test writes the same files: a tensor's bytes are those of synthetic_weights.py under the name
"TENSOR/TYPE", 8 bits each, and every third block gets the scales of one of three variants (bytes of
the block that are overwritten), which keep the weights of ordinary size.

With --stories FOLDER also the greedy ids of the Q4_0 file there by its decoded weights.
"""

import argparse
import json
import pathlib

import gguf
import numpy as np
import torch
import transformers

import synthetic_weights

HERE = pathlib.Path(__file__).parent
KEYS = gguf.Keys
RMS = 0.06
CONFIG = dict(
    vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=2,
    max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0, sliding_window=None,
    tie_word_embeddings=False)
PROMPT = [(17 * i * i + 29 * i + 11) % 64 for i in range(12)]

# Type -> offset of the scale in a block, offset of the minimum, and that one's factor: such that
# random codes have a mean of about 0.
SCALES = {"Q8_0": (0, None, 0), "Q4_0": (0, None, 0), "Q4_1": (0, 2, -7.5), "Q5_0": (0, None, 0),
          "Q5_1": (0, 2, -15.5), "Q2_K": (80, 82, 1.5), "Q3_K": (108, None, 0),
          "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5), "Q6_K": (208, None, 0), "IQ4_NL": (0, None, 0),
          "IQ4_XS": (0, None, 0), "MXFP4": (0, None, 0)}
PLAIN = ["F32", "F16", "BF16"]
# As in llama.cpp's mixture Q4_K_M: some matrices in a finer type than their neighbours.
MIXED = {"attn_v": "Q6_K", "ffn_down_exps": "Q6_K", "output": "Q6_K"}


def kind_of(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


def f16_bytes(value: float) -> list[int]:
    return list(np.float16(value).tobytes())


def variants(name: str) -> list:
    """Three lists of (offset, bytes): the scale whole, half and one and a half times."""
    offset, minimum, factor = SCALES[name]
    if name == "MXFP4":
        return [[[0, [122]]], [[0, [121]]], [[0, [123]]]]
    columns, size = gguf.GGML_QUANT_SIZES[kind_of(name)]

    def patches(scale: float) -> list:
        parts = [[offset, f16_bytes(scale)]]
        return parts + ([[minimum, f16_bytes(scale * factor)]] if minimum is not None else [])

    sample = raw_bytes("scale", name, 256 * size).reshape(256, size)
    patch(sample, [patches(1 / 64)])
    rms = np.sqrt(np.mean(gguf.quants.dequantize(sample, kind_of(name)) ** 2))
    scale = RMS / 64 / rms
    return [patches(scale), patches(scale / 2), patches(scale * 1.5)]


def raw_bytes(tensor: str, name: str, count: int) -> np.ndarray:
    values = synthetic_weights.values(f"{tensor}/{name}", [count], 1.0, 0.0, bits=8)
    return ((values + 1) * 128).astype(np.uint8)


def patch(blocks: np.ndarray, choices: list) -> None:
    for i, choice in enumerate(choices):
        for offset, data in choice:
            blocks[i::len(choices), offset:offset + len(data)] = data


def decode(tensor: str, name: str, shape: list[int]) -> np.ndarray:
    count = int(np.prod(shape))
    if name in PLAIN:  # whole multiples of 2^-10: exact in every type
        codes = raw_bytes(tensor, name, count).view(np.int8)
        return (codes.astype(np.float32) * np.float32(2.0**-10)).reshape(shape)
    columns, size = gguf.GGML_QUANT_SIZES[kind_of(name)]
    blocks = raw_bytes(tensor, name, count // columns * size).reshape(-1, size)
    patch(blocks, variants(name))
    return gguf.quants.dequantize(blocks, kind_of(name)).astype(np.float32).reshape(shape)


def tensors() -> dict[str, list[int]]:
    hidden, inter, experts = (CONFIG[k] for k in (
        "hidden_size", "intermediate_size", "num_local_experts"))
    kv = hidden // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]
    shapes = {"token_embd": [CONFIG["vocab_size"], hidden], "output": [CONFIG["vocab_size"], hidden]}
    for i in range(CONFIG["num_hidden_layers"]):
        shapes |= {f"blk.{i}.attn_q": [hidden, hidden], f"blk.{i}.attn_k": [kv, hidden],
                   f"blk.{i}.attn_v": [kv, hidden], f"blk.{i}.attn_output": [hidden, hidden],
                   f"blk.{i}.ffn_gate_exps": [experts, inter, hidden],
                   f"blk.{i}.ffn_up_exps": [experts, inter, hidden],
                   f"blk.{i}.ffn_down_exps": [experts, hidden, inter]}
    return shapes


def halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """From the converter's neighbouring pairs back to Hugging Face's halves."""
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def model_of(weights: dict[str, np.ndarray]) -> transformers.MixtralForCausalLM:
    model = transformers.MixtralForCausalLM._from_config(
        transformers.MixtralConfig(**CONFIG), attn_implementation="eager",
        experts_implementation="eager").double().eval()
    w = {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)  # the norms'
        model.model.embed_tokens.weight.copy_(w["token_embd"])
        model.lm_head.weight.copy_(w["output"])
        for i, layer in enumerate(model.model.layers):
            attention, experts = layer.self_attn, layer.mlp.experts
            at = f"blk.{i}."
            attention.q_proj.weight.copy_(halves(w[at + "attn_q"], CONFIG["num_attention_heads"]))
            attention.k_proj.weight.copy_(halves(w[at + "attn_k"], CONFIG["num_key_value_heads"]))
            attention.v_proj.weight.copy_(w[at + "attn_v"])
            attention.o_proj.weight.copy_(w[at + "attn_output"])
            layer.mlp.gate.weight.copy_(torch.tensor(router(i)))
            experts.gate_up_proj.copy_(
                torch.cat([w[at + "ffn_gate_exps"], w[at + "ffn_up_exps"]], dim=1))
            experts.down_proj.copy_(w[at + "ffn_down_exps"])
    return model


def router(layer: int) -> np.ndarray:
    return synthetic_weights.values(f"blk.{layer}.router",
                                    [CONFIG["num_local_experts"], CONFIG["hidden_size"]], 0.125, 0.0)


def type_of(tensor: str, name: str) -> str:
    return MIXED.get(tensor.split(".")[-1], "Q4_K") if name == "Q4_K_M" else name


def logits(name: str) -> list:
    weights = {t: decode(t, type_of(t, name), shape) for t, shape in tensors().items()}
    with torch.no_grad():
        out = model_of(weights)(torch.tensor([PROMPT])).logits[0]
    return [[round(float(x), 5) for x in row] for row in out[-2:]]


def metadata() -> list:
    pairs = [(KEYS.LLM.CONTEXT_LENGTH, "max_position_embeddings"),
             (KEYS.LLM.EMBEDDING_LENGTH, "hidden_size"),
             (KEYS.LLM.BLOCK_COUNT, "num_hidden_layers"),
             (KEYS.LLM.FEED_FORWARD_LENGTH, "intermediate_size"),
             (KEYS.Attention.HEAD_COUNT, "num_attention_heads"),
             (KEYS.Attention.HEAD_COUNT_KV, "num_key_value_heads"),
             (KEYS.LLM.VOCAB_SIZE, "vocab_size"), (KEYS.LLM.EXPERT_COUNT, "num_local_experts"),
             (KEYS.LLM.EXPERT_USED_COUNT, "num_experts_per_tok"),
             (KEYS.Attention.LAYERNORM_RMS_EPS, "rms_norm_eps"), (KEYS.Rope.FREQ_BASE, "rope_theta")]
    return [[key.format(arch="llama"), CONFIG[name]] for key, name in pairs]


def stories(folder: pathlib.Path) -> list:
    """Greedy ids of the Q4_0 file by its decoded weights, and how near two tokens ever were."""
    file = gguf.GGUFReader(folder / "stories260K-Q4_0.gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    stored = {t.name: t for t in file.tensors}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = stored.get(names.get_name(name, try_suffixes=(".weight",)))
            if tensor is None:
                continue
            value = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
            for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
                if part in name:
                    value = halves(value, getattr(model.config, heads))
            parameter.copy_(value)
    cases = []
    for case in json.loads((folder / "expected.json").read_text()):
        ids, margin = list(case["prompt_ids"]), np.inf
        for step in range(40):
            with torch.no_grad():
                row = model(torch.tensor([ids])).logits[0, -1]
            best = row.topk(10)
            first = first if step else [[int(i), round(float(x), 5)] for x, i in zip(*best)]
            margin = min(margin, float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
        n = len(case["prompt_ids"])
        cases.append(dict(prompt_ids=ids[:n], greedy_ids=ids[n:], first_logits=first,
                          smallest_margin=round(margin, 4)))
    return cases


def write(name: str, head: dict, lines: list) -> None:
    body = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (HERE / name).write_text(f'{json.dumps(head)[:-1]}, "cases": [\n{body}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stories", type=pathlib.Path)
    args = parser.parse_args()
    cases = []
    for name in [*SCALES, *PLAIN, "Q4_K_M"]:
        cases.append(dict(type=name, types={t: int(kind_of(type_of(t, name))) for t in tensors()},
                          logits=logits(name)))
        print(name, np.std(cases[-1]["logits"]))
    head = dict(metadata=metadata(), prompt=PROMPT, tensors=tensors(), plain=PLAIN,
                type_names={int(kind_of(n)): n for n in [*SCALES, *PLAIN]},
                variants={name: variants(name) for name in SCALES})
    write("gguf_formats.json", head, cases)
    if args.stories:
        write("stories_q4_0.json", {"file": "stories260K-Q4_0.gguf"}, stories(args.stories))


if __name__ == "__main__":
    main()
