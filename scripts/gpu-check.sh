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
if ! [ -x "$program" ] || ! [ -f build/libmkernel.so ]; then
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
[ "$ranks" -gt 1 ] && step 60 "dead-peer.log" "$program" "$ranks" dead
step 60 example.log build/example_ag_gemm "$ranks"
[ -s "$out/example.log" ] && ! grep -qv ' 0 of ' "$out/example.log" && echo "$ranks passed, 0 failed" >> "$out/example.log"

# More ranks than GPUs: MPS gives each its share of the SMs. Its daemon lives for these two runs only.
if [ "$ranks" -gt 1 ] && command -v nvidia-cuda-mps-control > /dev/null; then
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  if nvidia-cuda-mps-control -d; then
    for per_gpu in 2 4; do
      CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / per_gpu)) step 90 "ranks$((per_gpu * ranks))-mps.log" \
        "$program" $((per_gpu * ranks))
    done
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
fi
grep -h -E "WRONG|FAILED|failed" "$out"/*.txt && failed=1

python3 scripts/gpu/report.py "$out" | tee "$out/table.txt" | head -n 60
exit "$failed"
