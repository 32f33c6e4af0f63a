#!/usr/bin/env bash
# Measures the networks between two ranks, in turns: on this host tcp, emu and ofi, and the proxy alone; ibverbs beside
# perftest between two virtual machines with Soft-RoCE (scripts/rxe.sh), where nothing is as fast as hardware: only the
# ratio says something. `make bench-net` builds what it needs.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

load() { printf '\n%s processors, load %s\n' "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)"; }

load
bin/mkrun launch --nodes 2 --tag none -- build/net-bench tcp emu-cx7 emu-efa ofi:tcp
load
build/net-bench proxy
load
scripts/rxe.sh run -s 600 -p build/net-bench scripts/bench-rxe.sh
