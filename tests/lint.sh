#!/usr/bin/env bash
# clang-tidy over the sources of the program (not its tests), with the checks of .clang-tidy.
# Usage: tests/lint.sh [--deep] [BUILD_DIR [FILE...]]; the build directory holds
# compile_commands.json. --deep adds the static analyzer, which takes three times as long.
set -euo pipefail
cd "$(dirname "$0")/.."

checks=-clang-analyzer-*
if [ "${1:-}" = --deep ]; then
  checks=
  shift
fi
build=${1:-build}
shift || true
if [ ! -f "$build/compile_commands.json" ]; then
  echo "tests/lint.sh: $build/compile_commands.json is missing; configure first" >&2
  exit 2
fi
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(git ls-files 'base/*.cc' 'config/*.cc' 'kernels/*.cc' 'engine/*.cc' \
                                    'scheduler/*.cc' 'server/*.cc')
fi
printf '%s\0' "${files[@]}" |
  xargs -0 -n 4 -P "$(nproc)" clang-tidy-14 -p "$build" --quiet --checks="$checks" \
    --extra-arg=-Wno-unknown-warning-option \
    2> >(grep -v 'warnings generated' >&2)
