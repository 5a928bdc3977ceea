#!/usr/bin/env python3
"""Writes a model with random weights in the shape of TinyLlama-1.1B, for measuring how long loading
takes and how much memory: a Hugging Face folder in BF16 (2.2 GB), or a GGUF file:

    tests/bench/make_random_model.py FOLDER [TOKENIZER_JSON]
    tests/bench/make_random_model.py FILE.gguf VOCABULARY.gguf TYPE
    tests/bench/load_bench.py build/heddle FOLDER_OR_FILE [--bench]

TOKENIZER_JSON is copied, as are the tokenizer's keys of VOCABULARY.gguf: `heddle serve` needs one, of
up to 32,064 tokens. Needs numpy, and gguf for TYPE (Q4_0, Q8_0, Q4_K, ...). A few MB of values are repeated, since only bytes matter here.
"""

import json
import pathlib
import shutil
import struct
import sys

import numpy as np

HIDDEN, INTER, LAYERS, VOCAB, HEADS, KV_HEADS = 2048, 5632, 22, 32064, 32, 4
CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=HIDDEN,
              intermediate_size=INTER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
              num_key_value_heads=KV_HEADS, vocab_size=VOCAB, max_position_embeddings=2048,
              rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False,
              torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2)


def shapes():
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (HIDDEN,)
        yield prefix + "post_attention_layernorm.weight", (HIDDEN,)
        for name, shape in (("self_attn.q_proj", (HIDDEN, HIDDEN)), ("self_attn.k_proj", (kv, HIDDEN)),
                            ("self_attn.v_proj", (kv, HIDDEN)), ("self_attn.o_proj", (HIDDEN, HIDDEN)),
                            ("mlp.gate_proj", (INTER, HIDDEN)), ("mlp.up_proj", (INTER, HIDDEN)),
                            ("mlp.down_proj", (HIDDEN, INTER))):
            yield f"{prefix}{name}.weight", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def write_folder(folder: pathlib.Path, tokenizer: str | None) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if tokenizer:
        shutil.copy(tokenizer, folder / "tokenizer.json")
    header, at = {}, 0
    for name, shape in shapes():
        size = int(np.prod(shape)) * 2
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size])
        at += size
    values = np.random.default_rng(1).uniform(-0.03, 0.03, 4 << 20).astype("<f4")
    pool = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes():
            left = int(np.prod(shape)) * 2
            while left > 0:
                out.write(pool[:left])
                left -= min(left, len(pool))
    return at


def gguf_name(name: str) -> str:
    for before, after in (("model.embed_tokens", "token_embd"), ("model.layers.", "blk."),
                          ("model.norm", "output_norm"), ("lm_head", "output"),
                          ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
                          ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
                          ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
                          ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
                          ("mlp.down_proj", "ffn_down")):
        name = name.replace(before, after)
    return name


def copy_vocabulary(path: str, writer) -> None:
    import gguf
    for field in gguf.GGUFReader(path).fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        writer.add_key_value(field.name, field.contents(), field.types[0],
                             field.types[-1] if len(field.types) > 1 else None)


# Where a block's F16 scales are, for formats that the gguf package cannot quantise to.
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def some_blocks(kind) -> np.ndarray:
    """[1024 blocks, bytes]"""
    import gguf
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(1)
    if kind.name not in SCALES:
        return gguf.quants.quantize(random.uniform(-0.03, 0.03, (1024, block)).astype("<f4"), kind)
    blocks = random.integers(0, 256, (1024, block_bytes), dtype=np.uint8)
    for at in SCALES[kind.name]:
        blocks[:, at:at + 2] = np.array([1e-5], "<f2").view(np.uint8)
    return blocks


def write_gguf(path: pathlib.Path, vocabulary: str, type_name: str) -> int:
    """Rows of every matrix are blocks of one small random matrix, over and over."""
    import gguf
    kind = gguf.GGMLQuantizationType[type_name]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    copy_vocabulary(vocabulary, writer)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    encoded = some_blocks(kind).reshape(-1)
    at = 0
    for name, shape in shapes():
        if len(shape) == 1:
            data = np.ones(shape, "<f4")
        else:
            data = np.resize(encoded, (shape[0], shape[1] // block * block_bytes))
        writer.add_tensor(gguf_name(name), data, raw_dtype=None if len(shape) == 1 else kind)
        at += data.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return at


def main() -> None:
    path = pathlib.Path(sys.argv[1])
    if path.suffix == ".gguf":
        size = write_gguf(path, *sys.argv[2:4])
    else:
        size = write_folder(path, *sys.argv[2:3] or [None])
    print(f"{path}: {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
