#!/usr/bin/env bash
# Checks and times the CUDA data plane on the GPUs of this machine. One is enough: ranks then share it under MPS; with two or more
# the fused operator is timed beside what else there is. Builds nothing and uses no network: run `make build cuda` first, anywhere,
# and bring along (below 64 MiB together)
#
#   bin/mkrun build/libmkernel.so build/gpu_ag_gemm build/gpu_measure build/example_ag_gemm build/plans
#
# The timing needs python3 with PyTorch. Ends with one table of at most 60 lines.
#
#   scripts/gpu-check.sh [OPTIONS] [FOLDER]   logs and JSON files go to FOLDER (default build/gpu-check)
#   --seconds S        for everything (default 200 on one GPU, 540 on more); what no time is left for is said
#   --dry-run[=N]      list the commands for N GPUs (default: those here), run nothing
#
# Exit status: 0; 1 something failed, or was cut or left out; 2 bad command line, nothing built, no GPU. NVLink multicast is not
# used: the variables below keep it off in other libraries.
set -uo pipefail
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

say() { printf 'gpu-check: %s\n' "$*" >&2; }
usage() {
  say "$*; --help says what it takes"
  exit 2
}

out='' pretended='' seconds='' show=''
number() { case $2 in '' | *[!0-9]* | 0* | ???????*) usage "$1 \"$2\": a number is wanted, from 1 to 999999 and without zeros in front" ;; esac }
while [ $# -gt 0 ]; do
  case $1 in
    --seconds)
      [ $# -gt 1 ] || usage "$1 wants a value"
      number "$1" "$2" && seconds=$2
      shift
      ;;
    --dry-run) show=yes ;;
    --dry-run=*) show=yes pretended=${1#*=} && number --dry-run "$pretended" ;;
    -h | --help)
      sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
      exit
      ;;
    -*) usage "no such option: $1" ;;
    *) [ -z "$out" ] || usage "one folder only: $1" && out=$1 ;;
  esac
  shift
done
here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
# shellcheck source=scripts/gpu/common.sh
. scripts/gpu/common.sh
case $out in '') out=build/gpu-check ;; /*) ;; *) out=$here/$out ;; esac
gpus=${pretended:-$(gpus_seen)}
[ "$gpus" -gt 0 ] || { say "no GPU here"; exit 2; }
seconds=${seconds:-$((gpus < 2 ? 200 : 540))}
ranks=$((gpus < 2 ? 1 : 2)) # with a GPU each
failed=0 mps=''
# No more than that are used, so that more ranks share them.
[ "$gpus" -le "$ranks" ] || CUDA_VISIBLE_DEVICES=$(cut -d, -f1-"$ranks" <<< "${CUDA_VISIBLE_DEVICES:-0,1}")
[ -z "${CUDA_VISIBLE_DEVICES:-}" ] || export CUDA_VISIBLE_DEVICES
visible=${CUDA_VISIBLE_DEVICES:-}

if [ -z "$show" ]; then
  for file in bin/mkrun build/libmkernel.so build/gpu_ag_gemm build/gpu_measure build/plans/written; do
    [ -e "$file" ] || { say "$file is not there: run 'make build cuda' first"; exit 2; }
  done
  mkdir -p "$out" || exit 2
  rm -f "$out"/*.log "$out"/*.json "$out"/{gemm,ag}-*.txt "$out"/{steps.tsv,table.txt}
fi

# step SECONDS LOG COMMAND...: runs a command, its output into a log; several may share one.
step() {
  local limit=$1 log=$2 left=$((seconds - SECONDS)) begun=$SECONDS rc=0 status=ok
  shift 2
  if [ -n "$show" ]; then
    printf '%q ' "$@"
    printf '\n'
    return
  fi
  [ "$limit" -lt "$left" ] || limit=$left
  if [ "$limit" -lt 3 ]; then
    status=skipped
  else
    printf '\n$ %s\n' "$*" >> "$out/$log"
    bounded "$out/$log" "$out/$log" "$limit" "$@" || rc=$?
    case $rc in 0) ;; 124 | 137) status="cut" ;; *) status="failed" ;; esac
  fi
  [ "$status" = ok ] || failed=1
  printf '%s\t%s\t%s\t%s\n' "${log%.*}" "$status" $((SECONDS - begun)) "$*" >> "$out/steps.tsv"
}

# Ranks that share a GPU run side by side only under MPS, whose daemon lives for these runs.
begin_sharing() {
  [ -z "$show" ] || return 0
  command -v nvidia-cuda-mps-control > /dev/null || { say "there is no MPS here: ranks that share a GPU are left out"; return 1; }
  mps=$work/mps
  export CUDA_MPS_PIPE_DIRECTORY=$mps/pipe CUDA_MPS_LOG_DIRECTORY=$mps/log
  if mkdir -p "$mps/pipe" "$mps/log" && nvidia-cuda-mps-control -d; then
    # Clients count the daemon's GPUs.
    [ -z "$visible" ] || CUDA_VISIBLE_DEVICES=$(seq -s, 0 $((ranks - 1)))
    return
  fi
  say "the MPS daemon does not start: ranks that share a GPU are left out"
  failed=1
  end_sharing
  return 1
}
end_sharing() {
  [ -n "$mps" ] || return 0
  echo quit | timeout 20 nvidia-cuda-mps-control > /dev/null
  mps=''
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  [ -z "$visible" ] || CUDA_VISIBLE_DEVICES=$visible
}

check=(build/gpu_ag_gemm) # RANKS MODE CHUNKS NODES SEED LINK
launch=(bin/mkrun launch --engine cuda --check --warmup 2)
work=WORK # in listings
if [ -z "$show" ]; then
  work=$(mktemp -d) || exit 2
  trap 'end_sharing; rm -rf "$work"' EXIT
  trap 'trap "" TERM INT HUP; end_running; say "interrupted; logs in $out"; exit 1' TERM INT HUP
fi
bench=(python3 -W ignore scripts/gpu/bench.py)
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

if [ -z "$show" ]; then
  nvidia-smi --query-gpu=index,name,driver_version,power.limit,clocks.max.sm --format=csv,noheader
  nvidia-smi topo -m 2> /dev/null | head -n $((gpus + 1))
fi

# Each rank on its own GPU.
for n in $(seq 1 "$ranks"); do step 90 right.log "${check[@]}" "$n"; done
step 30 measure.log build/gpu_measure
if [ "$ranks" -gt 1 ]; then
  step 60 right.log "${check[@]}" 2 brief 3
  step 60 dead.log "${check[@]}" 2 dead
  step 60 dead.log "${check[@]}" 2 dead 16 2
  for link in cx7 efa; do step 60 nodes.log "${check[@]}" 2 brief 16 2 1 "$link"; done
  for link in cx7 efa; do step 40 fuzz.log "${check[@]}" 2 fuzz 2 2 3 "$link"; done
fi
step 60 example.log build/example_ag_gemm "$ranks" "build/plans/ag_gemm-1x$ranks-c1"
step 30 launch.log "${launch[@]}" --ppn "$ranks" --iters 20 ag_gemm --m 2048 --n 2048 --k 2048 --timeline "$work/timeline"
step 30 launch.log "${launch[@]}" --ppn "$ranks" --iters 20 ag_gemm --m 1001 --n 333 --k 520 --dtype fp16

# Ranks that share a GPU, on one node and on two emulated ones, by both kinds of links.
if begin_sharing; then
  if [ "$ranks" -lt 2 ]; then
    step 40 shared.log "${check[@]}" 2 brief
    step 40 shared.log "${check[@]}" 2 brief 3
    step 30 dead.log "${check[@]}" 2 dead
    step 30 dead.log "${check[@]}" 2 dead 16 2
    for link in cx7 efa; do step 40 shared-nodes.log "${check[@]}" 2 brief 16 2 1 "$link"; done
  fi
  step 40 shared.log "${check[@]}" 4 brief
  [ "$ranks" -lt 2 ] || step 90 shared.log "${check[@]}" 8 brief
  for link in cx7 efa; do step 60 shared-nodes.log "${check[@]}" 4 brief 2 2 1 "$link"; done
  step 30 shared-launch.log "${launch[@]}" --ppn $((2 * ranks)) --share-gpus --iters 20 ag_gemm --m 2048 --n 512 --k 2048 --timeline "$work/shared"
  step 30 shared-launch.log "${launch[@]}" --nodes 2 --ppn "$ranks" --share-gpus --iters 20 ag_gemm --m 2048 --n 512 --k 2048 --chunks 4 --net-mode cx7
  step 30 shared-launch.log "${launch[@]}" --nodes 2 --ppn 2 --share-gpus --iters 20 ag_gemm --m 1001 --n 333 --k 520 --chunks 2 --net-mode efa
  step 40 fuzz.log "${check[@]}" 2 fuzz 1 1 2
  for link in cx7 efa; do step 40 fuzz.log "${check[@]}" 4 fuzz 2 2 3 "$link"; done
  step 60 shared-nodes.log "${check[@]}" 16 brief 1 2
  end_sharing
fi
step 40 fuzz.log "${check[@]}" 1 fuzz 1 1 1

step 90 gemm-eager.txt "${bench[@]}" gemm --ranks "$ranks" --rounds 4 --json "$out/gemm-eager.json"
step 90 gemm-queued.txt "${bench[@]}" gemm --ranks "$ranks" --rounds 4 --queued 0.2 --json "$out/gemm-queued.json"
if [ "$ranks" -gt 1 ]; then
  step 120 ag-eager.txt "${bench[@]}" ag --ranks 2 --rounds 4 --configs "" "mover=sm" "mover=ce" --json "$out/ag-eager.json"
  step 120 ag-queued.txt "${bench[@]}" ag --ranks 2 --rounds 4 --queued 0.9 --configs "" "mover=sm" "mover=ce" --json "$out/ag-queued.json"
  step 90 ag-nodes.txt "${bench[@]}" ag --ranks 2 --rounds 3 --nodes 2 --net 50 --shapes 8192,4096,8192:chunks=8 8192,8192,8192:chunks=8 \
    --json "$out/ag-nodes.json"
fi
if [ -n "$show" ] || command -v compute-sanitizer > /dev/null; then
  for tool in memcheck synccheck racecheck; do step 150 "$tool.log" compute-sanitizer --tool "$tool" --error-exitcode 1 "${check[@]}" 1 quick; done
fi
[ -z "$show" ] || exit 0

grep -s -h -E "WRONG|FAILED|failed" "$out"/{gemm,ag}-*.txt && failed=1
python3 scripts/gpu/report.py "$out" > "$out/table.txt" || failed=1
head -n 60 "$out/table.txt"
say "$SECONDS s; logs in $out"
exit "$failed"
