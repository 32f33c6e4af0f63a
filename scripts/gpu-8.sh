#!/usr/bin/env bash
# Checks and times ag_gemm on all GPUs of this machine, 8, 4, 2 or 1 of them, and measures the links between them. Builds
# nothing and uses no network: `make build cuda` before, anywhere, and bring bin/mkrun, build/libmkernel.so, build/gpu_ag_gemm
# and build/plans along (54 MiB). The timing needs python3 with PyTorch; what cannot run is said and the rest goes on. With
# one GPU it is the product and the way to the host; scripts/gpu-check.sh does more there.
#
#   scripts/gpu-8.sh [OPTIONS] [FOLDER]   results go to FOLDER (default build/gpu-8): at most 8 files, kept up to date, so that
#                                         a run that is cut short leaves what it has
#   --ranks N          use the first N GPUs (default: 8, 4, 2 or 1, as many as there are)
#   --seconds S        for everything (default 570); parts share it in the order of their list, unused time goes to the next
#   --parts A,B        these parts only
#   --shapes "M,N,K ..."  instead of the twelve that are timed
#   --dry-run[=N]      list the parts with their seconds and commands for N GPUs (default: those here), run nothing
#   --cpu              what needs no GPU: the plans of 8 ranks (or --ranks), proved for these shapes, and executed and checked
#                      on the CPU engine at twice as many random ones
#   --root FOLDER      where bin/ and build/ are, if not beside this script
#
# Exit status: 0; 1 something failed, or a check of results took longer than it may; 2 bad command line, nothing built, no GPU. No setting of a card is changed. NVLink
# multicast is not used: the variables below keep it off in other libraries.
set -uo pipefail
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# Parts and their seconds for eight GPUs, the most important first.
readonly PARTS=(facts:15 right:60 nodes:70 speed:100 links:50 queued:85 fuzz:40 split:50 peers:40 bars:60 tune:60)
readonly SHAPES="8192,1024,8192 8192,4096,8192 8192,2048,8192 16384,1024,8192 16384,4096,8192 32768,4096,8192 4096,1024,8192 4096,4096,8192 16384,2048,8192 32768,1024,8192 4096,2048,8192 32768,2048,8192"

say() { printf 'gpu-8: %s\n' "$*" >&2; }
usage() {
  say "$*; the head of scripts/gpu-8.sh says what it takes"
  exit 2
}

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${scripts%/scripts}
# shellcheck source=scripts/gpu/common.sh
. "$scripts/gpu/common.sh"
out='' only='' pretended='' mode=run cpu='' seconds=570 ranks='' shapes=$SHAPES
number() { case $2 in '' | *[!0-9]* | 0* | ???????*) usage "$1 \"$2\": a number is wanted, from 1 to 999999 and without zeros in front" ;; esac }
while [ $# -gt 0 ]; do
  case $1 in
    --ranks | --seconds | --parts | --shapes | --root)
      [ $# -gt 1 ] || usage "$1 wants a value"
      case $1 in
        --ranks) number "$1" "$2" && ranks=$2 ;;
        --seconds) number "$1" "$2" && seconds=$2 ;;
        --parts) only=,$2, ;;
        --shapes) shapes=$2 ;;
        --root) root=$(cd "$2" && pwd) || exit 2 ;;
      esac
      shift
      ;;
    --dry-run) mode=show ;;
    --dry-run=*) mode=show pretended=${1#*=} && number --dry-run "$pretended" ;;
    --cpu) cpu=yes ;;
    -h | --help)
      sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
      exit
      ;;
    -*) usage "no such option: $1" ;;
    *) [ -z "$out" ] || usage "one folder only: $1" && out=$1 ;;
  esac
  shift
done
out=${out:-$root/build/gpu-8}
case $out in /*) ;; *) out=$PWD/$out ;; esac
cd "$root" || exit 2
[[ $only =~ ^,*$ && -n $only ]] && usage "--parts names none; there are ${PARTS[*]%:*}"
[[ $shapes == *[!' ']* ]] || usage "--shapes names none"
for shape in $shapes; do
  [[ $shape =~ ^[1-9][0-9]{0,9},[1-9][0-9]{0,9},[1-9][0-9]{0,9}$ ]] || usage "--shapes: $shape is not M,N,K"
done
for part in ${only//,/ }; do
  [[ " ${PARTS[*]} " == *" $part:"* ]] || usage "no part $part; there are ${PARTS[*]%:*}"
done

if [ -n "$cpu" ]; then
  gpus=0 ranks=${ranks:-8}
else
  gpus=${pretended:-$(gpus_seen)}
  [ "$gpus" -gt 0 ] || { say "no GPU here"; exit 2; }
  for n in 8 4 2 1; do [ -n "$ranks" ] || [ "$gpus" -lt $n ] || ranks=$n; done
  [ "$ranks" -le "$gpus" ] || usage "--ranks $ranks: there are $gpus GPUs"
fi
case $ranks in 1 | 2 | 4 | 8) ;; *) usage "--ranks $ranks: 1, 2, 4 or 8 are possible" ;; esac

if [ "$mode" != show ]; then
  [ -x bin/mkrun ] || usage "bin/mkrun is not there: run 'make build cuda' first"
  [ -n "$cpu" ] || [ -f build/libmkernel.so ] || [ -n "${MKRUN_LIB:-}" ] || usage "build/libmkernel.so is not there: run 'make build cuda' first"
  mkdir -p "$out" 2> /dev/null || usage "$out cannot be made"
  work=$(mktemp -d) || exit 2
  trap 'rm -rf "$work"' EXIT
  trap 'trap "" TERM INT HUP; end_running; collect; say "interrupted; what there is lies in $out"; exit 1' TERM INT HUP
  # Logs of a run before are not of this one.
  rm -f "$out"/{table.txt,facts.txt,parts.tsv,logs.txt,topo.json,bench.json,tuned.yaml,more.tar.gz}
else
  work=WORK # in listings
fi
failed=0 part="" part_end=0

# shown WORDS...: a command as it could be typed.
shown() {
  local word text=""
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./=,:%+-]+$ ]] || word="'$word'"
    text+="${text:+ }$word"
  done
  printf '%s\n' "${text//$work/WORK}"
}

# step LOG COMMAND...: runs a command for the part, its output into a log, for as long as the part has.
# into FILE COMMAND...: the same; what it writes to stdout is a result of its own.
step() { execute "$1" "" "${@:2}"; }
into() { execute "${1%.*}.log" "$1" "${@:2}"; }

# execute LOG FILE COMMAND... Status 3 of mkrun topo says that something is degraded, which is a result.
execute() {
  local log=$work/$1 file=$2 status limit=$((part_end - SECONDS)) begun=$SECONDS rc=0 text
  shift 2
  text=$(shown "$@")${file:+ > WORK/$file}
  if [ "$mode" = show ]; then
    printf '%s\n' "$text"
    return
  fi
  if [ "$limit" -lt 3 ]; then
    status=skipped
  else
    printf '\n$ %s\n' "$text" >> "$log"
    bounded "${file:+$work/}${file:-$log}" "$log" "$limit" "$@" || rc=$?
    case $rc in
      0) status=ok ;;
      124 | 137) # a timing that is cut leaves what it has; a check that is has shown nothing
        status="cut"
        [ "$1" != build/gpu_ag_gemm ] || failed=1
        ;;
      3) [[ "$*" == "bin/mkrun topo "* ]] && status=degraded || status=failed ;;
      *) status=failed ;;
    esac
  fi
  [ "$status" != failed ] || failed=1
  printf '%s\t%s\t%s\t%s\t%s\n' "$part" "$status" $((SECONDS - begun)) "$limit" "$text" >> "$work/parts.tsv"
}

# collect: brings what there is into the folder of results.
collect() {
  [ -f "$work/parts.tsv" ] || return 0
  cp "$work/parts.tsv" "$out/"
  local f
  for f in topo.json tuned.yaml; do [ ! -s "$work/$f" ] || cp "$work/$f" "$out/"; done
  # What the table is not made of: documents of launches, all that tune timed, timelines.
  local more=(parts.tsv)
  for f in "$work"/launch*.json "$work"/tune.jsonl "$work"/timeline-*; do [ ! -e "$f" ] || more+=("${f##*/}"); done
  tar -czf "$out/more.tar.gz" -C "$work" "${more[@]}"
  [ ! -f "$work/facts.log" ] || cp "$work/facts.log" "$out/facts.txt"
  for f in "$work"/*.log; do
    [ "$f" = "$work/facts.log" ] || { printf '\n=== %s\n' "${f##*/}" && tail -c 1500000 "$f"; }
  done > "$out/logs.txt"
  python3 -B "$scripts/gpu/summary.py" "$work" "$out" "$ranks" > "$out/table.txt" 2>> "$out/logs.txt" || failed=1
}

bench=(python3 -W ignore scripts/gpu/bench.py)
# mkrun bench and tune take shapes as MxNxK, bench.py as M,N,K.
times=${shapes//,/x}
times=${times// /,}
word() { printf '%s\n' "$shapes" | tr ' ' '\n' | sed -n "$1p"; }

part_facts() {
  step facts.log date -u '+%Y-%m-%d %H:%M UTC'
  step facts.log uname -a
  step facts.log bin/mkrun version
  step facts.log nvidia-smi --query-gpu=index,name,driver_version,power.limit,clocks.max.sm,pci.bus_id --format=csv,noheader
  step facts.log nvidia-smi topo -m
  step facts.log nvidia-smi topo -p2p rw
  step facts.log nvidia-smi nvlink -s
  step facts.log bash -c 'nvidia-smi -q | sed -n "/^GPU /p; /Fabric/,+4p"'
}

# Every kind of shape, 100 and 101 calls with ranks that are held up at random, graphs, flags that never come; a dead peer.
part_right() {
  step right.log build/gpu_ag_gemm "$ranks" brief
  [ "$ranks" -lt 2 ] || step right-dead.log build/gpu_ag_gemm "$ranks" dead
}

# Two emulated nodes, then two ranks on each node. (scripts/gpu-check.sh has those that share one GPU.)
part_nodes() {
  [ "$ranks" -gt 1 ] || return 0
  step nodes-2.log build/gpu_ag_gemm "$ranks" brief 2 2
  step nodes-2-efa.log build/gpu_ag_gemm "$ranks" brief 2 2 1 efa
  [ "$ranks" -lt 8 ] || step nodes-$((ranks / 2)).log build/gpu_ag_gemm "$ranks" brief 2 $((ranks / 2))
  into launch-nodes.json bin/mkrun launch --nodes 2 --ppn $((ranks / 2)) --engine cuda --check --iters 20 --warmup 2 --json \
    ag_gemm --m 2048 --n 1024 --k 2048 --chunks 4 --net-bandwidth 50 --net-latency 2us
  step nodes-speed.log "${bench[@]}" ag --ranks "$ranks" --nodes 2 --net 50 --rounds 2 --vs nccl --shapes "8192,4096,8192:chunks=4" \
    --json "$work/bench-nodes.json"
}

# timed LOG QUEUED: all shapes beside NCCL + cuBLAS and async-TP, with the product alone.
timed() {
  local vs=(nccl asynctp) configs=("" "mover=sm" "mover=ce" "mover=ce k_block=8192")
  local words
  read -ra words <<< "$shapes"
  [ "$ranks" -gt 1 ] || { timed_alone "$@" && return; }
  step "$1.log" "${bench[@]}" ag --ranks "$ranks" --rounds 3 --queued "$2" --seconds $((part_end - SECONDS - 15)) --vs "${vs[@]}" \
    --configs "${configs[@]}" --shapes "${words[@]}" --json "$work/bench-$1.json"
}
# One GPU has nothing to gather: the product against cuBLAS.
timed_alone() {
  step "$1.log" "${bench[@]}" gemm --ranks 1 --rounds 3 --queued "$2" --seconds $((part_end - SECONDS - 15)) --json "$work/bench-$1.json"
}

# Bandwidth and latency of all pairs, SMs that push to 1, 3 and 7 peers at once, the way over the CPU, the state of the fabric.
part_links() {
  into topo.json bin/mkrun topo --measure --check --json
  step links.log bin/mkrun topo --from "$work/topo.json" --check --color never
  into launch.json bin/mkrun launch --ppn "$ranks" --engine cuda --check --iters 40 --warmup 2 --json ag_gemm --m 2048 --n 2048 --k 2048
}

part_fuzz() {
  step fuzz-1.log build/gpu_ag_gemm "$ranks" fuzz 1 1 1
  [ "$ranks" -lt 2 ] || step fuzz-3-chunks.log build/gpu_ag_gemm "$ranks" fuzz 3 1 2
  [ "$ranks" -lt 2 ] || step fuzz-nodes.log build/gpu_ag_gemm "$ranks" fuzz 2 2 3
  [ "$ranks" -lt 2 ] || step fuzz-nodes-efa.log build/gpu_ag_gemm "$ranks" fuzz 2 2 3 efa
}

# The split of the SMs and the mover, each setting in one loop with the others; one GPU has the product's settings alone.
part_split() {
  if [ "$ranks" -eq 1 ]; then
    step split.log "${bench[@]}" gemm --ranks 1 --rounds 2 --queued 0.2 --seconds $((part_end - SECONDS - 15)) --shapes "$(word 1)" "$(word 2)" 2048,2048,2048 \
      --configs "" "tile_n=128,256 cluster=1,2" "raster_group=4,8,16,32" "ctas=128,124" --json "$work/bench-split.json"
    return
  fi
  step split.log "${bench[@]}" ag --ranks "$ranks" --rounds 2 --queued 0.9 --seconds $((part_end - SECONDS - 15)) --vs \
    --configs "mover=sm push_ctas=8,16,33,66,99,132" "mover=ce k_block=512,1024,2048,4096,8192" "mover=ce cluster=1" \
    --shapes "$(word 1)" "$(word 2)" "$(word 3)" --json "$work/bench-split.json"
}

# The movers with next to no product beside them, to 1, 3 and 7 peers: eight columns.
part_peers() {
  [ "$ranks" -gt 1 ] || return 0
  local n first
  IFS=, read -ra first <<< "$(word 1)"
  for n in 8 4 2; do
    [ "$n" -gt "$ranks" ] ||
      step "peers-$n.log" "${bench[@]}" ag --ranks "$n" --rounds 2 --queued 0.9 --vs nccl --shapes "${first[0]},8,${first[2]}" \
        --configs "mover=sm push_ctas=8,16,33,66,132" "mover=ce k_block=512,8192" --json "$work/bench-peers-$n.json"
  done
}

# What docs/results.md wants tried on two GPUs where the measured times miss their bars.
part_bars() {
  [ "$ranks" -eq 2 ] || return 0
  local loop=(--ranks 2 --rounds 2 --queued 0.9 --vs)
  step bars-gemm.log "${bench[@]}" gemm --ranks 2 --rounds 2 --queued 0.2 --shapes 8192,4096,8192 2048,2048,2048 4096,4096,4096 \
    --configs "" "ctas=128,124,120" "ctas=128 cluster=1,2 raster_group=8,32" --json "$work/bench-bars-gemm.json"
  step bars-wide.log "${bench[@]}" ag "${loop[@]}" --shapes 8192,1024,8192 --configs "" "mover=ce k_block=256,512,1024 cluster=1,2" "mover=ce ctas=128" \
    "mover=sm push_ctas=132 push_group=1,4,8,32" --json "$work/bench-bars-wide.json"
  # 64 tiles of 128 columns at 256 rows: no more parts of K than two have a CTA.
  step bars-few.log "${bench[@]}" ag "${loop[@]}" --shapes 256,4096,8192 16,4096,8192 --configs "" "mover=sm tile_n=128 cluster=1 split_k=1,2" \
    "mover=sm push_ctas=16,33,66,132" --json "$work/bench-bars-few.json"
  # Inside a call: copies by copy engine, pushes by SMs, few rows.
  local m n k
  for shape in 8192,1024,8192 2048,2048,2048 256,4096,8192; do
    IFS=, read -r m n k <<< "$shape"
    step bars-timeline.log bin/mkrun launch --ppn 2 --engine cuda --iters 20 --warmup 2 ag_gemm --m "$m" --n "$n" --k "$k" --timeline "$work/timeline-$m"
  done
  step bars-long.log "${bench[@]}" ag "${loop[@]}" --shapes 32768,4096,8192 --configs "" "mover=ce ctas=128,124" "mover=ce raster_group=8,32" \
    --json "$work/bench-bars-long.json"
}

# Entries for configs/ag_gemm.yaml.
part_tune() {
  [ "$ranks" -gt 1 ] || return 0
  step tune.log bin/mkrun tune --ppn "$ranks" --engine cuda --iters 10 --budget 24 --check=false --results "$work/tune.jsonl" --write "$work/tuned.yaml" \
    ag_gemm --shapes "$times"
}

# 1 x 8, 2 x 4 and 4 x 2 ranks on the CPU engine: the plans are proved, simulated, executed and checked; then random shapes.
part_cpu() {
  local world nodes ppn shape m n k chunks all i random=20261130 drawn seen=';'
  all=$(wc -w <<< "$shapes")
  draw() { random=$(((random * 1103515245 + 12345) % 2147483648)) && drawn=$((1 + random / 65536 % $1)); }
  for world in "1 $ranks" "2 $((ranks / 2))" "$((ranks / 2)) 2"; do
    [[ $world != *" 0" && $world != "0 "* && $seen != *";$world;"* ]] || continue
    seen+="$world;"
    read -r nodes ppn <<< "$world"
    for shape in ${shapes}; do
      IFS=, read -r m n k <<< "$shape"
      step cpu-plans.log bin/mkrun plan --nodes "$nodes" --ppn "$ppn" ag_gemm --m "$m" --n "$n" --k "$k"
    done
    for ((i = 1; i <= 2 * all; ++i)); do
      draw 700 && m=$drawn && draw 200 && n=$drawn && draw 40 && k=$((8 * drawn)) && draw 3 && chunks=$drawn
      [ "$i" -gt 1 ] || { m=1024 n=256 k=512 chunks=2; }
      step cpu.log bin/mkrun launch --nodes "$nodes" --ppn "$ppn" --engine cpu --check --iters 2 ag_gemm --m "$m" --n "$n" --k "$k" --chunks "$chunks"
    done
  done
}

total=0 planned=0
parts=("${PARTS[@]}")
[ -z "$cpu" ] || parts=("cpu:$seconds") only=''
for entry in "${parts[@]}"; do total=$((total + ${entry#*:})); done
SECONDS=0
for entry in "${parts[@]}"; do
  part=${entry%:*}
  planned=$((planned + ${entry#*:}))
  [ -z "$only" ] || [[ $only == *,"$part",* ]] || continue
  # What parts before left over is this one's, too.
  part_end=$((planned * seconds / total))
  [ -z "$only" ] || part_end=$seconds
  if [ "$mode" = show ]; then
    printf '# %s: until second %d\n' "$part" "$part_end"
    SECONDS=0
  fi
  case $part in
    facts) part_facts ;;
    right) part_right ;;
    nodes) part_nodes ;;
    speed) timed speed 0 ;;
    links) part_links ;;
    queued) timed queued 0.9 ;;
    fuzz) part_fuzz ;;
    split) part_split ;;
    peers) part_peers ;;
    bars) part_bars ;;
    tune) part_tune ;;
    cpu) part_cpu ;;
  esac
  [ "$mode" = show ] || collect
done
[ "$mode" != show ] || exit 0

if [ -n "$cpu" ]; then
  awk -F'\t' '{ n[$2]++ } END { for (s in n) printf "%s %d\n", s, n[s] }' "$work/parts.tsv"
  awk -F'\t' '$2 != "ok"' "$work/parts.tsv"
else
  head -n 80 "$out/table.txt"
fi
say "$SECONDS s; results in $out"
exit "$failed"
