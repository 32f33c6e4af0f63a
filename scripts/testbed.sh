#!/usr/bin/env bash
# Several hosts on this machine: network namespaces on a bridge, each with its own address, host name and sshd. For
# root. Nothing of the user's ssh is touched: keys and configuration are in the test bed's folder.
#
#   scripts/testbed.sh up DIR [N]          make hosts h1 .. hN (4) in a new folder DIR; h1 is where to launch from
#   scripts/testbed.sh down DIR            take everything away
#   scripts/testbed.sh exec DIR HOST CMD.. run a command on a host
#   scripts/testbed.sh pids DIR HOST       list the processes on a host, sshd included
#   scripts/testbed.sh cut DIR HOST        pull the host's cable
#   scripts/testbed.sh heal DIR HOST       plug it in again, let its packets through and its sshd run
#   scripts/testbed.sh udp-block DIR HOST  drop all UDP to the host, but for a local process
#   scripts/testbed.sh drop-in DIR HOST    no host can connect to this one, as behind NAT
#   scripts/testbed.sh slow DIR HOST RATE  limit what the host sends, e.g. 1mbit
#   scripts/testbed.sh only-ports DIR HOST FIRST-LAST   let nothing in but ssh and these ports
#   scripts/testbed.sh drop-port DIR HOST PORT   drop what comes over TCP to a port, of connections that stand too
#   scripts/testbed.sh no-ipv4 DIR HOST    take the host's IPv4 address away
#   scripts/testbed.sh drop-ssh DIR HOST   drop all packets to the host's sshd: connections hang
#   scripts/testbed.sh stop-sshd DIR HOST  no sshd: connections are refused
#
# GORACE, for programs built with Go's race detector, is the same on all hosts as it was here when they were made.
# DIR/HOST/bin is in the PATH of commands that come over ssh; DIR/HOST/home is their HOME. DIR/disk is another folder on
# each host (DIR/HOST/disk, seen from outside); all else is shared. DIR/ssh_config is for `ssh -F`.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -euo pipefail
readonly CALLER_PATH=$PATH
PATH=$PATH:/usr/sbin:/sbin

readonly NET=10.77.23 NET6=fd77:23: # hosts are .1 to .N, and :1 to :N
readonly SSHD=/usr/sbin/sshd

die() {
  printf 'testbed: %s\n' "$*" >&2
  exit 1
}

# ns HOST: the host's namespace. The folder's tag keeps test beds apart.
ns() { printf 'mkrun-%s-%s' "$TAG" "$1"; }

# on HOST CMD...: runs a command with the host's network, name, /etc/hosts and disk.
on() {
  local host=$1
  shift
  # shellcheck disable=SC2016 # expanded by the inner shell
  exec ip netns exec "$(ns "$host")" unshare --uts sh -c \
    'hostname "$1" && mount --bind "$2/hosts" /etc/hosts && mount --bind "$2/$1/disk" "$2/disk" && PATH=$3 && shift 3 && exec "$@"' \
    sh "$host" "$DIR" "$CALLER_PATH" "$@"
}

start_sshd() {
  mkdir -p /run/sshd
  (on "$1" "$SSHD" -f "$DIR/$1/sshd_config" -E "$DIR/$1/sshd.log")
}

stop_sshd() {
  local pidfile=$DIR/$1/sshd.pid
  if [ -s "$pidfile" ]; then
    kill "$(cat "$pidfile")" 2>/dev/null || true
    rm -f "$pidfile"
  fi
}

up() {
  local n=$1 i host bridge
  [ "$(id -u)" -eq 0 ] || die "needs root"
  for tool in ip nft ssh ssh-keygen unshare "$SSHD"; do
    command -v "$tool" >/dev/null || die "$tool is missing: scripts/setup.sh testbed"
  done
  mkdir -p "$DIR/disk"
  [ ! -e "$DIR/tag" ] || die "$DIR is a test bed already"
  printf '%s' "$TAG" >"$DIR/tag"
  printf '%s' "$n" >"$DIR/count"
  ssh-keygen -q -t ed25519 -N '' -C testbed -f "$DIR/key"
  printf '127.0.0.1 localhost\n' >"$DIR/hosts"
  cat >"$DIR/ssh_config" <<CONF
Host *
  User root
  IdentityFile $DIR/key
  IdentitiesOnly yes
  UserKnownHostsFile $DIR/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  KexAlgorithms curve25519-sha256
CONF
  : >"$DIR/known_hosts"
  bridge=mk$TAG
  ip netns add "$(ns switch)" # the bridge has a namespace of its own: this machine's network stays as it is
  ip -n "$(ns switch)" link add "$bridge" type bridge
  ip -n "$(ns switch)" link set "$bridge" up
  for i in $(seq "$n"); do
    host=h$i
    mkdir -p "$DIR/$host/bin" "$DIR/$host/home" "$DIR/$host/disk"
    printf '%s %s\n' "$NET.$i" "$host" >>"$DIR/hosts"
    ssh-keygen -q -t ed25519 -N '' -C "$host" -f "$DIR/$host/host_key"
    printf '%s,%s,%s %s\n' "$host" "$NET.$i" "$NET6:$i" "$(cut -d' ' -f1,2 "$DIR/$host/host_key.pub")" >>"$DIR/known_hosts"
    ip netns add "$(ns "$host")"
    ip -n "$(ns switch)" link add "v$i" type veth peer name eth0 netns "$(ns "$host")"
    ip -n "$(ns switch)" link set "v$i" master "$bridge" up
    ip -n "$(ns "$host")" link set lo up
    ip -n "$(ns "$host")" addr add "$NET.$i/24" dev eth0
    ip -n "$(ns "$host")" addr add "$NET6:$i/64" dev eth0 nodad
    ip -n "$(ns "$host")" link set eth0 up
    # As on many real hosts: a bridge of containers with the same address everywhere.
    ip -n "$(ns "$host")" link add docker0 type bridge
    ip -n "$(ns "$host")" addr add 172.17.0.1/16 dev docker0
    ip -n "$(ns "$host")" link set docker0 up
    cat >"$DIR/$host/sshd_config" <<CONF
ListenAddress $NET.$i
ListenAddress $NET6:$i
HostKey $DIR/$host/host_key
AuthorizedKeysFile $DIR/key.pub
PidFile $DIR/$host/sshd.pid
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
PrintMotd no
SetEnv PATH=$DIR/$host/bin:/usr/local/bin:/usr/bin:/bin HOME=$DIR/$host/home "GORACE=${GORACE:-}"
CONF
  done
  for i in $(seq "$n"); do
    start_sshd "h$i"
  done
}

down() {
  local i pid
  for i in $(seq "$(cat "$DIR/count")"); do
    stop_sshd "h$i"
    # Whatever still runs on the host goes with it.
    for pid in $(ip netns pids "$(ns "h$i")" 2>/dev/null); do
      kill -9 "$pid" 2>/dev/null || true
    done
    ip netns del "$(ns "h$i")" 2>/dev/null || true
  done
  ip netns del "$(ns switch)" 2>/dev/null || true
  rm -rf "$DIR"
}

# drop HOST RULE...: an nft rule for incoming packets.
drop() {
  local host=$1
  shift
  ip netns exec "$(ns "$host")" nft "add table inet mkrun; add chain inet mkrun in { type filter hook input priority 0; }; add rule inet mkrun in iifname eth0 $* drop"
}

heal() {
  ip -n "$(ns switch)" link set "v${1#h}" up
  ip netns exec "$(ns "$1")" nft flush ruleset
  ip -n "$(ns "$1")" addr replace "$NET.${1#h}/24" dev eth0
  ip netns exec "$(ns "$1")" tc qdisc del dev eth0 root 2>/dev/null || true
  [ -s "$DIR/$1/sshd.pid" ] || start_sshd "$1"
}

[ $# -ge 2 ] || die "usage: testbed.sh up|down|exec|pids|cut|heal|udp-block|drop-in|only-ports|drop-port|no-ipv4|slow|drop-ssh|stop-sshd DIR [HOST] ..."
command=$1
DIR=$(realpath -m "$2")
shift 2
if [ "$command" = up ]; then
  TAG=$(printf '%04x' $((RANDOM * RANDOM % 65536)))
else
  [ -e "$DIR/tag" ] || die "$DIR is no test bed"
  TAG=$(cat "$DIR/tag")
fi
case $command in
  up) up "${1:-4}" ;;
  down) down ;;
  exec) on "$@" ;;
  pids) ip netns pids "$(ns "$1")" ;;
  cut) ip -n "$(ns switch)" link set "v${1#h}" down ;;
  heal) heal "$1" ;;
  udp-block) drop "$1" meta l4proto udp ;;
  drop-in) drop "$1" ct state new meta l4proto tcp ;;
  only-ports)
    drop "$1" ct state new meta l4proto tcp tcp dport != "{ 22, $2 }"
    ip netns exec "$(ns "$1")" nft "add rule inet mkrun in iifname eth0 meta l4proto udp udp dport != $2 drop"
    ;;
  drop-port) drop "$1" tcp dport "$2" ;;
  no-ipv4) ip -n "$(ns "$1")" addr del "$NET.${1#h}/24" dev eth0 ;;
  slow) ip netns exec "$(ns "$1")" tc qdisc replace dev eth0 root tbf rate "$2" burst 16kb latency 400ms ;;
  drop-ssh) drop "$1" tcp dport 22 ;;
  stop-sshd) stop_sshd "$1" ;;
  *) die "unknown command \"$command\"" ;;
esac
