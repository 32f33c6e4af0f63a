#!/usr/bin/env bash
# Checks and times the CUDA data plane on the GPUs of this machine. Builds nothing and uses no network: run `make cuda`
# first (anywhere). Needs python3 with PyTorch for the timing. Ends with one table of at most 60 lines.
#
#   scripts/gpu-check.sh [FOLDER]     logs and JSON files go to FOLDER (default build/gpu-check)
#
# NVLink multicast is never used; the variables that keep it off in other libraries are left as they are.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${1:-build/gpu-check}
mkdir -p "$out"
rm -f "$out"/*.log "$out"/*.json

program=build/gpu_ag_gemm
if ! [ -x "$program" ] || ! [ -f build/libmkernel.so ] || ! [ -f build/plans/written ]; then
  echo "gpu-check: build/ is empty, run 'make cuda' first" >&2
  exit 2
fi
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
[ "$gpus" -gt 0 ] || { echo "gpu-check: no GPU here" >&2; exit 2; }
ranks=$((gpus < 2 ? 1 : 2))
failed=0

step() {  # step SECONDS LOG COMMAND...: runs a command into a log
  local limit=$1 log=$2
  shift 2
  if ! timeout "$limit" "$@" > "$out/$log" 2>&1; then
    echo "gpu-check: failed: $* (see $out/$log)"
    failed=1
  fi
}

nvidia-smi --query-gpu=index,name,driver_version,power.limit,clocks.max.sm --format=csv,noheader
nvidia-smi topo -m 2>/dev/null | head -n $((gpus + 1))

for n in $(seq 1 "$ranks"); do step 90 "ranks$n.log" "$program" "$n"; done
if [ "$ranks" -gt 1 ]; then
  step 60 "dead-peer.log" "$program" "$ranks" dead
  step 60 "3-chunks.log" "$program" "$ranks" brief 3
  step 60 "2x1.log" "$program" 2 brief 16 2  # two emulated nodes
  step 60 "2x1-dead.log" "$program" 2 dead 16 2
fi
step 60 example.log build/example_ag_gemm "$ranks" "build/plans/ag_gemm-1x$ranks-c1"
[ -s "$out/example.log" ] && ! grep -qv ' 0 of ' "$out/example.log" && echo "$ranks passed, 0 failed" >> "$out/example.log"

# More ranks than GPUs, in one node and in two emulated ones. The MPS daemon lives for these runs only.
if [ "$ranks" -gt 1 ] && command -v nvidia-cuda-mps-control > /dev/null; then
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  if nvidia-cuda-mps-control -d; then
    for n in 4 8; do step 90 "ranks$n-mps.log" "$program" "$n" brief; done
    step 90 2x2-mps.log "$program" 4 brief 2 2
    step 120 2x8-mps.log "$program" 16 brief 1 2
    echo quit | nvidia-cuda-mps-control > /dev/null
  fi
  rm -rf "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
fi
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck synccheck; do
    step 120 "$tool.log" compute-sanitizer --tool "$tool" "$program" 1 quick
  done
fi

bench=(python3 -W ignore scripts/gpu/bench.py)
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
step 90 gemm-eager.txt "${bench[@]}" gemm --rounds 4 --json "$out/gemm-eager.json"
step 90 gemm-queued.txt "${bench[@]}" gemm --rounds 4 --queued 0.2 --json "$out/gemm-queued.json"
if [ "$ranks" -gt 1 ]; then
  step 120 ag-eager.txt "${bench[@]}" ag --rounds 4 --configs "" "mover=sm" "mover=ce" --json "$out/ag-eager.json"
  step 120 ag-queued.txt "${bench[@]}" ag --rounds 4 --queued 0.9 --configs "" "mover=sm" "mover=ce" --json "$out/ag-queued.json"
  step 90 ag-nodes.txt "${bench[@]}" ag --rounds 3 --nodes 2 --net 50 --shapes 8192,4096,8192:chunks=8 8192,8192,8192:chunks=8 \
    --json "$out/ag-nodes.json"
fi
grep -h -E "WRONG|FAILED|failed" "$out"/*.txt && failed=1

python3 scripts/gpu/report.py "$out" | tee "$out/table.txt" | head -n 60
exit "$failed"
