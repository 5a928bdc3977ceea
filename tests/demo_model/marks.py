"""The demo model with ThreadWeaver's marks as tokens of their own: a folder whose tokenizer and embedding have a row more for
each. The rows are pseudo-random; adapters/threadweaver gives them a meaning. Standard library only, since tests use it."""

import json
import math
import struct
from pathlib import Path
from random import Random

MODEL = Path(__file__).resolve().parents[2] / "share" / "demo-model"
MARKS = [f"<{slash}{name}>" for name in ("Think", "Parallel", "Outlines", "Outline", "Thread", "Conclusion") for slash in ("", "/")]
EMBEDDING = "model.embed_tokens.weight"


def bfloat16(values: list[float]) -> bytes:
    """Cut to 16 bits."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def rows(rng: Random, data: bytes, hidden: int) -> bytes:
    """A row for each mark, as long as the rows of `data` [n, hidden] are in the mean."""
    values = [struct.unpack("<f", b"\0\0" + data[at:at + 2])[0] for at in range(0, len(data), 2)]
    size = math.sqrt(sum(value * value for value in values) / len(values))
    return bfloat16([size * rng.gauss(0, 1) for _ in range(len(MARKS) * hidden)])


def write_weights(folder: Path) -> int:
    """Returns the size of the vocabulary."""
    content = (MODEL / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:begin]), b""
    metadata = header.pop("__metadata__", {})
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = tensor["data_offsets"]
        piece = content[begin + first:begin + last]
        if name == EMBEDDING:
            piece += rows(Random(1), piece, tensor["shape"][1])
            tensor["shape"][0] += len(MARKS)
            vocab = tensor["shape"][0]
        tensor["data_offsets"] = [len(data), len(data) + len(piece)]
        data += piece
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return vocab


def write_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    vocab = write_weights(folder)
    config = json.loads((MODEL / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": vocab}))
    tokens = {vocab - len(MARKS) + i: {"content": mark, "single_word": False, "lstrip": False, "rstrip": False,
                                       "normalized": False, "special": True} for i, mark in enumerate(MARKS)}
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    tokenizer["added_tokens"] += [{"id": id, **token} for id, token in tokens.items()]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    options = json.loads((MODEL / "tokenizer_config.json").read_text())
    options["added_tokens_decoder"] |= {str(id): token for id, token in tokens.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    (folder / "generation_config.json").write_text((MODEL / "generation_config.json").read_text())
