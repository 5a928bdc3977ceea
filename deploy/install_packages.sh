#!/usr/bin/env bash
# Installs the Debian packages listed in the given files (default: deploy/packages.txt), if any is
# missing. Needs root or sudo only then. Usage: install_packages.sh [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."

files=("$@")
[ ${#files[@]} -gt 0 ] || files=(deploy/packages.txt)
mapfile -t wanted < <(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "${files[@]}")

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ $status == *"install ok installed"* ]] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "heddle: this is no Debian (apt-get is missing); install what corresponds to: ${missing[*]}" >&2
  exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "heddle: packages are missing, and installing them needs root or sudo. As root:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  sudo=(sudo)
fi
echo "heddle: installing ${missing[*]}" >&2
# One of several package sources may be out of reach without being needed: installing tells.
"${sudo[@]}" apt-get update -qq >&2 || true
if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2; then
  echo "heddle: installing packages failed; apt-get says why above. They come over the network, from the" >&2
  echo "sources in /etc/apt: where there is a proxy, set http_proxy. Debian 12 has all of them." >&2
  exit 1
fi
