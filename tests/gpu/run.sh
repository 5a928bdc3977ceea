#!/usr/bin/env bash
# Checks and times the CUDA backend on a machine with an NVIDIA GPU, in calls of less than nine minutes.
#
#   tests/gpu/run.sh build                builds gpu_check into build/gpu/ (nvcc, no GPU)
#   tests/gpu/run.sh run [OUT [PART...]]  runs parts here; results go to OUT (build/gpu/results)
#   tests/gpu/run.sh [OUT [PART...]]      both
#   tests/gpu/run.sh --dry-run [PART...]  says what would run, and for how long at most
#
# Parts: ops (against the reference, each twenty times), shapes (a layer of real size against the CPU
# backend), same (a fixed load with one thing after the other left out: the same tokens), models (greedy
# tokens equal the reference's), bench (single ops), peers (PyTorch on the same shapes), serve (one
# stream, first token, offline throughput), hybrids (the same of models with convolutions and recurrences),
# tune (nano-batches), throughput (offline throughput again, with what tune found), sanitize (memory and
# races). Everything in three calls:
#   first   ops shapes same models   second   bench hybrids peers sanitize   third   serve tune
# Without any named: ops models bench serve, all that the goals of docs/benchmarks/gpu.md ask for, in one
# call. A later call with the same OUT completes its tables. OUT holds eight files at most; what the
# tables do not need is in rest.tar.
# Failures, and whose they are, stand at the head of OUT/table.txt; run.sh then ends with 1. An op that
# ends its program, or takes longer than 20 s, is noted, and ops go on with the next.
#
# On a GPU machine without what heddle is built with, build elsewhere and carry build/gpu/gpu_check
# and build/gpu/lib: together they need nothing but libc and the driver. Models are taken from
# $HEDDLE_GPU_MODELS (folders or GGUF files, separated by spaces), or the demo model and those of
# ../shared/data.
# Sums of two ranks, right and how long, on one GPU or two: build/gpu/gpu_check ranks 0 0 (or 0 1). They meet
# by each other's memory, through the host, and over NCCL if libnccl.so.2 is found ($LD_LIBRARY_PATH); one GPU
# has a group of one for that.
# The limits that shares refer to are measured on the device itself (a large copy; a large BF16
# product, by cuBLASLt). Of cuBLASLt the version that gpu_check was built with is taken from
# $HEDDLE_CUBLAS (a folder), the toolkit, or a Python package; without it run ends at once, as none
# of the goals for prompts would mean anything: HEDDLE_CUBLAS=none runs nevertheless.
set -euo pipefail
ulimit -c 0  # a fault of a device leaves gigabytes of core
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

default_parts="ops models bench serve"
# Seconds that each part may take. Those of one call are less than nine minutes together.
declare -A limit=([ops]=84 [shapes]=190 [same]=120 [models]=60 [bench]=115 [serve]=280
                  [peers]=90 [tune]=150 [throughput]=235 [sanitize]=200 [hybrids]=90)
# Words that stand for several parts.
declare -A call=([first]="ops shapes same models" [second]="bench hybrids peers sanitize"
                 [third]="serve tune")
# These stay as they are; the rest goes into one file.
kept="table.txt summary.json parts.txt ops.txt shapes.txt bench.jsonl serve.jsonl"
# Prompt/output/requests, of Llama 3.1 8B: enough requests to fill the GPU for the time that their
# goal allows some five times over.
offline="128/128/2048 128/2048/384 1000/1000/384 2048/128/256 5000/500/96"

build() {
  local generator=()
  if [ ! -e build/gpu/CMakeCache.txt ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S . -B build/gpu "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DHEDDLE_CUDA=ON \
    -DHEDDLE_GPU_CHECK_ALONE=ON -DHEDDLE_PTX=OFF >/dev/null  # a third of the size
  cmake --build build/gpu --target gpu_check -j "$(nproc)"
  # The shared libraries that another machine may lack travel beside the program.
  mkdir -p build/gpu/lib
  ldd build/gpu/gpu_check | awk '/libabsl|libstdc|libgcc/ { print $3 }' |
    xargs -I{} cp -L {} build/gpu/lib/
}

models() {
  if [ -n "${HEDDLE_GPU_MODELS:-}" ]; then echo "$HEDDLE_GPU_MODELS"; return; fi
  for m in share/demo-model ../shared/data/stories260K ../shared/data/stories260K/*.gguf \
           ../shared/data/babyllama361; do
    [ ! -e "$m" ] || echo "$m"
  done
}

# check FILE ARGUMENT...: gpu_check with those, into FILE of the results, within what is left of the
# part's time.
check() {
  local file=$1 left=$((deadline - SECONDS))
  shift
  if [ -n "$dry" ]; then echo "  gpu_check $*  > $file"; return 0; fi
  [ $left -gt 0 ] || { note "no time left for $*"; return 124; }
  limited "$left" "$program" "$@" >>"$out/$file" || failed_of $? "$@"
}

# note TEXT: why the part fails, for the head of the table.
note() {
  echo "$part: $1"
  case "; $why;" in *"; $1;"*) return ;; esac  # once
  why="${why:+$why; }$1"
}

# failed_of CODE COMMAND...: says what the exit code means, and returns it.
failed_of() {
  local code=$1
  shift
  case $code in
    1) note "$* failed" ;;
    77) note "$*: no usable GPU" ;;
    124|137) note "$*: out of time" ;;
    *) note "$* ended with exit code $code" ;;
  esac
  return "$code"
}

# limited SECONDS COMMAND...: with the libraries that gpu_check needs.
limited() {
  local seconds=$1
  shift
  LD_LIBRARY_PATH=$libraries timeout -k 5 "$seconds" "$@"
}

# The folder of the cuBLASLt that the program was built for.
find_cublas() {
  local name folder
  name=$(grep -aom1 'libcublasLt\.so\.[0-9]*' "$program" || true)
  [ -n "$name" ] || return 0  # built without
  for folder in "${HEDDLE_CUBLAS:-}" /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib \
      /usr/lib/x86_64-linux-gnu /opt/*/.venv/lib/python3*/site-packages/nvidia/{cu13,cublas}/lib; do
    [ -n "$folder" ] && [ -e "$folder/$name" ] && { echo "$folder"; return; }
  done
  folder=$(find / -xdev -name "$name" -print -quit 2>/dev/null || true)
  [ -z "$folder" ] || dirname "$folder"
}

# Results of an earlier call.
fresh() { [ -n "$dry" ] || rm -f "$out/$1"; }

# Each part ends with the status of what failed last.
part_ops() {
  local begun=0 before code failed=0
  fresh ops.txt
  while true; do
    before=$begun code=0
    HEDDLE_GPU_SKIP=$begun HEDDLE_GPU_SECONDS=20 check ops.txt ops || code=$?
    [ $code -eq 0 ] || failed=1
    [ -z "$dry" ] || return 0
    begun=$(grep -c '^run   ' "$out/ops.txt" || true)
    # Only what ended in the middle of an op is begun again, behind that one.
    case $code in 0|1|2|77|124|137) return $failed ;; esac
    [ "$begun" -gt "$before" ] || return $failed
    echo "FAIL  $(grep '^run   ' "$out/ops.txt" | tail -1 | cut -c7-): exit code $code" >>"$out/ops.txt"
  done
}

part_shapes() { fresh shapes.txt; check shapes.txt shapes; }

part_models() {
  local model failed=0 found
  fresh models.txt
  found=$(models)
  [ -n "${found// /}" ] || { note "there are no models, see HEDDLE_GPU_MODELS"; return 1; }
  for model in $found; do check models.txt model "$model" || failed=1; done
  return $failed
}

part_same() {
  local model failed=0
  fresh same.txt
  for model in $(models) "llama-3.1-8b bf16" "llama-3.1-8b q4_0" "llama-3.1-8b fp8"; do
    # shellcheck disable=SC2086  # a shape and its weights
    check same.txt same $model || failed=1
  done
  return $failed
}

part_peers() {
  fresh peers.jsonl
  if [ -n "$dry" ]; then echo "  peers.py  > peers.jsonl"; return 0; fi
  timeout -k 5 "${limit[peers]}" python3 -B "$here/peers.py" >"$out/peers.jsonl" || failed_of $? peers.py
}

part_bench() { fresh bench.jsonl; check bench.jsonl bench; }

part_serve() {
  local failed=0
  fresh serve.jsonl
  # 20 prompts of 200 tokens, one at a time: time to the first token of an idle GPU.
  check serve.jsonl serve llama-3.1-8b bf16 16/256/1 200/1/20@5 || failed=1
  check serve.jsonl serve llama-3.1-8b q4_0 16/256/1 200/1/20@5 || failed=1
  # shellcheck disable=SC2086  # several loads
  check serve.jsonl serve llama-3.1-8b fp8 16/256/1 200/1/20@5 128/256/256 128/256/256:settled $offline || failed=1
  return $failed
}

part_hybrids() {
  local failed=0 model
  fresh hybrids.jsonl
  for model in lfm2-1.2b qwen3.5-9b; do
    check hybrids.jsonl serve $model bf16 16/256/1 200/1/20@5 128/256/64 || failed=1
  done
  return $failed
}

part_tune() { fresh tune.jsonl; check tune.jsonl tune llama-3.1-8b fp8 "$out/tune_profile.jsonl"; }

part_throughput() {
  fresh split.jsonl
  # shellcheck disable=SC2086
  HEDDLE_TUNE_PROFILE=$out/tune_profile.jsonl check split.jsonl serve llama-3.1-8b fp8 $offline
}

part_sanitize() {
  local tool sanitizer failed=0
  # The toolkit's bin folder is often not in PATH.
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)
  [ -n "$dry$sanitizer" ] || { note "compute-sanitizer is not there"; return 1; }
  for tool in memcheck racecheck; do
    if [ -n "$dry" ]; then echo "  compute-sanitizer --tool $tool gpu_check ops"; continue; fi
    limited $((limit[sanitize] / 2)) "$sanitizer" --tool $tool --error-exitcode 1 \
      "$program" ops >"$out/$tool.txt" 2>&1 || { failed_of $? "$tool, see $out/$tool.txt:" || failed=1; }
  done
  return $failed
}

# tables: of all results so far. Python may be missing; the results are there nevertheless.
tables() {
  python3 -B "$here/summary.py" "$out" >"$out/table.txt" ||
    echo "no tables: summary.py failed; the results are in $out" | tee -a "$out/table.txt"
}

# pack and unpack: all but the files that are kept, into one and out of it.
pack() {
  local file rest=()
  for file in "$out"/*; do
    case " $kept rest.tar " in *" ${file##*/} "*) ;; *) rest+=("${file##*/}") ;; esac
  done
  [ ${#rest[@]} -gt 0 ] || return 0
  tar -C "$out" -cf "$out/rest.tar" "${rest[@]}" && (cd "$out" && rm -f "${rest[@]}")
}
unpack() { [ ! -e "$out/rest.tar" ] || tar -C "$out" -xf "$out/rest.tar"; }

# remember PART: whether it failed, in the place of what an earlier call said.
remember() {
  { grep -v "^$1 " "$out/parts.txt" 2>/dev/null || true; echo "$1 ${2:-ok}"; } >"$out/parts.new"
  mv "$out/parts.new" "$out/parts.txt"
}

run() {
  local part failed=0 total=0 deadline cublas libraries why
  program=build/gpu/gpu_check
  [ -x "$program" ] || program=build/gpu_check
  if [ -z "$dry" ]; then
    mkdir -p "$out"
    unpack
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv | tee "$out/device.csv" ||
      true
    cublas=$(find_cublas)
    echo "cuBLASLt: ${cublas:-not found}"
    [ -n "$cublas" ] || [ "${HEDDLE_CUBLAS:-}" = none ] ||
      { echo "run.sh: set HEDDLE_CUBLAS to its folder, or to none" >&2; exit 1; }
    libraries=$PWD/build/gpu/lib${cublas:+:$cublas}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  for part in "$@"; do
    [ -n "${limit[$part]:-}" ] ||
      { echo "run.sh: no part $part; there are ${!limit[*]}" >&2; exit 2; }
    total=$((total + limit[$part]))
    echo "$part, ${limit[$part]} s at most"
    deadline=$((SECONDS + limit[$part]))
    why=
    "part_$part" || { why=${why:-failed}; echo "$part: failed"; failed=1; }
    [ -z "$dry" ] || continue
    # After every part: what a limit on the whole call would cut off is there up to here.
    remember "$part" "$why"
    tables
  done
  echo "in all $total s"
  [ -n "$dry" ] && return 0
  pack
  for part in ops shapes; do  # same.txt is in rest.tar, its failures are in the table
    [ -e "$out/$part.txt" ] && grep -E "^(FAIL|[0-9]+ failed)" "$out/$part.txt" || true
  done
  cat "$out/table.txt"
  return $failed
}

dry=
out=build/gpu/results
case ${1:-} in
  build) build; exit ;;
  -h|--help) sed -n '2,32s/^# \{0,1\}//p' "$0"; exit ;;
  --dry-run) dry=yes; shift ;;
  run) shift; out=${1:-$out}; shift $(($# > 0 ? 1 : 0)) ;;
  *) build; out=${1:-$out}; shift $(($# > 0 ? 1 : 0)) ;;
esac
[ -z "${limit[$out]:-}${call[$out]:-}" ] || { echo "run.sh: OUT comes before the parts, and $out is one" >&2; exit 2; }
parts=
for word in "${@:-$default_parts}"; do parts+=" ${call[$word]:-$word}"; done
# shellcheck disable=SC2086  # parts are words
run $parts
