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
# The limits that shares refer to are measured on the device itself (a large copy; a large BF16
# product, by cuBLASLt where libcublasLt.so is found).
# On the GPU machine everything ends within ten minutes: each part has a time of its own.
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

models() {
  if [ -n "${HEDDLE_GPU_MODELS:-}" ]; then echo "$HEDDLE_GPU_MODELS"; return; fi
  for m in ../shared/data/stories260K ../shared/data/stories260K/*.gguf \
           ../shared/data/babyllama361; do
    [ -e "$m" ] && echo "$m"
  done
}

# Memory and races over the op tests, the rest of the time.
sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer: not there"; return 0; }
  local tool failed=0
  for tool in memcheck racecheck; do
    timeout 100 compute-sanitizer --tool $tool --error-exitcode 1 "$1" ops >"$2/$tool.txt" 2>&1 ||
      { echo "$tool: see $2/$tool.txt"; failed=1; }
  done
  return $failed
}

table() {
  python3 -c '
import json, sys
for r in map(json.loads, open(sys.argv[1] + "/bench.jsonl")):
    if "device" in r:
        print("%s: copy %.2f TB/s, product %.0f TFLOP/s" %
              (r["device"], r["copy_TB_per_s"], r["matmul_TFLOP_per_s"]))
        continue
    rate = r.get("TB_per_s", r.get("TFLOP_per_s"))
    unit = "TB/s" if "TB_per_s" in r else "TFLOP/s"
    print("%-48s %10.1f us %9.2f %-8s %5.1f %%" % (r["name"], r["us"], rate, unit, 100 * r["share"]))
for r in map(json.loads, open(sys.argv[1] + "/serve.jsonl")):
    print("%-48s %10.0f output tok/s, first token %.1f ms, host %.1f %%" %
          (r["name"], r["output_tok_s"], r["first_token_ms_p50"], 100 * r["host_share"]))
' "$1"
}

run() {
  local out=${1:-build/gpu/results} check=build/gpu/gpu_check failed=0
  [ -x "$check" ] || check=build/gpu_check
  export LD_LIBRARY_PATH=$PWD/build/gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  mkdir -p "$out"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv | tee "$out/device.csv"
  timeout 120 "$check" ops | tee "$out/ops.txt" || failed=1
  : >"$out/models.txt"
  for model in $(models); do
    timeout 60 "$check" model "$model" | tee -a "$out/models.txt" || failed=1
  done
  timeout 150 "$check" bench >"$out/bench.jsonl" || failed=1
  : >"$out/serve.jsonl"
  for weights in bf16 q4_0; do
    for lengths in "128 128" "1000 200"; do
      # shellcheck disable=SC2086  # two numbers
      timeout 60 "$check" serve llama-3.1-8b $weights $lengths 256 >>"$out/serve.jsonl" || failed=1
    done
  done
  table "$out" | tee "$out/table.txt"
  sanitize "$check" "$out" || failed=1
  exit $failed
}

case ${1:-} in
  build) build ;;
  run) run "${2:-}" ;;
  -h|--help) sed -n '2,17s/^# \{0,1\}//p' "$0" ;;
  *) build; run "${1:-}" ;;
esac
