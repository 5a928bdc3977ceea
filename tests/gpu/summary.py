"""Tables of a folder of tests/gpu/run.sh's results: the goals and whether they are met, then every
measurement. Also writes them to summary.json there.

    python3 tests/gpu/summary.py OUT
"""
import json
import os
import sys

PROMPTS = ["128/128", "128/2048", "1000/1000", "2048/128", "5000/500"]
OFFLINE = [35000, 30000, 20000, 4400, 4600]  # output tokens a second


def read(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    rows = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("{"):
                continue
            try:
                rows.append(json.loads(line))
            except ValueError:  # cut off by a limit, or a number that is none
                print(f"{name}: not readable: {line.strip()[:80]}")
    return rows


def parts(folder):
    """(part, "ok" or why it failed), as run.sh leaves them."""
    path = os.path.join(folder, "parts.txt")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as lines:
        return [line.strip().split(" ", 1) for line in lines]


def by_name(rows):
    """Of loads, those whose requests all succeeded."""
    return {row["name"]: row for row in rows if "name" in row and not row.get("failed")}


def served(rows, weights, load):
    """The row of a load of Llama 3.1 8B, whatever its number of requests, planned ahead."""
    for name, row in rows.items():
        if name.startswith(f"llama-3.1-8b {weights} {load}/") and not name.endswith(":settled"):
            return row
    return None


def field(row, name, factor=1.0):
    return None if row is None else row[name] * factor


def single_stream(rows, weights):
    gap = field(served(rows, weights, "16/256"), "between_tokens_ms_p50")
    return None if not gap else 1000 / gap


def goals(bench, serve, loads):
    """(what, unit, goal, measured or None, whether less is better)."""
    def share(name):
        return field(bench.get(name), "share", 100)

    def time_of(weights):
        return field(bench.get(f"linear {weights} 8192 x 8192, 16 rows"), "us")

    bf16, four = time_of("bf16"), time_of("q4_0")
    found = [
        ("8B BF16, one stream", "tok/s", 255, single_stream(serve, "bf16"), False),
        ("8B FP8, one stream", "tok/s", 450, single_stream(serve, "fp8"), False),
        ("8B 4 bits, one stream", "tok/s", 668, single_stream(serve, "q4_0"), False),
        ("first token, 200-token prompt, BF16", "ms", 5,
         field(served(serve, "bf16", "200/1"), "first_token_ms_p50"), True),
        ("first token, 200-token prompt, FP8", "ms", 5,
         field(served(serve, "fp8", "200/1"), "first_token_ms_p50"), True),
        ("decode attention BF16, 64 x 8192", "% of copy", 88,
         share("decode attention bf16, 64 sequences of 8192"), False),
        ("decode attention BF16, 64 x 1024", "% of copy", 75,
         share("decode attention bf16, 64 sequences of 1024"), False),
        ("prefill attention, 16384 tokens", "TFLOP/s", 550,
         field(bench.get("prefill attention bf16, 16384 tokens"), "TFLOP_per_s"), False),
        ("4-bit product at 16 rows", "x BF16", 3.5,
         None if not four or not bf16 else bf16 / four, False),
        ("host share of a step at 256 sequences", "%", 2,
         field(served(serve, "fp8", "128/256"), "host_share", 100), True),
        ("start, 8B BF16", "s", 10, loads.get("llama-3.1-8b bf16"), True),
    ]
    for lengths, goal in zip(PROMPTS, OFFLINE):
        found.append((f"offline 8B FP8 {lengths}", "tok/s", goal,
                      field(served(serve, "fp8", lengths), "output_tok_s"), False))
    return found


def goal_line(what, unit, goal, value, less):
    if value is None:
        return f"{what:<40} {goal:>9g} {'not measured':>14}  {unit}"
    met = value <= goal if less else value >= goal
    digits = 0 if value >= 1000 else 2
    return f"{what:<40} {goal:>9g} {value:>14.{digits}f}  {unit:<10} {'met' if met else 'missed'}"


def clocks(row):
    """Of the GPU while the row was measured; "" where nobody looked."""
    if "sm_MHz" not in row:
        return ""
    return f"  {row['sm_MHz']:.0f} MHz (least {row['least_sm_MHz']:.0f}), {row['W']:.0f} W"


def bench_line(row):
    unit = "TB/s" if "TB_per_s" in row else "TFLOP/s"
    rate = row.get("TB_per_s", row.get("TFLOP_per_s"))
    share = f" {100 * row['share']:>5.1f} %" if "share" in row else ""
    return f"{row['name']:<48} {row['us']:>10.1f} us {rate:>9.2f} {unit:<8}{share}{clocks(row)}"


def serve_line(row):
    failed = f", {row['failed']} of {row['requests']} requests FAILED" if row.get("failed") else ""
    return (f"{row['name']:<48} {row['output_tok_s']:>10.0f} output tok/s, first token "
            f"{row['first_token_ms_p50']:.1f} ms, host {100 * row['host_share']:.1f} %{clocks(row)}{failed}")


def main(folder):
    for part, state in parts(folder):
        print(f"{part}: {state}" if state == "ok" else f"{part}: FAILED: {state}")
    bench, serve = read(folder, "bench.jsonl"), read(folder, "serve.jsonl")
    split, tune = read(folder, "split.jsonl"), read(folder, "tune.jsonl")
    hybrids = read(folder, "hybrids.jsonl")
    loads = {row["model"]: row["load_s"] for row in serve if "load_s" in row}
    found = goals(by_name(bench), by_name(serve), loads)
    for row in bench:
        if "copy_TB_per_s" in row:
            print(f"{row['device']}: copy {row['copy_TB_per_s']:.2f} TB/s, product "
                  f"{row['matmul_TFLOP_per_s']:.0f} TFLOP/s\n")
    print(f"{'':<40} {'goal':>9} {'measured':>14}")
    for row in found:
        print(goal_line(*row))
    print()
    for row in bench:
        if "us" in row:
            print(bench_line(row))
    peers = read(folder, "peers.jsonl")
    for row in peers:
        if "peers" in row:
            print(f"\npeers: {row['peers']}")
        elif "lacks" in row:
            print(f"lacks {row['lacks']}: {row['why']}")
        elif "us" in row:
            print(bench_line(row))
    for title, rows in (("", serve), ("with convolutions and recurrences:", hybrids),
                        ("with nano-batches:", split)):
        rows = [row for row in rows if "output_tok_s" in row]
        if rows and title:
            print("\n" + title)
        for row in rows:
            print(serve_line(row))
    choices = [row["choice"] for row in bench + serve + hybrids if "choice" in row]
    if choices:
        print("\nways to make products, what was chosen first:")
        for choice in dict.fromkeys(choices):
            print(choice)
    for row in tune:
        if "whole_us" in row:
            print(f"{row['name']:<48} {row['whole_us']:>10.0f} us whole, {row['split_us']:.0f} split, "
                  f"{row['attention_multiprocessors']} multiprocessors for attention")
    with open(os.path.join(folder, "summary.json"), "w", encoding="utf-8") as out:
        json.dump([{"what": what, "unit": unit, "goal": goal, "measured": value,
                    "less_is_better": less} for what, unit, goal, value, less in found], out, indent=1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
