#!/usr/bin/env bash
# Installs what the tests need, builds, runs every test; ends with ctest's summary.
#
#   ./tests/run.sh              the release build: what CI runs
#   ./tests/run.sh --sanitize   first the suite under AddressSanitizer and UndefinedBehaviorSanitizer,
#                               and the threaded tests under ThreadSanitizer (about 40 minutes more)
#   ./tests/run.sh --long       also tests that take minutes each, for every night (ctest -C Long), one of
#                               them with transformers (3 GB in build/venv-golden)
#   ./tests/run.sh --skip-setup nothing is installed
#
# With nvcc, CUDA is compiled as well, also without a GPU: tests run its PTX on the host. HEDDLE_CUDA=OFF
# leaves it out. The release build compiles the sources of a folder together; --sanitize and `cmake
# --preset debug` compile each by itself, which shows includes that are missing.
#
# Data under ../shared/data is used where it is there; tests that need it and lack it are skipped by
# name. Tests that need Python clients use a virtual environment in build/venv.
set -euo pipefail
cd "$(dirname "$0")/.."

sanitize=0
setup=1
long=()
for arg in "$@"; do
  case $arg in
    --sanitize) sanitize=1 ;;
    --long) long=(-C Long) ;;
    --skip-setup) setup=0 ;;
    -h|--help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tests/run.sh: unknown option $arg (see --help)" >&2; exit 2 ;;
  esac
done
jobs=$(nproc)

if [ $setup -eq 1 ]; then
  ./deploy/install_packages.sh deploy/packages.txt tests/packages.txt
  if [ ! -x build/venv/bin/python ] || ! cmp -s tests/requirements.txt build/venv/requirements.txt; then
    python3 -m venv build/venv
    build/venv/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
    cp tests/requirements.txt build/venv/requirements.txt
  fi
  if [ ${#long[@]} -gt 0 ] && [ ! -x build/venv-golden/bin/python ]; then
    python3 -m venv build/venv-golden
    build/venv-golden/bin/pip install --quiet --disable-pip-version-check -r tests/golden/requirements.txt
  fi
fi

# build PRESET [-D...]: configures with warnings as errors and compiles everything, quietly if it
# works.
build() {
  echo "== building: $1"
  cmake --preset "$1" -DHEDDLE_TESTS=ON -DHEDDLE_WERROR=ON "${@:2}" >/dev/null
  cmake --build --preset "$1" -j "$jobs" -- --quiet
}

cuda=${HEDDLE_CUDA:-}
unset HEDDLE_CUDA  # no option of heddle
if [ -z "$cuda" ]; then
  cuda=OFF
  if PATH=$PATH:/usr/local/cuda/bin:${CUDA_PATH:-/usr/local/cuda}/bin command -v nvcc >/dev/null; then
    cuda=ON
  fi
fi

if [ $sanitize -eq 1 ]; then
  export HEDDLE_TIMEOUT_SCALE=20
  build asan
  echo "== tests under AddressSanitizer and UndefinedBehaviorSanitizer"
  ctest --test-dir build-asan -j "$jobs" --output-on-failure -LE 'bench|nosan'
  build tsan
  echo "== tests of threads under ThreadSanitizer"
  ctest --test-dir build-tsan -j "$jobs" --output-on-failure -L threads
fi
unset HEDDLE_TIMEOUT_SCALE
build release "-DHEDDLE_CUDA=$cuda"
ctest --test-dir build -j "$jobs" --output-on-failure "${long[@]}"
