#!/usr/bin/env bash
# Prints the root of a CUDA compiler (the folder that holds bin/nvcc) on stdout.
#
# Taken in this order: CUDA_HOME, nvcc on PATH (both only if they are 12.9 or newer), else the pinned
# CUDA 13.0 packages from PyPI, installed once into .tools/cuda-<version>. Needs neither root nor a GPU.
# Everything but the path goes to stderr. MKRUN_TOOLS overrides the folder .tools.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -euo pipefail

readonly MIN_MAJOR=12 MIN_MINOR=9
readonly PINS=(
  nvidia-cuda-nvcc==13.0.88
  nvidia-cuda-runtime==13.0.96
  nvidia-cuda-crt==13.0.88
  nvidia-cuda-cccl==13.0.85
  nvidia-nvvm==13.0.88
)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=${MKRUN_TOOLS:-$root/.tools}
dest=$tools/cuda-13.0.88

say() { printf 'cuda-toolchain: %s\n' "$*" >&2; }

# new_enough NVCC: true if this nvcc runs and is MIN_MAJOR.MIN_MINOR or newer.
new_enough() {
  local v major minor
  v=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p') || return 1
  [ -n "$v" ] || return 1
  major=${v%%.*} minor=${v#*.}
  [ "$major" -gt "$MIN_MAJOR" ] || { [ "$major" -eq "$MIN_MAJOR" ] && [ "$minor" -ge "$MIN_MINOR" ]; }
}

try() {
  if [ -x "$1/bin/nvcc" ] && new_enough "$1/bin/nvcc"; then
    printf '%s\n' "$1"
    exit 0
  fi
}

if [ -n "${CUDA_HOME:-}" ]; then
  try "$CUDA_HOME"
  say "CUDA_HOME, $CUDA_HOME, has no bin/nvcc that runs and is $MIN_MAJOR.$MIN_MINOR or newer: not used"
fi
if path_nvcc=$(command -v nvcc); then
  try "$(dirname "$(dirname "$(readlink -f "$path_nvcc")")")"
  say "nvcc on PATH, $path_nvcc, does not run or is older than $MIN_MAJOR.$MIN_MINOR: not used"
fi
[ -f "$dest/.complete" ] && try "$dest/nvidia/cu13"

say "installing the CUDA 13.0 compiler into $dest"
mkdir -p "$tools"
part=$(mktemp -d "$tools/.cuda.XXXXXX")
trap 'rm -rf "$part"' EXIT
"$root/scripts/again.sh" python3 -m pip install --upgrade --quiet --disable-pip-version-check --no-deps --no-compile \
  --only-binary=:all: --target "$part" "${PINS[@]}" >&2
cu=$part/nvidia/cu13
[ -x "$cu/bin/nvcc" ] || { say "the packages hold no bin/nvcc at the expected place"; exit 1; }
# nvcc looks for the static runtime in lib64, the packages put it in lib.
[ -e "$cu/lib64" ] || ln -s lib "$cu/lib64"
touch "$part/.complete"
rm -rf "$dest"
mv "$part" "$dest"
trap - EXIT
try "$dest/nvidia/cu13"
say "the installed compiler does not run"
exit 1
