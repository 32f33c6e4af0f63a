#!/usr/bin/env bash
# A real Slurm of several nodes on this machine, with munge. For root. Nothing of the machine's own Slurm or munge is
# touched: all is in one folder, and the daemons end with it. One at a time: the ports are fixed.
#
#   scripts/slurm.sh up DIR [N]   start nodes n1 .. nN (4) in a new folder DIR
#   scripts/slurm.sh down DIR     end all
#
# Programs find it by SLURM_CONF=DIR/slurm.conf.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
readonly CTLD_PORT=16817 FIRST_PORT=17001

die() {
  printf 'slurm: %s\n' "$*" >&2
  exit 1
}

# wait_for WHAT COMMAND...: until the command succeeds.
wait_for() {
  local what=$1 end=$((SECONDS + 120))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || die "$what does not come up; see $DIR/log"
    sleep 0.1
  done
}

nodes_idle() { [ "$(sinfo -h -N -t idle -o '%n' | wc -l)" -eq "$1" ]; }

up() {
  local n=$1 i host
  [ "$(id -u)" -eq 0 ] || die "needs root"
  for tool in slurmctld slurmd srun munged mungekey; do
    command -v "$tool" >/dev/null || die "$tool is missing: scripts/setup.sh testbed"
  done
  [ ! -e "$DIR/slurm.conf" ] || die "$DIR is in use already"
  mkdir -p "$DIR"/state "$DIR"/spool "$DIR"/log
  chmod 755 "$DIR" "$DIR/log"
  host=$(hostname -s)
  mungekey --create --keyfile="$DIR/munge.key"
  munged --force --socket="$DIR/munge.sock" --key-file="$DIR/munge.key" --pid-file="$DIR/munged.pid" \
    --log-file="$DIR/log/munged" --seed-file="$DIR/munge.seed"
  cat >"$DIR/slurm.conf" <<CONF
ClusterName=t
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$CTLD_PORT
AuthType=auth/munge
AuthInfo=socket=$DIR/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$DIR/ctld.pid
SlurmdPidFile=$DIR/slurmd-%n.pid
SlurmctldLogFile=$DIR/log/ctld
SlurmdLogFile=$DIR/log/slurmd-%n
SlurmdParameters=config_overrides
SelectType=select/linear
ReturnToService=2
CommunicationParameters=NoAddrCache
NodeName=n[1-$n] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$FIRST_PORT-$((FIRST_PORT + n - 1))] CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=p Nodes=n[1-$n] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
CONF
  export SLURM_CONF=$DIR/slurm.conf
  slurmctld -c
  for i in $(seq "$n"); do
    mkdir -p "$DIR/spool/n$i"
    slurmd -N "n$i"
  done
  wait_for "the set of $n nodes" nodes_idle "$n"
}

down() {
  local file
  for file in "$DIR"/slurmd-*.pid "$DIR"/ctld.pid "$DIR"/munged.pid; do
    if [ -s "$file" ]; then
      kill "$(cat "$file")" 2>/dev/null || true
    fi
  done
  for file in "$DIR"/slurmd-*.pid "$DIR"/ctld.pid; do
    while [ -s "$file" ] && kill -0 "$(cat "$file")" 2>/dev/null; do sleep 0.05; done
  done
  rm -rf "$DIR"
}

[ $# -ge 2 ] || die "usage: slurm.sh up|down DIR [N]"
command=$1
DIR=$(realpath -m "$2")
case $command in
  up) up "${3:-4}" ;;
  down) down ;;
  *) die "unknown command \"$command\"" ;;
esac
