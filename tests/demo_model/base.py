"""The committed base model as a frozen network of model.py, for what is trained on top of it."""

import json
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from model import LAYER_NAMES, Decoder, Shape

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "share" / "demo-model"


def shape_of(config: dict) -> Shape:
    return Shape(vocab=config["vocab_size"], hidden=config["hidden_size"],
                 inter=config["intermediate_size"], layers=config["num_hidden_layers"],
                 heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"],
                 head_dim=config["head_dim"], rope_theta=config["rope_theta"],
                 norm_eps=config["rms_norm_eps"], max_positions=config["max_position_embeddings"])


def our_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """transformers' names -> ours; the inverse of model.hugging_face_weights."""
    parts = {theirs: ours for ours, theirs in LAYER_NAMES.items()}
    state = {"embedding.weight": weights["model.embed_tokens.weight"],
             "norm.weight": weights["model.norm.weight"]}
    for name, weight in weights.items():
        if name.startswith("model.layers."):
            index, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            state[f"layers.{index}.{parts[part]}.weight"] = weight
    return {name: weight.float() for name, weight in state.items()}


def load_base(folder: Path = MODEL) -> Decoder:
    decoder = Decoder(shape_of(json.loads((folder / "config.json").read_text())))
    decoder.load_state_dict(our_names(load_file(folder / "model.safetensors")))
    return decoder.requires_grad_(False).eval()
