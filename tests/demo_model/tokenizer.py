"""Trains the demo model's byte-level BPE tokenizer on the corpus and writes its Hugging Face files.

    python tokenizer.py --out model

The pre-tokenizer is the one of Qwen2 (digits stand alone), so that any reader of that family's
files can read ours. All 256 bytes are in the vocabulary: every text can be encoded.
"""

import argparse
import itertools
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import corpus

HERE = Path(__file__).resolve().parent
VOCABULARY = 1280
TRAINING_SAMPLES = 60_000
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = [corpus.END_OF_TEXT, corpus.IM_START, corpus.IM_END]
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def train_tokenizer(seed: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(SPECIAL) - len(MARKERS), min_frequency=2,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    stream = itertools.islice(corpus.samples(seed, held_out=False), TRAINING_SAMPLES)
    texts = (piece for sample in stream for piece in corpus.pieces_between_markers(sample))
    tokenizer.train_from_iterator(texts, trainer)
    # Special tokens are left out of decoded text, markers of tool calls are not.
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken(m, normalized=False) for m in MARKERS])
    return tokenizer


def token_entry(content: str, special: bool) -> dict:
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": special}


def write(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {str(tokenizer.token_to_id(t)): token_entry(t, t in SPECIAL) for t in SPECIAL + MARKERS}
    config = {
        "added_tokens_decoder": added,
        "additional_special_tokens": [corpus.IM_START, corpus.IM_END],
        "bos_token": None,
        "chat_template": (HERE / "chat_template.jinja").read_text(),
        "clean_up_tokenization_spaces": False,
        "eos_token": corpus.IM_END,
        "model_max_length": 2048,
        "pad_token": corpus.END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    specials = {"additional_special_tokens": [corpus.IM_START, corpus.IM_END],
                "eos_token": corpus.IM_END, "pad_token": corpus.END_OF_TEXT}
    for name, value in (("tokenizer_config", config), ("special_tokens_map", specials)):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "share" / "demo-model")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tokenizer = train_tokenizer(options.seed)
    write(tokenizer, options.out)
    print(f"{tokenizer.get_vocab_size()} tokens -> {options.out}")


if __name__ == "__main__":
    main()
