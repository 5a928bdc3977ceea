#!/usr/bin/env python3
"""Writes a GGUF file in a known model's shape with random weights, for benchmarks of servers.

Needs numpy and gguf (tests/golden/requirements.txt) and the tokenizer of any Llama-like GGUF file,
one without weights will do:

    make_random_gguf.py --shape tinyllama-1.1b --type q4_0 --tokenizer vocab.gguf --out model.gguf
"""

import argparse

import gguf
import numpy as np

# layers, hidden, inter, heads, KV heads, head dim, context: config.json as published.
SHAPES = {
    "tinyllama-1.1b": (22, 2048, 5632, 32, 4, 64, 2048),
    "llama-3.2-1b": (16, 2048, 8192, 32, 8, 64, 8192),
    "tiny": (2, 256, 512, 4, 2, 64, 512),
}
TYPES = {
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0, 18, 8),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0, 34, 127),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16, None, None),
}
BLOCK = 32


def copy_tokenizer(reader, writer):
    """All tokenizer.* fields of `reader`; returns the number of tokens."""
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), kind)
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def random_matrix(generator, rows, cols, block_bytes, largest):
    """Blocks of random integers whose scales give values of variance 1 / cols; or such values in BF16."""
    if block_bytes is None:
        values = generator.standard_normal((rows, cols), dtype=np.float32) / np.float32(np.sqrt(cols))
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = generator.integers(0, 256, (rows, cols // BLOCK, block_bytes), dtype=np.uint8)
    scale = np.float16(np.sqrt(3.0 / cols) / largest)
    blocks[:, :, :2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    return blocks.reshape(rows, cols // BLOCK * block_bytes)


def matrices(shape, vocab):
    layers, hidden, inter, heads, kv_heads, head_dim, _ = shape
    yield "token_embd.weight", vocab, hidden
    yield "output.weight", vocab, hidden
    for layer in range(layers):
        for part, rows, cols in (
            ("attn_q", heads * head_dim, hidden),
            ("attn_k", kv_heads * head_dim, hidden),
            ("attn_v", kv_heads * head_dim, hidden),
            ("attn_output", hidden, heads * head_dim),
            ("ffn_gate", inter, hidden),
            ("ffn_up", inter, hidden),
            ("ffn_down", hidden, inter),
        ):
            yield f"blk.{layer}.{part}.weight", rows, cols


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="tinyllama-1.1b")
    parser.add_argument("--type", choices=TYPES, default="q4_0")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    layers, hidden, inter, heads, kv_heads, head_dim, context = shape
    dtype, file_type, block_bytes, largest = TYPES[options.type]

    writer = gguf.GGUFWriter(options.out, "llama")
    vocab = copy_tokenizer(gguf.GGUFReader(options.tokenizer), writer)
    writer.add_name(f"random {options.shape}")
    writer.add_file_type(file_type)
    writer.add_vocab_size(vocab)
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inter)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    generator = np.random.default_rng(1)
    for name, rows, cols in matrices(shape, vocab):
        writer.add_tensor(name, random_matrix(generator, rows, cols, block_bytes, largest),
                          raw_dtype=dtype)
    ones = np.ones(hidden, dtype=np.float32)
    for name in ["output_norm.weight"] + [f"blk.{layer}.{part}_norm.weight"
                                          for layer in range(layers) for part in ("attn", "ffn")]:
        writer.add_tensor(name, ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
