"""Trains the demo model and exports it to the Hugging Face layout.

    python train.py --out model --work DIR

Checkpoints go to DIR; a second call goes on from there. The learning rate warms up, stays, and
decays linearly over the last part of `--steps`; touching DIR/decay starts the decay at once, so a
run can be ended well at any time. Matrices inside the layers are trained with Muon (Jordan et al.,
2024: momentum made orthogonal by a Newton-Schulz iteration), the rest with AdamW.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

import corpus
import data
from model import (BASE, DRAFT, MOE, Decoder, Shape, hugging_face_config, hugging_face_weights,
                   our_weights)

HERE = Path(__file__).resolve().parent
SHAPES = {"base": BASE, "draft": DRAFT, "moe": MOE}
WARMUP_STEPS = 50
BALANCE_WEIGHT = 0.01  # of the experts' load in the loss (Fedus et al. 2021)


def orthogonal(matrices: Tensor, dtype: torch.dtype, iterations: int = 5) -> Tensor:
    """[n, rows, columns] -> the nearest matrices with all singular values about 1."""
    x = (matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    for _ in range(iterations):  # coefficients: steepest at zero, stays within [0.7, 1.2]
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(1, 2) if tall else x


class Muon:
    """Momentum 0.95 (Nesterov), orthogonalised; matrices of one size are handled together."""

    def __init__(self, weights: list[Tensor], dtype: torch.dtype, decay: float = 0.01):
        self.groups: dict[torch.Size, list[Tensor]] = {}
        for weight in weights:
            self.groups.setdefault(weight.shape, []).append(weight)
        self.momenta = {shape: torch.zeros(len(ws), *shape) for shape, ws in self.groups.items()}
        self.dtype, self.decay = dtype, decay

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, weights in self.groups.items():
            gradient = torch.stack([w.grad for w in weights])
            momentum = self.momenta[shape].mul_(0.95).add_(gradient)
            update = orthogonal(gradient + 0.95 * momentum, self.dtype).float()
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for weight, change in zip(weights, update):
                weight.mul_(1 - rate * self.decay).sub_(change, alpha=rate * scale)


class Trainer:
    def __init__(self, shape: Shape, rate: float, bf16: bool):
        self.model = Decoder(shape)
        parameters = dict(self.model.named_parameters())
        inner = [n for n, p in parameters.items()
                 if p.dim() == 2 and "layers" in n and "router" not in n]
        other = [p for n, p in parameters.items() if n not in inner]
        inner = [parameters[n] for n in inner]
        self.muon = Muon(inner, torch.bfloat16 if bf16 else torch.float32)
        self.adam = torch.optim.AdamW(other, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.rate, self.bf16 = rate, bf16

    def start_from(self, folder: Path) -> None:
        """An exported model without experts, whose MLPs are as wide as all experts together: they are
        cut into experts (Zhang et al. 2022), and a token's chosen ones count as they did in the sum."""
        state = {name: weight.float()
                 for name, weight in our_weights(load_file(folder / "model.safetensors")).items()}
        for name in state:
            if self.model.shape.experts and name.endswith("down.weight"):
                state[name] *= self.model.shape.chosen_experts
        missing = self.model.load_state_dict(state, strict=False).missing_keys
        assert all("router" in name for name in missing), missing

    def step(self, batch: data.Batch, factor: float) -> float:
        """One update at `factor` times the learning rate; returns the mean loss per learned token."""
        ids, documents = torch.from_numpy(batch.ids), torch.from_numpy(batch.documents)
        learned = torch.from_numpy(batch.learned)[:, 1:]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            hidden = self.model.hidden(ids, documents)[:, :-1][learned]
            logits = self.model.logits(hidden)
        loss = F.cross_entropy(logits.float(), ids[:, 1:][learned])
        (loss + BALANCE_WEIGHT * self.model.imbalance()).backward()
        for group in self.adam.param_groups:
            group["lr"] = 0.3 * self.rate * factor
        self.adam.step()
        self.muon.step(self.rate * factor)
        self.model.zero_grad(set_to_none=True)
        return loss.item()

    def save(self, path: Path, step: int, decay_from: int) -> None:
        temporary = path.with_suffix(".new")
        torch.save({"weights": self.model.state_dict(), "adam": self.adam.state_dict(),
                    "muon": self.muon.momenta, "step": step, "decay_from": decay_from,
                    "shape": self.model.shape.as_dict()}, temporary)
        temporary.rename(path)

    def load(self, path: Path) -> tuple[int, int]:
        saved = torch.load(path, weights_only=False)  # our own file; holds torch.Size keys
        self.model.load_state_dict(saved["weights"])
        self.adam.load_state_dict(saved["adam"])
        self.muon.momenta = saved["muon"]
        return saved["step"], saved["decay_from"]


def export(model: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    ends = [tokenizer.token_to_id(corpus.IM_END), tokenizer.token_to_id(corpus.END_OF_TEXT)]
    weights = hugging_face_weights(model.state_dict())
    save_file({n: w.to(torch.bfloat16).contiguous() for n, w in weights.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    config = hugging_face_config(model.shape, ends, pad_id=ends[1])
    generation = {"do_sample": False, "eos_token_id": ends, "pad_token_id": ends[1]}
    for name, value in (("config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")


def learning_rate_factor(step: int, decay_from: int, decay_steps: int) -> float:
    return min(1.0, (step + 1) / WARMUP_STEPS, max(0.0, 1 - (step - decay_from) / decay_steps))


def report(model: Decoder, tokenizer: Tokenizer, folder: Path, per_domain: int) -> str:
    """Exports, and judges a small held-out set through transformers."""
    import evaluate
    from transformers import AutoModelForCausalLM
    export(model, tokenizer, folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    samples = corpus.held_out_prompts(evaluate.EVALUATION_SEED + 1, per_domain)
    result = evaluate.judge(loaded, evaluate.tokenizer_of(folder), samples)
    scores = ", ".join(f"{d} {c['right']}/{c['of']}" for d, c in result["domains"].items())
    return f"held-out {100 * result['overall']:.1f} % of {result['prompts']}: {scores}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "share" / "demo-model", help="holds the tokenizer already")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="exported model to start from, instead of noise")
    parser.add_argument("--steps", type=int, default=4300)
    parser.add_argument("--decay-steps", type=int, default=1700)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--tokens", type=int, default=4096, help="per batch")
    parser.add_argument("--evaluate-every", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="autocast; pays on CPUs with AVX512-BF16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(options.out / "tokenizer.json"))
    trainer = Trainer(SHAPES[options.shape], options.rate, options.bf16)
    print(f"{sum(p.numel() for p in trainer.model.parameters())} parameters", flush=True)
    if options.start:
        trainer.start_from(options.start)
    checkpoint, step, decay_from = options.work / "checkpoint.pt", 0, options.steps - options.decay_steps
    if checkpoint.exists():
        step, decay_from = trainer.load(checkpoint)
    stream = data.batches(tokenizer, options.seed + 1000 * (step + 1), options.tokens)
    start, begun, losses = time.time(), step, []
    while step < decay_from + options.decay_steps:
        factor = learning_rate_factor(step, decay_from, options.decay_steps)
        losses.append(trainer.step(next(stream), factor))
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {sum(losses) / len(losses):.4f} rate {factor:.2f} "
                  f"{(step - begun) * options.tokens / (time.time() - start):.0f} tokens/s", flush=True)
            losses = []
        if step % 100 == 0:
            if (options.work / "decay").exists():
                decay_from = min(decay_from, step)
            trainer.save(checkpoint, step, decay_from)
        if step % options.evaluate_every == 0:
            print(report(trainer.model, tokenizer, options.out, per_domain=8), flush=True)
    trainer.save(checkpoint, step, decay_from)
    print(report(trainer.model, tokenizer, options.out, per_domain=20), flush=True)


if __name__ == "__main__":
    main()
