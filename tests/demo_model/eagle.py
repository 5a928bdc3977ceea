"""Trains an EAGLE-3 network (Li et al., 2025) on the frozen demo model: one layer that reads the
model's hidden states and guesses as many tokens as wanted, one after the other.

    python eagle.py
    python eagle.py --resume --steps 600 --rate 2e-3 --passes 3

The states that it reads are the streams that enter the third and the fifth layer and that leave the
last. Embedding and output are the model's. It learns from the model's states and, in further passes,
with half of them replaced by its own outputs, which is what it reads behind its first guess. Names
and layout are those of EAGLE's own checkpoints. How often its guesses are the next tokens is measured
on held-out answers, each guess behind right ones.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

import data
from base import HERE, MODEL, load_base
from medusa import held_out_batches, targets
from model import Decoder, RmsNorm, rotary_table, rotate

FOLDER = HERE / "eagle"
STREAMS = [2, 4, 6]  # what enters these layers; 6: what leaves the last
INTER = 256
GUESSES = 4


def streams(base: Decoder, batch: data.Batch) -> tuple[Tensor, Tensor]:
    """[n, length, 3 hidden] of the model, and the mask of attention."""
    ids, documents = torch.from_numpy(batch.ids), torch.from_numpy(batch.documents)
    length = ids.shape[1]
    allowed = documents[:, None, :, None] == documents[:, None, None, :]
    allowed = allowed & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))
    rotary, kept = rotary_table(base.shape, length), []
    with torch.no_grad():
        x = base.embedding(ids)
        for index, layer in enumerate(base.layers):
            if index in STREAMS:
                kept.append(x)
            x = layer(x, rotary, mask)
        kept.append(x)
    return torch.cat(kept, dim=-1), mask


class Network(nn.Module):
    def __init__(self, base: Decoder):
        super().__init__()
        shape = self.shape = base.shape
        hidden, kv = shape.hidden, shape.kv_heads * shape.head_dim
        self.fc = nn.Linear(len(STREAMS) * hidden, hidden, bias=False)
        self.input_norm, self.hidden_norm = (RmsNorm(hidden, shape.norm_eps) for _ in range(2))
        self.q = nn.Linear(2 * hidden, shape.heads * shape.head_dim, bias=False)
        self.k = nn.Linear(2 * hidden, kv, bias=False)
        self.v = nn.Linear(2 * hidden, kv, bias=False)
        self.o = nn.Linear(shape.heads * shape.head_dim, hidden, bias=False)
        self.mlp_norm, self.norm = (RmsNorm(hidden, shape.norm_eps) for _ in range(2))
        self.gate = nn.Linear(hidden, INTER, bias=False)
        self.up = nn.Linear(hidden, INTER, bias=False)
        self.down = nn.Linear(INTER, hidden, bias=False)

    def forward(self, embedded: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        n, length, _ = states.shape
        shape, rotary = self.shape, rotary_table(self.shape, length)
        pair = torch.cat([self.input_norm(embedded), self.hidden_norm(states)], dim=-1)

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(n, length, heads, shape.head_dim).transpose(1, 2)

        q = rotate(split(self.q(pair), shape.heads), *rotary)
        k = rotate(split(self.k(pair), shape.kv_heads), *rotary)
        v = split(self.v(pair), shape.kv_heads)
        group = shape.heads // shape.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        weights = (q @ k.transpose(2, 3) * shape.head_dim ** -0.5 + mask).softmax(-1)
        x = states + self.o((weights @ v).transpose(1, 2).reshape(n, length, -1))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def parts(self) -> dict[str, nn.Module]:
        layer = {"input_layernorm": self.input_norm, "hidden_norm": self.hidden_norm,
                 "post_attention_layernorm": self.mlp_norm, "self_attn.q_proj": self.q,
                 "self_attn.k_proj": self.k, "self_attn.v_proj": self.v, "self_attn.o_proj": self.o,
                 "mlp.gate_proj": self.gate, "mlp.up_proj": self.up, "mlp.down_proj": self.down}
        parts = {f"midlayer.{name}": part for name, part in layer.items()}
        return parts | {"fc": self.fc, "norm": self.norm}

    def save(self, path: Path) -> None:
        save_file({f"{name}.weight": part.weight.detach().to(torch.bfloat16).contiguous()
                   for name, part in self.parts().items()}, path, metadata={"format": "pt"})

    def load(self, path: Path) -> None:
        weights = load_file(path)
        with torch.no_grad():
            for name, part in self.parts().items():
                part.weight.copy_(weights[f"{name}.weight"].float())


def inputs(base: Decoder, network: Network, batch: data.Batch):
    """For each position the embedding of the token behind it, its state, and the mask."""
    features, mask = streams(base, batch)
    embedded = base.embedding(torch.from_numpy(batch.ids))[:, 1:]
    return embedded, network.fc(features[:, :-1]), mask[:, :, :-1, :-1]


def shifted(states: Tensor, outputs: Tensor) -> Tensor:
    """The network's own outputs in place of the states one place on."""
    return torch.cat([states[:, :1], outputs[:, :-1]], dim=1)


@torch.no_grad()
def accuracy(base: Decoder, network: Network, batches: list[data.Batch]) -> list[float]:
    """Of each guess in a row: the share that is the token there. The k-th is made from states that
    are all k - 1 passes old; at run time only the last k - 1 are."""
    right, total = [0] * GUESSES, [0] * GUESSES
    for batch in batches:
        embedded, states, mask = inputs(base, network, batch)
        for k in range(GUESSES):
            outputs = network(embedded, states, mask)
            wanted, where = targets(batch, 2)
            guessed = base_logits(base, network.norm(outputs))[:, :wanted.shape[1]].argmax(-1)
            right[k] += int((guessed == wanted)[where].sum())
            total[k] += int(where.sum())
            states = shifted(states, outputs)
    return [round(r / t, 4) for r, t in zip(right, total)]


def base_logits(base: Decoder, x: Tensor) -> Tensor:
    return F.linear(x, base.embedding.weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--tokens", type=int, default=2048, help="per batch")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="from the committed weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    FOLDER.mkdir(exist_ok=True)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    base = load_base()
    network = Network(base)
    if options.resume:
        network.load(FOLDER / "model.safetensors")
    optimiser = torch.optim.AdamW(network.parameters(), lr=options.rate, weight_decay=0.01)
    seed = 80 if options.resume else 79
    stream, start, losses = data.batches(tokenizer, seed, options.tokens), time.time(), []
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 30, 1.5 * (1 - step / options.steps))
        batch = next(stream)
        embedded, states, mask = inputs(base, network, batch)
        wanted, where = targets(batch, 2)
        loss = torch.zeros(())
        for _ in range(options.passes):
            outputs = network(embedded, states, mask)
            logits = base_logits(base, network.norm(outputs)[:, :wanted.shape[1]][where])
            loss = loss + F.cross_entropy(logits, wanted[where])
            own = torch.rand(states.shape[:2])[..., None] < 0.5
            states = torch.where(own, shifted(states, outputs), states)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item() / options.passes)
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {sum(losses) / len(losses):.4f} {time.time() - start:.0f} s",
                  flush=True)
            losses = []
    network.save(FOLDER / "model.safetensors")
    shape = base.shape
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
              "vocab_size": shape.vocab, "draft_vocab_size": shape.vocab,
              "hidden_size": shape.hidden, "intermediate_size": INTER, "num_hidden_layers": 1,
              "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
              "head_dim": shape.head_dim, "hidden_act": "silu", "rms_norm_eps": shape.norm_eps,
              "rope_theta": shape.rope_theta, "max_position_embeddings": shape.max_positions,
              "eagle_aux_hidden_state_layer_ids": STREAMS, "torch_dtype": "bfloat16"}
    (FOLDER / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    result = {"guesses": accuracy(base, network, list(held_out_batches(tokenizer, 40)))}
    print(result)
    (FOLDER / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
