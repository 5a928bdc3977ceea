#!/usr/bin/env bash
# Builds Heddle if needed and serves a model on http://127.0.0.1:8000.
#
#   ./deploy/serve.sh                         the bundled demo model
#   ./deploy/serve.sh /models/Qwen2.5-0.5B    a Hugging Face folder or a .gguf file
#   ./deploy/serve.sh --config heddle.yaml    the model that the file names
#   ./deploy/serve.sh MODEL --port 9000       any flag of `heddle serve` (see heddle serve --help)
#
# The first call installs the Debian packages it needs (root or sudo) and compiles; later ones go
# straight to serving.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

# The demo model where nothing else names one: no argument, HEDDLE_MODEL or configuration file.
demo=()
named=${HEDDLE_MODEL:-}${HEDDLE_CONFIG:-}
if [[ ${1:--} != -* || " $*" == *" --config"* ]]; then named=yes; fi
if [ -z "$named" ]; then
  demo=("$root/tests/demo_model/model")
  # In the environment, so that --served-model-name wins.
  export HEDDLE_SERVED_MODEL_NAME=${HEDDLE_SERVED_MODEL_NAME:-heddle-demo}
fi

"$root/deploy/install_packages.sh"
if [ ! -f "$root/build/build.ninja" ]; then
  echo "heddle: configuring" >&2
  (cd "$root" && cmake --preset release -DHEDDLE_TESTS=OFF >/dev/null)
fi
if ! ninja -C "$root/build" -n heddle 2>/dev/null | grep -q 'no work to do'; then
  echo "heddle: building, a few minutes the first time" >&2
  ninja -C "$root/build" heddle >&2
fi
exec "$root/build/heddle" serve "${demo[@]}" "$@"
