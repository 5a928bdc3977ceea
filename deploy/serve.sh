#!/usr/bin/env bash
# Builds Heddle if needed and serves a model on http://127.0.0.1:8000.
#
#   ./deploy/serve.sh                         the bundled demo model
#   ./deploy/serve.sh /models/Qwen2.5-0.5B    a Hugging Face folder or a .gguf file
#   ./deploy/serve.sh --config heddle.yaml    the model that the file names
#   ./deploy/serve.sh MODEL --port 9000       any flag of `heddle serve` (see heddle serve --help)
#
# The first call installs the Debian packages it needs (root or sudo) and compiles; later ones go
# straight to serving. Code for NVIDIA GPUs is compiled where there is one, and nvcc; HEDDLE_CUDA=ON in
# the environment asks for it elsewhere, HEDDLE_CUDA=OFF leaves it out.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

fail() {
  echo "heddle: $1" >&2
  exit 2
}

# Prints the value of --NAME among the arguments, if it is given.
flag() {
  local name=$1 before=
  shift
  for argument; do
    if [ "$before" = "--$name" ]; then echo "$argument"; fi
    if [[ $argument == "--$name="* ]]; then echo "${argument#*=}"; fi
    before=$argument
  done
}

# These faults would show after some minutes of compiling, too: better known before.
check_before_building() {
  local model=${HEDDLE_MODEL:-} port config
  config=$(flag config "$@")$(printenv HEDDLE_CONFIG || true)
  if [[ ${1:--} != -* ]]; then model=$1; fi
  if [ -n "$model" ] && [ "$model" != demo ] && [ ! -e "$model" ]; then
    fail "there is no $model; MODEL is a Hugging Face folder or a .gguf file, and without one the demo model is served"
  fi
  if [ -n "$config" ] && [ ! -e "$config" ]; then fail "there is no $config, which --config names"; fi
  port=$(flag port "$@")
  port=${port:-${HEDDLE_PORT:-8000}}
  if [ -z "$config" ] && [[ $port =~ ^[1-9][0-9]*$ ]] && (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    fail "port $port of this machine is taken; choose another one: --port $((port % 65535 + 1))"
  fi
}

# The demo model where nothing else names one: no argument, HEDDLE_MODEL or configuration file.
demo=()
named=${HEDDLE_MODEL:-}${HEDDLE_CONFIG:-}
if [[ ${1:--} != -* || " $*" == *" --config"* ]]; then named=yes; fi
if [ -z "$named" ]; then demo=(demo); fi

if [ ! -x "$root/build/heddle" ]; then
  case " $* " in
    *" --help "* | *" -h "*)
      sed -n '2,11s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
  esac
  check_before_building "$@"
fi

"$root/deploy/install_packages.sh"
cuda=()
if [ -n "${HEDDLE_CUDA:-}" ]; then cuda=("-DHEDDLE_CUDA=$HEDDLE_CUDA"); fi
unset HEDDLE_CUDA  # no option of heddle
if [ ! -f "$root/build/build.ninja" ]; then
  echo "heddle: configuring" >&2
  (cd "$root" && cmake --preset release -DHEDDLE_TESTS=OFF "${cuda[@]}" >/dev/null)
elif [ ${#cuda[@]} -gt 0 ]; then
  (cd "$root" && cmake "${cuda[@]}" build >/dev/null)
fi
if ! ninja -C "$root/build" -n heddle 2>/dev/null | grep -q 'no work to do'; then
  echo "heddle: building, a few minutes the first time" >&2
  ninja -C "$root/build" heddle >&2
fi
exec "$root/build/heddle" serve "${demo[@]}" "$@"
