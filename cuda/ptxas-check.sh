#!/bin/sh
# Reads ptxas' report of a kernel file; fails on a spill, and on the warnings that say wgmma was serialised or
# setmaxnreg ignored. Prints what is wrong.
set -eu
if ! grep -q 'ptxas info' "$1"; then
  echo "ptxas-check: $1: there is no report of ptxas in it, so spills cannot be ruled out" >&2
  exit 1
fi
if grep -nE 'C75(08|10|11|14|15)' "$1" >&2; then
  echo "ptxas-check: $1: the warp-specialised pipeline was not compiled as written" >&2
  exit 1
fi
if grep -nE '[1-9][0-9]* bytes spill (stores|loads)' "$1" >&2; then
  echo "ptxas-check: $1: registers spill" >&2
  exit 1
fi
grep -vE 'ptxas info|bytes stack frame|^$' "$1" >&2 || true
