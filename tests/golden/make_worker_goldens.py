#!/usr/bin/env python3
"""Answers of workers that see each other's tokens as they come: the golden of worker_rows_test.cc.

Row t of a worker sees the prompt, then the first t rows of each other worker's block in their
order, and last its own rows up to t, at positions 0, 1, 2 and so on of that list (Rodionov et al.,
"Hogwild! Inference", 2025). So the same key has another position for each reader: here keys are kept
without positions and rotated for each row, over the submodules of transformers' models (weights of
make_model_goldens.py); float32 on the CPU. Tokens are the likeliest ones.

Run with the versions in requirements.txt: ./make_worker_goldens.py
"""

import torch
import transformers

import make_model_goldens as goldens

MODELS = ["llama", "qwen3", "mistral_window", "llama_yarn_rope"]
PROMPT = 13
# The tokens with which the workers' blocks begin, and how many each draws.
GROUPS = [((3, 1), 12), ((1, 4, 2), 9)]


def rotate(x, positions, rope):
    """x [n, heads, dim] at `positions` [n]."""
    angles = positions[:, None].float() * rope.inv_freq[None]
    cos = (torch.cat((angles, angles), -1).cos() * rope.attention_scaling)[:, None]
    sin = (torch.cat((angles, angles), -1).sin() * rope.attention_scaling)[:, None]
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Forward:
    """Rows of blocks, one at a time; block 0 is the prompt."""

    def __init__(self, model, num_blocks: int):
        self.model, self.rope = model.model, model.model.rotary_emb
        self.head, self.config = model.lm_head, model.config
        layers = len(self.model.layers)
        self.keys = [[[] for _ in range(layers)] for _ in range(num_blocks)]
        self.values = [[[] for _ in range(layers)] for _ in range(num_blocks)]

    def attend(self, layer: int, x, block: int, view):
        attention, config = self.model.layers[layer].self_attn, self.config
        dim = attention.head_dim
        q, k, v = (p(x).view(-1, dim)
                   for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm(q), attention.k_norm(k)
        self.keys[block][layer].append(k)
        self.values[block][layer].append(v)
        gather = lambda of: torch.stack([row for b, count in view for row in of[b][layer][:count]])
        keys, values = gather(self.keys), gather(self.values)  # [n, kv_heads, dim]
        positions = torch.arange(len(keys))
        keys = rotate(keys, positions, self.rope)
        q = rotate(q[None], positions[-1:], self.rope)[0]
        groups = q.shape[0] // keys.shape[1]
        keys, values = (t.repeat_interleave(groups, dim=1) for t in (keys, values))
        scores = torch.einsum("hd,nhd->hn", q, keys) * attention.scaling
        window = getattr(config, "sliding_window", None)
        if window and config.model_type == "mistral":
            scores[:, positions <= positions[-1] - window] = float("-inf")
        out = torch.einsum("hn,nhd->hd", scores.softmax(-1), values)
        return attention.o_proj(out.reshape(-1))

    def row(self, block: int, token: int, view):
        """Logits behind a token, whose block and rows so far are the last of `view`."""
        x = self.model.embed_tokens(torch.tensor(token))
        for i, layer in enumerate(self.model.layers):
            x = x + self.attend(i, layer.input_layernorm(x), block, view)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.head(self.model.norm(x))


def work(model, prompt, given, draws):
    forward = Forward(model, 1 + len(given))
    for i, token in enumerate(prompt):
        forward.row(0, token, [(0, i + 1)])
    blocks = [list(block) for block in given]
    logprobs = [[] for _ in given]
    for t in range(max(map(len, given)) + draws):
        for w, block in enumerate(blocks):
            over = len(block) == len(given[w]) + draws  # the last token does not run
            if t >= len(block) - over:
                continue
            # Blocks of the round before: those before this one have run round t already.
            rows = [min(t, len(b) - (len(b) == len(g) + draws)) for b, g in zip(blocks, given)]
            view = [(0, len(prompt))] + [(1 + o, rows[o]) for o in range(len(given)) if o != w]
            logits = forward.row(1 + w, block[t], view + [(1 + w, t + 1)])
            if t + 1 == len(block):
                best = int(logits.argmax())
                block.append(best)
                logprobs[w].append(goldens.rounded(float(logits.log_softmax(-1)[best])))
    return [b[len(g):] for b, g in zip(blocks, given)], logprobs


def check_plain(model, prompt):
    """Without other blocks this is the model's own forward."""
    forward = Forward(model, 1)
    ours = torch.stack([forward.row(0, t, [(0, i + 1)]) for i, t in enumerate(prompt)])
    theirs = model(torch.tensor([prompt])).logits[0]
    assert torch.allclose(ours, theirs, atol=1e-4), (ours - theirs).abs().max()


def main() -> None:
    golden = dict(transformers=transformers.__version__)
    for name in MODELS:
        case = goldens.CASES[name]
        model, _, _ = goldens.build_model(case)
        vocab = case["config"]["vocab_size"]
        prompt = [(17 * i * i + 29 * i + 11) % vocab for i in range(PROMPT)]
        with torch.no_grad():
            check_plain(model, prompt)
            golden[name] = []
            for lengths, draws in GROUPS:
                given = [[(31 * i + 57 * w + 5) % vocab for i in range(n)]
                         for w, n in enumerate(lengths)]
                tokens, logprobs = work(model, prompt, given, draws)
                golden[name].append(dict(prompt=prompt, given=given, tokens=tokens,
                                         logprobs=logprobs))
    path = goldens.HERE / "workers.json"
    path.write_text(goldens.to_text(golden))
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
