#!/usr/bin/env python3
"""Goldens of the tokenizers: what the `tokenizers` and `sentencepiece` packages give for 10,000 random
strings per tokenizer.

Usage: make_tokenizer_goldens.py SHARED_DATA, e.g. ../shared/data. Needs tokenizers and sentencepiece
(tests/golden/requirements.txt). Writes tests/golden/tokenizers/: small tokenizers that cover the
parts which the real ones do not use, and goldens.json.

The strings come from a generator that tests/text/tokenizer/random_text.h implements as well:
SplitMix64 seeded with the number of the string; see `random_text`. Per string 8 bits of the FNV-1a
hash of its ids (little-endian int32) are kept, per block of 100 strings the 64-bit FNV-1a hash of
their decoded texts, so that all results fit in a small file and a difference names its string. Of
SentencePiece also the 64-bit hash of the ids of all strings as one text, with a space between two.
"""
import base64
import json
import pathlib
import struct
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

NUM_STRINGS = 10_000
BLOCK = 100
MASK = (1 << 64) - 1

# Inclusive, and assigned in Unicode 14, so that all libraries have the same properties for them.
RANGES = [
    (0x20, 0x7E), (0x61, 0x7A), (0x41, 0x5A), (0x30, 0x39), (0x20, 0x20), (0x09, 0x0D),
    (0x21, 0x2F), (0xA0, 0xFF), (0x100, 0x17F), (0x300, 0x36F), (0x391, 0x3A1), (0x400, 0x4FF),
    (0x5D0, 0x5EA), (0x620, 0x64A), (0x900, 0x963), (0xE01, 0xE3A), (0x1100, 0x11FF),
    (0xAC00, 0xD7A3), (0x4E00, 0x9FFC), (0x3041, 0x3096), (0x30A1, 0x30FA), (0xFF01, 0xFF5E),
    (0x1F300, 0x1F64F), (0x2000, 0x200A), (0x200B, 0x200F), (0x2010, 0x2029), (0x2160, 0x2188),
    (0x24B6, 0x24E9), (0x1D400, 0x1D454), (0x85, 0x85), (0x3000, 0x3000), (0x1E00, 0x1EFF),
    (0xFB00, 0xFB06), (0x1C4, 0x1CC), (0x2B0, 0x2B8), (0x1F900, 0x1F970), (0x180E, 0x180E),
]
FRAGMENTS = [
    "'s", "'S", "'\u017F", "'re", "'LL", "'ve", "'t", "'M", "'d", " the", " and", "Hello", " world",
    "\n\n", "\r\n", " \n", "    ", "<|endoftext|>", "<s>", "</s>", "<|im_start|>", "\u2581", "http://",
    "camelCaseWord", "ing", "e\u0301", "12345", "...", "[MASK]", " <special> ", "\U0001F44D\U0001F3FD",
]


class SplitMix64:
    """Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n


def random_text(index):
    """Up to 11 runs; a run is a fragment, or 1 to 6 code points of one range."""
    rng = SplitMix64(index)
    text = ""
    for _ in range(rng.below(12)):
        kind = rng.below(len(RANGES) + len(FRAGMENTS))
        if kind < len(RANGES):
            first, last = RANGES[kind]
            for _ in range(1 + rng.below(6)):
                text += chr(first + rng.below(last - first + 1))
        else:
            text += FRAGMENTS[kind - len(RANGES)]
    return text


def fnv(data, value=0xCBF29CE484222325):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def ids_hash(ids):
    return fnv(struct.pack(f"<{len(ids)}i", *ids))


def golden(encode, decode):
    hashes = bytearray()
    blocks = []
    for i in range(NUM_STRINGS):
        ids = encode(random_text(i))
        hashes.append(ids_hash(ids) & 0xFF)
        if i % BLOCK == 0:
            value = fnv(b"")
        value = fnv(decode(ids).encode() + b"\0", value)
        if i % BLOCK == BLOCK - 1:
            blocks.append(f"{value:016x}")
    return {"ids8": base64.b64encode(bytes(hashes)).decode(), "texts": blocks}


def json_golden(path):
    tokenizer = Tokenizer.from_file(str(path))
    return golden(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False))


def sentencepiece_golden(path):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    # Control symbols in a text are text to SentencePiece. No decoded texts: it has a text of its own
    # for unknown pieces.
    result = golden(lambda text: processor.encode(text), lambda ids: "")
    whole = ids_hash(processor.encode(" ".join(random_text(i) for i in range(NUM_STRINGS))))
    return {"ids8": result["ids8"], "parse_special": False, "whole": f"{whole:016x}"}


def corpus(limit=0x110000):
    """Text to learn small vocabularies from: words, and random strings without what is from `limit`."""
    words = "the quick brown fox jumps over lazy dogs while seventeen wizards brew tea in London".split()
    rng = SplitMix64(1 << 40)
    for i in range(3000):
        yield " ".join(words[rng.below(len(words))].title() if rng.below(4) == 0
                       else words[rng.below(len(words))] for _ in range(8))
        yield "".join(c for c in random_text((1 << 41) + i) if ord(c) < limit)


def train_bpe(tokenizer, byte_level=True, vocab_size=700):
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False, limit_alphabet=300,
        special_tokens=["<unk>", "<s>", "</s>"]))
    return tokenizer


def falcon_like():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    tokenizer.decoder = decoders.ByteLevel()
    return train_bpe(tokenizer)


def pattern_bpe(pattern, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer = train_bpe(tokenizer)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])])
    return tokenizer


CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
          r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
          r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def deepseek_like():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
        pre_tokenizers.Split(Regex(
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return train_bpe(tokenizer)


def added_tokens():
    """Normalizers, and added tokens with every flag."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Strip(), normalizers.Replace(Regex("[0-9]+"), "#"),
        normalizers.Replace("...", "\u2026")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Split("a", "merged_with_next"),
        pre_tokenizers.Split(Regex("[eo]"), "merged_with_previous")])
    train_bpe(tokenizer, byte_level=False, vocab_size=500)
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True), "<|endoftext|>",
                                  AddedToken("<special>", rstrip=True, lstrip=True)])
    tokenizer.add_tokens([AddedToken("hello", normalized=True), AddedToken("ing", single_word=True),
                          AddedToken("<|im_start|>", rstrip=True, normalized=False)])
    return tokenizer


def unigram(prepend, byte_fallback):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    metaspace = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.pre_tokenizer = metaspace if byte_fallback else pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), metaspace])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(corpus(limit=0x250), trainers.UnigramTrainer(
        vocab_size=900, show_progress=False, special_tokens=special, unk_token="<unk>"))
    description = json.loads(tokenizer.to_str())
    model = description["model"]
    # Sums of such scores are exact, so that equal ones are equal whatever parses the decimals.
    model["vocab"] = [[piece, round(score * 64) / 64] for piece, score in model["vocab"]]
    if not byte_fallback:
        return Tokenizer.from_str(json.dumps(description))
    model["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    model["byte_fallback"] = True
    description["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581",
                                   "prepend_scheme": prepend, "split": True}]}
    return Tokenizer.from_str(json.dumps(description))


def metaspace_bpe():
    """Gemma's: merges over code points with U+2581 for spaces, and bytes where nothing else fits."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    train_bpe(tokenizer, byte_level=False)
    description = json.loads(tokenizer.to_str())
    vocab = description["model"]["vocab"]
    vocab.update({f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)})
    return Tokenizer.from_str(json.dumps(description))


def wordpiece(lowercase):
    """BERT's tokenizer, with and without lower case."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=lowercase)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus(limit=0x250), trainers.WordPieceTrainer(
        vocab_size=900, show_progress=False, special_tokens=special))
    if lowercase:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    else:
        tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def pair_golden(path):
    """Ids and types of pairs of texts, cut to a number of tokens."""
    tokenizer = Tokenizer.from_file(str(path))
    texts = [random_text(i) for i in range(40)]
    cases = []
    for i, (first, second) in enumerate(zip(texts[::2], texts[1::2])):
        limit = 5 + i
        tokenizer.enable_truncation(limit, strategy="longest_first")
        encoding = tokenizer.encode(first, second)
        cases.append({"first": first, "second": second, "limit": limit, "ids": encoding.ids,
                      "types": encoding.type_ids})
    return cases


def train_sentencepiece(path, **options):
    """`rules.tsv` holds normalisation rules of our own: some letters and ligatures."""
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        pairs = [(chr(c), chr(c - 0xFEE0)) for c in range(0xFF01, 0xFF5F)]
        pairs += [("\u3000", " "), ("\u00a0", " "), ("\t", " "), ("\n", " "), ("\r", " "), ("\ufb01", "fi"),
                  ("e\u0301", "\u00e9"), ("\u2026", "..."), ("\u200b", "")]
        rules.write_text("".join(
            " ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n"
            for a, b in pairs))
        text = pathlib.Path(folder) / "text"
        text.write_text("\n".join(" ".join(line.split()) for line in corpus(limit=0x250)))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(path.with_suffix("")), minloglevel=2,
            normalization_rule_tsv=str(rules), hard_vocab_limit=False, num_threads=1, **options)
    path.with_suffix(".vocab").unlink()
    # The trainer writes down where its files lay: that says nothing, and differs from run to run.
    model = sentencepiece_model_pb2.ModelProto.FromString(path.with_suffix(".model").read_bytes())
    model.trainer_spec.ClearField("input")
    model.trainer_spec.ClearField("model_prefix")
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    path.with_suffix(".model").write_bytes(model.SerializeToString())


def main():
    shared = pathlib.Path(sys.argv[1])
    out = pathlib.Path(__file__).parent / "tokenizers"
    out.mkdir(exist_ok=True)
    made = {
        "falcon_like": falcon_like, "deepseek_like": deepseek_like, "added_tokens": added_tokens,
        "cl100k": lambda: pattern_bpe(CL100K, ignore_merges=True),
        "o200k": lambda: pattern_bpe(O200K), "tekken": lambda: pattern_bpe(TEKKEN),
        "qwen35": lambda: pattern_bpe(QWEN35),
        "unigram": lambda: unigram("always", False),
        "unigram_bytes": lambda: unigram("first", True),
        "metaspace_bpe": metaspace_bpe,
        "wordpiece": lambda: wordpiece(True), "wordpiece_cased": lambda: wordpiece(False),
    }
    goldens = {"tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__,
               "made": {}, "shared": {}}
    for name, make in made.items():
        path = out / f"{name}.json"
        description = json.loads(make().to_str())
        path.write_text(json.dumps(description, ensure_ascii=False, separators=(",", ":")) + "\n")
        goldens["made"][path.name] = json_golden(path)
    train_sentencepiece(out / "spm_unigram.model", model_type="unigram", vocab_size=600,
                        user_defined_symbols=["<special>", "ing"])
    train_sentencepiece(out / "spm_bpe.model", model_type="bpe", vocab_size=900, byte_fallback=True,
                        user_defined_symbols=["<special>", "ing"])
    train_sentencepiece(out / "spm_suffix.model", model_type="bpe", vocab_size=600,
                        treat_whitespace_as_suffix=True, remove_extra_whitespaces=False)
    for name in ("spm_unigram.model", "spm_bpe.model", "spm_suffix.model"):
        goldens["made"][name] = sentencepiece_golden(out / name)
    for name in ("tokenizers_hf/gpt2", "tokenizers_hf/qwen2.5", "tokenizers_hf/phi-3-mini",
                 "stories260K", "babyllama361", "slm4096_gpt2"):
        path = f"{name}/tokenizer.json"
        goldens["shared"][path] = json_golden(shared / path)
    for name in ("stories260K", "babyllama361"):
        path = f"{name}/tokenizer.model"
        goldens["shared"][path] = sentencepiece_golden(shared / path)
    pairs = {name: pair_golden(out / name) for name in ("wordpiece.json", "wordpiece_cased.json")}
    (out / "pairs.json").write_text(json.dumps(pairs) + "\n")
    (out / "goldens.json").write_text(json.dumps(goldens, indent=1) + "\n")


if __name__ == "__main__":
    main()
