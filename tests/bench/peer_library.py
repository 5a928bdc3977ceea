#!/usr/bin/env python3
"""Speed of a llama.cpp or ik_llama.cpp that was built by others: their C interface, loaded from a shared library.

    tests/bench/peer_library.py --library LIB.so MODEL.gguf

Packages on PyPI bring such libraries, for AVX2: `xllamacpp` (llama.cpp; its extension module is one) and
`ik-llama-cpp-python` (ik_llama.cpp; libllama in its folder of libraries). Prints one JSON object: tokens per second of a
prompt, of one stream behind it, and of several streams. Python's library alone.
"""

import argparse
import ctypes
import json
import pathlib
import time

# The parameters' fields differ from version to version. Those that are set here are found by their defaults; the rest
# stays what the library says. A larger structure than the library's may be passed and returned by value.
WORDS = 128


class Params(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint32 * WORDS)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
        ("rest", ctypes.c_int64 * 4),  # older versions have fields here
    ]


class Peer:
    def __init__(self, options):
        beside = [path for path in options.library.parent.glob("lib*.so*") if path != options.library]
        for path in beside * 2:  # they need each other, in an order that is not known
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            except OSError:
                pass
        lib = self.lib = ctypes.CDLL(options.library)
        lib.llama_model_default_params.restype = Params
        lib.llama_context_default_params.restype = Params
        lib.llama_batch_init.restype = Batch
        lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]
        lib.llama_synchronize.argtypes = [ctypes.c_void_p]
        self.is_ik = not hasattr(lib, "llama_get_memory")
        load = getattr(lib, "llama_model_load_from_file")
        load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p, Params]
        make = getattr(lib, "llama_init_from_model")
        make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_void_p, Params]
        if not self.is_ik:
            lib.llama_get_memory.restype, lib.llama_get_memory.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
            lib.llama_memory_clear.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        else:
            lib.llama_kv_cache_clear.argtypes = [ctypes.c_void_p]
        quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        self.quiet = quiet
        lib.llama_log_set(quiet, None)
        lib.llama_backend_init()
        model_params = lib.llama_model_default_params()
        if options.repack_at >= 0:
            ctypes.cast(ctypes.byref(model_params), ctypes.POINTER(ctypes.c_uint8))[options.repack_at] = 1
        self.model = load(options.model.encode(), model_params)
        params = lib.llama_context_default_params()
        first = 1 if self.is_ik else 0  # a seed comes first
        # Some versions give each sequence an equal part of the context.
        most = max(options.batches, default=1)
        context = most * (options.prompt + options.output + 8)
        params.words[first:first + 4] = [context, 2048, 512, most]
        # Threads for tokens and for prompts, 4 by default, are neighbours.
        threads = next(i for i in range(first + 4, WORDS) if params.words[i] == params.words[i + 1] == 4)
        params.words[threads:threads + 2] = [options.threads, options.threads]
        self.context = make(self.model, params)
        if not self.context:
            raise SystemExit("the library refuses the model")
        self.batch = lib.llama_batch_init(2048, 0, 1)

    def clear(self):
        if self.is_ik:
            self.lib.llama_kv_cache_clear(self.context)
        else:
            self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def run(self, rows):
        """rows: (position, sequence, whether it is sampled)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (position, sequence, sampled) in enumerate(rows):
            batch.token[i] = 100 + (7919 * i + 31 * position + sequence) % 20000
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = sampled
        if self.lib.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        self.lib.llama_synchronize(self.context)

    def timed(self, rows):
        began = time.perf_counter()
        self.run(rows)
        return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--output", type=int, default=24)
    parser.add_argument("--batch-prompt", type=int, default=16)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",") if n],
                        default=[8, 16, 32], help="streams; empty: none (ik_llama.cpp 0.1.5 stops at several)")
    parser.add_argument("--repack-at", type=int, default=-1, help="byte of the model's parameters that asks for repacking")
    parser.add_argument("model")
    options = parser.parse_args()
    peer = Peer(options)
    prompt = [(i, 0, i == options.prompt - 1) for i in range(options.prompt)]
    peer.run(prompt)  # to warm up
    peer.clear()
    figures = {"prefill": options.prompt / peer.timed(prompt)}
    seconds = sum(peer.timed([(options.prompt + i, 0, True)]) for i in range(options.output))
    figures["decode"] = options.output / seconds
    for count in options.batches:
        peer.clear()
        for sequence in range(count):
            peer.run([(i, sequence, i == options.batch_prompt - 1) for i in range(options.batch_prompt)])
        seconds = sum(peer.timed([(options.batch_prompt + i, sequence, True) for sequence in range(count)])
                      for i in range(options.output))
        figures[f"batch {count}"] = count * options.output / seconds
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
