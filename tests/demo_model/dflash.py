"""Trains a DFlash network (Chen et al., 2026) on the frozen demo model: two layers that guess a block
of tokens at once from the model's hidden states.

    python dflash.py
    python dflash.py --resume --steps 600 --rate 1e-3

Keys and values of all earlier positions are those of the states that enter the third and the fifth
layer and that leave the last; a block is a token and masks behind it, whose rows see all of the block.
Embedding and output are the model's, and "<|endoftext|>", which no text has, is the mask. Names and
layout are those of the authors' checkpoints. How often its guesses are the next tokens is measured on
held-out answers, each guess by itself.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

import data
from base import HERE, MODEL, load_base
from eagle import STREAMS, base_logits, streams
from medusa import held_out_batches
from model import Decoder, RmsNorm, rotary_table, rotate

FOLDER = HERE / "dflash"
LAYERS, INTER, BLOCK, MASK = 2, 256, 6, 1273


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        hidden, kv = shape.hidden, shape.kv_heads * shape.head_dim
        self.q = nn.Linear(hidden, shape.heads * shape.head_dim, bias=False)
        self.k, self.v = (nn.Linear(hidden, kv, bias=False) for _ in range(2))
        self.o = nn.Linear(shape.heads * shape.head_dim, hidden, bias=False)
        self.q_norm, self.k_norm = (RmsNorm(shape.head_dim, shape.norm_eps) for _ in range(2))
        self.input_norm, self.mlp_norm = (RmsNorm(hidden, shape.norm_eps) for _ in range(2))
        self.gate, self.up = (nn.Linear(hidden, INTER, bias=False) for _ in range(2))
        self.down = nn.Linear(INTER, hidden, bias=False)

    def forward(self, x: Tensor, states: Tensor, angles, mask: Tensor) -> Tensor:
        """`angles` of the states' positions and of the block rows'; `mask` [n, 1, rows, both]."""
        shape, h = self.shape, self.input_norm(x)

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(y.shape[0], y.shape[1], heads, shape.head_dim).transpose(1, 2)

        both = torch.cat([states, h], dim=1)
        q = rotate(self.q_norm(split(self.q(h), shape.heads)), *angles[1])
        k = rotate(self.k_norm(split(self.k(both), shape.kv_heads)), *angles[0])
        v = split(self.v(both), shape.kv_heads)
        group = shape.heads // shape.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        weights = (q @ k.transpose(2, 3) * shape.head_dim ** -0.5 + mask).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def parts(self) -> dict[str, nn.Module]:
        return {"input_layernorm": self.input_norm, "post_attention_layernorm": self.mlp_norm,
                "self_attn.q_proj": self.q, "self_attn.k_proj": self.k, "self_attn.v_proj": self.v,
                "self_attn.o_proj": self.o, "self_attn.q_norm": self.q_norm,
                "self_attn.k_norm": self.k_norm, "mlp.gate_proj": self.gate,
                "mlp.up_proj": self.up, "mlp.down_proj": self.down}


class Network(nn.Module):
    def __init__(self, base: Decoder):
        super().__init__()
        shape = self.shape = base.shape
        self.fc = nn.Linear(len(STREAMS) * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm, self.norm = (RmsNorm(shape.hidden, shape.norm_eps) for _ in range(2))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(LAYERS))

    def forward(self, embedded: Tensor, features: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """`places` [n, rows]: the positions of the blocks' rows."""
        states = self.hidden_norm(self.fc(features))
        length = states.shape[1]
        cos, sin = rotary_table(self.shape, length + BLOCK)
        before = torch.arange(length)[None].expand(places.shape[0], -1)
        angles = [[table[at][:, None] for table in (cos, sin)]
                  for at in (torch.cat([before, places], dim=1), places)]
        x = embedded
        for layer in self.layers:
            x = layer(x, states, angles, mask)
        return self.norm(x)

    def parts(self) -> dict[str, nn.Module]:
        parts = {"fc": self.fc, "hidden_norm": self.hidden_norm, "norm": self.norm}
        for index, layer in enumerate(self.layers):
            parts |= {f"layers.{index}.{name}": part for name, part in layer.parts().items()}
        return parts

    def save(self, path) -> None:
        save_file({f"{name}.weight": part.weight.detach().to(torch.bfloat16).contiguous()
                   for name, part in self.parts().items()}, path, metadata={"format": "pt"})

    def load(self, path) -> None:
        weights = load_file(path)
        with torch.no_grad():
            for name, part in self.parts().items():
                part.weight.copy_(weights[f"{name}.weight"].float())


def guesses(base: Decoder, network: Network, batch: data.Batch, blocks: int, random):
    """For `blocks` random places of each row: logits of the masks behind them, the tokens there, and
    where these are learned ones of the same document."""
    ids, documents = torch.from_numpy(batch.ids), torch.from_numpy(batch.documents)
    learned = torch.from_numpy(batch.learned)
    n, length = ids.shape
    last = torch.rand(n, length - BLOCK, generator=random).masked_fill(
        ~learned[:, 1:length - BLOCK + 1], -1).topk(blocks, dim=1).indices  # the token of each block
    places = last[:, :, None] + torch.arange(BLOCK)  # [n, blocks, BLOCK]
    features, _ = streams(base, batch)
    of_last = documents.gather(1, last)
    sees = ((torch.arange(length)[None, None] < last[:, :, None])
            & (documents[:, None] == of_last[:, :, None]))  # [n, blocks, length]
    own = torch.eye(blocks, dtype=torch.bool).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    allowed = torch.cat([sees.repeat_interleave(BLOCK, dim=1), own.expand(n, -1, -1)], dim=2)
    mask = torch.zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))[:, None]
    tokens = torch.full(places.shape, MASK)
    tokens[:, :, 0] = ids.gather(1, last)
    outputs = network(base.embedding(tokens.flatten(1)), features, places.flatten(1), mask)
    masks = places[:, :, 1:].flatten(1)
    where = learned.gather(1, masks) & (
        documents.gather(1, masks) == of_last.repeat_interleave(BLOCK - 1, dim=1))
    outputs = outputs.view(n, blocks, BLOCK, -1)[:, :, 1:].flatten(1, 2)
    return base_logits(base, outputs), ids.gather(1, masks), where


@torch.no_grad()
def accuracy(base: Decoder, network: Network, batches: list[data.Batch]) -> list[float]:
    right, total = torch.zeros(BLOCK - 1), torch.zeros(BLOCK - 1)
    random = torch.Generator().manual_seed(1)
    for batch in batches:
        logits, wanted, where = guesses(base, network, batch, 24, random)
        hits = ((logits.argmax(-1) == wanted) & where).view(-1, BLOCK - 1)
        right += hits.sum(0)
        total += where.view(-1, BLOCK - 1).sum(0)
    return [round(float(r / t), 4) for r, t in zip(right, total)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--tokens", type=int, default=2048, help="per batch")
    parser.add_argument("--blocks", type=int, default=24, help="per row")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--resume", action="store_true", help="from the committed weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(6)
    FOLDER.mkdir(exist_ok=True)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    base = load_base()
    network = Network(base)
    if options.resume:
        network.load(FOLDER / "model.safetensors")
    optimiser = torch.optim.AdamW(network.parameters(), lr=options.rate, weight_decay=0.01)
    seed = 82 if options.resume else 81
    random = torch.Generator().manual_seed(seed)
    stream, start, losses = data.batches(tokenizer, seed, options.tokens), time.time(), []
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 50, 1.5 * (1 - step / options.steps))
        logits, wanted, where = guesses(base, network, next(stream), options.blocks, random)
        loss = F.cross_entropy(logits[where], wanted[where])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {sum(losses) / len(losses):.4f} {time.time() - start:.0f} s",
                  flush=True)
            losses = []
    network.save(FOLDER / "model.safetensors")
    shape = base.shape
    config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3",
              "vocab_size": shape.vocab, "hidden_size": shape.hidden, "intermediate_size": INTER,
              "num_hidden_layers": LAYERS, "num_target_layers": len(base.layers),
              "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
              "head_dim": shape.head_dim, "hidden_act": "silu", "rms_norm_eps": shape.norm_eps,
              "rope_theta": shape.rope_theta, "max_position_embeddings": shape.max_positions,
              "layer_types": ["full_attention"] * LAYERS, "attention_bias": False,
              "tie_word_embeddings": False, "block_size": BLOCK,
              "dflash_config": {"mask_token_id": MASK,
                                "target_layer_ids": [layer - 1 for layer in STREAMS]},
              "torch_dtype": "bfloat16"}
    (FOLDER / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    result = {"guesses": accuracy(base, network, list(held_out_batches(tokenizer, 40)))}
    print(result)
    (FOLDER / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
