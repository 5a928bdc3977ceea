#!/usr/bin/env python3
"""Times what PyTorch does with the shapes of `gpu_check bench`, on the same GPU and in the same call.

    peers.py [NAME]      those with NAME in their names; JSON lines like gpu_check's, as they come

For the same work by other hands: linear layers (cuBLAS), FP8 products (_scaled_mm), attention (SDPA),
grouped products of experts, int4 products, and a decoding loop of Llama 3.1 8B's layers compiled with
CUDA graphs. Where PyTorch or a GPU is missing, one line says so, and the exit code is 0: peers are no
condition for anything. What a version of PyTorch lacks is a line with "lacks".
"""
import json
import sys
import time

COLD_BYTES = 256 << 20  # more than any L2
HIDDEN, INTER, HEADS, KV_HEADS, DIM, LAYERS = 4096, 14336, 32, 8, 128, 32


def say(**fields):
    print(json.dumps(fields), flush=True)


def median(values):
    return sorted(values)[len(values) // 2]


class Timer:
    def __init__(self, torch):
        self.torch = torch
        self.cold = torch.empty(COLD_BYTES, dtype=torch.uint8, device="cuda")

    def us(self, run, repeats=20):
        """The median of runs that each find the L2 filled with something else."""
        torch = self.torch
        for _ in range(3):
            run()
        times = []
        for _ in range(repeats):
            self.cold.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        return median(times)


def linears(torch, timer):
    size = 8192
    weight = torch.randn(size, size, dtype=torch.bfloat16, device="cuda") / 90
    for rows in (1, 8, 16, 32, 64, 128, 200, 512, 4096):
        x = torch.randn(rows, size, dtype=torch.bfloat16, device="cuda")
        yield (f"torch linear bf16 {size} x {size}, {rows} rows", 2 * rows * size * size,
               2 * size * size, lambda x=x: torch.nn.functional.linear(x, weight))


def scaled(torch, timer):
    size = 8192
    weight = torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn)
    scales = torch.ones(1, size, device="cuda")
    for rows in (16, 64, 256, 512, 4096):
        x = torch.randn(rows, size, device="cuda").to(torch.float8_e4m3fn)
        own = torch.ones(rows, 1, device="cuda")
        yield (f"torch fp8 per row {size} x {size}, {rows} rows", 2 * rows * size * size, size * size,
               lambda x=x, own=own: torch._scaled_mm(x, weight.t(), scale_a=own, scale_b=scales,
                                                     out_dtype=torch.bfloat16))


def attention(torch, timer):
    def heads(sequences, count, tokens):
        return torch.randn(sequences, count, tokens, DIM, dtype=torch.bfloat16, device="cuda")

    attend = torch.nn.functional.scaled_dot_product_attention
    for sequences, context in ((64, 1024), (64, 8192), (1, 32768)):
        q, k, v = heads(sequences, HEADS, 1), *(heads(sequences, KV_HEADS, context) for _ in "kv")
        yield (f"torch decode attention bf16, {sequences} sequences of {context}", None,
               4 * sequences * context * KV_HEADS * DIM,
               lambda q=q, k=k, v=v: attend(q, k, v, enable_gqa=True))
    for tokens in (2048, 16384):
        q, k, v = heads(1, HEADS, tokens), *(heads(1, KV_HEADS, tokens) for _ in "kv")
        yield (f"torch prefill attention bf16, {tokens} tokens", 2 * tokens * tokens * HEADS * DIM,
               None, lambda q=q, k=k, v=v: attend(q, k, v, is_causal=True, enable_gqa=True))


def grouped(torch, timer):
    experts, width, inter = 64, 2048, 1408
    weight = torch.randn(experts, width, inter, dtype=torch.bfloat16, device="cuda") / 45
    for rows in (512, 4096):
        x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
        ends = torch.arange(1, experts + 1, dtype=torch.int32, device="cuda") * (rows // experts)
        yield (f"torch grouped bf16 {experts} x {inter} x {width}, {rows} rows",
               2 * rows * width * inter, 2 * experts * width * inter,
               lambda x=x, ends=ends: torch._grouped_mm(x, weight, offs=ends))


def four_bits(torch, timer):
    size, group = 8192, 32
    codes = torch.randint(0, 255, (size, size // 2), dtype=torch.uint8, device="cuda")
    packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
    scales = torch.ones(size // group, size, 2, dtype=torch.bfloat16, device="cuda")
    for rows in (1, 16, 64):
        x = torch.randn(rows, size, dtype=torch.bfloat16, device="cuda")
        yield (f"torch int4 {size} x {size}, {rows} rows", 2 * rows * size * size, size * size // 2,
               lambda x=x: torch.ops.aten._weight_int4pack_mm(x, packed, group, scales))


def decoding(torch, timer):
    """One stream through all layers, with a context of 128, as one compiled function."""
    F = torch.nn.functional
    kinds = {"dtype": torch.bfloat16, "device": "cuda"}
    width = (HEADS + 2 * KV_HEADS) * DIM
    layers = [(torch.randn(width, HIDDEN, **kinds) / 64, torch.randn(HIDDEN, HIDDEN, **kinds) / 64,
               torch.randn(2 * INTER, HIDDEN, **kinds) / 64,
               torch.randn(HIDDEN, INTER, **kinds) / 120) for _ in range(LAYERS)]
    keys = torch.randn(LAYERS, 1, KV_HEADS, 128, DIM, **kinds)
    values = torch.randn(LAYERS, 1, KV_HEADS, 128, DIM, **kinds)
    norm = torch.ones(HIDDEN, **kinds)

    def step(x):
        for i, (qkv, out, up, down) in enumerate(layers):
            normed = F.rms_norm(x, (HIDDEN,), norm)
            q = F.linear(normed, qkv)[..., :HEADS * DIM].view(1, HEADS, 1, DIM)
            mixed = F.scaled_dot_product_attention(q, keys[i], values[i], enable_gqa=True)
            x = x + F.linear(mixed.reshape(1, HIDDEN), out)
            gate, inner = F.linear(F.rms_norm(x, (HIDDEN,), norm), up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * inner, down)
        return x

    compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    x = torch.randn(1, HIDDEN, **kinds)
    bytes_read = 2 * LAYERS * (width * HIDDEN + HIDDEN * HIDDEN + 3 * INTER * HIDDEN)
    yield ("torch compiled decoding, layers of llama-3.1-8b, one stream", None, bytes_read,
           lambda: compiled(x))


def main(name):
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        return say(peers=f"PyTorch is not there: {error}")
    if not torch.cuda.is_available():
        return say(peers=f"PyTorch {torch.__version__} sees no GPU")
    say(peers=f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}",
        device=torch.cuda.get_device_name())
    timer = Timer(torch)
    begin = time.monotonic()
    with torch.inference_mode():
        for family in (linears, scaled, attention, grouped, four_bits, decoding):
            try:
                for what, flops, moved, run in family(torch, timer):
                    if name not in what:
                        continue
                    us = timer.us(run)
                    rates = {"TFLOP_per_s": round(flops / us / 1e6, 1)} if flops else {}
                    if moved:
                        rates["TB_per_s"] = round(moved / us / 1e6, 3)
                    say(name=what, us=round(us, 2), **rates)
            except (AttributeError, RuntimeError, TypeError, NotImplementedError) as error:
                say(lacks=family.__name__, why=str(error).splitlines()[0][:200])
    say(seconds=round(time.monotonic() - begin, 1))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
