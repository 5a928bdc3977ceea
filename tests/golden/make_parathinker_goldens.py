#!/usr/bin/env python3
"""Logits of a tiny model with segment embeddings (ParaThinker): the golden of parathinker_test.cc.

The authors add a row of each layer's `seg_embeddings` to every head's key, before the rotation, and
to its value: row i within thought i, row 0 before and behind the thoughts. Thoughts begin at one
position, do not see each other, and what follows them begins behind the largest of their positions.
Here that is transformers' Qwen2 with these rows added to what its products for keys and values
give, an explicit mask, and explicit positions; float32 on the CPU.

Run with the versions in requirements.txt: ./make_parathinker_goldens.py
"""

import numpy as np
import torch
import transformers

import make_model_goldens as goldens

SEGMENTS = 5
PROMPT, THOUGHTS, SUMMARY = 11, (13, 5, 9), 6
CASE = dict(config=dict(goldens.QWEN2, max_segments=SEGMENTS, rope_theta=10000.0))


def add_segments(model, segment_ids: list):
    """Gives each layer a table, whose rows are added by the segments in segment_ids[0]."""
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.seg_embeddings = torch.nn.Embedding(SEGMENTS, attention.head_dim)

        def add(module, _, out, table=attention.seg_embeddings):
            rows = table(segment_ids[0])
            return out + rows.repeat(1, 1, out.shape[-1] // rows.shape[-1])

        attention.k_proj.register_forward_hook(add)
        attention.v_proj.register_forward_hook(add)


def joined_layout():
    """Segment and position of each token, and which thought it belongs to (0: none)."""
    segments, positions = [0] * PROMPT, list(range(PROMPT))
    for number, length in enumerate(THOUGHTS, 1):
        segments += [number] * length
        positions += range(PROMPT, PROMPT + length)
    behind = PROMPT + max(THOUGHTS)
    segments += [0] * SUMMARY
    positions += range(behind, behind + SUMMARY)
    return segments, positions


def best_and_last(logits):
    best = np.argsort(-logits, axis=1)[:, :goldens.TOP]
    top = [[[int(t), goldens.rounded(row[t])] for t in ids] for row, ids in zip(logits, best)]
    return top, [[goldens.rounded(x) for x in row] for row in logits[-2:]]


def main() -> None:
    segment_ids = [None]
    config = transformers.AutoConfig.for_model(**CASE["config"])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    add_segments(model, segment_ids)
    model, tensors, bits = goldens.fill_model(model, CASE)
    vocab = CASE["config"]["vocab_size"]
    prompt = [(17 * i * i + 29 * i + 11) % vocab for i in range(goldens.PROMPT_TOKENS)]
    segments, positions = joined_layout()
    tokens = [(13 * i * i + 31 * i + 7) % vocab for i in range(len(segments))]
    thought = torch.tensor(segments)
    summary = torch.arange(len(segments)) >= len(segments) - SUMMARY
    sees = (thought[:, None] == thought[None]) | (thought[None] == 0) | summary[:, None]
    sees &= torch.ones_like(sees).tril()
    mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
    with torch.no_grad():
        segment_ids[0] = torch.zeros(1, len(prompt), dtype=torch.long)
        top, last = best_and_last(model(torch.tensor([prompt])).logits[0].numpy())
        segment_ids[0] = thought[None]
        logits = model(torch.tensor([tokens]), attention_mask=mask[None, None],
                       position_ids=torch.tensor([positions])).logits[0].numpy()
    joined_top, joined_last = best_and_last(logits)
    golden = dict(
        name="parathinker", transformers=transformers.__version__, config=CASE["config"],
        dtype="F32", shards=1, bits=bits, gguf=None, tensors=tensors, prompt=prompt, top=top,
        last=last, thoughts=list(THOUGHTS), joined=tokens, joined_prompt=PROMPT,
        joined_top=joined_top, joined_last=joined_last)
    path = goldens.HERE / "parathinker.json"
    path.write_text(goldens.to_text(golden))
    print(f"{path.name}: {path.stat().st_size} bytes, logits {logits.min():.2f}..{logits.max():.2f}")


if __name__ == "__main__":
    main()
