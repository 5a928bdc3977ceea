"""RWKV-7 (Peng et al. 2025) as plain torch, token by token, with the names of fla-hub's folders.

transformers has no such class, and flash-linear-attention's runs on GPUs alone. The formulas are those of the paper's
appendix.
"""

import math

import torch
from torch import nn


class LowRank(nn.Module):
    def __init__(self, width, rank, activation, bias):
        super().__init__()
        self.lora = nn.Sequential(nn.Linear(width, rank, bias=False), activation,
                                  nn.Linear(rank, width, bias=bias))

    def forward(self, x):
        return self.lora(x)


def shifted(x):
    """Each row's predecessor; zeros before the first."""
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]])


class TimeMix(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        width, self.dim = config["hidden_size"], config["head_dim"]
        self.heads = width // self.dim
        for part in "rwkvag":
            setattr(self, f"x_{part}", nn.Parameter(torch.zeros(1, 1, width)))
        self.k_k = nn.Parameter(torch.zeros(width))
        self.k_a = nn.Parameter(torch.zeros(width))
        self.r_k = nn.Parameter(torch.zeros(self.heads, self.dim))
        for part in "rkvo":
            setattr(self, f"{part}_proj", nn.Linear(width, width, bias=False))
        self.w_lora = LowRank(width, config["decay_low_rank_dim"], nn.Tanh(), True)
        self.a_lora = LowRank(width, config["a_low_rank_dim"], nn.Identity(), True)
        if config["gate_low_rank_dim"] > 0:
            self.g_lora = LowRank(width, config["gate_low_rank_dim"], nn.Sigmoid(), False)
        if layer > 0:
            self.v_lora = LowRank(width, config["v_low_rank_dim"], nn.Identity(), True)
        if config.get("heads_norm", True):
            self.g_norm = nn.GroupNorm(self.heads, width, eps=config.get("heads_norm_eps", self.dim * config["norm_eps"]))

    def forward(self, x, first_value):
        delta = shifted(x) - x
        r, w, k, v, a, g = (x + delta * getattr(self, f"x_{part}")[0, 0] for part in "rwkvag")
        gate = self.g_lora(g) if hasattr(self, "g_lora") else 1.0
        r, k = self.r_proj(r), self.k_proj(k)
        decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(self.w_lora(w)))
        value = self.v_proj(v)
        if first_value is None:
            first_value = value
        else:
            value = value + (first_value - value) * torch.sigmoid(self.v_lora(v))
        rate = torch.sigmoid(self.a_lora(a))
        heads = (len(x), self.heads, self.dim)
        unit = nn.functional.normalize((k * self.k_k).view(heads), dim=-1)
        k = k * (1 + (rate - 1) * self.k_a)
        r, k, v, decay, rate = (t.reshape(heads) for t in (r, k, value, decay, rate))
        state = x.new_zeros(self.heads, self.dim, self.dim)  # [key, value]
        out = []
        for t in range(len(x)):
            seen = torch.einsum("hk,hkv->hv", unit[t], state)
            state = (state * decay[t].unsqueeze(-1)
                     - torch.einsum("hk,hv->hkv", unit[t] * rate[t], seen)
                     + torch.einsum("hk,hv->hkv", k[t], v[t]))
            out.append(torch.einsum("hk,hkv->hv", r[t], state))
        out = torch.stack(out).reshape(len(x), -1)
        if hasattr(self, "g_norm"):
            out = self.g_norm(out)
        bonus = (r * k * self.r_k).sum(-1, keepdim=True) * v
        return self.o_proj((out + bonus.reshape(len(x), -1)) * gate), first_value


class ChannelMix(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["hidden_size"]
        self.x_k = nn.Parameter(torch.zeros(width))
        self.key = nn.Linear(width, config["intermediate_size"], bias=False)
        self.value = nn.Linear(config["intermediate_size"], width, bias=False)

    def forward(self, x):
        return self.value(torch.relu(self.key(x + (shifted(x) - x) * self.x_k)) ** 2)


class GatedMlp(nn.Module):
    """Qwen2.5's, whose inputs are not mixed."""

    def __init__(self, config):
        super().__init__()
        width, inter = config["hidden_size"], config["intermediate_size"]
        self.gate = nn.Linear(width, inter, bias=False)
        self.up = nn.Linear(width, inter, bias=False)
        self.down = nn.Linear(inter, width, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def norm_of(config):
    kind = nn.RMSNorm if config["model_type"] == "arwkv7" else nn.LayerNorm
    return kind(config["hidden_size"], eps=config["norm_eps"])


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        norm = lambda: norm_of(config)
        is_qwen = config["model_type"] == "arwkv7"
        if layer == 0 and config.get("norm_first", not is_qwen):
            self.pre_norm = norm()
        self.attn_norm, self.attn = norm(), TimeMix(config, layer)
        self.ffn_norm, self.ffn = norm(), GatedMlp(config) if is_qwen else ChannelMix(config)

    def forward(self, x, first_value):
        if hasattr(self, "pre_norm"):
            x = self.pre_norm(x)
        mixed, first_value = self.attn(self.attn_norm(x), first_value)
        x = x + mixed
        return x + self.ffn(self.ffn_norm(x)), first_value


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embeddings = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Block(config, i) for i in range(config["num_hidden_layers"]))
        self.norm = norm_of(config)

    def forward(self, ids):
        x, first_value = self.embeddings(ids), None
        for layer in self.layers:
            x, first_value = layer(x, first_value)
        return self.norm(x)


class Output:
    def __init__(self, logits):
        self.logits = logits


class Rwkv7(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, ids, **_):
        return Output(torch.stack([self.lm_head(self.model(row)) for row in ids]))
