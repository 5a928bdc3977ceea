"""Phi-4-mini-flash-reasoning (SambaY, Ren et al. 2025) as plain torch, with the names of its published folder.

transformers has no such class, and the published one runs on GPUs alone. The formulas are those of the papers: differential attention by
Ye et al. 2024, the selective scan by Gu and Dao 2023. A text is read whole, position by position where there is state.
"""

import math

import torch
from torch import nn


class Lambdas(nn.Module):
    """What a layer has for the differences of its pairs of heads."""

    def __init__(self, head_dim, layer):
        super().__init__()
        self.first = 0.8 - 0.6 * math.exp(-0.3 * layer)
        for name in ("q1", "k1", "q2", "k2"):
            setattr(self, f"lambda_{name}", nn.Parameter(torch.zeros(head_dim)))
        self.subln = nn.RMSNorm(2 * head_dim, eps=1e-5)

    def forward(self, first, second):
        """Both [rows, pairs, 2 * head_dim]."""
        scale = (torch.exp(self.lambda_q1 @ self.lambda_k1) - torch.exp(self.lambda_q2 @ self.lambda_k2)
                 + self.first)
        return (1 - self.first) * self.subln(first - scale * second)


class Attention(nn.Module):
    def __init__(self, config, layer, reads):
        super().__init__()
        width = config["hidden_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = width // self.heads
        rows = self.heads if reads else self.heads + 2 * self.kv_heads
        self.Wqkv = nn.Linear(width, rows * self.dim)
        self.out_proj = nn.Linear(width, width)
        self.inner_cross_attn = Lambdas(self.dim, layer)
        window = config["sliding_window"]
        if isinstance(window, list):
            window = window[layer]
        self.window = window if layer < config["num_hidden_layers"] // 2 else None

    def mask(self, rows):
        distance = torch.arange(rows)[:, None] - torch.arange(rows)[None]
        seen = distance >= 0
        return seen if self.window is None else seen & (distance < self.window)

    def forward(self, x, shared):
        n = len(x)
        parts = self.Wqkv(x).view(n, -1, self.dim)
        q = parts[:, :self.heads]
        if parts.shape[1] > self.heads:
            k, v = parts[:, self.heads:].chunk(2, dim=1)
            shared = k, v
        k, v = shared
        pairs = self.heads // self.kv_heads  # of queries to one of keys
        values = v.reshape(n, -1, 2 * self.dim).repeat_interleave(pairs, dim=1)
        hidden = ~self.mask(n)
        given = []
        for i in range(2):
            keys = k[:, i::2].repeat_interleave(pairs, dim=1)
            scores = torch.einsum("thd,shd->hts", q[:, i::2], keys) / math.sqrt(self.dim)
            given.append(torch.einsum("hts,shd->thd", scores.masked_fill(hidden, -math.inf).softmax(-1), values))
        return self.out_proj(self.inner_cross_attn(*given).reshape(n, -1)), shared


class Scan(nn.Module):
    """The first Mamba's layer, or the unit that reads what the last one has given before its gate."""

    def __init__(self, config, reads):
        super().__init__()
        width, bias = config["hidden_size"], config["mamba_proj_bias"]
        channels, self.state, taps = (config["mamba_expand"] * width, config["mamba_d_state"], config["mamba_d_conv"])
        self.reads = reads
        self.in_proj = nn.Linear(width, channels if reads else 2 * channels, bias=bias)
        self.out_proj = nn.Linear(channels, width, bias=bias)
        if reads:
            return
        rank = config["mamba_dt_rank"]
        self.rank = math.ceil(width / 16) if rank == "auto" else rank
        self.conv1d = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1,
                                bias=config["mamba_conv_bias"])
        self.x_proj = nn.Linear(channels, self.rank + 2 * self.state, bias=False)
        self.dt_proj = nn.Linear(self.rank, channels)
        self.A_log = nn.Parameter(torch.zeros(channels, self.state))
        self.D = nn.Parameter(torch.ones(channels))

    def scan(self, x):
        step, into, out_of = self.x_proj(x).split([self.rank, self.state, self.state], dim=-1)
        step = nn.functional.softplus(self.dt_proj(step))
        decay = -torch.exp(self.A_log)
        state, given = torch.zeros_like(decay), []
        for t in range(len(x)):
            state = torch.exp(step[t, :, None] * decay) * state + (step[t] * x[t])[:, None] * into[t]
            given.append(state @ out_of[t])
        return torch.stack(given) + self.D * x

    def forward(self, x, memory):
        if self.reads:
            return self.out_proj(nn.functional.silu(self.in_proj(x)) * memory), memory
        x, gate = self.in_proj(x).chunk(2, dim=-1)
        x = nn.functional.silu(self.conv1d(x.T)[:, :len(x)].T)
        memory = self.scan(x)
        return self.out_proj(memory * nn.functional.silu(gate)), memory


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc1 = nn.Linear(config["hidden_size"], 2 * config["intermediate_size"], bias=False)
        self.fc2 = nn.Linear(config["intermediate_size"], config["hidden_size"], bias=False)

    def forward(self, x):
        gate, up = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(nn.functional.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        norm = lambda: nn.LayerNorm(config["hidden_size"], eps=config["layer_norm_eps"])
        reads = layer > config["num_hidden_layers"] // 2 + 1
        self.recurs = layer % 2 == 0
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.attn = Scan(config, reads) if self.recurs else Attention(config, layer, reads)
        self.mlp = Mlp(config)

    def forward(self, x, memory, shared):
        if self.recurs:
            given, memory = self.attn(self.input_layernorm(x), memory)
        else:
            given, shared = self.attn(self.input_layernorm(x), shared)
        x = x + given
        return x + self.mlp(self.post_attention_layernorm(x)), memory, shared


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Block(config, i) for i in range(config["num_hidden_layers"]))
        self.final_layernorm = nn.LayerNorm(config["hidden_size"], eps=config["layer_norm_eps"])

    def forward(self, ids):
        x, memory, shared = self.embed_tokens(ids), None, None
        for layer in self.layers:
            x, memory, shared = layer(x, memory, shared)
        return self.final_layernorm(x)


class Output:
    def __init__(self, logits):
        self.logits = logits


class Phi4Flash(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=config["lm_head_bias"])
        if config["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids, **_):
        return Output(torch.stack([self.lm_head(self.model(row)) for row in ids]))
