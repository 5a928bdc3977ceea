#!/usr/bin/env bash
# Checks and times the CUDA backend on a machine with an NVIDIA GPU, within ten minutes.
#
#   tests/gpu/run.sh build        builds gpu_check into build/gpu/ (needs nvcc and Abseil, no GPU)
#   tests/gpu/run.sh run [OUT]    runs it here; results go to OUT (default build/gpu/results)
#   tests/gpu/run.sh [OUT]        both
#
# On a GPU machine without Abseil, build elsewhere and carry build/gpu/gpu_check and build/gpu/lib:
# together they need nothing but libc and the driver. Models are taken from $HEDDLE_GPU_MODELS (folders or GGUF
# files, separated by spaces), or from ../shared/data where that is there.
# The limits that shares refer to are measured first (a large copy; a large BF16 product), with
# PyTorch if it is there, else taken as 4.3 TB/s and 790 TFLOP/s.
set -euo pipefail
cd "$(dirname "$0")/../.."

build() {
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEDDLE_CUDA=ON >/dev/null
  cmake --build build/gpu --target gpu_check
  # The shared libraries that another machine may lack travel beside the program.
  mkdir -p build/gpu/lib
  ldd build/gpu/gpu_check | awk '/libabsl|libstdc|libgcc/ { print $3 }' |
    xargs -I{} cp -L {} build/gpu/lib/
}

limits() {
  python3 - 2>/dev/null <<'PY' || echo "4.3 790"
import torch
def best(f, n=10):
    f(); f(); torch.cuda.synchronize()
    times = []
    for _ in range(n):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); f(); b.record(); torch.cuda.synchronize()
        times.append(a.elapsed_time(b) / 1e3)
    return sorted(times)[n // 2]
x = torch.randn(1 << 30, device="cuda"); y = torch.empty_like(x)
copy = best(lambda: y.copy_(x))
m = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16); w = torch.randn_like(m)
print(f"{2 * 4 * x.numel() / copy / 1e12:.3f} {2 * 8192**3 / best(lambda: m @ w) / 1e12:.1f}")
PY
}

models() {
  if [ -n "${HEDDLE_GPU_MODELS:-}" ]; then echo "$HEDDLE_GPU_MODELS"; return; fi
  for m in ../shared/data/stories260K ../shared/data/stories260K/*.gguf \
           ../shared/data/babyllama361; do
    [ -e "$m" ] && echo "$m"
  done
}

run() {
  local out=${1:-build/gpu/results} check=build/gpu/gpu_check failed=0
  [ -x "$check" ] || check=build/gpu_check
  export LD_LIBRARY_PATH=$PWD/build/gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  mkdir -p "$out"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv | tee "$out/device.csv"
  "$check" ops | tee "$out/ops.txt" || failed=1
  for model in $(models); do
    "$check" model "$model" | tee -a "$out/models.txt" || failed=1
  done
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      timeout 120 compute-sanitizer --tool $tool --error-exitcode 1 "$check" ops \
        >"$out/$tool.txt" 2>&1 || { echo "$tool: see $out/$tool.txt"; failed=1; }
    done
  fi
  read -r bandwidth flops < <(limits)
  echo "limits: $bandwidth TB/s copy, $flops TFLOP/s BF16" | tee "$out/limits.txt"
  "$check" bench "$bandwidth" "$flops" >"$out/bench.jsonl" || failed=1
  python3 -c '
import json, sys
for r in map(json.loads, open(sys.argv[1])):
    rate = r.get("TB_per_s", r.get("TFLOP_per_s"))
    unit = "TB/s" if "TB_per_s" in r else "TFLOP/s"
    print("%-48s %10.1f us %9.2f %-8s %5.1f %%" % (r["name"], r["us"], rate, unit, 100 * r["share"]))
' "$out/bench.jsonl" | tee "$out/table.txt"
  exit $failed
}

case ${1:-} in
  build) build ;;
  run) run "${2:-}" ;;
  -h|--help) sed -n '2,16s/^# \{0,1\}//p' "$0" ;;
  *) build; run "${1:-}" ;;
esac
