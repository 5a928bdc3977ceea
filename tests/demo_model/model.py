"""The demo model's network: a Llama decoder in PyTorch, and its export to the Hugging Face layout.

With experts it is Mixtral's (Jiang et al. 2024): softmax over the chosen experts' scores. They are
trained as one wide MLP whose units count as much as their expert does for the token: as fast as a
sorting of tokens by expert at this size, and the same sum.

Compact on purpose: rotary embedding over half-split pairs, grouped-query attention, SwiGLU, RMS
norms, embedding tied to the output. Attention is limited to the document that a token is in, so
that several documents can share one training row.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    vocab: int = 1280
    hidden: int = 192
    inter: int = 384  # of each expert, if there are any
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048
    experts: int = 0
    chosen_experts: int = 2

    def as_dict(self) -> dict:
        return asdict(self)


BASE = Shape()
DRAFT = Shape(hidden=64, inter=160, layers=2, heads=2, kv_heads=1)  # for speculation: a tenth of BASE
MOE = Shape(inter=48, experts=8, chosen_experts=4)  # BASE's MLPs, each cut into eight


def rotary_table(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin, each [length, head_dim]."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_theta ** -exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, length, head_dim]"""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attention_norm = RmsNorm(shape.hidden, shape.norm_eps)
        self.q = nn.Linear(shape.hidden, q_size, bias=False)
        self.k = nn.Linear(shape.hidden, kv_size, bias=False)
        self.v = nn.Linear(shape.hidden, kv_size, bias=False)
        self.o = nn.Linear(q_size, shape.hidden, bias=False)
        self.mlp_norm = RmsNorm(shape.hidden, shape.norm_eps)
        width = shape.inter * max(1, shape.experts)  # experts side by side
        self.gate = nn.Linear(shape.hidden, width, bias=False)
        self.up = nn.Linear(shape.hidden, width, bias=False)
        self.down = nn.Linear(width, shape.hidden, bias=False)
        if shape.experts:
            self.router = nn.Linear(shape.hidden, shape.experts, bias=False)

    def attend(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        n, length, _ = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(n, length, heads, self.shape.head_dim).transpose(1, 2)

        q = rotate(split(self.q(x), self.shape.heads), *rotary)
        k = rotate(split(self.k(x), self.shape.kv_heads), *rotary)
        v = split(self.v(x), self.shape.kv_heads)
        # Rows are short: plain products are twice as fast here as the fused attention for CPUs.
        q = q.reshape(n, self.shape.kv_heads, -1, self.shape.head_dim)  # a group's heads side by side
        scores = (q @ k.transpose(2, 3)).view(n, self.shape.heads, length, length)
        weights = (scores * self.shape.head_dim ** -0.5 + mask).softmax(-1, dtype=v.dtype)
        y = weights.view(n, self.shape.kv_heads, -1, length) @ v
        y = y.view(n, self.shape.heads, length, self.shape.head_dim)
        return self.o(y.transpose(1, 2).reshape(n, length, -1))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.attend(self.attention_norm(x), rotary, mask)
        h = self.mlp_norm(x)
        inner = F.silu(self.gate(h)) * self.up(h)
        if self.shape.experts:
            shares = self.route(h).to(inner.dtype)
            inner = (inner.unflatten(-1, (self.shape.experts, -1)) * shares[..., None]).flatten(-2)
        return x + self.down(inner)

    def route(self, h: Tensor) -> Tensor:
        """[..., experts]: each expert's share in a token's sum. Leaves in `balance` how unevenly
        tokens are spread (Fedus et al. 2021: 1 where every expert gets as many)."""
        scores = self.router(h).float()
        best = scores.topk(self.shape.chosen_experts, dim=-1)
        shares = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
        chosen = (shares > 0).float().flatten(0, -2).mean(0) / self.shape.chosen_experts
        likely = scores.softmax(-1).flatten(0, -2).mean(0)
        self.balance = self.shape.experts * (chosen * likely).sum()
        return shares


class Decoder(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.hidden, shape.norm_eps)
        self.initialise()

    def initialise(self) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                std = 0.02 if "embedding" in name else weight.shape[1] ** -0.5
                if name.endswith(("o.weight", "down.weight")):
                    std /= (2 * self.shape.layers) ** 0.5
                nn.init.normal_(weight, std=std)

    def hidden(self, ids: Tensor, documents: Tensor) -> Tensor:
        """ids, documents [n, length] -> [n, length, hidden]. Tokens attend within their document."""
        length = ids.shape[1]
        rotary = rotary_table(self.shape, length)
        same = documents[:, None, :, None] == documents[:, None, None, :]
        allowed = same & torch.ones(length, length, dtype=torch.bool).tril()
        x = self.embedding(ids)
        mask = torch.zeros(allowed.shape, dtype=x.dtype).masked_fill_(~allowed, float("-inf"))
        if torch.is_autocast_enabled("cpu"):
            mask = mask.to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, rotary, mask)
        return self.norm(x)

    def imbalance(self) -> Tensor:
        """Of the experts in the last forward; 0 without any."""
        return sum((layer.balance for layer in self.layers if self.shape.experts), torch.zeros(()))

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding.weight)


LAYER_NAMES = {
    "attention_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
    "v": "self_attn.v_proj", "o": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "router": "block_sparse_moe.gate",
}
EXPERT_NAMES = {"gate": "w1", "up": "w3", "down": "w2"}


def hugging_face_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our names -> those of transformers' LlamaForCausalLM or MixtralForCausalLM."""
    renamed = {"model.embed_tokens.weight": state["embedding.weight"],
               "model.norm.weight": state["norm.weight"]}
    for name, weight in state.items():
        if name.startswith("layers."):
            _, index, part, _ = name.split(".")
            layer = f"model.layers.{index}."
            if f"layers.{index}.router.weight" in state and part in EXPERT_NAMES:
                count = state[f"layers.{index}.router.weight"].shape[0]
                for e, own in enumerate(weight.chunk(count, dim=1 if part == "down" else 0)):
                    renamed[f"{layer}block_sparse_moe.experts.{e}.{EXPERT_NAMES[part]}.weight"] = own
            else:
                renamed[f"{layer}{LAYER_NAMES[part]}.weight"] = weight
    return renamed


def our_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The reverse, of a model without experts."""
    parts = {theirs: ours for ours, theirs in LAYER_NAMES.items()}
    state = {"embedding.weight": weights["model.embed_tokens.weight"],
             "norm.weight": weights["model.norm.weight"]}
    for name, weight in weights.items():
        if name.startswith("model.layers."):
            _, _, index, part = name.removesuffix(".weight").split(".", 3)
            state[f"layers.{index}.{parts[part]}.weight"] = weight
    return state


def hugging_face_config(shape: Shape, end_ids: list[int], pad_id: int) -> dict:
    family = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    if shape.experts:
        family = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
                  "num_local_experts": shape.experts, "num_experts_per_tok": shape.chosen_experts,
                  "sliding_window": None}
    return family | {
        "vocab_size": shape.vocab, "hidden_size": shape.hidden, "intermediate_size": shape.inter,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions, "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta, "rope_scaling": None, "tie_word_embeddings": True,
        "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
        "initializer_range": 0.02, "use_cache": True, "torch_dtype": "bfloat16",
        "bos_token_id": None, "eos_token_id": end_ids, "pad_token_id": pad_id,
    }
