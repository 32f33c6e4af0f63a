#!/usr/bin/env bash
# Prints the root of a CUDA compiler (the folder that holds bin/nvcc) on stdout.
#
# Taken in this order: CUDA_HOME, nvcc on PATH (both only if they are 12.9 or newer), else the pinned
# CUDA 13.0 packages from PyPI, installed once into .tools/cuda-<version>. Needs neither root nor a GPU.
# Everything but the path goes to stderr. MKRUN_TOOLS overrides the folder .tools.
#
#   scripts/cuda-toolchain.sh [--have]   --have: installs nothing; status 1 if there is none
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

# release NVCC: which release it is of, such as 12.9; nothing if it does not run.
release() { "$1" --version 2> /dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p'; }

# try WHAT ROOT: takes the compiler in this folder if it runs and is MIN_MAJOR.MIN_MINOR or newer, else says why not.
try() {
  local found major minor
  found=$(release "$2/bin/nvcc") || :
  major=${found%%.*} minor=${found#*.}
  if [ -z "$found" ]; then
    say "$1: there is no bin/nvcc that runs in $2: not used"
  elif [ "$major" -gt "$MIN_MAJOR" ] || { [ "$major" -eq "$MIN_MAJOR" ] && [ "$minor" -ge "$MIN_MINOR" ]; }; then
    printf '%s\n' "$2"
    exit 0
  else
    say "$1: nvcc in $2 is $found, and $MIN_MAJOR.$MIN_MINOR or newer is needed: not used"
  fi
}

[ -z "${CUDA_HOME:-}" ] || try CUDA_HOME "$CUDA_HOME"
if path_nvcc=$(command -v nvcc); then
  try PATH "$(dirname "$(dirname "$(readlink -f "$path_nvcc")")")"
fi
[ ! -f "$dest/.complete" ] || try "$tools" "$dest/nvidia/cu13"
[ "${1:-}" != --have ] || exit 1

say "installing the CUDA 13.0 compiler into $dest"
mkdir -p "$tools"
part=$(mktemp -d "$tools/.cuda.XXXXXX")
trap 'rm -rf "$part"' EXIT
if ! "$root/scripts/again.sh" python3 -m pip install --upgrade --quiet --disable-pip-version-check --no-deps --no-compile \
  --only-binary=:all: --target "$part" "${PINS[@]}" >&2; then
  say "the CUDA compiler could not be installed: pip's words are above. Without network set CUDA_HOME to a CUDA of $MIN_MAJOR.$MIN_MINOR or newer, or bring $dest along from another machine"
  exit 1
fi
cu=$part/nvidia/cu13
[ -x "$cu/bin/nvcc" ] || { say "the packages hold no bin/nvcc at the expected place"; exit 1; }
# nvcc looks for the static runtime in lib64, the packages put it in lib.
[ -e "$cu/lib64" ] || ln -s lib "$cu/lib64"
touch "$part/.complete"
rm -rf "$dest"
mv "$part" "$dest"
trap - EXIT
try "$tools" "$dest/nvidia/cu13"
exit 1
